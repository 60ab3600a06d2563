"""Keys and values of the tokens a model has seen, so that the next one takes one token's work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from moejax.architecture import Architecture
from moejax.kernels.attention import AttentionMask
from moejax.model.attention import KeyValue
from moejax.model.latent_attention import Latents
from moejax.model.runtime import COMPUTE_DTYPES, Runtime
from moejax.pytree import pytree


@pytree
@dataclass(frozen=True, kw_only=True)
class KVCache:
    """Room for a number of tokens per row, filled from the left."""

    length: Any
    """Int32: tokens in it."""
    segments: Any
    """Int32[batch, room]: document of each token, 0 for padding; None if every row is one document."""
    dense: Any
    """Keys and values of the dense layers, stacked; None without such layers."""
    moe: Any
    """Keys and values of the MoE layers."""

    def with_segments(self, segments: Int[Array, "batch length"] | None, shape: tuple[int, ...]) -> KVCache:
        """The cache with the documents of the next tokens written down."""
        if (segments is None) != (self.segments is None):
            raise ValueError("Segments must be given for all tokens of a cache, or for none.")
        if segments is None:
            return self
        return replace(self, segments=jax.lax.dynamic_update_slice_in_dim(self.segments, segments, self.length, 1))

    def attention_mask(self, segments: Int[Array, "batch length"] | None) -> AttentionMask:
        """What the next tokens see."""
        return AttentionMask(start=self.length, query_segments=segments, key_segments=self.segments)

    def after(self, tokens: int, dense: Any, moe: Any) -> KVCache:
        """The cache with ``tokens`` more in it."""
        return replace(self, length=self.length + tokens, dense=dense, moe=moe)


def empty_cache(
    architecture: Architecture, runtime: Runtime, batch: int, room: int, *, segments: bool = False
) -> KVCache:
    """A cache without tokens."""
    a, dtype = architecture, COMPUTE_DTYPES[runtime.compute_dtype]
    mixtures = sum(a.has_experts)

    def layers(count: int) -> KeyValue | Latents | None:
        if not count:
            return None
        if a.kv_latent_dim:
            return Latents(
                jnp.zeros((count, batch, room, a.kv_latent_dim), dtype),
                jnp.zeros((count, batch, room, a.rope_head_dim), dtype),
            )
        shape = (count, batch, room, a.num_kv_heads)
        return KeyValue(jnp.zeros((*shape, a.head_dim), dtype), jnp.zeros((*shape, a.value_width), dtype))

    return KVCache(
        length=jnp.zeros((), jnp.int32),
        segments=jnp.zeros((batch, room), jnp.int32) if segments else None,
        dense=layers(a.num_layers - mixtures),
        moe=layers(mixtures),
    )
