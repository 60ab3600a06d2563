"""Extract one score, and its error, from the results of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moejax.errors import UserError

SHARES = ("acc_norm", "acc", "exact_match", "em", "contains")
"""Metrics of the harness that are shares of the documents, in the order of preference if a task names none."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score of a model in a task."""

    metric: str
    """Name of the metric in the harness, with its filter."""
    score: float
    """Score in percent if the metric is a share of the documents, else the value of the harness."""
    deviation: float | None
    """Standard error of the score, if known."""
    error: float | None
    """100 % minus the score if it is a share; the score itself if lower is better; else None."""


def score_of(results: Mapping[str, Any], better: Mapping[str, bool], task: str, metric: str = "") -> Score:
    """Return a task's score by ``metric``, or else by its first metric that is a share, or else by its first metric.

    Args:
      results: results of the harness for the task, ``{"acc,none": 0.3, "acc_stderr,none": 0.01}``.
      better: whether higher is better, by metric without filter.

    Raises:
      UserError: the task has no such metric, or none at all.
    """
    known = [name for name, value in results.items() if _is_metric(name) and _is_number(value)]
    shares = [name for share in SHARES for name in known if name.partition(",")[0] == share]
    chosen = metric if metric else next(iter([*shares, *known]), "")
    if chosen not in known:
        raise UserError(
            f"Task {task} has no score {metric or 'that is a number'}; it has {', '.join(known) or 'none'}. Leave it "
            f"out, or name another metric in its task file."
        )
    name, _, filtered = chosen.partition(",")
    value, error = float(results[chosen]), results.get(f"{name}_stderr,{filtered}")
    scale = 100.0 if name in SHARES else 1.0
    lacks = 100.0 - 100.0 * value if name in SHARES else value if better.get(name) is False else None
    return Score(
        metric=chosen,
        score=scale * value,
        deviation=scale * float(error) if _is_number(error) else None,  # type: ignore[arg-type]
        error=lacks,
    )


def _is_metric(name: str) -> bool:
    return "," in name and not name.partition(",")[0].endswith("_stderr")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
