"""List the weight matrices of an architecture, on which every count of parameters and FLOPs is built.

A matrix has as many parameters as the product of its dimensions, and costs two FLOPs per entry and token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax

from moejax.architecture import Architecture, if_set
from moejax.pytree import pytree
from moejax.ranges import Number


@pytree
@dataclass(frozen=True, kw_only=True)
class Matrices:
    """Entries of the weight matrices that a token can use, summed over layers.

    ``unembedding`` is the product with the vocabulary, whether its matrix is separate or tied to the embedding.
    """

    attention: Number
    router: Number
    routed_experts_active: Number
    routed_experts_idle: Number
    shared_experts: Number
    dense_feed_forward: Number
    unembedding: Number
    mtp_projections: Number = 0
    """Matrices that combine hidden states and embeddings for the blocks of multi-token prediction."""


def matrices(architecture: Architecture) -> Matrices:
    """Count the entries of an architecture's weight matrices by part, without multi-token prediction modules."""
    a = architecture
    moe_layers = a.num_moe_layers
    expert = _swiglu(a.model_dim, a.expert_hidden)
    shared = _swiglu(a.model_dim, a.shared_width) * a.num_shared_experts
    gate = if_set(a.num_shared_experts, a.model_dim, 0) if a.shared_expert_gate else 0
    return Matrices(
        attention=a.num_layers * if_set(a.kv_latent_dim, _latent_attention(a), _grouped_attention(a)),
        router=moe_layers * a.model_dim * a.num_experts,
        routed_experts_active=moe_layers * a.top_k * expert,
        routed_experts_idle=moe_layers * (a.num_experts - a.top_k) * expert,
        shared_experts=moe_layers * (shared + gate),
        dense_feed_forward=(a.num_layers - moe_layers) * _swiglu(a.model_dim, a.dense_hidden),
        unembedding=a.vocab_size * a.model_dim,
    )


def mtp_matrices(architecture: Architecture) -> Matrices:
    """Count the entries of the weight matrices of all multi-token prediction modules. Each module includes the product
    with the model's own vocabulary matrix."""
    a = architecture
    of_one = replace(matrices(a.mtp_block), mtp_projections=2 * a.model_dim**2)
    return jax.tree.map(lambda entries: a.num_mtp_layers * entries, of_one)


def _swiglu(model_dim: Number, hidden: Number) -> Number:
    return 3 * model_dim * hidden


def _grouped_attention(a: Architecture) -> Number:
    queries = a.num_heads * a.head_dim
    keys_values = a.num_kv_heads * (a.head_dim + a.value_width)
    output = a.num_heads * a.value_width
    return a.model_dim * (queries + keys_values + output)


def _latent_attention(a: Architecture) -> Number:
    """Count DeepSeek-V2's attention: keys and values through a common latent, positions on one shared key head."""
    queries = a.num_heads * (a.head_dim + a.rope_head_dim)
    compressed = a.query_latent_dim * (a.model_dim + queries)
    down = a.model_dim * (a.kv_latent_dim + a.rope_head_dim)
    up = a.kv_latent_dim * a.num_heads * (a.head_dim + a.value_width)
    output = a.num_heads * a.value_width * a.model_dim
    return if_set(a.query_latent_dim, compressed, a.model_dim * queries) + down + up + output
