"""Describe Mixtral: grouped-query attention, and a mixture whose gates sum to 1 in every layer."""

from __future__ import annotations

from moejax.huggingface.config_rules import HEADS, ONE_WINDOW, ROPE
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.weight_mapping import ATTENTION, experts, model

MIXTRAL = ModelFamily(
    name="mixtral",
    model_class="MixtralForCausalLM",
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "model_dim",
        "num_hidden_layers": "num_layers",
        "num_local_experts": "num_experts",
        "num_experts_per_tok": "top_k",
        "intermediate_size": "expert_hidden",
        "rms_norm_eps": "norm_epsilon",
        "tie_word_embeddings": "tied_embeddings",
    },
    always={"router": "softmax_topk", "norm_topk_prob": True},
    required={"hidden_act": "silu"},
    defaults={
        "head_dim": None,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "rope_scaling": None,
        "rope_parameters": None,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    rules=(HEADS, ROPE, ONE_WINDOW),
    # Router noise in transformers' training.
    ignored=frozenset({"router_jitter_noise"}),
    aliases={"num_experts": "num_local_experts"},
    mappings=lambda architecture: [
        *model(architecture.tied_embeddings),
        *ATTENTION,
        *experts("block_sparse_moe", gate="w1", up="w3", down="w2"),
    ],
)
