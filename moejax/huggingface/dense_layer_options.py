"""Which layers have experts and which are dense, in a ``config.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.huggingface.aspect import Aspect
from moejax.huggingface.options import Options
from moejax.huggingface.period import period


def expert_fields(has_experts: Sequence[bool]) -> dict[str, Any]:
    """The fields of an Architecture that say which layers have experts."""
    letters = "".join("E" if experts else "D" for experts in has_experts)
    between = letters.strip("D")
    first = len(letters) - len(letters.lstrip("D"))
    last = len(letters) - first - len(between) if between else 0
    return {"num_dense_layers": first, "num_last_dense_layers": last, "layer_pattern": period(between) or "E"}


def _read_dense_layers(options: Options) -> dict[str, Any]:
    layers, step = options.take("num_hidden_layers", int), options.take("decoder_sparse_step", int)
    dense = options.take("mlp_only_layers", list | None) or []
    if step < 1:
        raise UserError(f"{options.where}: decoder_sparse_step is {step}; it must be at least 1.")
    experts = [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]
    return {"dense_hidden": options.take("intermediate_size", int)} | expert_fields(experts)


def _write_dense_layers(architecture: Architecture) -> dict[str, Any]:
    return {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, experts in enumerate(architecture.has_experts) if not experts],
        "intermediate_size": architecture.dense_hidden or architecture.expert_hidden,
    }


DENSE_LAYERS = Aspect(_read_dense_layers, _write_dense_layers)
"""Dense layers by a step and a list (Qwen)."""
