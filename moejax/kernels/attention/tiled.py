"""Compute causal attention tile by tile (FlashAttention: Dao et al., 2022; Dao, 2023), in plain XLA for any platform.

A query tile is combined with its visible key tiles one at a time, with a running maximum and sum of the softmax. The
backward pass recomputes each tile's scores from their logsumexp. No queries × keys array is ever stored. Tiles above
the diagonal or outside the window are never computed.

Shapes: B batch, T tokens, G key-value heads, R query heads per key-value head, K width of a query, V width of a value,
t and s tokens of a query tile and a key tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from moejax.kernels.attention import AttentionMask
from moejax.kernels.platform import platform
from moejax.kernels.saved_names import ATTN_OUT

F32 = jnp.float32
MASK_VALUE = float(np.finfo(np.float32).min)
"""Score of a masked key. It is finite, so that a tile without visible keys for a query gives no NaN."""

TILES = {"cpu": 64}
"""Tokens per tile, keyed by platform. Other platforms use the larger ``OTHER_TILE``, because their loop iterations need
several kernel launches."""
OTHER_TILE = 512


class MaskSettings(NamedTuple):
    """Static settings for the mask and the scores."""

    tile: int
    window: int
    scale: float
    slopes: tuple[float, ...] | None


class TiledInputs(NamedTuple):
    """Inputs with heads before tokens, so that a tile is one matrix per head; T is a multiple of the tile size."""

    query: Float[Array, "B G R T K"]
    key: Float[Array, "B G T K"]
    value: Float[Array, "B G T V"]
    sinks: Float[Array, "G R"] | None
    segments: Int[Array, "B T"] | None


def tiled(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    mask: AttentionMask,
    *,
    scale: float,
    slopes: Float[Any, " H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H V"]:
    """Compute causal attention tile by tile, without storing all scores.

    Queries and keys must belong to the same tokens. ``slopes`` are constants, not learned.
    """
    length, groups = query.shape[1], key.shape[2]
    tile = min(TILES.get(platform(), OTHER_TILE), length)
    rule = MaskSettings(tile, mask.window, scale, None if slopes is None else tuple(np.asarray(slopes).tolist()))
    # Padding comes after all real queries, so no query attends to it.
    queries, keys, values = (_padded(jnp.swapaxes(x, 1, 2), tile, axis=2) for x in (query, key, value))
    batch, heads, *of_head = queries.shape
    inputs = TiledInputs(
        query=queries.reshape(batch, groups, heads // groups, *of_head),
        key=keys,
        value=values,
        sinks=None if sinks is None else sinks.astype(F32).reshape(groups, -1),
        segments=None if mask.query_segments is None else _padded(mask.query_segments, tile, axis=1),
    )
    mixed = _attend(rule, inputs)
    return jnp.swapaxes(mixed.reshape(batch, heads, *mixed.shape[3:])[:, :, :length], 1, 2)


def _padded(x: Array | np.ndarray, tile: int, axis: int) -> jax.Array:
    return jnp.pad(x, [(0, -size % tile if i == axis else 0) for i, size in enumerate(x.shape)])


def _cut(rule: MaskSettings, x: Array, tile: Array | int, axis: int = -2) -> Array:
    return lax.dynamic_slice_in_dim(x, tile * rule.tile, rule.tile, axis)


def _paste(rule: MaskSettings, x: Array, part: Array, tile: Array | int) -> Array:
    return lax.dynamic_update_slice_in_dim(x, part.astype(x.dtype), tile * rule.tile, x.ndim - 2)


def _product(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b.astype(a.dtype), preferred_element_type=F32)


def _scores(rule: MaskSettings, inputs: TiledInputs, i: Array | int, j: Array | int) -> Float[Array, "B G R t s"]:
    query, key = _cut(rule, inputs.query, i), _cut(rule, inputs.key, j)
    scores = _product("bgrtk,bgsk->bgrts", query, key) * rule.scale
    here = jnp.arange(rule.tile)
    distance = (i - j) * rule.tile + here[:, None] - here
    if rule.slopes is not None:
        slopes = jnp.asarray(rule.slopes, F32).reshape(*scores.shape[1:3], 1, 1)
        scores = scores - slopes * distance.astype(F32)
    seen = distance >= 0
    if rule.window:
        seen = seen & (distance < rule.window)
    if inputs.segments is not None:
        of_queries, of_keys = (_cut(rule, inputs.segments, tile, axis=1) for tile in (i, j))
        seen = seen & (of_queries[:, :, None] == of_keys[:, None, :])[:, None, None]
    return jnp.where(seen, scores, MASK_VALUE)


def _first_key_tile(rule: MaskSettings, i: Array | int) -> Any:
    """Return the first key tile that is visible to query tile ``i``; the last is tile ``i``."""
    return jnp.maximum(i * rule.tile - rule.window + 1, 0) // rule.tile if rule.window else 0


def _last_query_tile(rule: MaskSettings, j: Array | int, tiles: int) -> Any:
    """Return the last query tile to which key tile ``j`` is visible; the first is tile ``j``."""
    return (
        jnp.minimum((j * rule.tile + rule.tile + rule.window - 2) // rule.tile, tiles - 1) if rule.window else tiles - 1
    )


def _forward(rule: MaskSettings, inputs: TiledInputs) -> tuple[Float[Array, "B G R T V"], Float[Array, "B G R T 1"]]:
    """Return the outputs, and the logsumexp of each query's scores."""
    shape, width = inputs.query.shape[:-1], inputs.value.shape[-1]
    row = (*shape[:-1], rule.tile, 1)
    if inputs.sinks is None:
        maximum, total = jnp.full(row, MASK_VALUE, F32), jnp.zeros(row, F32)
    else:
        maximum, total = jnp.broadcast_to(inputs.sinks[..., None, None], row), jnp.ones(row, F32)

    def of_queries(i: Array | int, results: tuple[Array, Array]) -> tuple[Array, Array]:
        def of_keys(j: Array | int, running: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            maximum, total, mixed = running
            scores = _scores(rule, inputs, i, j)
            higher = jnp.maximum(maximum, scores.max(-1, keepdims=True))
            weights, shrink = jnp.exp(scores - higher), jnp.exp(maximum - higher)
            value = _cut(rule, inputs.value, j)
            here = _product("bgsv,bgrts->bgrtv", value, weights)
            return higher, total * shrink + weights.sum(-1, keepdims=True), mixed * shrink + here

        start = maximum, total, jnp.zeros((*row[:-1], width), F32)
        highest, sum_, mixed = lax.fori_loop(_first_key_tile(rule, i), i + 1, of_keys, start)
        return _paste(rule, results[0], mixed / sum_, i), _paste(rule, results[1], highest + jnp.log(sum_), i)

    results = jnp.zeros((*shape, width), inputs.value.dtype), jnp.zeros((*shape, 1), F32)
    return lax.fori_loop(0, shape[-1] // rule.tile, of_queries, results)


def _backward(
    rule: MaskSettings, saved: tuple[TiledInputs, Array, Array], dmixed: Float[Array, "B G R T V"]
) -> tuple[TiledInputs]:
    inputs, mixed, logsumexp = saved
    tiles = inputs.query.shape[-2] // rule.tile
    # Softmax gradient: dscore = weight * (dweight - weighted mean of dweight).
    mean = (dmixed.astype(F32) * mixed.astype(F32)).sum(-1, keepdims=True)

    def of_keys(j: Array | int, gradients: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        dquery, dkey, dvalue = gradients
        key, value = _cut(rule, inputs.key, j), _cut(rule, inputs.value, j)

        def of_queries(i: Array | int, sums: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            dquery, dkey_here, dvalue_here = sums
            query, dmixed_here = _cut(rule, inputs.query, i), _cut(rule, dmixed, i)
            weights = jnp.exp(_scores(rule, inputs, i, j) - _cut(rule, logsumexp, i))
            dweights = _product("bgrtv,bgsv->bgrts", dmixed_here, value)
            dscores = weights * (dweights - _cut(rule, mean, i)) * rule.scale
            dquery_here = _cut(rule, dquery, i) + _product("bgsk,bgrts->bgrtk", key, dscores)
            return (
                _paste(rule, dquery, dquery_here, i),
                dkey_here + _product("bgrtk,bgrts->bgsk", query, dscores),
                dvalue_here + _product("bgrtv,bgrts->bgsv", dmixed_here, weights),
            )

        start = dquery, jnp.zeros(key.shape, F32), jnp.zeros(value.shape, F32)
        last = _last_query_tile(rule, j, tiles)
        dquery, dkey_here, dvalue_here = lax.fori_loop(j, last + 1, of_queries, start)
        return dquery, _paste(rule, dkey, dkey_here, j), _paste(rule, dvalue, dvalue_here, j)

    start = jnp.zeros(inputs.query.shape, F32), jnp.zeros_like(inputs.key), jnp.zeros_like(inputs.value)
    dquery, dkey, dvalue = lax.fori_loop(0, tiles, of_keys, start)
    dsinks = None
    if inputs.sinks is not None:
        dsinks = -(jnp.exp(inputs.sinks[..., None, None] - logsumexp) * mean).sum((0, 3, 4))
    return (TiledInputs(dquery.astype(inputs.query.dtype), dkey, dvalue, dsinks, None),)


def _save(rule: MaskSettings, inputs: TiledInputs) -> tuple[Array, tuple[TiledInputs, Array, Array]]:
    mixed, logsumexp = (checkpoint_name(result, ATTN_OUT) for result in _forward(rule, inputs))
    return mixed, (inputs, mixed, logsumexp)


def _outputs(rule: MaskSettings, inputs: TiledInputs) -> Float[Array, "B G R T V"]:
    return _forward(rule, inputs)[0]


_attend = jax.custom_vjp(_outputs, nondiff_argnums=(0,))
_attend.defvjp(_save, _backward)
