"""Check Abnar et al. (2025): the coefficients of Eq. 6, its claimed trends, its fit and its FLOP count."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

from moejax.architecture import Architecture
from moejax.fit.search.objective import Huber
from moejax.fit.search.starts import ABNAR_GRID
from moejax.laws.active_params import ACTIVE_PARAMS, DEFAULT, BackboneByActive, BackboneByTotal
from moejax.laws.claim import check
from moejax.laws.conventions import FLOPS
from moejax.laws.design import Design
from moejax.laws.mixtures import sparsity as optima
from moejax.laws.mixtures.sparsity import ABNAR_2025 as LAW
from moejax.papers.record import Number, Reading, Record, Records, Value, constants, holds, recorder, trend
from moejax.quantities import short

TITLE = 'Abnar et al., "Parameters vs FLOPs: Scaling Laws for Optimal Sparsity for Mixture-of-Experts" (2025)'
record = recorder("abnar")

TABLE_3 = {
    "alpha": "0.5962",
    "beta": "0.3954",
    "lambda": "-0.1666",
    "delta": "0.1603",
    "gamma": "0.1595",
    "a": "16612.50",
    "b": "5455.67",
    "c": "0.4598",
    "d": "17.26",
    "e": "0.94",
}
TABLE_2 = {
    **dict.fromkeys(("a", "b", "c", "d"), "3"),
    **dict.fromkeys(("alpha", "beta", "gamma"), "6"),
    **dict.fromkeys(("lambda", "delta"), "5"),
    "e": "1",
}
"""Number of starting values of each coefficient."""

BUDGETS = (3e19, 6e19, 1e20, 3e20, 1e21)
"""Budgets of Appendix D.1."""
SPARSITIES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
"""Sparsities of Table 1."""
SIZES = (5e8, 1e9, 2e9, 4e9)
READINGS = {name: f"{taken.meaning}, which the document does not give" for name, taken in ACTIVE_PARAMS.items()}
"""Assumptions about N_a(N, S), keyed by their names in ``active_params.py``, starting with the default convention."""


def records() -> Records:
    """Yield every number and every trend of the document."""
    yield from _constants()
    yield from _by_sparsity()
    yield from _by_sparsity_at_other_shares()
    yield from _sparsity_gain_by_budget()
    yield from _by_budget()
    yield from _by_sparsity_and_budget()
    yield from _by_size()
    yield from _joint()
    yield from _fit()
    yield from _flops_estimate()


Convention = Callable[[Number, Number], Number]
"""Function that returns the active parameters for total parameters and a sparsity."""


def _under_each(find: Callable[[Convention], Value]) -> list[Reading]:
    return [Reading(find(ACTIVE_PARAMS[key]), name) for key, name in READINGS.items()]


def _trend(
    where: str, quantity: str, published: str, readings: list[Reading], note: str = "", *, undefined: bool = False
) -> Record:
    agree = sum(reading.agrees(published) for reading in readings)
    tried = f"this holds under {agree or 'none'} of the {len(readings)} assumptions about N_a(N, S) that were tried"
    note = f"{tried}; {note}" if note else tried
    return record(where, quantity, published, *readings, note=note, undefined=undefined)


def _constants() -> Records:
    yield from constants(record, "Table 3", LAW, TABLE_3, "coefficient")
    without = dataclasses.replace(LAW, coupling_scale=0.0)
    designs = [Design(params_total=1e9, tokens=1e11, num_experts=1 / (1 - s), top_k=1.0) for s in SPARSITIES]
    falls = trend(without(design) for design in designs)
    yield record("Section 6", "the term with lambda, with S (sparser models lower the loss)", "falls", falls)


def _size(flops: Number, sparsity: Number, reading: Convention) -> float:
    return float(optima.best_params_total(LAW, flops, sparsity, reading))


def _active(flops: Number, sparsity: Number, reading: Convention) -> float:
    return float(reading(_size(flops, sparsity, reading), sparsity))


def _loss(flops: Number, sparsity: Number, reading: Convention) -> float:
    total = _size(flops, sparsity, reading)
    tokens = flops / (6 * float(reading(total, sparsity)))
    return float(LAW(Design(params_total=total, tokens=tokens, num_experts=1 / (1 - sparsity), top_k=1.0)))


TRENDS = (
    ("Section 2.1 and Figure 3a", "N*", "rises", _size),
    ("Section 2.1 and Figure 3b", "N_a*", "falls", _active),
    ("Section 2 and Figure 3c", "L*", "falls", _loss),
)
"""Trends with sparsity at one budget."""


def _by_sparsity() -> Records:
    for flops in BUDGETS:
        for where, quantity, published, value in TRENDS:
            trends = _under_each(lambda taken, at=value, c=flops: trend(at(c, s, taken) for s in SPARSITIES))
            yield _trend(where, f"{quantity} with S from 0 to 0.98, at C = {short(flops)}", published, trends)


SHARES = (
    *(BackboneByActive(ratio=ratio) for ratio in (0.1, 1.0, 2.0)),
    *(BackboneByTotal(share=share) for share in (0.1, 0.25, 0.5)),
)
"""Conventions whose shares of parameters outside the experts differ from those in ``READINGS``."""


def _by_sparsity_at_other_shares() -> Records:
    """Yield the trends with sparsity at C = 1e20 for growing shares of parameters outside the experts."""
    for taken in SHARES:
        for where, quantity, published, value in TRENDS:
            values = [value(1e20, sparsity, taken) for sparsity in SPARSITIES]
            steps = list(zip(SPARSITIES, map(trend, itertools.pairwise(values)), strict=False))
            turn = next((sparsity for sparsity, step in steps if step != published), None)
            name = f"{quantity} with S from 0 to 0.98 at C = 1e20, {taken.meaning}"
            note = "" if turn is None else f"it {published} only up to S = {turn:g}"
            shown = Reading(trend(values), f"{taken.meaning}, which the document does not give")
            yield record(where, name, published, shown, note=note, undefined=True)


def _sparsity_gain_by_budget() -> Records:
    """Yield Section 3's claim that the effect of sparsity on the loss does not diminish with the budget."""
    taken = ACTIVE_PARAMS[DEFAULT]
    first, last = (_loss(c, 0.0, taken) - _loss(c, 0.98, taken) for c in (BUDGETS[0], BUDGETS[-1]))
    name = "L* at S = 0 less L* at S = 0.98, with C from 3e19 to 1e21 ('no diminishing effect of sparsity')"
    note = (
        "the sentence is about measured losses, which are not published, so Eq. 6 cannot refute it; by Eq. 6 with "
        f"N_a = (1-S)·N, the difference shrinks from {first:.2f} to {last:.2f} nats"
    )
    yield record("Section 3", name, "stays", None, note=note)


