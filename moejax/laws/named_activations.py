"""List named activations that layers can keep while everything else is recomputed, with their size and saved FLOPs.

The outputs of experts, feed-forward and attention layers have no name, because no product's backward pass reads them.
"""

from __future__ import annotations

from typing import NamedTuple

from moejax.architecture import Architecture, if_set
from moejax.laws.accounting import flops_per_token
from moejax.ranges import Number


class NamedActivation(NamedTuple):
    """Cost of a named activation for one token, summed over layers."""

    values: Number
    """Number of values that are kept."""
    flops: Number
    """FLOPs that are not recomputed."""
    sums: Number = 0
    """Values kept in float32 regardless of the other type: attention's logarithm of a sum for each query and head."""


def named_activations(architecture: Architecture, sequence_length: Number) -> dict[str, NamedActivation]:
    """Return the activations by their names in ``moejax.kernels.saved_names``, for training with multi-token
    prediction."""
    a = architecture
    layers = a.num_layers + a.num_mtp_layers
    moe_layers = a.num_moe_layers + if_set(a.num_experts, a.num_mtp_layers, 0)
    part = flops_per_token(a, sequence_length)
    turned = if_set(a.kv_latent_dim, a.rope_head_dim, 0)
    key_heads = if_set(a.kv_latent_dim, a.num_heads, a.num_kv_heads)
    queries, keys, values = a.num_heads * (a.head_dim + turned), key_heads * a.head_dim, key_heads * a.value_width
    # The backward pass reads latents, so the matrices that produce them are recomputed.
    of_queries = if_set(a.query_latent_dim, a.query_latent_dim, a.model_dim) * queries
    of_keys_values = if_set(a.kv_latent_dim, a.kv_latent_dim, a.model_dim) * (keys + values)
    routed = moe_layers * a.top_k * a.expert_hidden
    hidden = (layers - moe_layers) * a.dense_hidden + moe_layers * a.num_shared_experts * a.shared_width
    return {
        "attn_qkv": NamedActivation(layers * (queries + keys + values), layers * 2 * (of_queries + of_keys_values)),
        "attn_out": NamedActivation(
            layers * a.num_heads * a.value_width, part.attention_scores_causal, sums=layers * a.num_heads
        ),
        "moe_gate_up": NamedActivation(2 * routed, 4 * a.model_dim * routed),
        "ffn_gate_up": NamedActivation(2 * hidden, 4 * a.model_dim * hidden),
    }
