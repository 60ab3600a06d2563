"""Estimate the bytes for training and serving an architecture, summed over all devices.

Parameters, gradients and optimizer state are exact. Activations are a lower bound for the backward pass: the inputs of
every matmul and gated unit, with fused attention, so that no score is stored. Programs with less fusion keep more
activations (automatic differentiation of a gated unit keeps six values instead of three). Use these numbers to compare
designs; the compiled program determines the actual memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import jax.numpy as jnp

from moejax.architecture import Architecture, if_set
from moejax.laws.accounting import flops_per_token, mtp_params, params
from moejax.pytree import pytree
from moejax.ranges import Number


@pytree
@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a training step; every field is a summand of ``total``."""

    parameters: Number
    gradients: Number
    optimizer_state: Number
    activations: Number
    """Activations that layers keep for the backward pass."""
    logits: Number
    """Logits of every token in float32, and their gradient, for the model or for one multi-token prediction module at a
    time."""

    @property
    def total(self) -> Number:
        """Return the sum of all parts, as at the start of the backward pass."""
        return sum(getattr(self, f.name) for f in fields(self))


def training_memory(
    architecture: Architecture,
    batch_tokens: Number,
    *,
    param_bytes: Number = 4,
    gradient_bytes: Number = 4,
    optimizer_bytes: Number = 8,
    activation_bytes: Number = 2,
    recompute: bool = False,
) -> Memory:
    """Return the bytes of one training step with ``batch_tokens`` tokens in memory at once.

    The defaults assume AdamW with float32 master weights and moments (``optimizer_bytes`` counts both moments, per
    parameter) and bfloat16 activations. With ``recompute``, layers keep only their inputs, and one layer at a time is
    recomputed.
    """
    a = architecture
    total = params(a).total + mtp_params(a).total
    kept = _inputs(a) + _largest_layer(a) if recompute else _all_layers(a)
    return Memory(
        parameters=total * param_bytes,
        gradients=total * gradient_bytes,
        optimizer_state=total * optimizer_bytes,
        activations=batch_tokens * activation_bytes * (kept + a.model_dim),
        logits=batch_tokens * a.vocab_size * 2 * 4,
    )


def kv_cache_bytes(architecture: Architecture, tokens: Number, *, value_bytes: Number = 2) -> Number:
    """Return the bytes of cached keys and values for ``tokens`` tokens; a windowed layer keeps only its window.

    Multi-head latent attention caches the latent and one rotary key (DeepSeek-V2, 2024, Sec. 2.1).
    """
    a = architecture
    grouped = a.num_kv_heads * (a.head_dim + a.value_width)
    per_layer = if_set(a.kv_latent_dim, a.kv_latent_dim + a.rope_head_dim, grouped)
    windowed = a.num_windowed_layers
    kept = jnp.minimum(tokens, a.sliding_window) if windowed else 0
    if isinstance(tokens, (int, float)):
        kept = min(tokens, a.sliding_window)
    return ((a.num_layers - windowed) * tokens + windowed * kept) * per_layer * value_bytes


def _inputs(a: Architecture) -> Number:
    """Count values per token: every layer's input, and for each multi-token prediction module its two inputs and the
    input of its final norm."""
    return (a.num_layers + 3 * a.num_mtp_layers) * a.model_dim


def _all_layers(a: Architecture) -> Number:
    mixtures = a.num_moe_layers
    layers = a.num_layers * _attention(a) + mixtures * _mixture(a) + (a.num_layers - mixtures) * _dense(a)
    return layers + a.num_mtp_layers * (_largest_layer(a) + 5 * a.model_dim)


def _largest_layer(a: Architecture) -> Number:
    """Count values per token of an MoE layer, or of a dense layer in a dense model. The multi-token prediction block is
    such a layer; its module also keeps the inputs and outputs of its first two norms and the input of its last norm."""
    return _attention(a) + if_set(a.num_experts, _mixture(a), _dense(a))


def _attention(a: Architecture) -> Number:
    """Count values per token: layer input and its norm, queries, keys, values, latents, and the weighted mean of
    values."""
    turned = if_set(a.kv_latent_dim, a.rope_head_dim, 0)
    key_heads = if_set(a.kv_latent_dim, a.num_heads, a.num_kv_heads)
    queries = a.num_heads * (a.head_dim + turned)
    keys_values = key_heads * (a.head_dim + turned + a.value_width)
    latents = a.query_latent_dim + a.kv_latent_dim + turned
    return 2 * a.model_dim + queries + keys_values + latents + a.num_heads * a.value_width


def _dense(a: Architecture) -> Number:
    """Count values per token: residual and its norm, gate and up, and their product after the activation."""
    return 2 * a.model_dim + 3 * a.dense_hidden


def _mixture(a: Architecture) -> Number:
    """Count values per token: residual and its norm, router logits, each routed active expert's input, output, gate, up
    and product, and each shared expert's gate, up and product."""
    experts = a.top_k * (2 * a.model_dim + 3 * a.expert_hidden)
    shared = a.num_shared_experts * 3 * a.shared_width
    return 2 * a.model_dim + a.num_experts + experts + shared


class NamedActivation(NamedTuple):
    """Cost of a named activation for one token, summed over layers."""

    values: Number
    """Number of values that are kept."""
    flops: Number
    """FLOPs that need no recomputation if the values are kept."""
    sums: Number = 0
    """Number of values that are always kept in float32: the log-sum-exp of each query and head in attention."""


def named_activations(architecture: Architecture, sequence_length: Number) -> dict[str, NamedActivation]:
    """Return the activations by their names in ``moejax.kernels.saved_names``, including multi-token prediction
    modules."""
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
