"""Compute causal attention with the TPU's fused kernel (splash attention, from JAX's Pallas kernels).

Shapes: B batch, T tokens, H heads, G key-value heads, K width of a query, V width of a value.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from moejax.errors import UserError
from moejax.kernels.attention import AttentionMask, on_head_shards
from moejax.kernels.platform import platform
from moejax.kernels.saved_names import ATTN_OUT
from moejax.kernels.table import Operand

LANES = 128
"""The number of keys must be a multiple of this."""
BLOCKS = (1024, 512, 256, LANES)
"""Block sizes in tokens for queries and keys; the first that divides the sequence length is used."""
COMPUTED = 512
"""Maximum number of keys per inner step of a query block."""


def supports(*arrays: Operand | AttentionMask, slopes: Float[Any, " H"] | None = None, **options: Any) -> bool:
    """Return whether there are no ALiBi slopes, which the kernel does not support."""
    return slopes is None


def splash(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B S G K"],
    value: Float[Array, "B S G V"],
    mask: AttentionMask,
    *,
    scale: float,
    slopes: Float[Any, " H"] | None = None,
    sinks: Float[Array, " H"] | None = None,
) -> Float[Array, "B T H V"]:
    """Compute causal attention in one kernel that skips masked blocks. Queries and keys must belong to the same tokens.

    On other platforms the kernel is interpreted, for tests.

    Raises:
      UserError: ``slopes`` are given.
    """
    if slopes is not None:
        raise UserError("runtime.attention 'splash' does not support positions = 'alibi'; choose 'tiled'.")
    # Rounding the scale to bfloat16 would change all scores in the same direction.
    query = (query.astype(jnp.float32) * scale).astype(query.dtype)

    def local(query, key, value, segments, sinks):
        return _heads_first(query, key, value, segments, sinks, mask.window)

    return on_head_shards(local, query, key, value, mask.query_segments, sinks)


def _heads_first(
    query: Float[Array, "B T H K"],
    key: Float[Array, "B T G K"],
    value: Float[Array, "B T G V"],
    segments: Int[Array, "B T"] | None,
    sinks: Float[Array, " H"] | None,
    window: int,
) -> Float[Array, "B T H V"]:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    length = query.shape[1]
    # Padding comes after all real queries, so no query attends to it.
    padded = length + -length % LANES
    block = next(size for size in BLOCKS if padded % size == 0)
    computed = min(block, COMPUTED)

    def rows(x: Array) -> Array:
        return jnp.pad(jnp.swapaxes(x, 1, 2), ((0, 0), (0, 0), (0, padded - length), (0, 0)))

    shape = (padded, padded)
    mask = (
        splash_attention_mask.LocalMask(shape, (window - 1, 0), 0)
        if window
        else splash_attention_mask.CausalMask(shape)
    )
    # The library relies on type promotion, which the caller may have disabled.
    with jax.numpy_dtype_promotion("standard"):
        kernel = splash_attention_kernel.make_splash_mha(
            splash_attention_mask.MultiHeadMask([mask] * query.shape[2]),
            block_sizes=splash_attention_kernel.BlockSizes(
                block_q=block,
                block_kv=block,
                block_kv_compute=computed,
                block_q_dkv=block,
                block_kv_dkv=block,
                block_kv_dkv_compute=computed,
                block_q_dq=block,
                block_kv_dq=block,
            ),
            head_shards=1,
            q_seq_shards=1,
            residual_checkpoint_name=ATTN_OUT,
            interpret=platform() != "tpu",
        )

        def one(query: Array, key: Array, value: Array, segments: Array | None) -> Any:
            ids = None if segments is None else splash_attention_kernel.SegmentIds(segments, segments)
            return kernel(query, key, value, ids, sinks)

        if segments is not None:
            segments = jnp.pad(segments, ((0, 0), (0, padded - length)))
        mixed: Any = jax.vmap(one, in_axes=(0, 0, 0, None if segments is None else 0))(
            rows(query), rows(key), rows(value), segments
        )
    return jnp.swapaxes(mixed[:, :, :length], 1, 2).astype(value.dtype)