def _by_budget() -> Records:
    for sparsity in (0.5, 0.9, 0.95):
        for where, quantity, published, value, note in (
            ("Section 1", "N*", "rises", _size, ""),
            ("Section 1", "N_a*", "falls", _active, "it rises in Figures 9 and 12, and by Eq. 6"),
            ("Figures 9 and 12", "N_a*", "rises", _active, ""),
        ):
            trends = _under_each(lambda taken, at=value, s=sparsity: trend(at(flops, s, taken) for flops in BUDGETS))
            name = f"{quantity} with C from 3e19 to 1e21, at S = {sparsity:g}"
            yield _trend(where, name, published, trends, note)


def _by_sparsity_and_budget() -> Records:
    """Yield the trends of N_a*'s decrease with sparsity as compute grows."""

    def fall(flops: Number, reading: Convention) -> tuple[float, float]:
        dense, sparse = (_active(flops, sparsity, reading) for sparsity in (0.0, 0.9))
        return dense - sparse, 1 - sparse / dense

    for which, measure in enumerate(("in parameters", "as a share of N_a* at S = 0")):
        trends = _under_each(lambda taken, which=which: trend(fall(flops, taken)[which] for flops in BUDGETS))
        name = f"what N_a* falls by from S = 0 to 0.9, {measure}, with C from 3e19 to 1e21"
        note = "the document does not state which of the two measures it means"
        yield _trend("Section 6", name, "rises", trends, note, undefined=True)


