"""RMSNorm (Zhang and Sennrich, 2019), computed in float32."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from moejax.model.sharding import can_split, over_tokens
from moejax.native import can_hold
from moejax.target import platform


def rms_norm(x: Float[Array, "*batch dim"], weight: Float[Array, " dim"], epsilon: float) -> Float[Array, "*batch dim"]:
    """x divided by its root mean square over the last axis, times a weight per channel."""
    if platform() == "cpu" and x.ndim == 3 and can_hold(x, weight) and can_split(x.shape[0]):
        return _by_kernel(x, weight, epsilon)
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * scale * weight).astype(x.dtype)


def _by_kernel(x: Float[Array, "B T D"], weight: Float[Array, " D"], epsilon: float) -> Float[Array, "B T D"]:
    normalise = importlib.import_module("moejax.model.norm_native").normalise

    def local(x: Array, weight: Array) -> Array:
        return normalise(x.reshape(-1, x.shape[-1]), weight, jnp.full(1, epsilon, jnp.float32)).reshape(x.shape)

    return over_tokens(local, [x], [weight])
