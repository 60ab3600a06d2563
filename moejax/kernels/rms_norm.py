"""Define RMSNorm (Zhang and Sennrich, 2019), computed in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from moejax.kernels.table import select


def rms_norm(x: Float[Array, "*batch dim"], weight: Float[Array, " dim"], epsilon: float) -> Float[Array, "*batch dim"]:
    """Divide x by its root mean square over the last axis and multiply by a weight per channel."""
    return select("rms_norm", x, weight, epsilon)(x, weight, epsilon)


def reference(
    x: Float[Array, "*batch dim"], weight: Float[Array, " dim"], epsilon: float
) -> Float[Array, "*batch dim"]:
    """Compute RMSNorm in plain JAX."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (wide * scale * weight).astype(x.dtype)