def _sparsity(flops: Number, total: Number, reading: Convention) -> float:
    return float(optima.best_sparsity(LAW, flops, total, reading))


def _by_size() -> Records:
    for flops in BUDGETS:
        trends = _under_each(lambda reading, flops=flops: trend(_sparsity(flops, total, reading) for total in SIZES))
        name = f"S* with N from 0.5B to 4B, at C = {short(flops)}"
        yield _trend("Section 2.2 and Appendix D.2", name, "rises", trends)
    for total in (1e9, 2e9, 4e9):
        trends = _under_each(lambda reading, total=total: trend(_sparsity(flops, total, reading) for flops in BUDGETS))
        name = f"S* with C from 3e19 to 1e21, at N = {total / 1e9:g}B"
        yield _trend("Section 3 and Appendix D.2", name, "falls", trends)
        note = "it falls in Section 3, Figure 4 and Appendix D.2, and by Eq. 6"
        yield _trend("Section 6", name, "rises", trends, note)
    yield from _dense_thresholds()
    for flops in (1e20, 1e21):
        large = _under_each(lambda reading, flops=flops: _sparsity(flops, 1e13, reading))
        yield _trend("Section 2.2", f"S* of a very large model, N = 10T, at C = {short(flops)}", "1.0", large)


def _dense_thresholds() -> Records:
    """Yield the sizes up to which the dense model is best."""
    note = "the document reads this from the surfaces of Eq. 8, whose coefficients are not printed"
    for flops in BUDGETS:
        sizes = [
            Reading(float(optima.dense_threshold(LAW, flops, ACTIVE_PARAMS[key])) / 1e6, name)
            for key, name in READINGS.items()
        ]
        name = f"N up to which S* is 0 at C = {short(flops)} ('for most compute budgets')"
        yield record("Appendix D.2", name, "about 500", *sizes, unit="M", note=note, undefined=True)
    trends = _under_each(lambda reading: trend(optima.dense_threshold(LAW, flops, reading) for flops in BUDGETS))
    yield _trend("Figure 9", "N up to which S* is 0, with C from 3e19 to 1e21", "rises", trends)


def _joint() -> Records:
    everything = ACTIVE_PARAMS["proportional"]
    optimum = optima.joint_optimum(LAW, 1e20, everything, cap=1 - 1e-15)
    name = "S of the joint optimum of Eq. 2 at C = 1e20"
    yield record("Section 3", f"{name} ('approaches 1')", "1.0", Reading(optimum.sparsity, READINGS["proportional"]))
    claims = {
        "N* at S = 0.9": optima.optimal_params_total(LAW, 1e20, 0.9, everything),
        "S* at N = 1B": optima.optimal_sparsity(LAW, 1e20, 1e9, everything),
    }
    for name, claim in claims.items():
        minimum = Reading(holds(check(claim).holds), READINGS["proportional"])
        yield record("Sections 2.1 and 2.2", f"{name}, C = 1e20: a minimum inside the range", "holds", minimum)


def _fit() -> Records:
    by_symbol = {f.metadata["symbol"]: ABNAR_GRID.values[f.name] for f in dataclasses.fields(LAW)}
    for symbol, printed in TABLE_2.items():
        yield record("Table 2", f"values that {symbol} starts from in the fit here", printed, len(by_symbol[symbol]))
    starts = math.prod(len(values) for values in by_symbol.values())
    yield record("Table 2", "starts of the fit, all combinations of the values", None, starts)
    for where, squared, huber in (("the fitted runs", 0.00056, "0.0036"), ("the held-out runs", 0.0058, "0.0011")):
        # A Huber loss grows more slowly than r², so at a given mean square it is largest if all residuals are equal.
        stated = float(Huber(delta=1e-3, residual="nats")(math.sqrt(squared), 0.0))
        yield record(
            "Appendix F",
            f"largest mean Huber loss at delta = 1e-3 that a mean squared error of {squared:g} allows, {where}",
            f">={huber}",
            stated,
            note=f"a sum over at least {math.ceil(float(huber) / stated)} runs, instead of a mean, would explain it",
            implied=True,
        )
    for where, quantity, printed in (
        ("Appendix F", "mean squared error, fitted runs", "0.00056"),
        ("Appendix F", "mean squared error, held-out runs at S = 0.98", "0.0058"),
        ("Appendix F", "R² in percent, fitted runs", "99"),
        ("Appendix F", "R² in percent, held-out runs at S = 0.98", "68"),
        ("Figure 1", "mean squared error of the IsoFLOP surfaces", "0.0001"),
    ):
        yield record(where, quantity, printed, None, note="the losses of the runs are not published")
    name, note = "correlation of lengths of given and generated answers", "the answers are not published"
    yield record("Appendix E", name, "0.88", None, note=note)


