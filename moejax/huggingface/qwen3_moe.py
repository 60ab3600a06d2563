"""Describe Qwen3-MoE: queries and keys normalised within each head, and no shared expert."""

from __future__ import annotations

from moejax.huggingface.config_rules import BIASES, DENSE_LAYERS, HEADS, ROPE, SWITCHED_WINDOW
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.weight_mapping import ATTENTION, QK_NORM, experts, feed_forward, model

QWEN3_MOE = ModelFamily(
    name="qwen3_moe",
    model_class="Qwen3MoeForCausalLM",
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "model_dim",
        "num_hidden_layers": "num_layers",
        "num_experts": "num_experts",
        "num_experts_per_tok": "top_k",
        "moe_intermediate_size": "expert_hidden",
        "norm_topk_prob": "norm_topk_prob",
        "rms_norm_eps": "norm_epsilon",
        "tie_word_embeddings": "tied_embeddings",
    },
    always={"router": "softmax_topk", "qk_norm": True},
    required={"hidden_act": "silu"},
    always_so={"use_qk_norm": True},
    defaults={
        "head_dim": None,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": None,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "rope_parameters": None,
        "tie_word_embeddings": False,
    },
    rules=(HEADS, BIASES, ROPE, DENSE_LAYERS, SWITCHED_WINDOW),
    # A window applies to every layer.
    ignored=frozenset({"max_window_layers"}),
    aliases={"num_local_experts": "num_experts"},
    mappings=lambda architecture: [
        *model(architecture.tied_embeddings),
        *ATTENTION,
        *QK_NORM,
        *feed_forward("mlp", "feed_forward"),
        *experts("mlp"),
    ],
)
