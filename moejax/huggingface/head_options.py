"""Heads of grouped-query attention, and the biases of its projections, in a ``config.json``."""

from __future__ import annotations

from typing import Any

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.huggingface.aspect import Aspect
from moejax.huggingface.options import Options


def _read_heads(options: Options) -> dict[str, Any]:
    heads = options.take("num_attention_heads", int)
    if heads < 1:
        raise UserError(f"{options.where}: num_attention_heads is {heads}; it must be at least 1.")
    kv_heads, head_dim = options.take("num_key_value_heads", int | None), options.take("head_dim", int | None)
    return {
        "num_heads": heads,
        "num_kv_heads": heads if kv_heads is None else kv_heads,
        "head_dim": options.take("hidden_size", int) // heads if head_dim is None else head_dim,
    }


def _write_heads(architecture: Architecture) -> dict[str, Any]:
    a = architecture
    return {"num_attention_heads": a.num_heads, "num_key_value_heads": a.num_kv_heads, "head_dim": a.head_dim}


HEADS = Aspect(_read_heads, _write_heads)
"""Heads of grouped-query attention, and their width, which is otherwise that of the model split among them."""


def _read_split_heads(options: Options) -> dict[str, Any]:
    fields = _read_heads(options)
    split = options.take("hidden_size", int) // fields["num_heads"]
    if fields["head_dim"] != split:
        raise UserError(
            f"{options.where}: head_dim is {fields['head_dim']}; here it is always hidden_size by heads, {split}."
        )
    return fields


SPLIT_HEADS = Aspect(_read_split_heads, _write_heads)
"""Heads that always split the model's width (OLMoE)."""


def _read_biases(options: Options) -> dict[str, Any]:
    biased = options.take("attention_bias", bool)
    return {"attention_bias": biased, "attention_output_bias": biased}


BIASES = Aspect(_read_biases, lambda architecture: {"attention_bias": architecture.attention_bias})
"""Biases in all projections of attention, or in none."""
