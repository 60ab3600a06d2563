"""A run as a tracker keeps it: what each file here reads, and ``source`` makes a table of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class History:
    """A run's metrics by name, of each the value at a step."""

    name: str
    metrics: Mapping[str, Mapping[int, float]]
    note: str = ""
    """What is to be known of it."""


def by_step(points: Iterable[tuple[str, int, float]]) -> tuple[dict[str, dict[int, float]], int]:
    """Metrics by step from points in the order in which they were written, and how many were taken back.

    A run that goes on from an earlier step writes its steps again: what it had written from there on is no part of it.
    """
    found: dict[str, dict[int, float]] = {}
    last: dict[str, int] = {}
    again = 0
    for name, step, value in points:
        own = found.setdefault(name, {})
        if step < last.get(name, step):
            for other in [one for one in own if one >= step]:
                del own[other]
                again += 1
        own[step], last[name] = value, step
    return found, again


def taken_back(again: int) -> str:
    """That points were taken back, in words; empty if none was."""
    if not again:
        return ""
    return f"it went on from an earlier step, and {again:,} points that it had written from there on are left out"


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker keeps it."""

    name: str
    settings: Mapping[str, Any]
    """What was set before it: parameters, config, hyperparameters; may be nested."""
    metrics: Mapping[str, Any]
    """The last value of each metric."""
    about: Mapping[str, str]
    """Its id, experiment and status, as far as the tracker has them."""
    finished: bool = True
    """Whether the tracker says that it ended well."""
