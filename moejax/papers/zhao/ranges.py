"""Compute nearly optimal ranges of G and S, and efficient N_a/N (Zhao et al., Tables 3 and 4, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moejax.fit.fit_result import FitResult
from moejax.interval import in_percent
from moejax.laws.catalogue import find
from moejax.laws.mixtures.five_factor import (
    FiveFactor,
    active_experts_range,
    best_active_experts,
    best_shared_share,
    efficient_active_share,
    optimal_active_share,
    shared_share_range,
    with_experts,
)
from moejax.laws.predict import Ranged, factor
from moejax.papers.zhao.models import MODELS
from moejax.quantities import format
from moejax.result import NOT_DETERMINED, Column, Result, Table, percent

GAINS = (0.001, 0.005)
"""Minimum loss gains per step in Table 4, in nats per token."""


@dataclass(frozen=True, kw_only=True)
class RangeLimits:
    """Limits of the ranges, in nats per token, and the G and S at which N_a/N is computed."""

    tolerance: float = 0.001
    gains: tuple[float, ...] = GAINS
    step: float = 0.01
    active_experts: float | None = None
    shared_share: float | None = None
    level: float = 0.9


@dataclass(frozen=True)
class Model:
    """A model's name, N and N_a, and its G and S if it is an MoE model."""

    name: str
    total: float
    active: float
    experts: float | None = None
    shared: float | None = None


def published_models(names: Sequence[str]) -> list[Model]:
    """Return the named catalogue models with their authors' sizes. Without names, return Table 3's nine models with the
    printed sizes."""
    if not names:
        return [
            _published(name, entry, float(total) * 1e9, float(active) * 1e9)
            for name, (entry, active, total) in MODELS.items()
        ]
    return [_published(name, name, find(name).params_total, find(name).params_active) for name in names]


def _published(name: str, entry: str, total: float, active: float) -> Model:
    """Return a catalogue model, with G and S if it is an MoE model."""
    shape = find(entry).architecture
    experts = float(shape.top_k + shape.num_shared_experts)
    if not shape.num_experts:
        return Model(name, total, active)
    return Model(name, total, active, experts, float(shape.num_shared_experts) / experts)


def ranges(
    law: FiveFactor, name: str, models: Sequence[Model], sizes: str, known: Ranged, asked: RangeLimits
) -> Result:
    """Return the optima of the law, and the ranges and active shares of every model.

    Args:
      sizes: a sentence about the models' sizes, or empty.
      known: the law's published constants or fit, which has the fitted ranges.
    """
    best = float(best_active_experts(law)), _as_share(float(best_shared_share(law)))
    experts = best[0] if asked.active_experts is None else asked.active_experts
    shared = best[1] if asked.shared_share is None else asked.shared_share
    rows = [_ranges(law, model, experts, shared, asked) for model in models]
    fit = known if isinstance(known, FitResult) else None
    optima = [
        ["G* = sqrt(f / e)", _known(best[0]), _interval(fit, law, best_active_experts, asked.level)],
        ["S* = -n / (2 m)", _known(best[1]), _interval(fit, law, best_shared_share, asked.level)],
    ]
    shares = [
        Column("model", value="model"),
        Column("own N_a/N", percent(2), value="own_active_share"),
        *_share_columns("theoretical (Eq. 14)", lambda row: row.optimal_active_share),
    ]
    for gain in asked.gains:
        shares += _share_columns(f"gain {gain:g}", lambda row, gain=gain: row.efficient_active_share[f"{gain:g}"])
    coverage = f"{in_percent(asked.level)} interval"
    said = [f"law: {name}; N_a/N is computed at G = {experts:.4g} and S = {shared:.3g} for every model."]
    if not all(map(math.isfinite, (*best, *(row.optimal_active_share for row in rows)))):
        said.append(
            f"'{NOT_DETERMINED}' means that the law has no possible optimum: a coefficient is 0, or the share with the "
            f"lowest loss is below 0 or above 1."
        )
    said += [sizes] * bool(sizes)
    if far := _beyond(models, asked, known.fitted):
        said.append(f"Outside the law's fitted range: {', '.join(far)}.")
    return Result(
        tables=[
            Table("Optima (Eqs. 12 and 13)", (Column(""), Column("value", ".4g"), Column(coverage)), optima),
            Table.of(
                f"Practical ranges: within {asked.tolerance:g} nats per token of the best, rounded inward",
                STRUCTURE,
                rows,
            ),
            Table.of(
                f"Active share: optimal, and efficient if {asked.step:g} more of N must gain some nats (Algorithm 1)",
                shares,
                rows,
            ),
        ],
        notes=said,
        data={
            "law": name,
            "optimal_active_experts": best[0],
            "optimal_shared_share": best[1],
            "tolerance": asked.tolerance,
            "step": asked.step,
            "active_experts": experts,
            "shared_share": shared,
            "models": [asdict(row) for row in rows],
        },
    )


