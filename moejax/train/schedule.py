"""The learning rate over training: warm-up, stable, decay (WSD), in optimiser steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """Linear warm-up to ``peak``, stable, then linear to ``final_share · peak``.

    All fields are leaves, so that a trunk (``decay_start`` beyond its end) and every branch share one compiled step.
    """

    peak: Any
    warmup_steps: Any
    decay_start: Any
    decay_steps: Any
    final_share: Any

    def __call__(self, step: Any) -> Float[Array, ""]:
        """Learning rate of the update that turns step ``step`` into ``step + 1``."""
        step = jnp.asarray(step, jnp.float32)
        warm = jnp.minimum((step + 1) / jnp.maximum(self.warmup_steps, 1), 1.0)
        decayed = jnp.clip((step + 1 - self.decay_start) / jnp.maximum(self.decay_steps, 1), 0.0, 1.0)
        return self.peak * warm * (1 - (1 - self.final_share) * decayed)
