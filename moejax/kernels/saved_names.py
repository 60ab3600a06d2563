"""Names of values that a layer can save for its backward pass while it recomputes all other values.

Each value is named (``jax.ad_checkpoint.checkpoint_name``) where its kernel passes it to the backward pass, so saving
it avoids running the kernel again. A name has no effect unless a remat policy saves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

CHOICE = "choice"
"""Discrete choices, such as a token's experts. Every remat policy saves them: a recomputation may round differently and
choose other experts, whose rows would not match the saved rows."""
ATTN_QKV = "attn_qkv"
"""Queries, keys and values before normalization and rotation. These two steps are recomputed."""
ATTN_OUT = "attn_out"
"""Attention outputs and, for kernels that return it, the logsumexp of scores; attention's backward pass uses both. The
kernel "reference" does not save them."""
MOE_GATE_UP = "moe_gate_up"
"""Gate and up projections of routed experts' rows."""
FFN_GATE_UP = "ffn_gate_up"
"""Gate and up projections of dense layers and shared experts."""

SAVED_NAMES = (ATTN_QKV, ATTN_OUT, MOE_GATE_UP, FFN_GATE_UP)
"""Names that ``Runtime.remat`` accepts."""

_OF_CUDNN = "dot_product_attention_fwd_wrapper"
"""JAX's primitive for cuDNN's kernel; JAX does not name its results."""


def choice(values: Array) -> Array:
    """Mark integers or booleans derived from floats, so that the backward pass does not recompute them."""
    return checkpoint_name(values, CHOICE)


def keep(*names: str) -> Callable[..., Any]:
    """Return the ``jax.checkpoint`` policy that saves these names and all choices, and recomputes everything else."""
    named = jax.checkpoint_policies.save_only_these_names(CHOICE, *names)
    if ATTN_OUT not in names:
        return named
    return jax.checkpoint_policies.save_from_both_policies(
        named, lambda primitive, *_, **__: primitive.name == _OF_CUDNN
    )
