"""Count parameters and FLOPs of an architecture, exactly and by named part.

Integers give integers; floats or traced arrays give differentiable counts. Every count is built on one list of weight
matrices, ``matrices.py``. Papers' own conventions are in ``conventions.py``.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields, replace

import jax
import jax.numpy as jnp

from moejax.architecture import Architecture, if_set
from moejax.laws.design import Design
from moejax.pytree import pytree
from moejax.ranges import Number


@pytree
@dataclass(frozen=True, kw_only=True)
class Matrices:
    """Numbers of entries of the weight matrices by part, summed over layers.

    ``unembedding`` is the matrix that computes logits, whether it is separate or tied to the embedding.
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
    """Count the entries of the weight matrices of all multi-token prediction modules. Each module includes the
    unembedding, which it shares with the model."""
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
    """Count the matrix entries of DeepSeek-V2's latent attention, in which keys and values share one latent vector and
    one key head for rotary positions serves all heads."""
    queries = a.num_heads * (a.head_dim + a.rope_head_dim)
    compressed = a.query_latent_dim * (a.model_dim + queries)
    down = a.model_dim * (a.kv_latent_dim + a.rope_head_dim)
    up = a.kv_latent_dim * a.num_heads * (a.head_dim + a.value_width)
    output = a.num_heads * a.value_width * a.model_dim
    return if_set(a.query_latent_dim, compressed, a.model_dim * queries) + down + up + output


@pytree
@dataclass(frozen=True, kw_only=True)
class Params:
    """Parameters by part; every field is a summand of ``total``."""

    embedding: Number
    unembedding: Number
    """0 if tied to the embedding."""
    attention: Number
    """Projection matrices of queries, keys, values and output, including latent ones."""
    attention_biases: Number
    """Biases of those projections, and attention sinks."""
    router: Number
    """Router matrices and their trained biases."""
    routed_experts_active: Number
    """The ``top_k`` experts of each layer that serve a token, including biases."""
    routed_experts_idle: Number
    """The other routed experts."""
    shared_experts: Number
    """Experts that serve every token, including their gate if there is one."""
    dense_feed_forward: Number
    norms: Number
    mtp_projections: Number = 0
    """Matrices that combine hidden states and embeddings for the blocks of multi-token prediction."""

    @property
    def total(self) -> Number:
        """Return the number of all parameters (``params_total``)."""
        return _sum(self)

    @property
    def active(self) -> Number:
        """Return the number of parameters without idle routed experts (``params_active``). Embeddings, norms and router
        are included."""
        return self.total - self.routed_experts_idle

    @property
    def vocabulary(self) -> Number:
        """Return the parameters of embedding and unembedding (``params_embedding``), one matrix if they are tied."""
        return self.embedding + self.unembedding

    @property
    def routed_experts(self) -> Number:
        """Return the parameters of all routed experts."""
        return self.routed_experts_active + self.routed_experts_idle


@pytree
@dataclass(frozen=True, kw_only=True)
class Flops:
    """Forward FLOPs of one token by part; a multiplication with its addition counts as two.

    The parts include multi-token prediction modules, which only training uses. Norms, activation functions, softmax,
    rotary embedding and the embedding look-up are not counted, as usual, because they are not matmuls.
    """

    attention_projections: Number
    attention_scores: Number
    """FLOPs of query-key and weight-value matmuls. A query counts all keys of the sequence; in a windowed layer, it
    counts twice the average number of keys in its window."""
    router: Number
    routed_experts: Number
    """FLOPs of the ``top_k`` experts that serve the token."""
    shared_experts: Number
    dense_feed_forward: Number
    unembedding: Number
    mtp_projections: Number = 0

    @property
    def forward(self) -> Number:
        """Return the FLOPs of the forward pass."""
        return _sum(self)

    @property
    def training(self) -> Number:
        """Return the FLOPs of forward and backward pass, as laws use them; the backward pass costs two forward
        passes."""
        return 3 * self.forward

    @property
    def training_causal(self) -> Number:
        """Return ``training`` without the masked half of the attention scores, the basis of MFU."""
        return 3 * self.forward_causal

    @property
    def attention_scores_causal(self) -> Number:
        """Return the half of ``attention_scores`` that a causal mask keeps."""
        return self.attention_scores / 2

    @property
    def forward_causal(self) -> Number:
        """Return the FLOPs of the forward pass without the masked half of the attention scores."""
        return self.forward - self.attention_scores_causal


def params(architecture: Architecture) -> Params:
    """Count the parameters of an architecture by part, without multi-token prediction modules (see ``mtp_params``).

    Laws and papers count this way: the 671 billion parameters of DeepSeek-V3 exclude its module.
    """
    a = architecture
    m = matrices(a)
    expert_mlp_biases = a.num_moe_layers * (2 * a.expert_hidden + a.model_dim) if a.expert_mlp_bias else 0
    shared_biases = a.num_moe_layers * (2 * a.shared_width + a.model_dim) if a.expert_mlp_bias else 0
    return Params(
        embedding=a.vocab_size * a.model_dim,
        unembedding=0 if a.tied_embeddings else m.unembedding,
        attention=m.attention,
        attention_biases=a.num_layers * _attention_biases(a),
        router=m.router + (a.num_moe_layers * a.num_experts if a.router_bias else 0),
        routed_experts_active=m.routed_experts_active + a.top_k * expert_mlp_biases,
        routed_experts_idle=m.routed_experts_idle + (a.num_experts - a.top_k) * expert_mlp_biases,
        shared_experts=m.shared_experts + a.num_shared_experts * shared_biases,
        dense_feed_forward=m.dense_feed_forward,
        norms=a.num_layers * _norms(a) + a.model_dim,
    )


