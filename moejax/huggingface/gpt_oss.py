"""Describe gpt-oss: attention sinks and alternating windows, biases everywhere, experts with a clamped SwiGLU.

Its gate and up projections form one tensor of all experts, with alternating columns. The published checkpoints are in
MXFP4; moejax reads the bfloat16 form that transformers writes.
"""

from __future__ import annotations

from moejax.architecture import Architecture
from moejax.huggingface.config_rules import ALTERNATING_WINDOWS, BIASES, HEADS, ROPE_ALWAYS_WRITTEN
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.weight_mapping import ATTENTION, LAYER, WeightMapping, model


def _mappings(architecture: Architecture) -> list[WeightMapping]:
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
    always={
        "router": "topk_softmax",
        "router_bias": True,
        "expert_mlp_bias": True,
        "activation": "clamped_swiglu",
        "attention_sinks": True,
    },
    required={"hidden_act": "silu", "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
    defaults={
        "head_dim": 64,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "attention_bias": True,
        "sliding_window": 128,
        "layer_types": None,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "rope_scaling": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "tie_word_embeddings": False,
    },
    rules=(HEADS, BIASES, ROPE_ALWAYS_WRITTEN, ALTERNATING_WINDOWS),
    # The training length before extension, which the rotary scaling contains, and an alias of num_experts_per_tok.
    ignored=frozenset({"initial_context_length", "experts_per_token"}),
    aliases={"num_experts": "num_local_experts"},
    mappings=_mappings,
)
