"""Define multi-head latent attention (DeepSeek-V2, 2024, Sec. 2.1): keys and values come from one small vector per
token.

Shapes: B batch, T tokens, S keys, D model_dim, H heads, K head_dim without positions, R rope_head_dim, V value width,
Q query_latent_dim, C kv_latent_dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from moejax.architecture import Architecture
from moejax.kernels.attention import AttentionMask
from moejax.kernels.linear import add_bias, project
from moejax.kernels.rms_norm import rms_norm
from moejax.kernels.saved_names import ATTN_QKV
from moejax.model.attention import attention_output
from moejax.model.parameter import ParamFactory
from moejax.model.positions import POSITIONS, score_scale
from moejax.model.runtime import Runtime


class Latents(NamedTuple):
    """Cached values per token: C + R numbers, independent of the number of heads."""

    latent: Float[Array, "B S C"]
    """Normalized key-value latent."""
    rope_key: Float[Array, "B S R"]
    """Rotated part of the key, shared by all heads."""


class LatentAttention(nnx.Module):
    """Projections of ``layers`` stacked attention layers, with the forward pass of a single layer."""

    def __init__(self, architecture: Architecture, layers: int, params: ParamFactory):
        a = architecture
        stack, embed, heads = {"layers": layers}, {"embed": a.model_dim}, {"heads": a.num_heads}
        latent, value = {"latent": a.kv_latent_dim}, {"value_dim": a.value_width}
        rope_dim = {"rope_dim": a.rope_head_dim}
        query = {"head_dim": a.head_dim + a.rope_head_dim}
        if a.query_latent_dim:
            query_latent = {"latent": a.query_latent_dim}
            self.query_down = params.matrix(stack | embed | query_latent, a.model_dim)
            self.query_latent_norm = params.ones(stack | query_latent)
            self.query = params.matrix(stack | query_latent | heads | query, a.query_latent_dim)
        else:
            self.query = params.matrix(stack | embed | heads | query, a.model_dim)
        self.latent_down = params.matrix(stack | embed | latent, a.model_dim)
        self.rope_key = params.matrix(stack | embed | rope_dim, a.model_dim)
        self.latent_norm = params.ones(stack | latent)
        self.key = params.matrix(stack | latent | heads | {"head_dim": a.head_dim}, a.kv_latent_dim)
        self.value = params.matrix(stack | latent | heads | value, a.kv_latent_dim)
        self.output = params.output(stack | heads | value | embed, a.num_heads * a.value_width)
        if a.attention_bias:
            if a.query_latent_dim:
                self.query_down_bias = params.zeros(stack | {"latent": a.query_latent_dim})
            self.latent_down_bias = params.zeros(stack | latent)
            self.rope_key_bias = params.zeros(stack | rope_dim)
        if a.attention_output_bias:
            self.output_bias = params.zeros(stack | embed)
        if a.attention_sinks:
            self.sinks = params.zeros(stack | heads)

    def project_kv(self, x: Float[Array, "B T D"], start, architecture: Architecture, runtime: Runtime) -> Latents:
        """Return each token's latent and the rotated part of its key; the first token's position is ``start``."""
        a = architecture
        latent, rope_key = (self._to(x, name, a, runtime) for name in ("latent_down", "rope_key"))
        rope_key = POSITIONS[a.positions].apply(rope_key[:, :, None], start + jnp.arange(x.shape[1]), a)[:, :, 0]
        return Latents(rms_norm(latent, self.latent_norm[...], a.norm_epsilon), rope_key)

    def __call__(
        self, x: Float[Array, "B T D"], kv: Latents, mask: AttentionMask, architecture: Architecture, runtime: Runtime
    ) -> Float[Array, "B T D"]:
        """Apply one layer to the latents ``kv``; the module's parameters are already sliced from the stack."""
        a = architecture
        from_x = self._query_input(x, a, runtime)
        query = project("btq,qhk->bthk", from_x, self.query[...], types=runtime.product_types)
        query = checkpoint_name(query, ATTN_QKV)
        nope_query, rope_query = query[..., : a.head_dim], query[..., a.head_dim :]
        rope_query = POSITIONS[a.positions].apply(rope_query, mask.start + jnp.arange(x.shape[1]), a)
        key = project("bsc,chk->bshk", kv.latent, self.key[...], types=runtime.product_types)
        value = project("bsc,chv->bshv", kv.latent, self.value[...], types=runtime.product_types)
        key, value = checkpoint_name(key, ATTN_QKV), checkpoint_name(value, ATTN_QKV)
        # The gradient of a vector shared by all heads is a sum over heads; compute it in float32.
        shared = jnp.broadcast_to(kv.rope_key[:, :, None].astype(jnp.float32), (*key.shape[:3], a.rope_head_dim))
        shared = shared.astype(key.dtype)
        query, key = jnp.concatenate([nope_query, rope_query], axis=-1), jnp.concatenate([key, shared], axis=-1)
        scale = score_scale(a.rope_scaling) / math.sqrt(a.head_dim + a.rope_head_dim)
        return attention_output(self, query, key, value, mask, scale, a, runtime)

    def _query_input(self, x: Array, a: Architecture, runtime: Runtime) -> Array:
        if not a.query_latent_dim:
            return x
        return rms_norm(self._to(x, "query_down", a, runtime), self.query_latent_norm[...], a.norm_epsilon)

    def _to(self, x: Array, name: str, a: Architecture, runtime: Runtime) -> Array:
        y = project("btd,dc->btc", x, getattr(self, name)[...], types=runtime.product_types)
        return add_bias(y, getattr(self, f"{name}_bias")[...]) if a.attention_bias else y
