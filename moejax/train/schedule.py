"""The learning rate over training: warm-up, stable, decay (WSD), in optimiser steps.

A cosine schedule is one whose decay begins where the warm-up ends (``decay_share = 1``, ``decay_shape = "cosine"``); a
constant one decays to its own peak (``final_share = 1``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def linear(done: Array, final: Array) -> Array:
    """In equal steps."""
    return 1 - (1 - final) * done


def cosine(done: Array, final: Array) -> Array:
    """Half a wave (Loshchilov and Hutter, 2017)."""
    return final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * done))


def exponential(done: Array, final: Array) -> Array:
    """By equal factors (Hu et al., 2024, MiniCPM); its end must be above 0."""
    return jnp.maximum(final, 1e-6) ** done


def one_minus_sqrt(done: Array, final: Array) -> Array:
    """Fast at first: 1 - sqrt of the part that is done (Hägele et al., 2024)."""
    return 1 - (1 - final) * jnp.sqrt(done)


DECAYS = {"linear": linear, "cosine": cosine, "exponential": exponential, "1-sqrt": one_minus_sqrt}
"""Shapes of the decay: from the part that is done, 0 to 1, to a share of the peak, 1 to ``final``."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """Linear warm-up to ``peak``, stable, then down to ``final_share · peak``.

    The numbers are leaves, so that a trunk (``decay_start`` beyond its end) and every branch share one compiled step.
    """

    peak: Any
    warmup_steps: Any
    decay_start: Any
    decay_steps: Any
    final_share: Any
    shape: str = field(default="linear", metadata={"static": True})
    """A key of ``DECAYS``."""

    def __call__(self, step: Any) -> Float[Array, ""]:
        """Learning rate of the update that turns step ``step`` into ``step + 1``."""
        step = jnp.asarray(step, jnp.float32)
        warm = jnp.minimum((step + 1) / jnp.maximum(self.warmup_steps, 1), 1.0)
        done = jnp.clip((step + 1 - self.decay_start) / jnp.maximum(self.decay_steps, 1), 0.0, 1.0)
        return self.peak * warm * DECAYS[self.shape](done, jnp.asarray(self.final_share, jnp.float32))
