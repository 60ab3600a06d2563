"""Describe OLMoE: queries and keys normalised over all heads, and gates that are unnormalised probabilities."""

from __future__ import annotations

from moejax.huggingface.config_rules import BIASES, ROPE, SPLIT_HEADS
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.weight_mapping import ATTENTION, QK_NORM_ALL_HEADS, experts, model

OLMOE = ModelFamily(
    name="olmoe",
    model_class="OlmoeForCausalLM",
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "model_dim",
        "num_hidden_layers": "num_layers",
        "num_experts": "num_experts",
        "num_experts_per_tok": "top_k",
        "intermediate_size": "expert_hidden",
        "norm_topk_prob": "norm_topk_prob",
        "rms_norm_eps": "norm_epsilon",
        "tie_word_embeddings": "tied_embeddings",
    },
    always={"router": "softmax_topk", "qk_norm": True, "qk_norm_all_heads": True},
    required={"hidden_act": "silu", "clip_qkv": None},
    defaults={
        "head_dim": None,
        "num_key_value_heads": None,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "attention_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "rope_parameters": None,
        "tie_word_embeddings": False,
    },
    rules=(SPLIT_HEADS, BIASES, ROPE),
    aliases={"num_local_experts": "num_experts"},
    mappings=lambda architecture: [
        *model(architecture.tied_embeddings),
        *ATTENTION,
        *QK_NORM_ALL_HEADS,
        *experts("mlp"),
    ],
)
