"""Write the model card of an exported checkpoint, README.md. It states only facts that moejax knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, NamedTuple

from moejax.architecture import Architecture
from moejax.huggingface.family import ModelFamily
from moejax.huggingface.own_code import CODE, OWN_CODE
from moejax.model import transformer
from moejax.quantities import format
from moejax.stored import foreign_json

CARD = "README.md"

SWITCHES = (
    *("qk_norm", "qk_norm_all_heads", "attention_bias", "attention_output_bias", "attention_sinks", "tied_embeddings"),
    *("norm_topk_prob", "expert_bias", "router_bias", "expert_mlp_bias", "shared_expert_gate"),
)
"""Switches of an architecture that the card lists if they are on."""

_REMEDY = "remove the row's file to repeat its run"

Facts = Mapping[str, str | None]
"""Rows of a table, keyed by name. Rows without a value are left out."""


class Trained(NamedTuple):
    """The training run that produced a checkpoint."""

    settings: Mapping[str, Any]
    """Settings with which the checkpoint was trained, as plain data."""
    step: int
    tokens: int
    """Number of tokens read until this step."""
    row: Mapping[str, Any]
    """Row of the checkpoint in the table of runs; empty unless the checkpoint is the end of a budget."""
    ema: bool = False
    """True if the weights are the moving average, whose loss was not measured."""
    predicted: str = ""
    """Loss that a law predicts, with the law's name."""
    changes: Mapping[str, Sequence[Any]] = MappingProxyType({})
    """Successive values of settings that changed during training, keyed by path."""


_TEXT = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
{tags}
---

# {name}

A {kind} language model, exported by moejax.

## Load

```python
from transformers import {classes}

model = AutoModelForCausalLM.from_pretrained("PATH", dtype="auto"{trust}){tokenizer}
```

{code}

