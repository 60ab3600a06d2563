"""Make synthetic tables for every fitted law: models of many shapes with a few budgets each, a known law, and noise.

A table has twice as many architectures as its law has coefficients, and at least ten. They have 6 million to 2 billion
active parameters, are dense or have up to 128 experts, and are trained for four budgets of 5 to 160 tokens per
parameter, with up to 60 epochs. Runs of an architecture share part of their noise. ``LARGER`` has ten times the active
parameters and tokens of the largest model.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from moejax.fit.chain import chain
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs, runs_from
from moejax.fit.search.fit_law import Search, fit_law
from moejax.fit.search.starts import Sobol, WarmStart
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.laws import LAWS, NOT_SEARCHED, PUBLISHED
from moejax.laws.dense.chinchilla import HOFFMANN_2022, frontier
from moejax.laws.design import Design, design_from, known, value_of
from moejax.laws.formula_law import formula_law
from moejax.laws.law import coefficients
from moejax.laws.mixtures.dense_to_moe import DenseToMoe
from moejax.laws.mixtures.fewer_factors import FourFactor, TwoFactor, at_structure
from moejax.laws.mixtures.five_factor import ZHAO_2025
from moejax.laws.mixtures.marginal import MarginalActive, MarginalExperts, MarginalShared
from moejax.laws.scores.chained_law import chained_law


@dataclass(frozen=True)
class MadeUp:
    """A true law and the noise of measurements."""

    truth: Any
    output: str = "loss"
    shared: float = 0.002
    """Standard deviation of the log noise that the runs of an architecture share."""
    own: float = 0.002
    """Standard deviation of the independent log noise of each run."""
    loss_law: Any = None
    """For a score: the true loss law on which it depends."""
    chained: bool = field(default=False, repr=False)
    """True if the score and its loss law are fitted as one chained law."""

    @property
    def whole(self) -> Any:
        """Return the true law as a function of a run's sizes; for a score, the chain of both laws."""
        if not self.chained:
            return self.truth
        cls = chained_law(type(self.loss_law), type(self.truth))
        return cls(**coefficients(self.loss_law), **coefficients(self.truth))

    def chance(self, *seed: int) -> np.random.Generator:
        """Return a random generator with a seed per law; a common seed would correlate the misses of all laws."""
        return np.random.default_rng([zlib.crc32(repr(self).encode()), *seed])

    def measured(self, design: Design, group: np.ndarray, rng: np.random.Generator) -> Runs:
        """Return noisy measurements of some designs."""
        exact = predict(self.truth, runs_from(design, np.ones(len(group))), self.output)
        luck = self.shared * rng.normal(size=group.max() + 1)[group] + self.own * rng.normal(size=len(group))
        read = {name: np.asarray(value_of(design, name), float) for name in type(self.truth).inputs}
        return runs_from(design_from(read), exact * np.exp(luck), group=group, output=self.output)


THREE = at_structure(ZHAO_2025, 7.0, 0.25)
TWO = TwoFactor(
    total_scale=THREE.total_scale + THREE.active_scale,
    params_exponent=THREE.params_exponent,
    tokens_scale=THREE.tokens_scale,
    tokens_exponent=THREE.tokens_exponent,
    irreducible=THREE.irreducible,
)
POWER: Any = formula_law("learning_rate = k*params_active^-a*tokens^b*model_dim^-c", ())
BITS_PER_BYTE = replace(
    HOFFMANN_2022,
    **{name: coefficients(HOFFMANN_2022)[name] / 3 for name in ("irreducible", "params_scale", "tokens_scale")},
)
"""Hoffmann's law in bits per byte, for accuracy laws: a third of the nats per token, at about four bytes per token."""
OTHERS: dict[str, MadeUp] = {
    "loss_compute": MadeUp(frontier(HOFFMANN_2022)),
    "dense_to_moe": MadeUp(DenseToMoe(**coefficients(HOFFMANN_2022), experts_exponent=0.2)),
    "four_factor": MadeUp(
        FourFactor(**{name: v for name, v in coefficients(ZHAO_2025).items() if not name.startswith("shared")})
    ),
    "three_factor": MadeUp(THREE),
    "two_factor": MadeUp(TWO),
    "marginal_active": MadeUp(MarginalActive(active_scale=31.0, active_exponent=0.24, active_slope=5e-10, offset=2.1)),
    "marginal_experts": MadeUp(MarginalExperts(experts_slope=0.01, experts_inverse=0.4, offset=2.5)),
    "marginal_shared": MadeUp(MarginalShared(shared_square=0.8, shared_slope=-0.5, offset=2.6)),
    "power_law": MadeUp(POWER(k=0.5, a=0.25, b=0.1, c=0.5), "learning_rate", 0.05, 0.15),
}
"""Laws without published constants or with constants at the end of their range, and a law by formula."""
NOISE = {
    "loss": (0.002, 0.002),
    "error": (0.004, 0.004),
    "accuracy": (0.004, 0.004),
    "efficiency_leverage": (0.02, 0.02),
}
"""Shared and independent noise by output; for the results of sweeps (learning rate, batch, size) it is ``SWEPT``."""
SWEPT = (0.05, 0.15)


