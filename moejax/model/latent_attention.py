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
from moejax.model.project import project
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

    def keep(self, x: Float[Array, "B T D"], start, architecture: Architecture) -> Latents:
        """The latent of each token, and the key part that is turned by its position from ``start`` on."""
        a = architecture
        latent, turned = self._to(x, "latent_down", a), self._to(x, "turned_key", a)
        turned = POSITIONS[a.positions].turn(turned[:, :, None], start + jnp.arange(x.shape[1]), a)[:, :, 0]
        return Latents(rms_norm(latent, self.latent_norm[...], a.norm_epsilon), turned)

    def __call__(
        self, x: Float[Array, "B T D"], kept: Latents, sight: Sight, architecture: Architecture, runtime: Runtime
    ) -> Float[Array, "B T D"]:
        """Attention of one layer over the tokens that were kept, its parameters already taken from the stack."""
        a = architecture
        query = project("btq,qhk->bthk", self._query_input(x, a), self.query[...].astype(x.dtype))
        plain_part, turned_part = query[..., : a.head_dim], query[..., a.head_dim :]
        turned_part = POSITIONS[a.positions].turn(turned_part, sight.start + jnp.arange(x.shape[1]), a)
        key = project("bsc,chk->bshk", kept.latent, self.key[...].astype(x.dtype))
        shared = jnp.broadcast_to(kept.turned_key[:, :, None], (*key.shape[:3], a.rope_head_dim))
        mixed = ATTENTION[runtime.attention](
            jnp.concatenate([plain_part, turned_part], axis=-1),
            jnp.concatenate([key, shared], axis=-1),
            project("bsc,chv->bshv", kept.latent, self.value[...].astype(x.dtype)),
            sight,
            scale=score_scale(a.rope_scaling) / math.sqrt(a.head_dim + a.rope_head_dim),
            slopes=POSITIONS[a.positions].slopes(a.num_heads),
            sinks=self.sinks[...] if a.attention_sinks else None,
        )
        y = project("bthv,hvd->btd", mixed, self.output[...].astype(x.dtype))
        return y + self.output_bias[...].astype(x.dtype) if a.attention_output_bias else y

    def _query_input(self, x: Array, a: Architecture) -> Array:
        if not a.query_latent_dim:
            return x
        return rms_norm(self._to(x, "query_down", a), self.query_latent_norm[...], a.norm_epsilon)

    def _to(self, x: Array, name: str, a: Architecture) -> Array:
        y = jnp.dot(x, getattr(self, name)[...].astype(x.dtype))
        return y + getattr(self, f"{name}_bias")[...].astype(x.dtype) if a.attention_bias else y
