"""Compute causal attention on CPU cores, head by head, with all scores of a query tile at once.

A query tile is multiplied by all its visible keys in one matmul, so the softmax needs no running sums. The backward
pass recomputes a tile's scores from their logsumexp. Only one tile's scores are stored at a time. Keys that are
invisible to all queries of a tile, above the diagonal or outside the window, are skipped.

Shapes: B batch, T tokens, H heads, G key-value heads, K width of a query, V width of a value.
"""

from __future__ import annotations

from typing import Any, NamedTuple, no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int
from numba import njit

from moejax.errors import UserError
from moejax.kernels.attention import AttentionMask
from moejax.kernels.cpu.arithmetic import MASK_VALUE, ONE, ZERO, exp, fill_vectors, larger
from moejax.kernels.cpu.compiled import FAST
from moejax.kernels.cpu.custom_call import (
    argument,
    custom_call,
    floats1,
    floats3,
    floats4,
    integers1,
    integers2,
    kernel,
    result,
)
from moejax.kernels.cpu.product import APART, multiply
from moejax.kernels.platform import platform
from moejax.kernels.saved_names import ATTN_OUT
from moejax.sharding import TOKEN_AXES, can_split, on_many_devices

FORWARD, BACKWARD = "moejax_attention_forward", "moejax_attention_backward"


class Inputs(NamedTuple):
    """Inputs of the kernels, in order."""

    query: Float[Array, "B T H K"]
    key: Float[Array, "B T G K"]
    value: Float[Array, "B T G V"]
    sinks: Float[Array, " H"]
    """MASK_VALUE without sinks."""
    slopes: Float[Array, " H"]
    segments: Int[Array, "B T"]
    """All 0 if each row is one document."""
    scale: Float[Array, " 1"]
    rule: Int[Array, " 2"]
    """The window (0 for none), and 1 if rows have several documents, else 0."""


def supports(query: Array, key: Array, value: Array, mask: AttentionMask, **options: Any) -> bool:
    """Return whether the batch size is divisible by the number of devices over which the batch is split."""
    return can_split(query.shape[0])


