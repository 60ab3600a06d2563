"""What a model keeps of the tokens it has seen, so that the next one costs one token's work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from moejax.architecture import Architecture
from moejax.model.attention import KeysValues
from moejax.model.latent_attention import Latents
from moejax.model.runtime import COMPUTE_DTYPES, Runtime
from moejax.model.sight import Sight
from moejax.pytree import pytree


@pytree
@dataclass(frozen=True, kw_only=True)
class Cache:
    """Room for a number of tokens per row, filled from the left."""

    length: Any
    """Int32: tokens in it."""
    segments: Any
    """Int32[batch, room]: document of each token, 0 for padding; None if every row is one document."""
    dense: Any
    """What the attention of the dense layers kept, stacked; None without such layers."""
    mixture: Any
    """What the attention of the mixture layers kept."""

    def with_segments(self, segments: Int[Array, "batch length"] | None, shape: tuple[int, ...]) -> Cache:
        """The cache with the documents of the next tokens written down."""
        if (segments is None) != (self.segments is None):
            raise ValueError("Segments must be given for all tokens of a cache, or for none.")
        if segments is None:
            return self
        return replace(self, segments=jax.lax.dynamic_update_slice_in_dim(self.segments, segments, self.length, 1))

    def sight(self, segments: Int[Array, "batch length"] | None) -> Sight:
        """What the next tokens see."""
        return Sight(start=self.length, query_segments=segments, key_segments=self.segments)

    def after(self, tokens: int, dense: Any, mixture: Any) -> Cache:
        """The cache with ``tokens`` more in it."""
        return replace(self, length=self.length + tokens, dense=dense, mixture=mixture)


def empty_cache(
    architecture: Architecture, runtime: Runtime, batch: int, room: int, *, segments: bool = False
) -> Cache:
    """A cache without tokens."""
    a, dtype = architecture, COMPUTE_DTYPES[runtime.compute_dtype]
    mixtures = sum(a.has_experts)

    def layers(count: int) -> KeysValues | Latents | None:
        if not count:
            return None
        if a.kv_latent_dim:
            return Latents(
                jnp.zeros((count, batch, room, a.kv_latent_dim), dtype),
                jnp.zeros((count, batch, room, a.rope_head_dim), dtype),
            )
        shape = (count, batch, room, a.num_kv_heads)
        return KeysValues(jnp.zeros((*shape, a.head_dim), dtype), jnp.zeros((*shape, a.value_width), dtype))

    return Cache(
        length=jnp.zeros((), jnp.int32),
        segments=jnp.zeros((batch, room), jnp.int32) if segments else None,
        dense=layers(a.num_layers - mixtures),
        mixture=layers(mixtures),
    )