def shape_of(model_dim: int, sparsity: Number) -> Architecture:
    """Return a shape for Figure 7: experts are 4·d_model wide, as in Appendix C, and d_model is 64 times the layers."""
    return Architecture(
        vocab_size=50_432,
        model_dim=model_dim,
        num_layers=model_dim // 64,
        num_heads=model_dim // 64,
        num_kv_heads=model_dim // 64,
        head_dim=64,
        num_experts=round(1 / (1 - sparsity)),
        top_k=1,
        expert_hidden=4 * model_dim,
    )


def _flops_estimate() -> Records:
    widths = (512, 1024, 2048, 4096)
    family = "models with d_model from 512 to 4096 and d_model/64 layers; the document's shapes are not printed"
    note = "6·N_a omits attention scores, which are a large part of a narrow model's FLOPs"
    ratios: list[float] = []
    for sparsity in (0.0, 0.5, 0.75, 0.9, 0.95, 0.98):
        shapes = [shape_of(width, sparsity) for width in widths]
        gaps = [
            FLOPS["abnar-eq9"].per_token(shape, 2048) / FLOPS["6-params-active"].per_token(shape, 2048) - 1
            for shape in shapes
        ]
        name = f"gap between Eq. 9 and 6·N_a per token, with size, at S = {sparsity:g}"
        yield record("Appendix C and Figure 7", name, "falls", Reading(trend(map(abs, gaps)), family))
        ratios += [1 + gap for gap in gaps]
    for end, pick in (("largest", max), ("least", min)):
        name = f"{end} ratio of Eq. 9 to 6·N_a per token, over sizes and sparsities ('close to one')"
        close = Reading(pick(ratios), family)
        yield record("Appendix C and Figure 7", name, "about 1", close, note=note, undefined=True)
    for model_dim in widths:
        shape = shape_of(model_dim, 0.98)
        router = FLOPS["abnar"].per_token(shape, 2048) / FLOPS["abnar-eq9"].per_token(shape, 2048) - 1
        name = f"share of the router in the FLOPs at d_model = {model_dim} and S = 0.98 ('negligible')"
        yield record("Appendix C", name, "<0.01", Reading(router, f"less than 1 % for {family}"))
    yield from _multipliers()


def _multipliers() -> Records:
    """Yield the marginal FLOPs of this package's implementation of the document's estimator."""
    shape, context, where = shape_of(1024, 0.9), 2048, "Appendix C"

    def more(architecture: Architecture, tokens: int = context) -> Number:
        return FLOPS["abnar"].per_token(architecture, tokens) - FLOPS["abnar"].per_token(shape, context)

    width, layers = shape.model_dim, shape.num_layers
    larger, wider = (shape.replace(**{f: getattr(shape, f) + 1}) for f in ("vocab_size", "num_experts"))
    each = {
        "C, FLOPs per parameter of the unembedding": ("6", more(larger) / width),
        "R, FLOPs per parameter of the router": ("14", more(wider) / (width * layers)),
        "2C, FLOPs per width and token of context": ("12", more(shape, context + 1) / (width * layers)),
        "12C, FLOPs per expert and squared width at G = 1": ("72", more(shape.replace(top_k=2)) / (width**2 * layers)),
    }
    for quantity, (printed, value) in each.items():
        yield record(where, quantity, printed, value)
