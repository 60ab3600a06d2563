"""Small models of every family, each with other options, as arguments of its configuration class in transformers."""

_SMALL = {
    "vocab_size": 48,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}

_MIXTRAL = {**_SMALL, "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2}
_OLMOE = {**_SMALL, "intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 3}
_QWEN2 = {
    **_SMALL,
    "intermediate_size": 40,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
    "num_experts": 6,
    "num_experts_per_tok": 2,
}
_QWEN3 = {
    **_SMALL,
    "intermediate_size": 40,
    "moe_intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "head_dim": 16,
}
_DEEPSEEK = {
    **_SMALL,
    "num_key_value_heads": 4,
    "intermediate_size": 40,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
_GPT_OSS = {
    **_SMALL,
    "num_hidden_layers": 4,
    "intermediate_size": 24,
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 5,
}

VARIANTS = {
    "mixtral": {
        "plain": _MIXTRAL,
        "tied": {**_MIXTRAL, "tie_word_embeddings": True},
        "sliding window": {**_MIXTRAL, "sliding_window": 5},
        "all experts": {**_MIXTRAL, "num_experts_per_tok": 4},
        "one expert": {**_MIXTRAL, "num_experts_per_tok": 1},
        "wide heads, every head its own key": {**_MIXTRAL, "head_dim": 12, "num_key_value_heads": 4},
        "llama3 positions": {**_MIXTRAL, "rope_parameters": _LLAMA3},
        "yarn positions": {**_MIXTRAL, "head_dim": 8, "rope_parameters": _YARN},
        "linear positions": {**_MIXTRAL, "rope_parameters": _LINEAR},
    },
    "olmoe": {
        "plain": _OLMOE,
        "gates that sum to 1": {**_OLMOE, "norm_topk_prob": True},
        "biases": {**_OLMOE, "attention_bias": True},
        "tied, one key head": {**_OLMOE, "tie_word_embeddings": True, "num_key_value_heads": 1},
        "all experts": {**_OLMOE, "num_experts_per_tok": 8},
    },
    "qwen2_moe": {
        "plain": _QWEN2,
        "gates that sum to 1, no biases": {**_QWEN2, "norm_topk_prob": True, "qkv_bias": False},
        "dense layers between": {**_QWEN2, "num_hidden_layers": 4, "mlp_only_layers": [1]},
        "every other layer dense": {**_QWEN2, "num_hidden_layers": 4, "decoder_sparse_step": 2},
        "some windows": {
            **_QWEN2,
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
        "tied, yarn positions": {**_QWEN2, "tie_word_embeddings": True, "rope_parameters": _YARN},
    },
    "qwen3_moe": {
        "plain": _QWEN3,
        "gates that sum to 1, biases": {**_QWEN3, "norm_topk_prob": True, "attention_bias": True},
        "first and last layer dense": {**_QWEN3, "num_hidden_layers": 4, "mlp_only_layers": [0, 3]},
        "windows": {**_QWEN3, "use_sliding_window": True, "sliding_window": 6},
        "tied, all experts": {**_QWEN3, "tie_word_embeddings": True, "num_experts_per_tok": 6},
        "yarn, not truncated": {**_QWEN3, "rope_parameters": {**_YARN, "truncate": False, "beta_fast": 8.0}},
    },
    "deepseek_v3": {
        "plain": _DEEPSEEK,
        "yarn with score scale": {
            **_DEEPSEEK,
            "rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
        },
        "queries without latents": {**_DEEPSEEK, "q_lora_rank": None},
        "biases": {**_DEEPSEEK, "attention_bias": True},
        "one group, plain gates": {**_DEEPSEEK, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
        "two shared experts, no dense layer": {**_DEEPSEEK, "n_shared_experts": 2, "first_k_dense_replace": 0},
        "tied, all experts": {
            **_DEEPSEEK,
            "tie_word_embeddings": True,
            "num_experts_per_tok": 8,
            "topk_group": 4,
            "routed_scaling_factor": 1.0,
        },
    },
    "gpt_oss": {
        "plain": _GPT_OSS,
        "no biases in attention": {**_GPT_OSS, "attention_bias": False},
        "windows in the last layers": {
            **_GPT_OSS,
            "layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 2,
        },
        "unscaled positions": {**_GPT_OSS, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "tied, all experts": {**_GPT_OSS, "tie_word_embeddings": True, "num_experts_per_tok": 4},
    },
}
"""By family and by what is special."""

CASES = [(family, variant) for family, variants in VARIANTS.items() for variant in variants]
