"""Define the schedules of a training run: warmup-stable-decay (WSD) for the learning rate, and the weight decay.

A cosine schedule starts its decay at the end of the warm-up (``decay_share = 1``, ``decay_shape = "cosine"``). A
constant schedule decays to its own peak (``final_share = 1``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from moejax.pytree import pytree


def linear(done: Array, final: Array) -> Array:
    """Return a linear decay from 1 to ``final``; ``done`` is the completed fraction."""
    return 1 - (1 - final) * done


def cosine(done: Array, final: Array) -> Array:
    """Return a half cosine (Loshchilov and Hutter, 2017)."""
    return final + (1 - final) * 0.5 * (1 + jnp.cos(jnp.pi * done))


def exponential(done: Array, final: Array) -> Array:
    """Return an exponential decay (Hu et al., 2024, MiniCPM). A ``final`` of 0 is replaced by 1e-6."""
    return jnp.maximum(final, 1e-6) ** done


def one_minus_sqrt(done: Array, final: Array) -> Array:
    """Return a decay that is fast at first: 1 - sqrt(completed fraction) (Hägele et al., 2024)."""
    return 1 - (1 - final) * jnp.sqrt(done)


DECAYS = {"linear": linear, "cosine": cosine, "exponential": exponential, "1-sqrt": one_minus_sqrt}
"""Shapes of the decay: functions from the completed fraction, 0 to 1, to a share of the peak, 1 to ``final``."""


@pytree
@dataclass(frozen=True, kw_only=True)
class Ramp:
    """Progress of a training run with a batch ramp, in steps of the last batch size. Schedules are thus the same
    functions of tokens with and without a ramp. Each leaf is Float32[stages].
    """

    first_step: Any
    before: Any
    """Tokens before each stage, in batches of the last size."""
    share: Any
    """Batch size of each stage, as a share of the last batch size."""
    rate: Any
    """Learning-rate factor of each stage."""

    def __call__(self, step: Float[Array, ""]) -> Float[Array, ""]:
        """Return the tokens of the first ``step`` steps, in batches of the last size."""
        first_step, before, share = (self._of(leaf, step) for leaf in (self.first_step, self.before, self.share))
        return before + (step - first_step) * share

    def rate_at(self, step: Float[Array, ""]) -> Float[Array, ""]:
        """Return the learning-rate factor at a step."""
        return self._of(self.rate, step)

    def _of(self, leaf: Any, step: Float[Array, ""]) -> Float[Array, ""]:
        stage = jnp.searchsorted(self.first_step, step, side="right") - 1
        return jnp.asarray(leaf)[stage]


@pytree
@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """Learning-rate schedule: linear warm-up to ``peak``, stable, then decay to ``final_share · peak``.

    The numbers are leaves, so that a trunk (``decay_start`` beyond its end) and every branch share one compiled step.
    """

    peak: Any
    warmup_steps: Any
    decay_start: Any
    decay_steps: Any
    final_share: Any
    ramp: Ramp | None = None
    """Batch ramp, which converts steps to steps of the last batch size; None if all batches have the same size."""
    shape: str = field(default="linear", metadata={"static": True})
    """A key of ``DECAYS``."""

    def __call__(self, step: Any) -> Float[Array, ""]:
        """Return the learning rate of the update from ``step`` to ``step + 1``."""
        step = jnp.asarray(step, jnp.float32)
        peak, after = self.peak, step + 1
        if self.ramp is not None:
            peak, after = peak * self.ramp.rate_at(step), self.ramp(after)
        warm = jnp.minimum(after / jnp.maximum(self.warmup_steps, _LEAST), 1.0)
        done = jnp.clip((after - self.decay_start) / jnp.maximum(self.decay_steps, _LEAST), 0.0, 1.0)
        return peak * warm * DECAYS[self.shape](done, jnp.asarray(self.final_share, jnp.float32))


_LEAST = 1e-6
"""Minimum duration in steps, which replaces 0 to avoid division by zero."""


@pytree
@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Inputs of a step besides state and batch. All numbers are leaves: training runs that differ only in these
    numbers, such as vmapped runs, share one compiled step.
    """

    learning_rate: WarmupStableDecay
    weight_decay: Any
    """Constant weight decay; the optimizer multiplies it by the learning rate."""
