"""Causal grouped-query attention (Ainslie et al., 2023).

Shapes: B batch, T tokens, S keys, D model_dim, H heads, G key-value heads, K head_dim, V value width.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from moejax.architecture import Architecture
from moejax.kernels.attention import AttentionMask, attention
from moejax.kernels.linear import add_bias, project
from moejax.kernels.rms_norm import rms_norm
from moejax.kernels.saved_names import ATTN_QKV
from moejax.model.parameter import ParamFactory
from moejax.model.positions import POSITIONS
from moejax.model.runtime import Runtime


class KeyValue(NamedTuple):
    """Keys and values of tokens, as stored in a cache."""

    key: Float[Array, "B S G K"]
    value: Float[Array, "B S G V"]


class Attention(nnx.Module):
    """Projections of ``layers`` stacked attention layers, with the forward pass of a single layer."""

    def __init__(self, architecture: Architecture, layers: int, params: ParamFactory):
        a = architecture
        stack, embed = {"layers": layers}, {"embed": a.model_dim}
        heads, kv_heads = {"heads": a.num_heads}, {"kv_heads": a.num_kv_heads}
        head, value = {"head_dim": a.head_dim}, {"value_dim": a.value_width}
        self.query = params.matrix(stack | embed | heads | head, a.model_dim)
        self.key = params.matrix(stack | embed | kv_heads | head, a.model_dim)
        self.value = params.matrix(stack | embed | kv_heads | value, a.model_dim)
        self.output = params.output(stack | heads | value | embed, a.num_heads * a.value_width)
        if a.attention_bias:
            self.query_bias = params.zeros(stack | heads | head)
            self.key_bias = params.zeros(stack | kv_heads | head)
            self.value_bias = params.zeros(stack | kv_heads | value)
        if a.attention_output_bias:
            self.output_bias = params.zeros(stack | embed)
        if a.attention_sinks:
            self.sinks = params.zeros(stack | heads)
        if a.qk_norm:
            self.query_norm = params.ones(stack | (heads | head if a.qk_norm_all_heads else head))
            self.key_norm = params.ones(stack | (kv_heads | head if a.qk_norm_all_heads else head))

    def project_kv(self, x: Float[Array, "B T D"], start, architecture: Architecture, runtime: Runtime) -> KeyValue:
        """Return keys and values; the first token's position is ``start``, and keys are rotated by their positions."""
        a = architecture
        key = project("btd,dgk->btgk", x, self.key[...], types=runtime.product_types)
        value = project("btd,dgv->btgv", x, self.value[...], types=runtime.product_types)
        key, value = checkpoint_name(key, ATTN_QKV), checkpoint_name(value, ATTN_QKV)
        if a.attention_bias:
            key, value = add_bias(key, self.key_bias[...]), add_bias(value, self.value_bias[...])
        if a.qk_norm:
            key = _norm(key, self.key_norm[...], a)
        return KeyValue(POSITIONS[a.positions].apply(key, start + jnp.arange(x.shape[1]), a), value)

    def __call__(
        self, x: Float[Array, "B T D"], kv: KeyValue, mask: AttentionMask, architecture: Architecture, runtime: Runtime
    ) -> Float[Array, "B T D"]:
        """Apply one layer to the keys and values ``kv``; the module's parameters are already sliced from the stack."""
        a = architecture
        query = project("btd,dhk->bthk", x, self.query[...], types=runtime.product_types)
        query = checkpoint_name(query, ATTN_QKV)
        if a.attention_bias:
            query = add_bias(query, self.query_bias[...])
        if a.qk_norm:
            query = _norm(query, self.query_norm[...], a)
        query = POSITIONS[a.positions].apply(query, mask.start + jnp.arange(x.shape[1]), a)
        return attention_output(self, query, kv.key, kv.value, mask, 1 / math.sqrt(a.head_dim), a, runtime)


def attention_output(
    layer: Any,
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    mask: AttentionMask,
    scale: float,
    architecture: Architecture,
    runtime: Runtime,
) -> Float[Array, "B T D"]:
    """Compute attention and apply the layer's output projection, the last step of every attention layer."""
    a = architecture
    mixed = attention(
        query,
        key,
        value,
        mask,
        scale=scale,
        slopes=POSITIONS[a.positions].slopes(a.num_heads),
        sinks=layer.sinks[...] if a.attention_sinks else None,
        backend=runtime.attention,
    )
    y = project("bthv,hvd->btd", mixed, layer.output[...], types=runtime.product_types)
    return add_bias(y, layer.output_bias[...]) if a.attention_output_bias else y


def _norm(x: Float[Array, "B T heads K"], weight: Float[Array, "*heads K"], a: Architecture) -> jax.Array:
    """Normalize each head separately, or all heads as one vector (``qk_norm_all_heads``)."""
    if not a.qk_norm_all_heads:
        return rms_norm(x, weight, a.norm_epsilon)
    return rms_norm(x.reshape(*x.shape[:2], -1), weight.reshape(-1), a.norm_epsilon).reshape(x.shape)
