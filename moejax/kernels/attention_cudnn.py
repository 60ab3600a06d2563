"""Causal attention by NVIDIA's fused kernels (cuDNN), in bfloat16 and float16.

What they can do is NVIDIA's table for cuDNN 9.18 (docs.nvidia.com/cudnn, Attention, read on 2026-11-25): gradients for
heads of up to 128 numbers, on Hopper 256, and there and on Blackwell for queries of 192 with values of 128, as latent
attention in DeepSeek-V3's sizes has them.

Documents of a row are told by where they begin and how long they are, so that no mask of queries by keys is held; JAX
has that beside its public functions only. A program is made for ``MOST_DOCUMENTS`` of a row; rows of more are computed
by tiles.

Shapes: B batch, T tokens, H heads, G key-value heads, K width of a query, V width of a value, M most documents.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from moejax.condition import usually
from moejax.errors import UserError
from moejax.kernels.attention import CUDNN_LATENT, AttentionMask, on_head_shards
from moejax.kernels.attention_tiled import tiled
from moejax.platform import gpu_generation

MOST_DOCUMENTS = 32
"""Of a row: the sums of the softmax are kept as if every document were as long as the row, in float32; with 32 of them
they are as large as the queries at 64 numbers a head."""
HOPPER = 9
WIDEST_HEAD = {HOPPER: 256}
OTHER_WIDEST = 128


def supports(
    query: Any, key: Any, value: Any, mask: AttentionMask, *, slopes: Any = None, sinks: Any = None, **_: Any
) -> bool:
    """Whether cuDNN has the kernel, and its gradient."""
    generation, widths = gpu_generation(), (query.shape[-1], value.shape[-1])
    is_16_bits = query.dtype in (jnp.bfloat16, jnp.float16) and query.dtype == key.dtype == value.dtype
    if not is_16_bits or slopes is not None or sinks is not None or generation < 8:
        return False
    if mask.query_segments is not None and (generation < HOPPER or mask.window or widths[0] != widths[1]):
        # JAX asks for Hopper; nobody states that a window goes together with documents. Keys and values, and queries
        # and outputs, are told one place of a document, which is that of the former alone where widths differ.
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
    """The reference in one kernel, for queries and keys of the same tokens.

    Raises:
      UserError: it is none of those that cuDNN computes.
    """
    if not supports(query, key, value, mask, slopes=slopes, sinks=sinks):
        raise UserError(
            f"runtime.attention 'cudnn' does not compute queries of {query.shape[-1]} and values of {value.shape[-1]} "
            f"numbers a head in {query.dtype.name}{_beyond(mask, slopes, sinks)} on this GPU; choose 'auto'."
        )

    def local(query: Array, key: Array, value: Array, segments: Array | None, _: None) -> Array:
        if segments is None:
            return _attend(query, key, value, scale, mask.window, None)
        documents, are_few = _documents(segments)

        def by_tiles(query: Array, key: Array, value: Array) -> Array:
            here = AttentionMask(query_segments=segments, key_segments=segments)
            return tiled(query, key, value, here, scale=scale)

        def at_once(query: Array, key: Array, value: Array) -> Array:
            # JAX counts places of keys by the heads of queries (mended in its pull request 39521, July 2026): where
            # keys have fewer, queries would meet those of another document.
            key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], axis=2) for x in (key, value))
            return _attend(query, key, value, scale, 0, documents)

        if query.size > jnp.iinfo(jnp.int32).max:
            # Places of documents are counted in numbers.
            return by_tiles(query, key, value)
        return usually(are_few, at_once, by_tiles, query, key, value)

    return on_head_shards(local, query, key, value, mask.query_segments, None)


def _beyond(mask: AttentionMask, slopes: Any, sinks: Any) -> str:
    has = {"positions = 'alibi'": slopes is not None, "attention_sinks": sinks is not None}
    has |= {"documents": mask.query_segments is not None, "a window": bool(mask.window)}
    names = " and ".join(name for name, is_there in has.items() if is_there)
    return f" with {names}" if names else ""


class _Documents(NamedTuple):
    """Where the documents of each row begin, and how long they are; -1 behind the last."""

    starts: Int[Array, "B M_and_one"]
    lengths: Int[Array, "B M"]


def _documents(segments: Int[Array, "B T"]) -> tuple[_Documents, Bool[Array, ""]]:
    """The documents, and whether the kernel can take them: no row has more than ``MOST_DOCUMENTS``.

    A document is a run of tokens of one number, as packed rows have them; what fills a row up is one too.
    """
    begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0))).astype(jnp.int32)
    number = jnp.cumsum(begins, axis=1)
    lengths = jax.nn.one_hot(number, MOST_DOCUMENTS, dtype=jnp.int32).sum(1)
    starts = jnp.cumsum(lengths, axis=1) - lengths
    is_one = lengths > 0
    starts, lengths = jnp.where(is_one, starts, -1), jnp.where(is_one, lengths, -1)
    return _Documents(jnp.pad(starts, ((0, 0), (0, 1)), constant_values=-1), lengths), number.max() < MOST_DOCUMENTS


def _attend(
    query: Array, key: Array, value: Array, scale: float, window: int, documents: _Documents | None
) -> Float[Array, "B T H V"]:
    from jax._src.cudnn.fused_attention_stablehlo import MaskType, dot_product_attention

    packed: dict[str, Any] = {}
    if documents is not None:
        starts, lengths = documents
        packed = {"q_offsets": starts, "kv_offsets": starts, "q_seqlen": lengths, "kv_seqlen": lengths}
    # The library promotes types by itself, also where the caller has forbidden it.
    with jax.numpy_dtype_promotion("standard"):
        mixed: Any = dot_product_attention(
            query,
            key,
            value,
            scale=scale,
            mask_type=MaskType.PADDING_CAUSAL if packed else MaskType.CAUSAL,
            sliding_window_length=window or None,
            **packed,
        )
    return mixed
