"""Describe DeepSeek-V3: latent attention, group-limited sigmoid routing with expert bias, shared experts, dense first
layers.

Modules of multi-token prediction follow the last layer, as in the published weights; transformers omits them.
"""

from __future__ import annotations

from typing import Any

from moejax.architecture import Architecture
from moejax.huggingface.config_rules import BIASES, ROPE, ConfigRule
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.options import Options
from moejax.huggingface.weight_mapping import (
    LAYER,
    WeightMapping,
    experts,
    feed_forward,
    latent_attention,
    model,
    multi_token_prediction,
)


def _read_latents(options: Options) -> dict[str, Any]:
    heads = options.take("num_attention_heads", int)
    kv_heads = options.take("num_key_value_heads", int | None)
    return {
        "num_heads": heads,
        "num_kv_heads": heads if kv_heads is None else kv_heads,
        "query_latent_dim": options.take("q_lora_rank", int | None) or 0,
    }


def _write_latents(architecture: Architecture) -> dict[str, Any]:
    a = architecture
    return {
        "num_attention_heads": a.num_heads,
        "num_key_value_heads": a.num_kv_heads,
        "q_lora_rank": a.query_latent_dim or None,
        "v_head_dim": a.value_width,
    }


def _read_value(options: Options) -> dict[str, Any]:
    return {"value_head_dim": options.take("v_head_dim", int)}


def _write_shared(architecture: Architecture) -> dict[str, Any]:
    a = architecture
    return {"n_shared_experts": a.num_shared_experts * a.shared_width // a.expert_hidden if a.expert_hidden else 0}


def _read_groups(options: Options) -> dict[str, Any]:
    return {"num_groups": options.take("n_group", int), "top_k_groups": options.take("topk_group", int)}


def _write_groups(architecture: Architecture) -> dict[str, Any]:
    return {"n_group": architecture.num_groups, "topk_group": architecture.top_k_groups}


def _mappings(architecture: Architecture) -> list[WeightMapping]:
    bias = WeightMapping(LAYER + "mlp.gate.e_score_correction_bias", "router", ("feed_forward.expert_bias",))
    return [
        *model(architecture.tied_embeddings),
        *latent_attention(bool(architecture.query_latent_dim), architecture.rope_head_dim),
        *feed_forward("mlp", "feed_forward"),
        *experts("mlp"),
        bias,
        *feed_forward("mlp.shared_experts", "feed_forward.shared"),
        *multi_token_prediction(architecture.tied_embeddings),
    ]


DEEPSEEK_V3 = ModelFamily(
    name="deepseek_v3",
    model_class="DeepseekV3ForCausalLM",
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "model_dim",
        "num_hidden_layers": "num_layers",
        "intermediate_size": "dense_hidden",
        "first_k_dense_replace": "num_dense_layers",
        "n_routed_experts": "num_experts",
        "n_shared_experts": "num_shared_experts",
        "num_experts_per_tok": "top_k",
        "moe_intermediate_size": "expert_hidden",
        "kv_lora_rank": "kv_latent_dim",
        "qk_nope_head_dim": "head_dim",
        "qk_rope_head_dim": "rope_head_dim",
        "norm_topk_prob": "norm_topk_prob",
        "routed_scaling_factor": "routed_scaling_factor",
        "tie_word_embeddings": "tied_embeddings",
        "num_nextn_predict_layers": "num_mtp_layers",
    },
    least={"kv_latent_dim": 1, "num_shared_experts": 1},
    always={"router": "group_limited", "expert_bias": True, "norm_epsilon": 1e-6},
    required={
        "hidden_act": "silu",
        # The norms of latents use 1e-6 independent of this option.
        "rms_norm_eps": 1e-6,
        "rope_interleave": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_layer_freq": 1,
    },
    defaults={
        "num_key_value_heads": None,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "attention_bias": False,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "rope_parameters": None,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
    },
    rules=(
        ConfigRule(_read_latents, _write_latents),
        ConfigRule(_read_value, lambda architecture: {}),
        ConfigRule(lambda options: {}, _write_shared),
        ConfigRule(_read_groups, _write_groups),
        BIASES,
        ROPE,
    ),
    ignored=frozenset(
        {
            # Sums of the widths above.
            "head_dim",
            "qk_head_dim",
            # The balance loss and the expert parallelism of DeepSeek's training.
            "aux_loss_alpha",
            "seq_aux",
            "ep_size",
            "num_mtp_layers",
        }
    ),
    aliases={"num_local_experts": "n_routed_experts"},
    further_layers=True,
    mappings=_mappings,
)
