"""What a fit minimises: a weighted sum over runs of a penalty on the residual of the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

RESIDUALS: dict[str, Callable[[Any, Any], Any]] = {
    "log": lambda predicted, observed: jnp.log(predicted) - jnp.log(observed),
    "nats": lambda predicted, observed: predicted - observed,
}
"""How a prediction misses: in log loss, where a fault of 1 % weighs the same at every loss, or in nats per token."""


@dataclass(frozen=True)
class Huber:
    """Quadratic up to ``delta``, linear beyond: r²/2 or delta·(|r| - delta/2). Hoffmann et al. (2022), Eq. 3.

    The **sum** over runs is minimised: a mean is so small that a minimiser's default tolerance stops it at the start.
    """

    delta: float = 1e-3
    residual: str = "log"

    def __call__(self, predicted: Any, observed: Any) -> Any:
        return self.of_residual(RESIDUALS[self.residual](predicted, observed))

    def of_residual(self, residual: Any) -> Any:
        """The penalty of a residual in its unit."""
        size = jnp.abs(residual)
        return jnp.where(size < self.delta, 0.5 * size**2, self.delta * (size - 0.5 * self.delta))


@dataclass(frozen=True)
class Squared:
    """r², so that the mean over runs is the mean squared error."""

    residual: str = "log"

    def __call__(self, predicted: Any, observed: Any) -> Any:
        return self.of_residual(RESIDUALS[self.residual](predicted, observed))

    def of_residual(self, residual: Any) -> Any:
        """The penalty of a residual in its unit."""
        return residual**2


Penalty = Huber | Squared
PENALTIES: dict[str, type[Penalty]] = {"huber": Huber, "squared": Squared}