def attention(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B T G K"],
    value: Float[Array, "B T G V"],
    mask: AttentionMask,
    *,
    scale: float,
    slopes: Float[Any, " H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H V"]:
    """Compute causal attention in float32 without storing its scores. Queries and keys must belong to the same tokens.

    Raises:
      UserError: the program is not for a CPU.
    """
    if platform() != "cpu":
        raise UserError(
            f"runtime.attention 'numba' is for CPUs, but this program is for a {platform()}; choose 'auto'."
        )
    batch, length, heads, _ = query.shape
    inputs = Inputs(
        query,
        key,
        value,
        jnp.full(heads, MASK_VALUE) if sinks is None else sinks.astype(jnp.float32),
        jnp.zeros(heads) if slopes is None else jnp.asarray(slopes, jnp.float32),
        jnp.zeros((batch, length), jnp.int32) if mask.query_segments is None else mask.query_segments,
        jnp.full(1, scale, jnp.float32),
        jnp.asarray([mask.window, mask.query_segments is not None], jnp.int32),
    )
    if not on_many_devices():
        return _attend(inputs)
    tensor = jax.sharding.get_abstract_mesh().shape["tensor"]
    # Split heads only if every device gets the keys of its own queries.
    split = "tensor" if tensor > 1 and heads % tensor == key.shape[2] % tensor == 0 else None
    rows = P(TOKEN_AXES, None, split, None)
    specs = Inputs._make((rows, rows, rows, P(split), P(split), P(TOKEN_AXES, None), P(None), P(None)))
    axes = {*TOKEN_AXES, split} - {None}
    return jax.shard_map(_attend, in_specs=(specs,), out_specs=rows, axis_names=axes, check_vma=False)(inputs)


@njit(inline="always")
@no_type_check
def _tile(length: int) -> int:
    """Return the number of queries per tile. Short sequences have small tiles, because half of a diagonal tile's scores
    are masked."""
    return 32 if length <= 128 else 64


@njit(inline="always", **FAST)
@no_type_check
def _score(scores, scale, segments, slope, first, query, window, has_segments) -> None:
    """Convert a query's products with keys to scores in place: scale, ALiBi and mask. The first key's index is
    ``first``."""
    keys = scores.shape[0]
    for j in range(keys):
        scores[j] *= scale
    if slope != ZERO:
        for j in range(keys):
            scores[j] -= slope * np.float32(query - first - j)
    if has_segments:
        own = segments[query]
        for j in range(keys):
            if segments[first + j] != own:
                scores[j] = MASK_VALUE
    for j in range(query - first + 1, keys):
        scores[j] = MASK_VALUE
    if window > 0:
        for j in range(query - window + 1 - first):
            scores[j] = MASK_VALUE


@kernel(FORWARD)
@no_type_check
def _forward_part(frame: int, part: int) -> int:
    """Compute the outputs, and the logsumexp of each query's scores, for one head of one sequence."""
    fill_vectors()
    query, key, value = floats4(argument(frame, 0)), floats4(argument(frame, 1)), floats4(argument(frame, 2))
    sinks, slopes = floats1(argument(frame, 3)), floats1(argument(frame, 4))
    segments = integers2(argument(frame, 5))
    scale, rule = floats1(argument(frame, 6))[0], integers1(argument(frame, 7))
    mixed, logsumexp = floats4(result(frame, 0)), floats3(result(frame, 1))
    _, length, heads, wide = query.shape
    groups, deep = value.shape[2:]
    b, h = part // heads, part % heads
    g = h // (heads // groups)
    tile = _tile(length)
    scores, share = np.empty((tile, length + APART), np.float32), np.empty(tile, np.float32)
    apart = length + APART
    for start in range(0, length, tile):
        rows = min(tile, length - start)
        first = max(start - rule[0] + 1, 0) if rule[0] > 0 else 0
        keys = start + rows - first
        multiply(
            query[b, start:, h], key[b, first:, g], scores,
            (rows, keys, wide), (heads * wide, groups * wide, apart), (False, True), False,
        )  # fmt: skip
        for r in range(rows):
            row = scores[r, :keys]
            _score(row, scale, segments[b], slopes[h], first, start + r, rule[0], rule[1])
            highest = sinks[h]
            for j in range(keys):
                highest = larger(highest, row[j])
            total = exp(sinks[h] - highest) if sinks[h] > MASK_VALUE else ZERO
            for j in range(keys):
                weight = exp(row[j] - highest)
                row[j] = weight
                total += weight
            share[r] = ONE / total
            logsumexp[b, h, start + r] = highest + np.log(total)
        multiply(
            scores, value[b, first:, g], mixed[b, start:, h],
            (rows, deep, keys), (apart, groups * deep, heads * deep), (False, False), False,
        )  # fmt: skip
        for r in range(rows):
            for v in range(deep):
                mixed[b, start + r, h, v] *= share[r]
    return 0


@kernel(BACKWARD)
@no_type_check
def _backward_part(frame: int, part: int) -> int:
    """Compute gradients for one key-value head of one sequence and all query heads that share it: gradients of queries,
    keys and values, and each query's weighted mean gradient of its weights."""
    fill_vectors()
    query, key, value = floats4(argument(frame, 0)), floats4(argument(frame, 1)), floats4(argument(frame, 2))
    slopes, segments = floats1(argument(frame, 4)), integers2(argument(frame, 5))
    scale, rule = floats1(argument(frame, 6))[0], integers1(argument(frame, 7))
    mixed, logsumexp, dmixed = floats4(argument(frame, 8)), floats3(argument(frame, 9)), floats4(argument(frame, 10))
    dquery, dkey, dvalue = floats4(result(frame, 0)), floats4(result(frame, 1)), floats4(result(frame, 2))
    means = floats3(result(frame, 3))
    _, length, heads, wide = query.shape
    groups, deep = value.shape[2:]
    b, g = part // groups, part % groups
    shared = heads // groups
    tile, apart = _tile(length), length + APART
    weights, dscores = np.empty((tile, apart), np.float32), np.empty((tile, apart), np.float32)
    dkey[b, :, g] = ZERO
    dvalue[b, :, g] = ZERO
    for h in range(g * shared, (g + 1) * shared):
        for start in range(0, length, tile):
            rows = min(tile, length - start)
            first = max(start - rule[0] + 1, 0) if rule[0] > 0 else 0
            keys = start + rows - first
            multiply(
                query[b, start:, h], key[b, first:, g], weights,
                (rows, keys, wide), (heads * wide, groups * wide, apart), (False, True), False,
            )  # fmt: skip
            multiply(
                dmixed[b, start:, h], value[b, first:, g], dscores,
                (rows, keys, deep), (heads * deep, groups * deep, apart), (False, True), False,
            )  # fmt: skip
            for r in range(rows):
                weight, dscore = weights[r, :keys], dscores[r, :keys]
                _score(weight, scale, segments[b], slopes[h], first, start + r, rule[0], rule[1])
                # Softmax gradient: dscore = weight * (dweight - weighted mean of dweight).
                mean, total = ZERO, logsumexp[b, h, start + r]
                for v in range(deep):
                    mean += dmixed[b, start + r, h, v] * mixed[b, start + r, h, v]
                means[b, h, start + r] = mean
                for j in range(keys):
                    w = exp(weight[j] - total)
                    weight[j] = w
                    dscore[j] = w * (dscore[j] - mean) * scale
            multiply(
                dscores, key[b, first:, g], dquery[b, start:, h],
                (rows, wide, keys), (apart, groups * wide, heads * wide), (False, False), False,
            )  # fmt: skip
            multiply(
                dscores, query[b, start:, h], dkey[b, first:, g],
                (keys, wide, rows), (apart, heads * wide, groups * wide), (True, False), True,
            )  # fmt: skip
            multiply(
                weights, dmixed[b, start:, h], dvalue[b, first:, g],
                (keys, deep, rows), (apart, heads * deep, groups * deep), (True, False), True,
            )  # fmt: skip
    return 0


def _forward(inputs: Inputs) -> tuple[Float[Array, "B T H V"], Float[Array, "B H T"]]:
    batch, length, heads, _ = inputs.query.shape
    results = (
        jax.ShapeDtypeStruct((batch, length, heads, inputs.value.shape[-1]), jnp.float32),
        jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
    )
    return custom_call(FORWARD, batch * heads, results, *inputs)


def _backward(saved: tuple[Inputs, Array, Array], dmixed: Float[Array, "B T H V"]) -> tuple[Inputs]:
    inputs, mixed, logsumexp = saved
    results = tuple(
        jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (inputs.query, inputs.key, inputs.value, logsumexp)
    )
    parts = inputs.key.shape[0] * inputs.key.shape[2]
    dquery, dkey, dvalue, mean = custom_call(BACKWARD, parts, results, *inputs, mixed, logsumexp, dmixed)
    dsinks = -(jnp.exp(inputs.sinks[:, None] - logsumexp) * mean).sum((0, 2))
    unmoved = {"segments": None, "rule": None, "slopes": jnp.zeros_like(inputs.slopes)}
    return (Inputs(dquery, dkey, dvalue, dsinks, scale=jnp.zeros_like(inputs.scale), **unmoved),)


def _save(inputs: Inputs) -> tuple[Array, tuple[Inputs, Array, Array]]:
    mixed, logsumexp = (checkpoint_name(result, ATTN_OUT) for result in _forward(inputs))
    return mixed, (inputs, mixed, logsumexp)


def _outputs(inputs: Inputs) -> Float[Array, "B T H V"]:
    return _forward(inputs)[0]


_attend = jax.custom_vjp(_outputs)
_attend.defvjp(_save, _backward)