{facts}
"""


def model_card(
    architecture: Architecture,
    family: ModelFamily,
    trained: Trained | None,
    *,
    name: str,
    origin: str | None,
    has_tokenizer: bool = False,
) -> str:
    """Return the model card of an architecture that is exported as ``family``.

    ``name`` is the title if ``trained`` is None. ``origin`` is the family of the checkpoint that the weights were
    imported from, or None.
    """
    code, trust = f"transformers loads it as `{family.model_class}`.", ""
    if family is OWN_CODE:
        code = f"`trust_remote_code=True` runs `{CODE.name}` in this folder, so read that file first."
        trust = ", trust_remote_code=True"
    if modules := architecture.num_mtp_layers:
        code += f" The multi-token prediction modules ({modules}) are not used."
    tables = {"Architecture": _architecture(architecture)}
    if trained is not None:
        tables |= {"Data": _data(trained), "Loss": _loss(trained), "Training": _training(trained)}
    elif origin is not None:
        tables |= {"Origin": {"imported from": f"a Hugging Face checkpoint of the family `{origin}`"}}
    tags = ["moejax", *(["mixture-of-experts"] if architecture.is_moe else []), *(["custom_code"] if trust else [])]
    return _TEXT.format(
        tags="\n".join(f"- {tag}" for tag in tags),
        name=trained.settings["name"] if trained else name,
        kind="Mixture-of-Experts" if architecture.is_moe else "dense",
        trust=trust,
        classes="AutoModelForCausalLM" + (", AutoTokenizer" if has_tokenizer else ""),
        tokenizer=f'\ntokenizer = AutoTokenizer.from_pretrained("PATH"{trust})' if has_tokenizer else "",
        code=code,
        facts="\n\n".join(filter(None, (_table(heading, facts) for heading, facts in tables.items()))),
    )


def _architecture(a: Architecture) -> Facts:
    counts, mixtures, windowed = transformer.count(a), sum(a.has_experts), sum(a.has_window)
    attention = f"{a.num_heads} query heads and {a.num_kv_heads} key-value heads of width {a.head_dim}"
    if a.kv_latent_dim:
        attention = f"latent, {a.num_heads} heads, key-value latents of width {a.kv_latent_dim}"
    of_mixtures = {
        "routed experts": f"{a.num_experts}, {a.top_k} per token, of width {a.expert_hidden}",
        "granularity (2 · width / width of an expert)": f"{2 * a.model_dim / (a.expert_hidden or 1):g}",
        "shared experts": f"{a.num_shared_experts} of width {a.shared_width}" if a.num_shared_experts else None,
        "router": f"`{a.router}`",
    }
    return {
        "total parameters": f"{counts.total:,}",
        "active parameters": f"{counts.active:,}",
        "of which embeddings": f"{counts.embedding:,}",
        "layers": f"{a.num_layers}" + (f", {mixtures} with experts" if a.is_moe else ""),
        "width": f"{a.model_dim}",
        "attention": attention,
        "window": f"{a.sliding_window} tokens in {windowed} layers" if windowed else None,
        "positions": f"rotary, base {a.rope_theta:g}" if a.positions == "rope" else a.positions,
        "dense feed-forward": f"of width {a.dense_hidden}" if mixtures < a.num_layers else None,
        **(of_mixtures if a.is_moe else {}),
        "vocabulary": f"{a.vocab_size:,}",
        "switched on": ", ".join(f"`{one}`" for one in SWITCHES if getattr(a, one)) or None,
        "factor on expert weights": f"{a.routed_scaling_factor:g}" if a.routed_scaling_factor != 1 else None,
    }


def _data(trained: Trained) -> Facts:
    data, row = trained.settings["recipe"]["data"], trained.row
    # Publish only the last part of a local path.
    source = f"`{data['source'] if data['source'].startswith('hf:') else PurePath(data['source']).name}`"
    parts = ", ".join(f"{part['name']} (weight {part['weight']:g})" for part in data["mixture"])
    return {
        "training data": parts or ", ".join(filter(None, (data["source"] and source, data["named_mixture"]))),
        "SHA-256 of the text": row.get("corpus"),
        "tokens read": f"{trained.tokens:,}",
        "distinct tokens of the text": f"{row['unique_tokens']:,.0f}" if row.get("unique_tokens") else None,
        "sequence length": f"{data['sequence_length']:,} tokens",
        "tokenizer": None if data["tokenizer"] is None else PurePath(data["tokenizer"]).name,
    }


def _loss(trained: Trained) -> Facts:
    row = {} if trained.ema else trained.row
    units = {"loss": "nats/token", "bits_per_byte": "bits/byte", "train_loss": "nats/token"}
    losses = {name: f"{row[name]:.4f} {unit}" for name, unit in units.items() if row.get(name) is not None}
    return {
        "validation": losses.get("loss"),
        "validation, per byte of text": losses.get("bits_per_byte"),
        "validation tokens": f"{row['validation_tokens']:,}" if row.get("validation_tokens") else None,
        "last training batches": losses.get("train_loss"),
        "predicted by a law": trained.predicted or None,
    }


def _training(trained: Trained) -> Facts:
    settings, row, recipe = trained.settings, trained.row, trained.settings["recipe"]
    optimizer, runtime, loss = recipe["optimizer"], recipe["runtime"], recipe["loss"]
    is_moe = bool(settings["architecture"]["num_experts"])
    quantization = runtime["matmul_quantization"]
    mesh = [f"{axis} {size}" for axis, size in recipe["mesh"].items() if size not in (1, -1)]
    versions = foreign_json(row.get("versions", "{}"), "The column versions of the row", shape=dict, remedy=_REMEDY)
    named = [f"{name} {versions[name]}" for name in ("moejax", "python", "jax", "flax", "optax") if name in versions]
    return {
        "weights": f"moving average with decay {recipe['ema_decay']}" if trained.ema else None,
        "optimizer": f"{optimizer['name']}, weight decay {optimizer['weight_decay']:g}",
        "peak learning rate": f"{optimizer['learning_rate']:g}",
        "schedule": f"warm-up of {optimizer['warmup_tokens']:,} tokens, {optimizer['decay_shape']} decay over the last "
        f"{optimizer['decay_share']:.0%} to {optimizer['final_share']:g} of the peak",
        "changed during training": "; ".join(
            f"`{path}` from {' to '.join(f'{value}' for value in values)}" for path, values in trained.changes.items()
        )
        or None,
        "batch": f"{recipe['batch_tokens']:,} tokens" + (" after a ramp" if recipe["batch_ramp"] else ""),
        "steps": f"{trained.step:,}",
        "router losses": f"balance {loss['balance']:g}, z {loss['router_z']:g}" if is_moe else None,
        "initial weights": PurePath(recipe["initial_weights"]["source"]).name or None,
        "precision": runtime["compute_dtype"] + (f", products in {quantization}" if quantization != "none" else ""),
        "mesh": ", ".join(mesh) or None,
        "devices": f"{row['num_devices']} × {row['device']}" if row else None,
        "FLOPs": format(row["flops"]) if row else None,
        "seed": f"{settings['seed']}",
        "fingerprint of the settings": row.get("fingerprint"),
        "versions": ", ".join(named) or None,
    }


def _table(heading: str, facts: Facts) -> str:
    rows = [f"| {name} | {value} |" for name, value in facts.items() if value is not None]
    return "\n".join([f"## {heading}", "", "| | |", "|---|---|", *rows]) if rows else ""
