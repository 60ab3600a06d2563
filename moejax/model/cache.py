"""Cache keys and values of earlier tokens, so that each decoding step computes only one token per row."""

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
    """A key-value cache with a fixed capacity in tokens per row, filled from the left."""

    length: Any
    """Int32: number of tokens in the cache."""
    segments: Any
    """Int32[batch, capacity]: document id of each token, 0 for padding; None if every row is one document."""
    dense: Any
    """Stacked keys and values of the dense layers; None without such layers."""
    moe: Any
    """Stacked keys and values of the MoE layers; None without such layers."""

    def with_segments(self, segments: Int[Array, "batch length"] | None, shape: tuple[int, ...]) -> KVCache:
        """Return the cache with the document ids of the next tokens added."""
        if (segments is None) != (self.segments is None):
            raise ValueError("Segments must be given for all tokens of a cache, or for no token.")
        if segments is None:
            return self
        return replace(self, segments=jax.lax.dynamic_update_slice_in_dim(self.segments, segments, self.length, 1))

    def attention_mask(self, segments: Int[Array, "batch length"] | None) -> AttentionMask:
        """Return the attention mask of the next tokens."""
        return AttentionMask(start=self.length, query_segments=segments, key_segments=self.segments)

    def after(self, tokens: int, dense: KeyValue | Latents | None, moe: KeyValue | Latents | None) -> KVCache:
        """Return the cache with ``tokens`` more tokens and the updated keys and values."""
        return replace(self, length=self.length + tokens, dense=dense, moe=moe)


def empty_cache(
    architecture: Architecture, runtime: Runtime, batch: int, room: int, *, segments: bool = False
) -> KVCache:
    """Return an empty cache with a capacity of ``room`` tokens per row."""
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
