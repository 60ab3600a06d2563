"""Bytes that training and serving an architecture need, summed over all devices.

Parameters, gradients and optimiser state are exact. Activations are what a backward pass cannot do without: the inputs
of every matrix product and gated unit, with attention in one kernel, so that no score is stored. Programs that fuse
less keep more (plain automatic differentiation of a gated unit keeps six values where three would do): this is what
to compare designs with, and the compiled program has the last word.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import jax.numpy as jnp

from moejax.architecture import Architecture, if_set
from moejax.laws.accounting import mtp_params, params
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
    """Kept by the layers for the backward pass."""
    logits: Number
    """Logits of every token, in float32, and their gradient: of the model, or of one module of multi-token prediction
    after another."""

    @property
    def total(self) -> Number:
        """All of them at once, as at the start of the backward pass."""
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
    """Bytes of one training step over ``batch_tokens`` tokens held at once.

    The defaults are AdamW with float32 master weights and moments (``optimizer_bytes`` is of both moments, per
    parameter) and bfloat16 activations. With ``recompute``, the layers keep only their inputs and one layer at a time
    is computed again.
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
    """Bytes of the keys and values of ``tokens`` cached tokens; a windowed layer keeps its window.

    Multi-head latent attention caches the latent and the one turned key, as DeepSeek-V2 (2024), Sec. 2.1 does.
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
    """Values per token: the input of every layer; of a module of multi-token prediction both, and its final norm's."""
    return (a.num_layers + 3 * a.num_mtp_layers) * a.model_dim


def _all_layers(a: Architecture) -> Number:
    mixtures = a.num_moe_layers
    layers = a.num_layers * _attention(a) + mixtures * _mixture(a) + (a.num_layers - mixtures) * _dense(a)
    return layers + a.num_mtp_layers * (_largest_layer(a) + 5 * a.model_dim)


def _largest_layer(a: Architecture) -> Number:
    """Values per token of a layer with experts, if there is any, as also the block of multi-token prediction is one;
    around that it keeps the inputs of its two first norms, their outputs, and the input of its last."""
    return _attention(a) + if_set(a.num_experts, _mixture(a), _dense(a))


def _attention(a: Architecture) -> Number:
    """Values per token: layer input, its norm, queries, keys, values (and latents), and their weighted mean."""
    turned = if_set(a.kv_latent_dim, a.rope_head_dim, 0)
    key_heads = if_set(a.kv_latent_dim, a.num_heads, a.num_kv_heads)
    queries = a.num_heads * (a.head_dim + turned)
    keys_values = key_heads * (a.head_dim + turned + a.value_width)
    latents = a.query_latent_dim + a.kv_latent_dim + turned
    return 2 * a.model_dim + queries + keys_values + latents + a.num_heads * a.value_width


def _dense(a: Architecture) -> Number:
    """Values per token: residual, its norm, gate and up before and their product after the activation."""
    return 2 * a.model_dim + 3 * a.dense_hidden


def _mixture(a: Architecture) -> Number:
    """Values per token: as a dense layer for every expert that serves it, with the expert's input and output."""
    experts = a.top_k * (2 * a.model_dim + 3 * a.expert_hidden)
    shared = a.num_shared_experts * 3 * a.shared_width
    return 2 * a.model_dim + a.num_experts + experts + shared
