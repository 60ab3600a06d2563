"""Define a run of an experiment tracker, in the form that all trackers' modules return."""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moejax.errors import UserError
from moejax.wording import install_command


def library(name: str, what: str, extra: str) -> Any:
    """Import a tracker's library.

    Raises:
      UserError: the library is not installed.
    """
    if importlib.util.find_spec(name) is None:
        raise UserError(f"{what} need {name}, which is not installed. Run {install_command(extra)}.")
    return importlib.import_module(name)


@dataclass(frozen=True)
class History:
    """Metrics of a run by name and step."""

    name: str
    metrics: Mapping[str, Mapping[int, float]]
    note: str = ""
    """Remark on the run."""


def by_step(points: Iterable[tuple[str, int, float]]) -> tuple[dict[str, dict[int, float]], int]:
    """Return metrics by step from points in the order of writing, and the number of discarded points.

    If a run resumes from an earlier step, the points that it has already written from this step on are discarded.
    """
    metrics: dict[str, dict[int, float]] = {}
    last: dict[str, int] = {}
    discarded = 0
    for name, step, value in points:
        own = metrics.setdefault(name, {})
        if step < last.get(name, step):
            for other in [one for one in own if one >= step]:
                del own[other]
                discarded += 1
        own[step], last[name] = value, step
    return metrics, discarded


def resumed_note(discarded: int) -> str:
    """Return a remark on discarded points; empty if there are none."""
    return f"it resumed from an earlier step; {discarded:,} earlier points are left out" if discarded else ""


@dataclass(frozen=True)
class TrackedRun:
    """A run of an experiment tracker."""

    name: str
    settings: Mapping[str, Any]
    """Settings of the run: parameters, config, hyperparameters; may be nested."""
    metrics: Mapping[str, Any]
    """Last value of each metric."""
    about: Mapping[str, str]
    """Id, experiment and status, if the tracker has them."""
    finished: bool = True
    """True if the tracker reports that the run finished successfully."""