def made_up() -> dict[str, MadeUp]:
    """Return every fitted law by name; a second output and a chained score have both names."""
    found = {}
    for name, law in LAWS.items():
        if law in NOT_SEARCHED or not (name in OTHERS or PUBLISHED[name]) or "total_ratio" in law.outputs:
            continue
        truth = OTHERS[name].truth if name in OTHERS else next(iter(PUBLISHED[name].values())).law
        for number, output in enumerate(law.outputs):
            found[f"{name} {output}" if number else name] = MadeUp(truth, output, *NOISE.get(output, SWEPT))
        if law.inputs == ("loss",):
            found[name] = replace(
                found[name], loss_law=BITS_PER_BYTE if name == "accuracy_from_loss" else HOFFMANN_2022
            )
            found[f"chinchilla {name}"] = replace(found[name], chained=True)
    return found | {name: one for name, one in OTHERS.items() if name not in LAWS}


BUDGETS = 4


def architectures(count: int, rng: np.random.Generator) -> tuple[Design, np.ndarray]:
    """Return designs of the runs of ``count`` models, and the index of each run's model."""
    group = np.repeat(np.arange(count), BUDGETS)
    width = 64 * np.round(np.geomspace(4, 32, count) * np.exp(0.1 * rng.normal(size=count)))
    layers = np.maximum(np.round(width / np.exp(rng.uniform(np.log(24), np.log(100), count))), 2)
    active = 12 * layers * width**2
    experts = 2.0 ** rng.integers(0, 8, count)
    top_k = np.minimum(2.0 ** rng.integers(0, 4, count), experts)
    ratios = np.tile(np.geomspace(5, 160, BUDGETS), count) * np.exp(0.1 * rng.normal(size=len(group)))
    tokens = ratios * active[group]
    sizes = {
        "model_dim": width,
        "num_layers": layers,
        "params_active": active,
        "params_total": active * (1 + 0.8 * (experts - top_k) / (top_k + 1)),
        "num_experts": experts,
        "top_k": top_k,
        "num_shared_experts": rng.integers(0, 3, count).astype(float),
        "expert_hidden": 2 * width / 2.0 ** rng.integers(0, 5, count),
    }
    runs = {name: values[group] for name, values in sizes.items()}
    epochs = np.exp(rng.uniform(0, np.log(60), len(group)))
    return Design(**runs, tokens=tokens, unique_tokens=tokens / epochs, flops=6 * active[group] * tokens), group


LARGER = {
    "model_dim": 6144.0,
    "num_layers": 44.0,
    "params_active": 2e10,
    "params_total": 1e11,
    "num_experts": 64.0,
    "top_k": 8.0,
    "num_shared_experts": 1.0,
    "expert_hidden": 1536.0,
    "tokens": 3e12,
    "unique_tokens": 6e11,
    "flops": 3.6e23,
}
"""The extrapolated run."""
SEARCH = Search(screened=24, rounds=((25, 6),))
STARTS = 128
"""Initial guesses of a fit that does not start at the truth, fewer than in ``moejax fit``."""


def table(one: MadeUp, seed: int) -> Runs:
    """Return a table of measurements by a law; for a score, with the measured loss."""
    rng = one.chance(seed)
    count = max(10, 2 * len(coefficients(one.whole)))
    design, group = architectures(count, rng)
    if "loss" in type(one.truth).inputs:
        losses = MadeUp(one.loss_law).measured(design, group, rng)
        design = design_from(known(design) | {"loss": losses.loss})
    runs = one.measured(design, group, rng)
    return replace(runs, design=design) if one.chained else runs


def fitted(one: MadeUp, runs: Runs, *, searched: bool = False) -> FitResult:
    """Fit a table like ``moejax fit``, with the search started at the truth or, if ``searched``, without it."""

    def fit(truth: Any, measured: Runs) -> FitResult:
        starts = Sobol(STARTS) if searched else WarmStart((truth,))
        return with_uncertainty(fit_law(type(truth), measured, starts=starts, search=SEARCH), measured)

    if not one.chained:
        return fit(one.truth, runs)
    sizes = {name: value_of(runs.design, name) for name in type(one.loss_law).inputs}
    losses = runs_from(design_from(sizes), np.asarray(runs.design.loss), group=runs.group)
    scores = replace(runs, design=design_from({"loss": runs.design.loss}))
    return chain(fit(one.loss_law, losses), fit(one.truth, scores), replace(runs, design=losses.design))


def larger(one: MadeUp) -> Design:
    """Return the inputs of a table's law for the extrapolated run."""
    sizes = design_from(LARGER)
    read = LARGER if one.loss_law is None else LARGER | {"loss": float(one.loss_law(sizes))}
    return design_from({name: read[name] for name in type(one.whole).inputs})
