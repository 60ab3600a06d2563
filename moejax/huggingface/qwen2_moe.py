"""Describe Qwen2-MoE: a gated shared expert in addition to the routed ones, and biases on queries, keys and values."""

from __future__ import annotations

from typing import Any

from moejax.architecture import Architecture
from moejax.huggingface.config_rules import DENSE_LAYERS, HEADS, NAMED_WINDOWS, ROPE, ConfigRule
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.options import Options
from moejax.huggingface.weight_mapping import ATTENTION, LAYER, WeightMapping, experts, feed_forward, model


def _read_shared(options: Options) -> dict[str, Any]:
    return {"num_shared_experts": 1, "shared_hidden": options.take("shared_expert_intermediate_size", int)}


def _write_shared(architecture: Architecture) -> dict[str, Any]:
    return {"shared_expert_intermediate_size": architecture.num_shared_experts * architecture.shared_width}


_SHARED = ConfigRule(_read_shared, _write_shared)

_SHARED_MAPPINGS = [
    *feed_forward("mlp.shared_expert", "feed_forward.shared"),
    WeightMapping(LAYER + "mlp.shared_expert_gate.weight", "() embed", ("feed_forward.shared_gate",)),
]

QWEN2_MOE = ModelFamily(
    name="qwen2_moe",
    model_class="Qwen2MoeForCausalLM",
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "model_dim",
        "num_hidden_layers": "num_layers",
        "num_experts": "num_experts",
        "num_experts_per_tok": "top_k",
        "moe_intermediate_size": "expert_hidden",
        "norm_topk_prob": "norm_topk_prob",
        "qkv_bias": "attention_bias",
        "rms_norm_eps": "norm_epsilon",
        "tie_word_embeddings": "tied_embeddings",
    },
    always={"router": "softmax_topk", "shared_expert_gate": True},
    required={"hidden_act": "silu"},
    defaults={
        "head_dim": None,
        "num_key_value_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
        "qkv_bias": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "layer_types": None,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "rope_parameters": None,
        "tie_word_embeddings": False,
    },
    rules=(HEADS, ROPE, DENSE_LAYERS, NAMED_WINDOWS, _SHARED),
    # The windows are given by layer_types.
    ignored=frozenset({"max_window_layers"}),
    aliases={"num_local_experts": "num_experts"},
    mappings=lambda architecture: [
        *model(architecture.tied_embeddings),
        *ATTENTION,
        *feed_forward("mlp", "feed_forward"),
        *experts("mlp"),
        *_SHARED_MAPPINGS,
    ],
)
