"""Causal attention by NVIDIA's fused kernel.

Shapes: B batch, T queries, S keys, H heads, G key-value heads, K width of a query, V width of a value.
"""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, Float

from moejax.kernels.attention import AttentionMask


def cudnn(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    mask: AttentionMask,
    *,
    scale: float,
    slopes: Float[Any, " H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H V"]:
    """The fused kernel of NVIDIA GPUs through ``jax.nn.dot_product_attention``, in bfloat16."""
    documents = None if mask.query_segments is None else mask.dense(query.shape[1], key.shape[1])[:, None]
    # The library promotes types by itself, also where the caller has forbidden it.
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=documents,
            scale=scale,
            is_causal=True,
            local_window_size=(mask.window - 1, 0) if mask.window else None,
            implementation="cudnn",
        )
