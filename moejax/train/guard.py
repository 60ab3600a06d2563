"""Skip and count steps that would spoil a training, and stop after too many in a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from moejax.config import Rule
from moejax.pytree import pytree
from moejax.ranges import Scale, Steps


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Steps to skip, and the number that may follow each other."""

    spike: Scale = 0.0
    """Skip steps with a gradient norm above this multiple of its running mean; 0 skips only non-finite ones."""
    patience: Steps = 5
    """Number of skipped steps in a row after which a training stops, in the state before the first of them. It is
    checked at every logged step."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda guard: not 0 < guard.spike <= 1,
            "guard.spike is {self.spike}; give a multiple above 1, or 0 to skip no spikes.",
        ),
    )


@pytree
@dataclass(frozen=True, kw_only=True)
class Guard:
    """State of the guard."""

    skipped: Any
    """Int32: number of steps skipped so far."""
    in_a_row: Any
    """Int32: number of consecutive skipped steps up to now."""
    taken: Any
    """Int32: number of steps taken."""
    mean_norm: Any
    """Float32: running mean of the gradient norm over steps taken."""

    def accepts(self, config: GuardConfig, loss: Float[Array, ""], norm: Float[Array, ""]) -> Bool[Array, ""]:
        """Return whether to take a step."""
        fine = jnp.isfinite(loss) & jnp.isfinite(norm)
        if config.spike:
            fine = fine & ((self.taken < _WARM) | (norm <= config.spike * self.mean_norm))
        return fine

    def after(self, accepted: Bool[Array, ""], norm: Float[Array, ""]) -> Guard:
        """Return the guard's state after a step."""
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
    """Return the state before the first step."""
    zero = jnp.zeros((), jnp.int32)
    return Guard(skipped=zero, in_a_row=zero, taken=zero, mean_norm=jnp.zeros((), jnp.float32))


_WARM = 20
"""Number of steps taken before spikes are detected."""
_MEMORY = 100
"""Averaging window of the mean norm, in steps."""
