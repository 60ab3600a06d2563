"""Measure how far a design is outside the fitted runs, by the same rule for sizes, ratios and other law inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax.fit.runs import Runs
from moejax.float64 import float64
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import DERIVED, FIELDS, design_from, known
from moejax.laws.predict import factor

SIZES = ("params_active", "params_total", "tokens", "flops")
"""Sizes in which laws are extrapolated to larger runs."""

RATIOS = {
    "tokens_per_param": ("tokens", "params_active"),
    "expansion": DERIVED["expansion"],
    # A sparsity of 0.99 is far from 0.95 although the ratio is only 1.04, so 1/(1 - S) is compared.
    "expert_expansion": DERIVED["expert_expansion"],
    "active_experts": DERIVED["active_experts"],
    "shared_share": DERIVED["shared_share"],
    "granularity": DERIVED["granularity"],
}
"""Ratios of sizes, which may be outside the fitted range even if both sizes are within it."""

Values = Mapping[str, Float[np.ndarray, "*runs"]]
Ranges = Mapping[str, tuple[float, float]]


def with_ratios(values: Values) -> dict[str, Any]:
    """Return the fields and the ratios of ``RATIOS`` that can be computed from them, keyed by name."""
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
    """Return the smallest and largest value among runs with positive weight, keyed by quantity or ratio.

    ``names`` selects the quantities; by default all. A quantity that is 0 in every run or negative in any run is left
    out, because extrapolation is measured as a factor.
    """
    kept, given = runs.weight > 0, known(runs.design)
    values = {name: given[name][kept] for name in (given if names is None else names) if name in given}
    ends = {name: (float(v.min()), float(v.max())) for name, v in with_ratios(values).items() if np.isfinite(v).all()}
    return {name: (low, high) for name, (low, high) in ends.items() if low >= 0 and high > 0}


def where_decided(runs: Runs, reads: Container[str] = ()) -> Ranges:
    """Return ``ranges`` of the runs, to compare decisions with; FLOPs are 6 · active parameters · tokens, if the runs
    have both.

    Args:
      reads: inputs of the law; if they include FLOPs, the table's FLOPs are used.
    """
    design = runs.design
    if "flops" in reads or design.params_active is None or design.tokens is None:
        return ranges(runs)
    spent = FLOPS_PER_PARAM_AND_TOKEN * design.params_active * design.tokens
    return ranges(dataclasses.replace(runs, design=dataclasses.replace(design, flops=spent)))


def flops_convention(runs: Runs) -> str:
    """Return ``6-params-active`` if the FLOPs of most runs are 6 · active parameters · tokens, or are not known
    besides; empty if they follow another convention."""
    design = runs.design
    if design.params_active is None or design.tokens is None:
        return ""
    product = FLOPS_PER_PARAM_AND_TOKEN * np.asarray(design.params_active) * np.asarray(design.tokens)
    ratio = 1.0 if design.flops is None else np.asarray(design.flops) / product
    # The median tolerates rounded sizes and single mistakes.
    return OF_ACTIVE if abs(np.log(np.median(ratio))) < np.log(COUNTED_ALIKE) else ""


COUNTED_ALIKE = 1.05
"""Largest median ratio of FLOPs to 6 N D, or the inverse, that counts as equal."""
OF_ACTIVE = "6-params-active"
"""Convention of FLOPs in ``laws.conventions.FLOPS``."""


def outside(values: Mapping[str, float], fitted: Ranges) -> dict[str, float]:
    """Return the ratio of each value to the largest run's if above it (> 1), or to the smallest run's if below it (<
    1), keyed by name. Values within the runs are left out."""
    asked = {name: float(value) for name, value in with_ratios({n: np.asarray(v) for n, v in values.items()}).items()}
    factors = {name: factor(value, *fitted[name]) for name, value in asked.items() if name in fitted}
    return {name: times for name, times in factors.items() if times != 1 and np.isfinite(times)}


def in_words(times: Mapping[str, float]) -> str:
    """Return factors as text: ``5.19 times in params_active, 95.4 times in tokens``."""
    return ", ".join(f"{factor:.3g} times in {name}" for name, factor in times.items())


def sentences(times: Mapping[str, float]) -> list[str]:
    """Return at most two sentences about quantities outside the fitted runs."""
    above, below = ({name: one for name, one in times.items() if (one > 1) == larger} for larger in (True, False))
    said = {"Beyond the largest": above, "Below the smallest": below}
    return [f"{where} fitted run: {in_words(part)}." for where, part in said.items() if part]