def mtp_params(architecture: Architecture) -> Params:
    """Count the parameters of all multi-token prediction modules by part. They share the model's vocabulary
    matrices."""
    a = architecture
    block = params(a.mtp_block)
    # The block's final norm belongs to the module; the norms of embedding and hidden state are added.
    of_one = replace(block, embedding=0, unembedding=0, norms=block.norms + 2 * a.model_dim)
    of_all = jax.tree.map(lambda entries: a.num_mtp_layers * entries, of_one)
    return replace(of_all, mtp_projections=mtp_matrices(a).mtp_projections)


def params_active_served(architecture: Architecture, dropped_share: Number) -> Number:
    """Return the average active parameters per token if a share of the expert assignments was dropped.

    Chapter 002 (Engineering Reality, 2) calls this the effective N_act under capacity overflow.
    """
    counted = params(architecture)
    return counted.active - dropped_share * counted.routed_experts_active


def flops_per_token(architecture: Architecture, sequence_length: Number) -> Flops:
    """Return the forward FLOPs of one token in training, by part, for sequences of ``sequence_length`` tokens.

    Multi-token prediction modules count in full for every token, even for the last tokens of a sequence, which have no
    target. Serving and evaluation do not use the modules; count them with ``architecture.without_mtp``.
    """
    a = architecture
    m = jax.tree.map(operator.add, matrices(a), mtp_matrices(a))
    pair = a.num_heads * (_query_width(a) + a.value_width)
    keys = _keys_met(a, sequence_length) + a.num_mtp_layers * sequence_length
    return Flops(
        attention_projections=2 * m.attention,
        attention_scores=2 * pair * keys,
        router=2 * m.router,
        routed_experts=2 * m.routed_experts_active,
        shared_experts=2 * m.shared_experts,
        dense_feed_forward=2 * m.dense_feed_forward,
        unembedding=2 * m.unembedding,
        mtp_projections=2 * m.mtp_projections,
    )


def design_of(architecture: Architecture, tokens: Number, sequence_length: Number | None = None) -> Design:
    """Return the design of a training run from its architecture and its ``tokens``.

    Run tables, fits, designs and predictions all derive the inputs of laws here. Shared experts whose width differs
    from routed experts count in proportion to their width. ``flops`` depend on the sequence length and are None without
    ``sequence_length``. Parameters and shape exclude multi-token prediction modules; ``flops`` include them.
    """
    a = architecture
    counts = params(a)
    return Design(
        params_total=counts.total,
        params_active=counts.active,
        params_embedding=counts.vocabulary,
        tokens=tokens,
        flops=None if sequence_length is None else flops_per_token(a, sequence_length).training * tokens,
        num_experts=a.num_experts,
        top_k=a.top_k,
        num_shared_experts=a.shared_experts_by_width,
        model_dim=a.model_dim,
        num_layers=a.num_layers,
        expert_hidden=if_set(a.num_experts, a.expert_hidden, a.dense_hidden),
    )


def _sum(parts: Params | Flops) -> Number:
    return sum(getattr(parts, f.name) for f in fields(parts))


def _keys_met(a: Architecture, sequence_length: Number) -> Number:
    """Return the keys per query, summed over layers: all keys of the sequence, as if there were no causal mask.

    In a window of w tokens a query sees w - w²/2S of S keys on average; without the mask this doubles to 2w - w²/S.
    """
    # The width of the window is a plain integer, but the number of layers may be traced.
    if not a.sliding_window:
        return a.num_layers * sequence_length
    windowed = a.num_windowed_layers
    window = jnp.minimum(a.sliding_window, sequence_length)
    if isinstance(sequence_length, (int, float)):
        window = min(a.sliding_window, sequence_length)
    return (a.num_layers - windowed) * sequence_length + windowed * (2 * window - window * window / sequence_length)


def _query_width(a: Architecture) -> Number:
    return a.head_dim + if_set(a.kv_latent_dim, a.rope_head_dim, 0)


def _attention_biases(a: Architecture) -> Number:
    grouped = a.num_heads * a.head_dim + a.num_kv_heads * (a.head_dim + a.value_width)
    latent = if_set(a.query_latent_dim, a.query_latent_dim, 0) + a.kv_latent_dim + a.rope_head_dim
    inputs = if_set(a.kv_latent_dim, latent, grouped) if a.attention_bias else 0
    output = a.model_dim if a.attention_output_bias else 0
    return inputs + output + (a.num_heads if a.attention_sinks else 0)


def _norms(a: Architecture) -> Number:
    normed = a.num_heads + a.num_kv_heads if a.qk_norm_all_heads else 2
    per_head = a.head_dim * normed if a.qk_norm else 0
    return 2 * a.model_dim + per_head + a.query_latent_dim + a.kv_latent_dim
