"""Causal grouped-query attention (Ainslie et al., 2023) with rotary positions.

Shapes: B batch, T length, D model_dim, H heads, G key-value heads, K head_dim, L stacked layers.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from moejax.architecture import Architecture
from moejax.model.norm import rms_norm
from moejax.model.parameter import parameter
from moejax.model.rope import rotate
from moejax.model.runtime import ATTENTION, Runtime


class Attention(nnx.Module):
    """Projections of ``layers`` stacked attention layers, and how one of them is applied."""

    def __init__(self, architecture: Architecture, layers: int, *, rngs: nnx.Rngs):
        a = architecture
        width = {"layers": layers, "embed": a.model_dim}
        heads, kv_heads = {"heads": a.num_heads}, {"kv_heads": a.num_kv_heads}
        head = {"head_dim": a.head_dim}
        self.query = parameter(rngs, width | heads | head, fan_in=a.model_dim)
        self.key = parameter(rngs, width | kv_heads | head, fan_in=a.model_dim)
        self.value = parameter(rngs, width | kv_heads | head, fan_in=a.model_dim)
        self.output = parameter(
            rngs,
            {"layers": layers} | heads | head | {"embed": a.model_dim},
            fan_in=a.num_heads * a.head_dim,
            scale=1 / math.sqrt(2 * a.num_layers),
        )
        if a.attention_bias:
            self.query_bias = parameter(rngs, {"layers": layers} | heads | head, scale=0.0)
            self.key_bias = parameter(rngs, {"layers": layers} | kv_heads | head, scale=0.0)
            self.value_bias = parameter(rngs, {"layers": layers} | kv_heads | head, scale=0.0)
        if a.qk_norm:
            self.query_norm = parameter(rngs, {"layers": layers} | head)
            self.key_norm = parameter(rngs, {"layers": layers} | head)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        architecture: Architecture,
        runtime: Runtime,
    ) -> Float[Array, "B T D"]:
        """Attention of one layer, its parameters already taken from the stack."""
        query = jnp.einsum("btd,dhk->bthk", x, self.query[...].astype(x.dtype))
        key = jnp.einsum("btd,dgk->btgk", x, self.key[...].astype(x.dtype))
        value = jnp.einsum("btd,dgk->btgk", x, self.value[...].astype(x.dtype))
        if architecture.attention_bias:
            query = query + self.query_bias[...].astype(x.dtype)
            key = key + self.key_bias[...].astype(x.dtype)
            value = value + self.value_bias[...].astype(x.dtype)
        if architecture.qk_norm:
            query = rms_norm(query, self.query_norm[...], architecture.norm_epsilon)
            key = rms_norm(key, self.key_norm[...], architecture.norm_epsilon)
        query = rotate(query, positions, architecture.rope_theta)
        key = rotate(key, positions, architecture.rope_theta)
        # The library promotes types by itself, also where the caller has forbidden it.
        with jax.numpy_dtype_promotion("standard"):
            mixed = jax.nn.dot_product_attention(
                query, key, value, is_causal=True, implementation=ATTENTION[runtime.attention]
            )
        return jnp.einsum("bthk,hkd->btd", mixed, self.output[...].astype(x.dtype))
