"""Causal attention between queries and keys: who sees whom, and the weighted mean of the values.

Shapes: B batch, T queries, S keys, H heads, G key-value heads, K width of a query, V width of a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from moejax.architecture import Architecture


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Sight:
    """Which keys a query sees: none later, none of another document, none beyond the window."""

    start: Any = 0
    """Int: index of the first query among the keys; 0 where queries and keys are the same tokens."""
    query_segments: Any = None
    """Int[B, T]: document of each query, or None if a row is one document."""
    key_segments: Any = None
    """Int[B, S]"""
    window: int = field(default=0, metadata={"static": True})
    """Keys that a query sees at most, its own included; 0 for all."""

    def distance(self, queries: int, keys: int) -> Int[Array, "T S"]:
        """How many tokens the key lies before the query."""
        return self.start + jnp.arange(queries)[:, None] - jnp.arange(keys)

    def mask(self, queries: int, keys: int) -> Bool[Array, "B_or_1 T S"]:
        """Which keys each query sees."""
        distance = self.distance(queries, keys)
        seen = distance >= 0
        if self.window:
            seen = seen & (distance < self.window)
        if self.query_segments is None:
            return seen[None]
        return seen & (self.query_segments[:, :, None] == self.key_segments[:, None, :])


def plain(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    sight: Sight,
    *,
    scale: float,
    slopes: Float[Any, " H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H V"]:
    """Softmax attention with all scores at once, in float32: the reference.

    ``slopes`` are taken off the scores per token of distance (ALiBi); ``sinks`` are logits that take part in the
    softmax and carry no value.
    """
    batch, queries, heads, _ = query.shape
    keys, groups = key.shape[1], key.shape[2]
    by_group = (groups, heads // groups, 1, 1)
    grouped = query.reshape(batch, queries, groups, heads // groups, -1)
    scores = jnp.einsum("btgrk,bsgk->bgrts", grouped, key, preferred_element_type=jnp.float32) * scale
    if slopes is not None:
        distance = sight.distance(queries, keys).astype(jnp.float32)
        scores = scores - jnp.asarray(slopes, jnp.float32).reshape(by_group) * distance
    scores = jnp.where(sight.mask(queries, keys)[:, None, None], scores, jnp.finfo(jnp.float32).min)
    if sinks is not None:
        sink = jnp.broadcast_to(sinks.astype(jnp.float32).reshape(by_group), (*scores.shape[:-1], 1))
        scores = jnp.concatenate([scores, sink], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., :keys].astype(value.dtype)
    mixed = jnp.einsum("bgrts,bsgv->btgrv", weights, value, preferred_element_type=jnp.float32)
    return mixed.astype(value.dtype).reshape(batch, queries, heads, -1)


def cudnn(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    sight: Sight,
    *,
    scale: float,
    slopes: Float[Any, " H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H V"]:
    """The fused kernel of NVIDIA GPUs through ``jax.nn.dot_product_attention``, in bfloat16."""
    documents = None if sight.query_segments is None else sight.mask(query.shape[1], key.shape[1])[:, None]
    # The library promotes types by itself, also where the caller has forbidden it.
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=documents,
            scale=scale,
            is_causal=True,
            local_window_size=(sight.window - 1, 0) if sight.window else None,
            implementation="cudnn",
        )


ATTENTION = {"plain": plain, "cudnn": cudnn}
"""``attend(query, key, value, sight, scale, slopes, sinks)``, by ``Runtime.attention``."""


def check_attention(architecture: Architecture, backend: str) -> None:
    """Raise ``ValueError`` if a backend cannot compute an architecture's attention."""
    a = architecture
    beyond = {"attention_sinks": a.attention_sinks, "positions = 'alibi'": a.positions == "alibi"}
    beyond["latent attention"] = bool(a.kv_latent_dim)
    if backend == "cudnn" and any(beyond.values()):
        names = ", ".join(name for name, has in beyond.items() if has)
        raise ValueError(f"runtime.attention 'cudnn' knows no {names}; choose another of {', '.join(ATTENTION)}.")
