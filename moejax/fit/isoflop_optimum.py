"""Where a curve through runs is lowest; an end of what was trained is never an optimum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from moejax.interval import interval

AT_AN_END = 1e-6
"""Share of the width, in logarithms, within which a lowest point is the end."""

FLAT = 2
"""Beside the ends -1 and 1: the surface does not vary along the slice, or the slice is one point."""
SIZE_ENDS: dict[int, str] = {
    -1: "the loss rises from {low:.3g} on, the smallest size reached",
    1: "the loss falls up to {high:.3g}, the largest size reached",
    FLAT: "the surface does not vary between sizes of {low:.3g} and {high:.3g}",
}
"""Why there is no best size where the lowest loss is at the lower end of the sizes, the upper one, or everywhere."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The value of one factor at which the loss is lowest, the others held; None where there is no such value."""

    flops: float
    held: dict[str, float]
    """What is held, by name."""
    value: float | None = None
    low: float = float("nan")
    high: float = float("nan")
    """Ends of the value's interval."""
    determined: bool = False
    """Whether the runs determine the value: its interval is narrow enough, and few resamples lack one."""
    loss: float | None = None
    """Nats per token at the value."""
    why: str = ""
    """Why there is no value; empty where there is one."""

    def __str__(self) -> str:
        if self.value is None:
            return "none"
        return f"{self.value:.4g} [{self.low:.3g}, {self.high:.3g}]" + ("" if self.determined else " ?")

    def to_json(self) -> dict[str, Any]:
        """As plain data; what is not a number is null."""
        ends = {name: finite(getattr(self, name)) for name in ("low", "high")}
        known = {"value": self.value, **ends, "determined": self.determined, "loss": self.loss, "why": self.why}
        return {"flops": self.flops, **self.held, **known}


def optimum_of(
    flops: float,
    held: dict[str, float],
    values: Float[np.ndarray, " fits"],
    losses: Float[np.ndarray, " fits"],
    inside: Bool[np.ndarray, " fits"],
    why: str,
    level: float,
) -> Optimum:
    """The optimum of the fit to every run, which comes first, with the interval of the fits to resamples.

    Args:
      inside: where the loss is lowest between the ends.
      why: why the fit to every run has no optimum; empty if it has one.
    """
    if why:
        return Optimum(flops=flops, held=held, why=why)
    ends = interval(np.where(inside & np.isfinite(losses), values, np.nan)[1:], level)
    return Optimum(
        flops=flops,
        held=held,
        value=float(values[0]),
        low=ends.low,
        high=ends.high,
        determined=not ends.says_nothing,
        loss=float(losses[0]),
    )


def finite(value: float) -> float | None:
    """A number for JSON."""
    return float(value) if np.isfinite(value) else None


def end(logs: Any, low: Any, high: Any) -> Any:
    """-1 where a lowest point between two logarithms is the lower end, 1 where it is the upper, 0 between them."""
    margin = AT_AN_END * (high - low)
    return np.where(logs <= low + margin, -1, np.where(logs >= high - margin, 1, 0))
