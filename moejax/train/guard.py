"""Steps that would spoil a training: found before they are taken, skipped, counted, and too many are the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from moejax.config import check_fields
from moejax.errors import UserError
from moejax.pytree import pytree
from moejax.ranges import Scale, Steps


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Which steps are not taken, and how many may follow each other."""

    spike: Scale = 0.0
    """A gradient norm this many times its running mean is not taken; 0 skips only what is not a number."""
    patience: Steps = 5
    """Skipped steps in a row after which a training stops, in the state before the first of them. They are looked at
    wherever a line is logged."""

    def check(self) -> None:
        """Raise ``UserError`` with value, rule and remedy if a choice makes no sense."""
        check_fields(self, "guard")
        if self.spike and not self.spike > 1:
            raise UserError(f"guard.spike is {self.spike}; give a multiple above 1, or 0 to skip no spikes.")


@pytree
@dataclass(frozen=True, kw_only=True)
class Guard:
    """What a guard remembers."""

    skipped: Any
    """Int32: steps not taken so far."""
    in_a_row: Any
    """Int32: how many of them were the last ones."""
    taken: Any
    """Int32: steps taken."""
    mean_norm: Any
    """Float32: running mean of the gradient norm over steps taken."""

    def accepts(self, config: GuardConfig, loss: Float[Array, ""], norm: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether a step may be taken."""
        fine = jnp.isfinite(loss) & jnp.isfinite(norm)
        if config.spike:
            fine = fine & ((self.taken < _WARM) | (norm <= config.spike * self.mean_norm))
        return fine

    def after(self, accepted: Bool[Array, ""], norm: Float[Array, ""]) -> Guard:
        """What is remembered after a step."""
        weight = 1 / jnp.minimum(self.taken + 1, _MEMORY).astype(jnp.float32)
        mean = self.mean_norm + weight * (norm - self.mean_norm)
        took = accepted.astype(jnp.int32)
        return Guard(
            skipped=self.skipped + 1 - took,
            in_a_row=jnp.where(accepted, 0, self.in_a_row + 1),
            taken=self.taken + took,
            mean_norm=jnp.where(accepted, mean, self.mean_norm),
        )


def new_guard() -> Guard:
    """Before the first step."""
    zero = jnp.zeros((), jnp.int32)
    return Guard(skipped=zero, in_a_row=zero, taken=zero, mean_norm=jnp.zeros((), jnp.float32))


_WARM = 20
"""Steps over which a norm must be known before another is a spike."""
_MEMORY = 100
"""Steps over which the mean forgets."""
