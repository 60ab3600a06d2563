"""How far a design lies outside some runs: one rule for sizes, ratios and whatever else a law reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax.fit.runs import Runs
from moejax.float64 import float64
from moejax.laws.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import DERIVED, FIELDS, design_from, known
from moejax.laws.predict import factor

SIZES = ("params_active", "params_total", "tokens", "flops")
"""What a law is extrapolated in to larger trainings."""

RATIOS = {
    "tokens_per_param": ("tokens", "params_active"),
    "expansion": DERIVED["expansion"],
    # A sparsity of .99 is far from one of .95, and 1.04 times it: the same as a ratio.
    "expert_expansion": DERIVED["sparsity"],
    "active_experts": DERIVED["active_experts"],
    "shared_share": DERIVED["shared_share"],
    "granularity": DERIVED["granularity"],
}
"""What sizes may hide: both may lie within the runs, and their ratio beyond."""

Values = Mapping[str, Float[np.ndarray, "*runs"]]
Ranges = Mapping[str, tuple[float, float]]


def with_ratios(values: Values) -> dict[str, Any]:
    """Fields of designs, and the ratios that these give."""
    fields = {name: np.asarray(each, np.float64) for name, each in values.items() if name in FIELDS}
    with float64(), np.errstate(divide="ignore", invalid="ignore"):
        design = design_from(fields)
        ratios = {
            name: np.asarray(getattr(design, name), np.float64)
            for name, inputs in RATIOS.items()
            if set(inputs) <= set(fields)
        }
    return {**ratios, **values}


def ranges(runs: Runs, names: Iterable[str] | None = None) -> dict[str, tuple[float, float]]:
    """Smallest and largest value among the runs that count, of what they have by these names (all, if not given) and
    its ratios.

    What is 0 in every run, or below 0 in one, has no factor by which another value lies beyond it, and so no range.
    """
    kept, given = runs.weight > 0, known(runs.design)
    values = {name: given[name][kept] for name in (given if names is None else names) if name in given}
    ends = {name: (float(v.min()), float(v.max())) for name, v in with_ratios(values).items() if np.isfinite(v).all()}
    return {name: (low, high) for name, (low, high) in ends.items() if low >= 0 and high > 0}


def where_decided(runs: Runs, reads: Container[str] = ()) -> Ranges:
    """The ranges that answers are held to: FLOPs are those by which decisions split a budget, where runs have them.

    Args:
      reads: what the law reads; FLOPs are then the table's.
    """
    design = runs.design
    if "flops" in reads or design.params_active is None or design.tokens is None:
        return ranges(runs)
    spent = FLOPS_PER_PARAM_AND_TOKEN * design.params_active * design.tokens
    return ranges(dataclasses.replace(runs, design=dataclasses.replace(design, flops=spent)))


def outside(values: Mapping[str, float], fitted: Ranges) -> dict[str, float]:
    """By what factor values lie beyond the largest run (above 1) or below the smallest (below 1), where they do."""
    asked = {name: float(value) for name, value in with_ratios({n: np.asarray(v) for n, v in values.items()}).items()}
    factors = {name: factor(value, *fitted[name]) for name, value in asked.items() if name in fitted}
    return {name: times for name, times in factors.items() if times != 1 and np.isfinite(times)}


def in_words(times: Mapping[str, float]) -> str:
    """``5.19 times in params_active, 95.4 times in tokens``."""
    return ", ".join(f"{factor:.3g} times in {name}" for name, factor in times.items())


def sentences(times: Mapping[str, float]) -> list[str]:
    """What lies beyond the runs, in at most two sentences."""
    above, below = ({name: one for name, one in times.items() if (one > 1) == larger} for larger in (True, False))
    said = {"Beyond the largest": above, "Below the smallest": below}
    return [f"{where} fitted run: {in_words(part)}." for where, part in said.items() if part]
