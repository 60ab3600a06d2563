"""Where a curve through runs is lowest; an end of what was trained is never an optimum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

AT_AN_END = 1e-6
"""Share of the width, in logarithms, within which a lowest point is the end."""


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


def finite(value: float) -> float | None:
    """A number for JSON."""
    return float(value) if np.isfinite(value) else None


def end(logs: Any, low: Any, high: Any) -> Any:
    """-1 where a lowest point between two logarithms is the lower end, 1 where it is the upper, 0 between them."""
    margin = AT_AN_END * (high - low)
    return np.where(logs <= low + margin, -1, np.where(logs >= high - margin, 1, 0))
