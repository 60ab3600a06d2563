"""Names of activations that a layer may keep for its backward pass while it computes all else again
(``jax.ad_checkpoint.checkpoint_name``). They do nothing where remat does not ask for them.

Each is named where its kernel hands it to the backward pass, so that keeping it spares the kernel.
"""

ATTN_QKV = "attn_qkv"
"""Queries, keys and values, before they are normed and rotated, which has to be known of them again."""
ATTN_OUT = "attn_out"
"""Means of values and, where the kernel has them, logarithms of the sums of scores, of which attention's backward pass
is made; the kernels "cudnn" and "reference" compute their own again."""
MOE_GATE_UP = "moe_gate_up"
"""Gate and up projections of the rows of routed experts."""
FFN_GATE_UP = "ffn_gate_up"
"""Gate and up projections of dense layers and shared experts."""

SAVED_NAMES = (ATTN_QKV, ATTN_OUT, MOE_GATE_UP, FFN_GATE_UP)
