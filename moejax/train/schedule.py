"""What the optimiser is told at each step: the learning rate, by warm-up, stable, decay (WSD), and the weight decay.

A cosine schedule is one whose decay begins where the warm-up ends (``decay_share = 1``, ``decay_shape = "cosine"``); a
constant one decays to its own peak (``final_share = 1``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from moejax.pytree import pytree


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


@pytree
@dataclass(frozen=True, kw_only=True)
class Ramp:
    """How far a training is when its batch grows in stages: in steps of its last batch, so that a schedule is the
    same function of tokens with a ramp and without. Each leaf is Float32 (stages)."""

    first_step: Any
    before: Any
    """Tokens before a stage, in batches of the last one."""
    share: Any
    """Batch of a stage, as a share of the last one."""
    rate: Any
    """By which its learning rate is multiplied."""

    def __call__(self, step: Float[Array, ""]) -> Float[Array, ""]:
        """What ``step`` steps have read, in batches of the last one."""
        first_step, before, share = (self._of(leaf, step) for leaf in (self.first_step, self.before, self.share))
        return before + (step - first_step) * share

    def rate_at(self, step: Float[Array, ""]) -> Float[Array, ""]:
        """By which the learning rate of a step is multiplied."""
        return self._of(self.rate, step)

    def _of(self, leaf: Any, step: Float[Array, ""]) -> Float[Array, ""]:
        """Of the stage in which a step is."""
        stage = jnp.searchsorted(self.first_step, step, side="right") - 1
        return jnp.asarray(leaf)[stage]


@pytree
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
    ramp: Ramp | None = None
    """With it, steps are those of the last batch; None if all batches are as large."""
    shape: str = field(default="linear", metadata={"static": True})
    """A key of ``DECAYS``."""

    def __call__(self, step: Any) -> Float[Array, ""]:
        """Learning rate of the update that turns step ``step`` into ``step + 1``."""
        step = jnp.asarray(step, jnp.float32)
        peak, after = self.peak, step + 1
        if self.ramp is not None:
            peak, after = peak * self.ramp.rate_at(step), self.ramp(after)
        warm = jnp.minimum(after / jnp.maximum(self.warmup_steps, _LEAST), 1.0)
        done = jnp.clip((after - self.decay_start) / jnp.maximum(self.decay_steps, _LEAST), 0.0, 1.0)
        return peak * warm * DECAYS[self.shape](done, jnp.asarray(self.final_share, jnp.float32))


_LEAST = 1e-6
"""Steps, instead of none, where something ends at once."""


@pytree
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What a step is given beside state and batch. All numbers are leaves: trainings that differ in them alone, as
    vmapped runs do, share one compiled step."""

    learning_rate: WarmupStableDecay
    weight_decay: Any
    """Constant; the optimiser multiplies it by the learning rate."""
