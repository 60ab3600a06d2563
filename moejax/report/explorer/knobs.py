"""What can be turned: the coordinates of a design, with the ends and steps of their sliders."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from moejax.design.coordinates import (
    ACTIVE_EXPERTS,
    EXPANSION,
    EXPERT_EXPANSION,
    FLOPS,
    GRANULARITY,
    PARAMS_ACTIVE,
    SHARED_SHARE,
    TOKENS,
    UNIQUE_TOKENS,
    Coordinate,
)

PER_DECADE = 20
PER_UNIT = 50


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One slider."""

    coordinate: Coordinate
    words: str
    letters: str
    """What the papers call it."""
    low: float
    high: float
    limit: bool = False
    """Whether there may be none: the slider's last step is infinite."""

    @property
    def most(self) -> float:
        """The largest value."""
        return math.inf if self.limit else self.high

    @property
    def name(self) -> str:
        """Of the coordinate."""
        return self.coordinate.name

    @property
    def grid(self) -> list[float]:
        """The slider's steps, of two digits where they are sizes."""
        if self.coordinate.linear:
            return np.linspace(self.low, self.high, round((self.high - self.low) * PER_UNIT) + 1).round(4).tolist()
        count = round(np.log10(self.high / self.low) * PER_DECADE) + 1
        return sorted({float(f"{value:.2g}") for value in np.geomspace(self.low, self.high, count)})

    def steps(self, value: float) -> tuple[list[float], int]:
        """The grid with one more step at ``value``, which stays exact, and the number of that step."""
        kept = min(max(value, self.low), self.most)
        steps = sorted({*self.grid, self.most, kept})
        return steps, steps.index(kept)

    def line(self, count: int) -> np.ndarray:
        """Values from end to end, as evenly as the coordinate is searched."""
        return (np.linspace if self.coordinate.linear else np.geomspace)(self.low, self.high, count)


KNOBS = {
    knob.name: knob
    for knob in (
        Knob(coordinate=PARAMS_ACTIVE, words="active parameters", letters="N_act", low=1e4, high=1e13),
        Knob(coordinate=EXPANSION, words="total / active parameters", letters="N/N_act", low=1.0, high=200.0),
        Knob(coordinate=EXPERT_EXPANSION, words="experts per active one", letters="E", low=1.0, high=1000.0),
        Knob(coordinate=ACTIVE_EXPERTS, words="active experts", letters="G of Zhao", low=1.0, high=64.0),
        Knob(coordinate=SHARED_SHARE, words="shared share of them", letters="S", low=0.0, high=0.9),
        Knob(coordinate=GRANULARITY, words="granularity", letters="G of Tian", low=0.25, high=64.0),
        Knob(coordinate=FLOPS, words="training FLOPs", letters="C", low=1e12, high=1e28),
        Knob(coordinate=TOKENS, words="training tokens", letters="D", low=1e5, high=1e17),
        Knob(coordinate=UNIQUE_TOKENS, words="unique tokens", letters="U_D", low=1e5, high=1e15, limit=True),
    )
}
"""Every slider by the name of its coordinate, in the order of the page."""

STRUCTURE = ("params_active", "expansion", "expert_expansion", "active_experts", "shared_share", "granularity")
"""What a model is, whatever it is trained on."""
