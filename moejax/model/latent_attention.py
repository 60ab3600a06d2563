"""Multi-head latent attention (DeepSeek-V2, 2024, Sec. 2.1): keys and values from one small vector per token.

Shapes: B batch, T tokens, S keys, D model_dim, H heads, K head_dim without positions, R rope_head_dim, V value width,
Q query_latent_dim, C kv_latent_dim.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from moejax.architecture import Architecture
from moejax.model.attend import ATTENTION
from moejax.model.norm import rms_norm
from moejax.model.parameter import Maker
from moejax.model.positions import POSITIONS
from moejax.model.project import add_bias, project
from moejax.model.rope import score_scale
from moejax.model.runtime import Runtime
from moejax.model.sight import Sight


class Latents(NamedTuple):
    """What a cache keeps of each token: C + R numbers, whatever the number of heads."""

    latent: Float[Array, "B S C"]
    """Normalised."""
    turned_key: Float[Array, "B S R"]
    """The part of the key with positions, which all heads share."""


class LatentAttention(nnx.Module):
    """Projections of ``layers`` stacked attention layers, and how one of them is applied."""

    def __init__(self, architecture: Architecture, layers: int, make: Maker):
        a = architecture
        stack, embed, heads = {"layers": layers}, {"embed": a.model_dim}, {"heads": a.num_heads}
        latent, turned, value = {"latent": a.kv_latent_dim}, {"rope_dim": a.rope_head_dim}, {"value_dim": a.value_width}
        query = {"head_dim": a.head_dim + a.rope_head_dim}
        if a.query_latent_dim:
            query_latent = {"latent": a.query_latent_dim}
            self.query_down = make.matrix(stack | embed | query_latent, a.model_dim)
            self.query_latent_norm = make.ones(stack | query_latent)
            self.query = make.matrix(stack | query_latent | heads | query, a.query_latent_dim)
        else:
            self.query = make.matrix(stack | embed | heads | query, a.model_dim)
        self.latent_down = make.matrix(stack | embed | latent, a.model_dim)
        self.turned_key = make.matrix(stack | embed | turned, a.model_dim)
        self.latent_norm = make.ones(stack | latent)
        self.key = make.matrix(stack | latent | heads | {"head_dim": a.head_dim}, a.kv_latent_dim)
        self.value = make.matrix(stack | latent | heads | value, a.kv_latent_dim)
        self.output = make.output(stack | heads | value | embed, a.num_heads * a.value_width)
        if a.attention_bias:
            if a.query_latent_dim:
                self.query_down_bias = make.zeros(stack | {"latent": a.query_latent_dim})
            self.latent_down_bias = make.zeros(stack | latent)
            self.turned_key_bias = make.zeros(stack | turned)
        if a.attention_output_bias:
            self.output_bias = make.zeros(stack | embed)
        if a.attention_sinks:
            self.sinks = make.zeros(stack | heads)

    def keep(self, x: Float[Array, "B T D"], start, architecture: Architecture, runtime: Runtime) -> Latents:
        """The latent of each token, and the key part that is turned by its position from ``start`` on."""
        a = architecture
        latent, turned = (self._to(x, name, a, runtime) for name in ("latent_down", "turned_key"))
        turned = POSITIONS[a.positions].turn(turned[:, :, None], start + jnp.arange(x.shape[1]), a)[:, :, 0]
        return Latents(rms_norm(latent, self.latent_norm[...], a.norm_epsilon), turned)

    def __call__(
        self, x: Float[Array, "B T D"], kept: Latents, sight: Sight, architecture: Architecture, runtime: Runtime
    ) -> Float[Array, "B T D"]:
        """Attention of one layer over the tokens that were kept, its parameters already taken from the stack."""
        a = architecture
        query = project("btq,qhk->bthk", self._query_input(x, a, runtime), self.query[...], sums=runtime.reduce_dtype)
        plain_part, turned_part = query[..., : a.head_dim], query[..., a.head_dim :]
        turned_part = POSITIONS[a.positions].turn(turned_part, sight.start + jnp.arange(x.shape[1]), a)
        key = project("bsc,chk->bshk", kept.latent, self.key[...], sums=runtime.reduce_dtype)
        # The gradient of a vector that all heads share is a sum over the heads.
        shared = jnp.broadcast_to(kept.turned_key[:, :, None].astype(jnp.float32), (*key.shape[:3], a.rope_head_dim))
        shared = shared.astype(key.dtype)
        mixed = ATTENTION[runtime.attention](
            jnp.concatenate([plain_part, turned_part], axis=-1),
            jnp.concatenate([key, shared], axis=-1),
            project("bsc,chv->bshv", kept.latent, self.value[...], sums=runtime.reduce_dtype),
            sight,
            scale=score_scale(a.rope_scaling) / math.sqrt(a.head_dim + a.rope_head_dim),
            slopes=POSITIONS[a.positions].slopes(a.num_heads),
            sinks=self.sinks[...] if a.attention_sinks else None,
        )
        y = project("bthv,hvd->btd", mixed, self.output[...], sums=runtime.reduce_dtype)
        return add_bias(y, self.output_bias[...]) if a.attention_output_bias else y

    def _query_input(self, x: Array, a: Architecture, runtime: Runtime) -> Array:
        if not a.query_latent_dim:
            return x
        return rms_norm(self._to(x, "query_down", a, runtime), self.query_latent_norm[...], a.norm_epsilon)

    def _to(self, x: Array, name: str, a: Architecture, runtime: Runtime) -> Array:
        y = project("btd,dc->btc", x, getattr(self, name)[...], sums=runtime.reduce_dtype)
        return add_bias(y, getattr(self, f"{name}_bias")[...]) if a.attention_bias else y
