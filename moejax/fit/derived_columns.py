"""Columns of a run table that follow from others, computed by ``Design``: sparsity, expansion, G, S, FLOPs."""

from __future__ import annotations

import jax
import numpy as np

from moejax.laws.chinchilla import training_flops
from moejax.laws.design import FIELDS, Design
from moejax.run_table import DataFrame

DERIVED = {
    "expansion": ("params_total", "params_active"),
    "active_experts": ("top_k", "num_shared_experts"),
    "shared_share": ("top_k", "num_shared_experts"),
    "sparsity": ("num_experts", "top_k"),
    "activation_ratio": ("num_experts", "top_k", "num_shared_experts"),
    "granularity": ("model_dim", "expert_hidden"),
}
"""Properties of a Design by the fields that they need."""


def with_derived(table: DataFrame) -> DataFrame:
    """The table with the columns of ``DERIVED`` that it lacks and its others give.

    FLOPs that it lacks are 6 · active parameters · tokens.
    """
    arrays = {name: table[name].to_numpy(dtype=np.float64) for name in FIELDS if name in table}
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), np.errstate(divide="ignore", invalid="ignore"):
        design = Design(**arrays)
        for name, inputs in DERIVED.items():
            if name not in table and set(inputs) <= set(arrays):
                table = table.assign(**{name: np.asarray(getattr(design, name))})
    if "flops" not in table and {"params_active", "tokens"} <= set(arrays):
        table = table.assign(**training_flops({name: arrays[name] for name in ("params_active", "tokens")}))
    return table
