"""Describe the families of models whose attention is Llama's: Mixtral, OLMoE, Qwen2-MoE, Qwen3-MoE and gpt-oss."""

from __future__ import annotations

from typing import Any

from moejax.architecture import Architecture
from moejax.huggingface.config_rules import (
    ALTERNATING_WINDOWS,
    BIASES,
    DENSE_LAYERS,
    HEADS,
    NAMED_WINDOWS,
    ONE_WINDOW,
    ROPE,
    ROPE_ALWAYS_WRITTEN,
    SPLIT_HEADS,
    SWITCHED_WINDOW,
    ConfigRule,
)
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.options import Options
from moejax.huggingface.weight_mapping import (
    ATTENTION,
    LAYER,
    QK_NORM,
    QK_NORM_ALL_HEADS,
    WeightMapping,
    experts,
    feed_forward,
    model,
)

_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "model_dim",
    "num_hidden_layers": "num_layers",
    "num_experts_per_tok": "top_k",
    "rms_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tied_embeddings",
}
"""Architecture fields that all these families share, keyed by option."""

_DEFAULTS = {
    "head_dim": None,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "rope_parameters": None,
    "tie_word_embeddings": False,
}
"""Defaults of most of these families."""

MIXTRAL = ModelFamily(
    name="mixtral",
    model_class="MixtralForCausalLM",
    fields={**_FIELDS, "num_local_experts": "num_experts", "intermediate_size": "expert_hidden"},
    always={"router": "softmax_topk", "norm_topk_prob": True},
    required={"hidden_act": "silu"},
    defaults={
        **_DEFAULTS,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rope_theta": 1e6,
        "sliding_window": None,
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
"""Mixtral: grouped-query attention, and a mixture whose gates sum to 1 in every layer."""

OLMOE = ModelFamily(
    name="olmoe",
    model_class="OlmoeForCausalLM",
    fields={
        **_FIELDS,
        "num_experts": "num_experts",
        "intermediate_size": "expert_hidden",
        "norm_topk_prob": "norm_topk_prob",
    },
    always={"router": "softmax_topk", "qk_norm": True, "qk_norm_all_heads": True},
    required={"hidden_act": "silu", "clip_qkv": None},
    defaults={
        **_DEFAULTS,
        "num_key_value_heads": None,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
        "attention_bias": False,
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
"""OLMoE: queries and keys normalized over all heads, and gates that are unnormalized probabilities."""


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
        **_FIELDS,
        "num_experts": "num_experts",
        "moe_intermediate_size": "expert_hidden",
        "norm_topk_prob": "norm_topk_prob",
        "qkv_bias": "attention_bias",
    },
    always={"router": "softmax_topk", "shared_expert_gate": True},
    required={"hidden_act": "silu"},
    defaults={
        **_DEFAULTS,
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
"""Qwen2-MoE: a gated shared expert in addition to the routed ones, and biases on queries, keys and values."""

QWEN3_MOE = ModelFamily(
    name="qwen3_moe",
    model_class="Qwen3MoeForCausalLM",
    fields={
        **_FIELDS,
        "num_experts": "num_experts",
        "moe_intermediate_size": "expert_hidden",
        "norm_topk_prob": "norm_topk_prob",
    },
    always={"router": "softmax_topk", "qk_norm": True},
    required={"hidden_act": "silu"},
    always_so={"use_qk_norm": True},
    defaults={
        **_DEFAULTS,
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
"""Qwen3-MoE: queries and keys normalized within each head, and no shared expert."""


def _gpt_oss_mappings(architecture: Architecture) -> list[WeightMapping]:
    both = 2 * architecture.expert_hidden
    gate_up = ("feed_forward.gate_up[0]", "feed_forward.gate_up[1]")
    gate_up_bias = ("feed_forward.gate_up_bias[0]", "feed_forward.gate_up_bias[1]")
    mlp = LAYER + "mlp."
    return [
        *model(architecture.tied_embeddings),
        *ATTENTION,
        WeightMapping(mlp + "router.weight", "router embed", ("feed_forward.router",)),
        WeightMapping(mlp + "router.bias", "router", ("feed_forward.router_bias",)),
        WeightMapping(mlp + "experts.gate_up_proj", "expert embed *", gate_up, alternating=both),
        WeightMapping(mlp + "experts.gate_up_proj_bias", "expert *", gate_up_bias, alternating=both),
        WeightMapping(mlp + "experts.down_proj", "expert hidden embed", ("feed_forward.down",)),
        WeightMapping(mlp + "experts.down_proj_bias", "expert embed", ("feed_forward.down_bias",)),
    ]


GPT_OSS = ModelFamily(
    name="gpt_oss",
    model_class="GptOssForCausalLM",
    fields={**_FIELDS, "num_local_experts": "num_experts", "intermediate_size": "expert_hidden"},
    always={
        "router": "topk_softmax",
        "router_bias": True,
        "expert_mlp_bias": True,
        "activation": "clamped_swiglu",
        "attention_sinks": True,
    },
    required={"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    defaults={
        **_DEFAULTS,
        "head_dim": 64,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "attention_bias": True,
        "sliding_window": 128,
        "layer_types": None,
        "rope_theta": 150_000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    rules=(HEADS, BIASES, ROPE_ALWAYS_WRITTEN, ALTERNATING_WINDOWS),
    # The training length before extension, which the rotary scaling contains, and an alias of num_experts_per_tok.
    ignored=frozenset({"initial_context_length", "experts_per_token"}),
    aliases={"num_experts": "num_local_experts"},
    mappings=_gpt_oss_mappings,
)
"""gpt-oss: attention sinks and alternating windows, biases everywhere, experts with a clamped SwiGLU.

Its gate and up projections form one tensor of all experts, with alternating columns. The published checkpoints are in
MXFP4; moejax reads the bfloat16 form that transformers writes.
"""
