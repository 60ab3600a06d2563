"""A run as a tracker keeps it: what each file here reads, and ``source`` makes a table of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

History = Mapping[str, Mapping[int, float]]
"""Metrics by name, of each the value at a step."""


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
