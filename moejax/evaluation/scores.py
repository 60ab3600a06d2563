"""One score of what a task found of a model, and the error that goes with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moejax.errors import UserError

SHARES = ("acc_norm", "acc", "exact_match", "em", "contains")
"""The harness's metrics that are shares of the documents, in the order in which a task without a named one is read."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a model scores in a task."""

    metric: str
    """The harness's name, with its filter."""
    score: float
    """In per cent if the metric is a share of the documents, else as the harness has it."""
    deviation: float | None
    """Its standard error, where there is one."""
    error: float | None
    """What it lacks to 100 % if it is a share; the score itself if less is better; else None."""


def score_of(results: Mapping[str, Any], better: Mapping[str, bool], task: str, metric: str = "") -> Score:
    """A task's score by ``metric``, or else by its first metric that is a share, or else by its first.

    Args:
      results: what the harness has of the task, ``{"acc,none": 0.3, "acc_stderr,none": 0.01}``.
      better: whether more is better, by metric without filter.

    Raises:
      UserError: it has no such metric, or none.
    """
    known = [name for name, value in results.items() if _is_metric(name) and _is_number(value)]
    if not (found := metric if metric in known else "") and not metric:
        ordered = [name for share in SHARES for name in known if name.partition(",")[0] == share]
        found = next(iter([*ordered, *known]), "")
    if not found:
        raise UserError(
            f"Task {task} has no score {metric or 'that is a number'}; it has {', '.join(known) or 'none'}. Leave it "
            f"out, or name another metric in its task file."
        )
    name, _, filtered = found.partition(",")
    value, error = float(results[found]), results.get(f"{name}_stderr,{filtered}")
    scale = 100.0 if name in SHARES else 1.0
    lacks = 100.0 - 100.0 * value if name in SHARES else value if better.get(name) is False else None
    return Score(
        metric=found,
        score=scale * value,
        deviation=scale * float(error) if _is_number(error) else None,  # type: ignore[arg-type]
        error=lacks,
    )


def _is_metric(name: str) -> bool:
    return "," in name and not name.partition(",")[0].endswith("_stderr")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
