"""Names of the values that a layer may save for its backward pass while it recomputes the others.

Each value is named (``jax.ad_checkpoint.checkpoint_name``) where its kernel hands it to the backward pass, so that
saving it spares the kernel. A name has no effect unless a remat policy saves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

CHOICE = "choice"
"""Discrete choices, such as the experts of a token. Every remat policy saves them: a recomputation rounds otherwise and
may choose other experts, whose rows would not match those that were saved."""
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
"""Names that ``Runtime.remat`` accepts."""

_OF_CUDNN = "dot_product_attention_fwd_wrapper"
"""JAX's primitive of cuDNN's kernel, whose results it gives no names."""


def choice(values: Array) -> Array:
    """Mark integers or booleans that were derived from floats, so that the backward pass never derives them again."""
    return checkpoint_name(values, CHOICE)


def keep(*names: str) -> Callable[..., Any]:
    """Return the ``jax.checkpoint`` policy that saves these names and all choices, and recomputes everything else."""
    named = jax.checkpoint_policies.save_only_these_names(CHOICE, *names)
    if ATTN_OUT not in names:
        return named
    return jax.checkpoint_policies.save_from_both_policies(
        named, lambda primitive, *_, **__: primitive.name == _OF_CUDNN
    )
