"""Causal attention with all scores at once: the reference.

Shapes: B batch, T queries, S keys, H heads, G key-value heads, K width of a query, V width of a value.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from moejax.model.sight import Sight


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
    """The softmax-weighted mean of the values, its scores in float32.

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
