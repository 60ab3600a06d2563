"""Rotary position embedding (Su et al., 2021), in the half-split layout of the published checkpoints."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def rotate(
    x: Float[Array, "batch length heads head_dim"], positions: Int[Array, "batch length"], theta: float
) -> Float[Array, "batch length heads head_dim"]:
    """Turn the pairs (x[i], x[i + head_dim/2]) by position · theta^(-2i/head_dim)."""
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[:, :, None, None].astype(jnp.float32) * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
