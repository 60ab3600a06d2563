"""Names of activations that a layer may keep for its backward pass while it computes all else again
(``jax.ad_checkpoint.checkpoint_name``). They do nothing where remat does not ask for them.

Each is named where its kernel hands it to the backward pass, so that keeping it spares the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

ATTN_QKV = "attn_qkv"
"""Queries, keys and values, before they are normed and rotated, which has to be known of them again."""
ATTN_OUT = "attn_out"
"""Means of values and, where the kernel has them, logarithms of the sums of scores, of which attention's backward pass
is made; the kernel "reference" keeps none, and computes its own again."""
MOE_GATE_UP = "moe_gate_up"
"""Gate and up projections of the rows of routed experts."""
FFN_GATE_UP = "ffn_gate_up"
"""Gate and up projections of dense layers and shared experts."""

SAVED_NAMES = (ATTN_QKV, ATTN_OUT, MOE_GATE_UP, FFN_GATE_UP)

_OF_CUDNN = "dot_product_attention_fwd_wrapper"
"""JAX's primitive of cuDNN's kernel, whose results it gives no names."""


def keep(*names: str) -> Callable[..., Any]:
    """The policy of ``jax.checkpoint`` that keeps what is named, and computes all else again."""
    named = jax.checkpoint_policies.save_only_these_names(*names)
    if ATTN_OUT not in names:
        return named
    return jax.checkpoint_policies.save_from_both_policies(
        named, lambda primitive, *_, **__: primitive.name == _OF_CUDNN
    )
