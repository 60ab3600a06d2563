"""Compute causal attention with NVIDIA's fused kernels (cuDNN), in bfloat16 and float16.

Supported sizes follow NVIDIA's table for cuDNN 9.18 (docs.nvidia.com/cudnn, Attention, read on 2026-11-25). Gradients
exist for head widths up to 128, and up to 256 on Hopper. Hopper and Blackwell also support query width 192 with value
width 128, the sizes of DeepSeek-V3's latent attention.

Documents in a row are described by their starts and lengths, so no queries × keys mask is stored. A program is compiled
for up to ``most_documents`` per row; rows with more documents use tiled attention.

Shapes: B batch, T tokens, H heads, G key-value heads, K width of a query, V width of a value, M most documents.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from moejax.errors import UserError
from moejax.kernels.attention import CUDNN_LATENT, AttentionMask, on_head_shards
from moejax.kernels.attention.tiled import tiled
from moejax.kernels.control_flow import cond_likely
from moejax.kernels.platform import gpu_generation
from moejax.kernels.private_api import cudnn_attention, cudnn_attention_gradients
from moejax.kernels.saved_names import ATTN_OUT

FEWEST_DOCUMENTS, MEAN_TOKENS = 32, 256
"""A program supports at least ``FEWEST_DOCUMENTS`` per row, or one document per ``MEAN_TOKENS`` if that is more."""
HOPPER = 9
WIDEST_HEAD = {HOPPER: 256}
OTHER_WIDEST = 128


def supports(
    query: Any, key: Any, value: Any, mask: AttentionMask, *, slopes: Any = None, sinks: Any = None, **_: Any
) -> bool:
    """Return whether cuDNN supports these inputs in its forward and backward kernels."""
    generation, widths = gpu_generation(), (query.shape[-1], value.shape[-1])
    is_16_bits = query.dtype in (jnp.bfloat16, jnp.float16) and query.dtype == key.dtype == value.dtype
    if not is_16_bits or slopes is not None or sinks is not None or generation < 8:
        return False
    if mask.query_segments is not None and (generation < HOPPER or mask.window or widths[0] != widths[1]):
        # JAX requires Hopper. NVIDIA does not document windows combined with documents. The kernel uses one offset per
        # document for both keys and values (and for queries and outputs), which is wrong if their widths differ.
        return False
    if widths == CUDNN_LATENT:
        return generation >= HOPPER
    return widths[0] == widths[1] <= WIDEST_HEAD.get(generation, OTHER_WIDEST) and widths[0] % 8 == 0


def cudnn(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    mask: AttentionMask,
    *,
    scale: float,
    slopes: Float[Any, " H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H V"]:
    """Compute causal attention in one kernel. Queries and keys must belong to the same tokens.

    Raises:
      UserError: cuDNN does not support these inputs.
    """
    if not supports(query, key, value, mask, slopes=slopes, sinks=sinks):
        raise UserError(
            f"runtime.attention 'cudnn' does not support query width {query.shape[-1]} and value width "
            f"{value.shape[-1]} in {query.dtype.name}{_beyond(mask, slopes, sinks)} on this GPU; choose 'auto'."
        )

    def local(query: Array, key: Array, value: Array, segments: Array | None, _: None) -> Array:
        if segments is None:
            return cudnn_attention(query, key, value, scale=scale, window=mask.window)
        if query.size > jnp.iinfo(jnp.int32).max:
            # Document offsets count array elements in int32.
            return _by_tiles(scale, query, key, value, segments)
        return _packed(scale, query, key, value, segments)

    return on_head_shards(local, query, key, value, mask.query_segments, None)


def _beyond(mask: AttentionMask, slopes: Any, sinks: Any) -> str:
    has = {"positions = 'alibi'": slopes is not None, "attention_sinks": sinks is not None}
    has |= {"documents": mask.query_segments is not None, "a window": bool(mask.window)}
    names = " and ".join(name for name, is_there in has.items() if is_there)
    return f" with {names}" if names else ""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _packed(
    scale: float,
    query: Float[Array, "B T H K"],
    key: Float[Array, "B T G K"],
    value: Float[Array, "B T G K"],
    segments: Int[Array, "B T"],
) -> Float[Array, "B T H K"]:
    """Compute attention within documents.

    The backward pass keeps one logsumexp per query. The kernel's own logsumexp array is ``most_documents`` times as
    large, as if each document were as long as the row, and mostly zero. The backward pass recomputes tiled attention.
    """
    documents = _documents(segments)

    def at_once(query: Array, key: Array, value: Array) -> Array:
        keys, values = _of_each_head(query, key, value)
        return cudnn_attention(query, keys, values, scale=scale, starts=documents.starts, lengths=documents.lengths)

    return cond_likely(documents.are_few, at_once, partial(_by_tiles, scale, segments=segments), query, key, value)


def _save(
    scale: float, query: Array, key: Array, value: Array, segments: Array
) -> tuple[Array, tuple[Array, Array, Array, Array, Array, Array]]:
    documents = _documents(segments)

    def at_once(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
        keys, values = _of_each_head(query, key, value)
        starts, lengths = documents.starts, documents.lengths
        mixed, logsumexp = cudnn_attention(
            query, keys, values, scale=scale, starts=starts, lengths=lengths, residual=True
        )
        return mixed, logsumexp[documents.number, :, documents.place]

    def by_tiles(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
        return _by_tiles(scale, query, key, value, segments), jnp.zeros(query.shape[:3], jnp.float32)

    mixed, logsumexp = cond_likely(documents.are_few, at_once, by_tiles, query, key, value)
    mixed, logsumexp = (checkpoint_name(one, ATTN_OUT) for one in (mixed, logsumexp))
    return mixed, (query, key, value, segments, mixed, logsumexp)


def _gradients(scale: float, saved: tuple[Array, ...], dmixed: Array) -> tuple[Array, Array, Array, None]:
    query, key, value, segments, mixed, logsumexp = saved
    documents = _documents(segments)

    def at_once(query: Array, key: Array, value: Array, mixed: Array, logsumexp: Array, dmixed: Array) -> Any:
        (keys, values), back = jax.vjp(partial(_of_each_head, query), key, value)
        room = jnp.zeros((documents.lengths.size, query.shape[2], query.shape[1]), jnp.float32)
        sums = room.at[documents.number, :, documents.place].set(logsumexp)
        dquery, dkeys, dvalues = cudnn_attention_gradients(
            query,
            keys,
            values,
            scale=scale,
            starts=documents.starts,
            lengths=documents.lengths,
            logsumexp=sums,
            mixed=mixed,
            dmixed=dmixed,
        )
        return dquery, *back((dkeys, dvalues))

    def by_tiles(query: Array, key: Array, value: Array, mixed: Array, logsumexp: Array, dmixed: Array) -> Any:
        return jax.vjp(partial(_by_tiles, scale, segments=segments), query, key, value)[1](dmixed)

    operands = (query, key, value, mixed, logsumexp, dmixed.astype(mixed.dtype))
    return *cond_likely(documents.are_few, at_once, by_tiles, *operands), None


_packed.defvjp(_save, _gradients)


def _by_tiles(scale: float, query: Array, key: Array, value: Array, segments: Array) -> Array:
    here = AttentionMask(query_segments=segments, key_segments=segments)
    return tiled(query, key, value, here, scale=scale)


def _of_each_head(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
    """Return keys and values, repeated so that every query head has its own.

    JAX computes key offsets from the number of query heads (fixed in its pull request 39521, July 2026). With fewer key
    heads, queries would see keys of another document.
    """
    times = query.shape[2] // key.shape[2]
    return jnp.repeat(key, times, axis=2), jnp.repeat(value, times, axis=2)


def most_documents(length: int) -> int:
    """Return the maximum number of documents in a row of this length for which a program is compiled.

    During a layer's computation, softmax sums are stored in float32 as if each document were as long as the row. At
    head width 128, each document takes 1/64 of the queries' bytes.
    """
    return max(FEWEST_DOCUMENTS, length // MEAN_TOKENS)


class _Documents(NamedTuple):
    """Starts and lengths of each row's documents; -1 after the last document. A document is a run of tokens with the
    same segment number, as in packed rows; padding counts as a document."""

    starts: Int[Array, "B M_and_one"]
    lengths: Int[Array, "B M"]
    number: Int[Array, "B T"]
    """Index of each token's document, counted over all rows as in the kernel."""
    place: Int[Array, "B T"]
    """Position of each token in its document."""
    are_few: Bool[Array, ""]
    """True if no row has more than ``most_documents``, so that the kernel supports the rows."""


def _documents(segments: Int[Array, "B T"]) -> _Documents:
    most = most_documents(segments.shape[1])
    begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0))).astype(jnp.int32)
    number = jnp.cumsum(begins, axis=1)
    lengths = jax.nn.one_hot(number, most, dtype=jnp.int32).sum(1)
    starts = jnp.cumsum(lengths, axis=1) - lengths
    place = jnp.arange(segments.shape[1]) - jnp.take_along_axis(starts, jnp.minimum(number, most - 1), axis=1)
    of_row = number[:, -1] + 1
    before = (jnp.cumsum(of_row) - of_row)[:, None]
    is_one = lengths > 0
    starts, lengths = jnp.where(is_one, starts, -1), jnp.where(is_one, lengths, -1)
    starts = jnp.pad(starts, ((0, 0), (0, 1)), constant_values=-1)
    return _Documents(starts, lengths, before + number, place, number.max() < most)
