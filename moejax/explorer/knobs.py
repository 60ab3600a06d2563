"""Define the page's sliders and the design that they describe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from moejax.architecture import Architecture
from moejax.design.coordinates import (
    ACTIVE_EXPERTS,
    EXPANSION,
    EXPERT_EXPANSION,
    FLOPS,
    GRANULARITY,
    PARAMS_ACTIVE,
    SHARED_SHARE,
    TOKENS,
    UNIQUE_TOKENS,
    Coordinate,
    Sizes,
)
from moejax.laws import accounting
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import Design


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One slider: a coordinate of a design, its label, and its range."""

    coordinate: Coordinate
    label: str
    letter: str
    """Symbol in the papers."""
    low: float
    high: float
    search: tuple[float, float] | None = None
    """Bounds of the search for the best value; None for the slider's bounds."""
    unlimited: bool = False
    """True if the slider's last step is infinite."""

    def to_json(self) -> dict[str, Any]:
        """Return the slider as data for the page."""
        low, high = self.search or (self.low, self.high)
        return {
            "name": self.coordinate.name,
            "label": self.label,
            "letter": self.letter,
            "low": self.low,
            "high": self.high,
            "linear": self.coordinate.linear,
            "least": self.coordinate.least,
            "search": [low, high],
            "unlimited": self.unlimited,
        }


_SIZE = (PARAMS_ACTIVE.low, PARAMS_ACTIVE.high)

KNOBS = (
    Knob(coordinate=PARAMS_ACTIVE, label="active parameters", letter="N_act", low=1e4, high=1e13, search=_SIZE),
    Knob(coordinate=EXPANSION, label="total / active parameters", letter="N/N_act", low=1.0, high=200.0),
    Knob(coordinate=EXPERT_EXPANSION, label="experts per active expert", letter="E", low=1.0, high=1000.0),
    Knob(coordinate=ACTIVE_EXPERTS, label="active experts", letter="G of Zhao", low=1.0, high=64.0),
    Knob(coordinate=SHARED_SHARE, label="shared share of active experts", letter="S", low=0.0, high=0.9),
    Knob(coordinate=GRANULARITY, label="granularity", letter="G of Tian", low=0.25, high=64.0),
    Knob(coordinate=FLOPS, label="training FLOPs", letter="C", low=1e12, high=1e28),
    Knob(coordinate=TOKENS, label="training tokens", letter="D", low=1e5, high=1e17),
    Knob(coordinate=UNIQUE_TOKENS, label="unique tokens", letter="U_D", low=1e5, high=1e15, unlimited=True),
)
"""All sliders in the order of the page. Tokens follow from 6 · N_act · D = C."""

STRUCTURE = ("params_active", "expansion", "expert_expansion", "active_experts", "shared_share", "granularity")
"""Names of knobs that describe the model rather than its training."""

VALUES = (*STRUCTURE, "flops", "unique_tokens", "embedding_share")
"""Entries of the array argument of the page's functions. ``embedding_share`` is a share of the active parameters."""

START: Mapping[str, float] = {
    "params_active": 37e9,
    "expansion": 18.1,
    "expert_expansion": 18.1,
    "active_experts": 9.0,
    "shared_share": 1 / 9,
    "granularity": 7.0,
    "flops": 3.4e24,
    "unique_tokens": math.inf,
    "embedding_share": 0.0,
}
"""DeepSeek-V3's size and budget by the conventions of chapter 002."""

PRESETS = {
    "dense 70B": (70e9, 1.0),
    "DeepSeek 671B / 37B": (37e9, 18.1),
    "Switch 112B / 7B": (7e9, 16.0),
}
"""Active parameters and expansion of the three models that chapter 002 compares at ``START``'s budget."""


def design_of(values: Mapping[str, Any]) -> Design:
    """Return the design for ``VALUES``, with tokens from 6 · N_act · D = C."""
    active = values["params_active"]
    tokens = values["flops"] / (FLOPS_PER_PARAM_AND_TOKEN * active)
    design = Sizes(()).candidate({**values, "tokens": tokens}).design
    unique = jnp.minimum(values["unique_tokens"], tokens)
    return replace(design, unique_tokens=unique, params_embedding=values["embedding_share"] * active)


def preset(name: str) -> dict[str, float]:
    """Return the values of one of ``PRESETS``, keyed by slider. The chapter attributes all parameters to experts."""
    active, expansion = PRESETS[name]
    return {**START, "params_active": active, "expansion": expansion, "expert_expansion": expansion}


def of_architecture(architecture: Architecture) -> dict[str, float]:
    """Return an architecture's values, embeddings included, keyed by slider; a dense model has one active expert."""
    design = accounting.design_of(architecture, 1.0)
    dense = not design.num_experts
    return {
        "params_active": float(design.params_active),
        "expansion": float(design.expansion),
        "expert_expansion": float(design.expert_expansion),
        "active_experts": 1.0 if dense else float(design.active_experts),
        "shared_share": 0.0 if dense else float(design.shared_share),
        "granularity": float(design.granularity),
        "embedding_share": float(design.params_embedding / design.params_active),
    }
