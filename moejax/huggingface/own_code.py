"""Describe checkpoints of models for which transformers has no class. They include ``modeling_moejax.py``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from moejax.architecture import FOR_DEBUGGING, Architecture, RopeScaling
from moejax.config import build, dump
from moejax.errors import UserError
from moejax.huggingface.config_rules import ConfigRule
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.options import Options
from moejax.huggingface.weight_mapping import (
    ATTENTION,
    LAYER,
    QK_NORM,
    QK_NORM_ALL_HEADS,
    SINKS,
    WeightMapping,
    feed_forward,
    latent_attention,
    model,
    multi_token_prediction,
)

CODE = Path(__file__).with_name("modeling_moejax.py")
"""File that transformers runs with ``trust_remote_code=True``."""

ROUTERS = ("softmax_topk", "topk_softmax", "sigmoid_topk", "group_limited", "switch", "noisy_topk", "top_p")
"""Routers that this file implements."""

_WITHOUT_CODE = {
    "expert_choice": "lets experts choose among all tokens of a batch, so it cannot generate token by token",
    **dict.fromkeys(FOR_DEBUGGING, "is for debugging"),
}

_CLASSES = {"AutoConfig": "MoejaxConfig", "AutoModel": "MoejaxModel", "AutoModelForCausalLM": "MoejaxForCausalLM"}


def _read(options: Options) -> dict[str, Any]:
    fields = dict(options.take("architecture", dict))
    if (scaling := fields.get("rope_scaling")) is not None:
        fields["rope_scaling"] = build(RopeScaling, scaling, f"{options.where}: rope_scaling")
    return fields


def _write(architecture: Architecture) -> dict[str, Any]:
    a = architecture
    if a.is_moe and a.router not in ROUTERS:
        why = _WITHOUT_CODE.get(a.router, "belongs to another package")
        raise UserError(
            f"router {a.router!r} {why}; only models with one of these routers can be exported: {', '.join(ROUTERS)}."
        )
    if a.is_moe and a.capacity_factor is not None:
        raise UserError(
            f"capacity_factor is {a.capacity_factor}, and the dropped tokens depend on the rest of the batch; only a "
            f"model with capacity_factor None can be exported."
        )
    auto_map = {name: f"{CODE.stem}.{of_ours}" for name, of_ours in _CLASSES.items()}
    return {"auto_map": auto_map, "architecture": dump(a)}


def _mappings(architecture: Architecture) -> list[WeightMapping]:
    a = architecture
    if a.kv_latent_dim:
        # The rotary channels have moejax's order, so none alternate.
        attention = [*latent_attention(bool(a.query_latent_dim), rope_head_dim=0), SINKS]
    else:
        attention = [*ATTENTION, *(QK_NORM_ALL_HEADS if a.qk_norm_all_heads else QK_NORM)]
    mlp, ours = LAYER + "mlp.", "feed_forward."
    gate_up, gate_up_bias = ((f"{ours}{name}[0]", f"{ours}{name}[1]") for name in ("gate_up", "gate_up_bias"))
    return [
        *model(a.tied_embeddings),
        *attention,
        *feed_forward("mlp", "feed_forward"),
        WeightMapping(mlp + "router.weight", "router embed", (ours + "router",)),
        WeightMapping(mlp + "router.bias", "router", (ours + "router_bias",)),
        WeightMapping(mlp + "router.e_score_correction_bias", "router", (ours + "expert_bias",)),
        WeightMapping(mlp + "experts.gate_up_proj", "expert * embed", gate_up),
        WeightMapping(mlp + "experts.down_proj", "expert embed hidden", (ours + "down",)),
        WeightMapping(mlp + "experts.gate_up_proj_bias", "expert *", gate_up_bias),
        WeightMapping(mlp + "experts.down_proj_bias", "expert embed", (ours + "down_bias",)),
        *feed_forward("mlp.shared_experts", "feed_forward.shared"),
        WeightMapping(mlp + "shared_expert_gate.weight", "() embed", (ours + "shared_gate",)),
        *(replace(one, is_written=not one.copied) for one in multi_token_prediction(a.tied_embeddings)),
    ]


OWN_CODE = ModelFamily(
    name="moejax",
    model_class=_CLASSES["AutoModelForCausalLM"],
    fields={},
    always={},
    required={},
    defaults={},
    rules=(ConfigRule(_read, _write),),
    # Copies of fields of the architecture, which transformers saves.
    ignored=frozenset(
        {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
        | {"tie_word_embeddings"}
    ),
    mappings=_mappings,
)
"""Family of all models whose predictions depend only on earlier tokens of the same sequence."""
