"""From which weights a training starts, when not from random ones."""

from __future__ import annotations

from dataclasses import dataclass

from moejax.errors import UserError


@dataclass(frozen=True, kw_only=True)
class InitialWeights:
    """Weights of another model. Optimiser, schedule, data and step start anew."""

    source: str = ""
    """A folder of weights (``moejax convert``), a training's folder, or a checkpoint in one; empty for random weights.
    A dense model may start a mixture: ``moejax.train.upcycle`` says how."""
    noise: float = 0.0
    """Upcycling: standard deviation of what is added to the experts' copies, as a share of each matrix's own."""

    def check(self) -> None:
        """Raise ``UserError`` with value, rule and remedy if a choice makes no sense."""
        if self.noise < 0:
            raise UserError(f"initial_weights.noise is {self.noise}; give a share of at least 0.")
        if self.noise and not self.source:
            raise UserError("initial_weights.noise is set without initial_weights.source; there is nothing to add to.")