def _beyond(models: Sequence[Model], asked: RangeLimits, fitted: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Describe the model sizes farthest outside the fitted range, and a requested G or S outside it."""
    farthest: dict[str, tuple[float, str]] = {}
    for model in models:
        for name, size in (("params_total", model.total), ("params_active", model.active)):
            ends = fitted.get(name) or fitted.get(f"{name}_nonembedding")
            times = 1.0 if ends is None else factor(size, *ends)
            if abs(math.log(times)) > abs(math.log(farthest.get(name, (1.0, ""))[0])):
                farthest[name] = times, model.name
    far = [f"{times:.3g} times in {name} ({model})" for name, (times, model) in farthest.items()]
    for symbol, name, value in (
        ("G", "active_experts", asked.active_experts),
        ("S", "shared_share", asked.shared_share),
    ):
        if value is not None and name in fitted and factor(value, *fitted[name]) != 1:
            low, high = fitted[name]
            far.append(f"{symbol} = {value:.4g} (fitted {low:.3g} to {high:.3g})")
    return far


def inward(digits: int) -> Callable[[Sequence[float]], str]:
    """Return a function that formats a range with bounds rounded inward to ``digits`` decimals, or to more for a narrow
    range.
    """

    def write(ends: Sequence[float]) -> str:
        if not all(map(math.isfinite, ends)):
            return NOT_DETERMINED
        for shown in range(digits, 13):
            low, high = math.ceil(ends[0] * 10**shown) / 10**shown, math.floor(ends[1] * 10**shown) / 10**shown
            if low <= high:
                return f"[{low:.{shown}f}, {high:.{shown}f}]"
        return f"{sum(ends) / 2:.{digits}f}"

    return write


STRUCTURE = (
    Column("model", value="model"),
    Column("N", format, value="params_total"),
    Column("N_a", format, value="params_active"),
    Column("own G", ".4g", value="own_active_experts"),
    Column("range of G", inward(2), value="active_experts_range"),
    Column("own S", ".3g", value="own_shared_share"),
    Column("range of S", inward(3), value="shared_share_range"),
)


@dataclass(frozen=True)
class ModelRanges:
    """A model's own structure, and its ranges and active shares under a law; NaN if the law has no possible optimum."""

    model: str
    params_total: float
    params_active: float
    own_active_experts: float | None
    own_shared_share: float | None
    active_experts_range: tuple[float, float]
    shared_share_range: tuple[float, float]
    own_active_share: float
    optimal_active_share: float
    efficient_active_share: dict[str, float]
    """Active share by gain."""


def _ranges(law: FiveFactor, model: Model, experts: float, shared: float, asked: RangeLimits) -> ModelRanges:
    at = with_experts(experts, shared, params_total=model.total, params_active=model.active)
    low, high = (float(end) for end in active_experts_range(law, at, tolerance=asked.tolerance))
    least, most = (float(end) for end in shared_share_range(law, at, tolerance=asked.tolerance))
    theory = optimal_active_share(law, model.total, experts, shared).value["active_share"]
    return ModelRanges(
        model=model.name,
        params_total=model.total,
        params_active=model.active,
        own_active_experts=model.experts,
        own_shared_share=model.shared,
        active_experts_range=(low, high),
        # A share is between 0 and 1, even if the law's range is wider.
        shared_share_range=(max(least, 0.0), min(most, 1.0)) if least <= 1 and most >= 0 else (math.nan, math.nan),
        own_active_share=model.active / model.total,
        optimal_active_share=_as_share(float(theory)),
        efficient_active_share={
            f"{g:g}": float(efficient_active_share(law, model.total, experts, shared, least_gain=g, step=asked.step))
            for g in asked.gains
        },
    )


def _share_columns(name: str, share: Callable[[ModelRanges], float]) -> tuple[Column, Column]:
    return (
        Column(name, percent(2), value=lambda row: _known(share(row))),
        Column("N_a there", format, value=lambda row: _known(share(row) * row.params_total)),
    )


def _as_share(value: float) -> float:
    return value if 0 <= value <= 1 else math.nan


def _known(value: float) -> float | str:
    return value if math.isfinite(value) else NOT_DETERMINED


def _interval(fit: FitResult | None, law: FiveFactor, decide: Callable[[FiveFactor], Any], level: float) -> str | None:
    """Return the interval of an optimum from a fit's covariance; None for published constants."""
    if fit is None or not fit.has_covariance:
        return None
    spread = fit.spread(decide)
    low, high = (float(np.ravel(end)[0]) for end in spread.ends(level, np.array([False])))
    if not math.isfinite(low):
        return NOT_DETERMINED
    return f"[{low:.4g}, {high:.4g}]"
