"""Zhao et al. (2025): the law, its optima and what they say of published models (Tables 2, 3 and 4, Eqs. 12 to 33)."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from moejax.laws import five_factor_optima as optima
from moejax.laws import five_factor_practice as practice
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.claim import check
from moejax.laws.design import Design
from moejax.laws.five_factor import ZHAO_2025 as LAW
from moejax.laws.loss_compute import LossCompute
from moejax.reproduce import zhao_experiments
from moejax.reproduce.record import Number, Reading, Record, Records, readings, short

TITLE = 'Zhao et al., "Towards a Comprehensive Scaling Law of Mixture-of-Experts" (2025)'

TABLE_2 = {
    "e": "0.1577",
    "f": "7.2446",
    "m": "5.1395",
    "n": "-3.2363",
    "k": "0.0013",
    "h": "0.0450",
    "a": "38.0510",
    "alpha": "0.2383",
    "b": "27129.0488",
    "beta": "0.4694",
    "c": "31.0958",
    "epsilon": "1.8182",
}

MODELS = {
    "gpt-oss-20b": ("gpt-oss-20b", "3.6", "21"),
    "Qwen3-30B-A3B": ("qwen3-30b-a3b", "3", "30"),
    "Hunyuan-A13B": ("hunyuan-a13b", "13", "80"),
    "GLM-4.5-Air": ("glm-4.5-air", "12", "106"),
    "gpt-oss-120b": ("gpt-oss-120b", "5.1", "117"),
    "Qwen3-235B-A22B": ("qwen3-235b-a22b", "22", "235"),
    "GLM-4.5": ("glm-4.5", "32", "355"),
    "Deepseek-V3.1": ("deepseek-v3.1", "37", "671"),
    "Kimi-K2": ("kimi-k2", "32", "1000"),
}
"""Name in the catalogue, N_a and N in billions as Table 4 prints them."""

TABLE_3 = {
    "gpt-oss-20b": ("4", "0", ("5.09", "9.04"), ("0.183", "0.446")),
    "Qwen3-30B-A3B": ("8", "0", ("4.80", "9.58"), ("0.156", "0.473")),
    "Hunyuan-A13B": ("9", "0.111", ("4.99", "9.21"), ("0.175", "0.455")),
    "GLM-4.5-Air": ("9", "0.111", ("4.77", "9.64"), ("0.154", "0.476")),
    "gpt-oss-120b": ("4", "0", ("4.27", "10.77"), ("0.102", "0.528")),
    "Qwen3-235B-A22B": ("8", "0", ("4.61", "9.98"), ("0.138", "0.492")),
    "GLM-4.5": ("9", "0.111", ("4.56", "10.09"), ("0.133", "0.497")),
    "Deepseek-V3.1": ("9", "0.111", ("4.20", "10.93"), ("0.095", "0.535")),
    "Kimi-K2": ("9", "0.111", ("3.85", "11.95"), ("0.053", "0.577")),
}
"""G, S (1/9 to three digits), and the practical ranges of both."""

TABLE_4 = {
    "gpt-oss-20b": ("42.89", "9.0", "22.00", "4.6", "9.00", "1.9"),
    "Qwen3-30B-A3B": ("40.04", "12.0", "21.00", "6.3", "9.00", "2.7"),
    "Hunyuan-A13B": ("33.16", "26.5", "18.00", "14.4", "7.00", "5.6"),
    "GLM-4.5-Air": ("31.41", "33.3", "17.00", "18.0", "7.00", "7.4"),
    "gpt-oss-120b": ("30.82", "36.1", "16.00", "18.7", "7.00", "8.2"),
    "Qwen3-235B-A22B": ("26.95", "63.33", "14.00", "32.9", "6.00", "14.1"),
    "GLM-4.5": ("24.89", "88.4", "13.00", "46.2", "6.00", "21.3"),
    "Deepseek-V3.1": ("22.02", "147.8", "12.00", "80.5", "5.00", "33.6"),
    "Kimi-K2": ("20.40", "204.0", "11.00", "110.0", "5.00", "50.0"),
}
"""Optimal N_a/N in percent and billions: theoretical, and efficient at a gain of 0.001 and of 0.005 nats."""

ROUNDED = "G = 7 and S = 0.31, the configuration of Appendix G"
EXACT_G, EXACT_S = optima.best_active_experts(LAW), optima.best_shared_share(LAW)
GAINS = {"0.001": 0.001, "0.005": 0.005}


def records() -> Records:
    """Every number of the document."""
    yield from _constants()
    yield from _structure_optima()
    yield from _published_models()
    yield from _table_3()
    yield from _table_4()
    yield from _shares()
    yield from _compute_curve()
    yield from _fit_quality()
    yield from zhao_experiments.records()


def _record(where: str, quantity: str, published: str | None, *values: Any, **rest: Any) -> Record:
    return Record(paper="zhao", where=where, quantity=quantity, published=published, readings=readings(*values), **rest)


def _constants() -> Records:
    by_symbol = {f.metadata["symbol"]: getattr(LAW, f.name) for f in dataclasses.fields(LAW)}
    for symbol, printed in TABLE_2.items():
        yield _record("Table 2", f"constant {symbol} of the law in use here", printed, by_symbol[symbol])


def _structure_optima() -> Records:
    for where, printed in (("Section 5.1", "6.78"), ("Appendix D", "6.78"), ("Abstract and Section 1", "7")):
        yield _record(where, "optimal number of active experts", printed, EXACT_G)
    for where in ("Section 5.2", "Appendix E"):
        yield _record(where, "optimal share of shared experts", "0.31", EXACT_S)
    shared = [
        LAW(Design(params_total=1e12, params_active=32e9, tokens=1e13, top_k=7 - n, num_shared_experts=n))
        for n in range(8)
    ]
    yield _record("Section 5.2", "best whole number of shared experts among G = 7", "<=2", shared.index(min(shared)))
    mixture = optima.with_experts(7, 0.31, params_total=1e12, params_active=32e9, tokens=15e12)
    claims = {
        "Eq. 12": optima.optimal_active_experts(LAW, mixture),
        "Eq. 13": optima.optimal_shared_share(LAW, mixture),
        "Eq. 14": optima.optimal_active_share(LAW, 671e9, 7.0, 0.31),
        "Eq. 31": optima.optimal_active_at_compute(LAW, 1e24, 1e12, 7.0, 0.31),
    }
    for where, claim in claims.items():
        holds = "holds" if check(claim).holds else "fails"
        yield _record(where, f"{claim.statement} is stationary, a minimum, and where a search ends", "holds", holds)


def _published_models() -> Records:
    for model, (name, active, total) in MODELS.items():
        entry = CATALOGUE[name]
        stated = (entry.params_total, entry.params_active)
        pairs = zip(("total", "active"), (total, active), entry.computed(), stated, strict=True)
        for which, printed, counted, own in pairs:
            yield _record(
                "Table 4",
                f"{model}: {which} parameters",
                printed,
                Reading(counted / 1e9),
                Reading(counted / 1e9, "the figure in the model's name, which is rounded down", "down"),
                Reading(own / 1e9, "its authors' own figure"),
                unit="B",
                note=entry.note.rstrip("."),
            )
        shape = entry.architecture
        experts = shape.top_k + shape.num_shared_experts
        yield _record("Table 3", f"{model}: active experts", TABLE_3[model][0], experts)
        yield _record("Table 3", f"{model}: share of shared experts", TABLE_3[model][1], _share(shape))


def _share(shape: Any) -> float:
    return shape.num_shared_experts / (shape.top_k + shape.num_shared_experts)


def _ranges(model: str) -> tuple[tuple[float, float], tuple[float, float]]:
    _, active, total = MODELS[model]
    at = optima.with_experts(7, 0.31, params_total=float(total) * 1e9, params_active=float(active) * 1e9)
    experts = practice.active_experts_range(LAW, at, tolerance=0.001)
    return experts, practice.shared_share_range(LAW, at, tolerance=0.001)


def _table_3() -> Records:
    inward = "rounded inward, so that both ends keep within 0.001 nats"
    for model, (_, _, *printed) in TABLE_3.items():
        for name, ends, texts in zip(("G", "S"), _ranges(model), printed, strict=True):
            for end, value, text, rounding in zip(("lowest", "highest"), ends, texts, ("up", "down"), strict=True):
                yield _record(
                    "Table 3",
                    f"{model}: {end} {name} within 0.001 nats",
                    text,
                    value,
                    Reading(value, inward, rounding),
                    inputs={"N_a": MODELS[model][1] + "B", "N": MODELS[model][2] + "B"},
                )
    inside = [low >= 4 and high <= 11 for (low, high), _ in map(_ranges, MODELS)]
    yield _record("Appendix D", "of nine ranges of G, those within [4, 11]", ">=5", sum(inside))
    own = [low <= float(TABLE_3[model][0]) <= high for model in MODELS for low, high in [_ranges(model)[0]]]
    yield _record("Appendix D", "of nine models, those whose G lies in its range", ">=5", sum(own))


def _table_4() -> Records:
    for model, printed in TABLE_4.items():
        total = float(MODELS[model][2]) * 1e9
        yield from _two_ways(
            model,
            "theoretical",
            printed[:2],
            total,
            *(
                (_theoretical(total, EXACT_G, EXACT_S), "", "nearest"),
                (_theoretical(total, 7.0, 0.31), ROUNDED, "nearest"),
                (_theoretical(total, 7.0, 0.31), f"{ROUNDED}, cut off after two digits", "down"),
            ),
        )
        for (text, gain), pair in zip(GAINS.items(), (printed[2:4], printed[4:]), strict=True):
            share = _efficient(total, gain)
            yield from _two_ways(model, f"efficient at a gain of {text}", pair, total, (share, "", "nearest"))


def _two_ways(model: str, which: str, printed: Any, total: Number, *found: tuple[float, str, str]) -> Records:
    for text, scale, unit in zip(printed, (100, total / 1e9), ("%", "B"), strict=True):
        values = [Reading(share * scale, name, rounding) for share, name, rounding in found]
        what = "N_a/N" if unit == "%" else "N_a"
        yield _record("Table 4", f"{model}: {which} {what}", text, *values, unit=unit)


def _theoretical(total: Number, active_experts: Number, shared_share: Number) -> float:
    return float(optima.optimal_active_share(LAW, total, active_experts, shared_share).value["active_share"])


def _efficient(total: Number, gain: Number) -> float:
    return float(practice.efficient_active_share(LAW, total, EXACT_G, EXACT_S, least_gain=gain))


def _shares() -> Records:
    for where, total, printed in (
        ("Section 1", 1e12, "20"),
        ("Section 1", 20e9, "43"),
        ("Section 5.3", 30e9, "40.0"),
        ("Section 5.3", 671e9, "22.0"),
    ):
        exact, rounded = _theoretical(total, EXACT_G, EXACT_S), _theoretical(total, 7.0, 0.31)
        values = 100 * exact, Reading(100 * rounded, ROUNDED)
        yield _record(where, f"optimal N_a/N at N = {total / 1e9:g}B", printed, *values, unit="%")
    totals = [float(total) * 1e9 for *_, total in MODELS.values()]
    fine, coarse = ([100 * _efficient(total, gain) for total in totals] for gain in GAINS.values())
    column = "the column of Table 4 for a gain of 0.005"
    for end, printed, pick in (("lowest", "5", min), ("highest", "9", max)):
        values = pick(fine), Reading(pick(coarse), column)
        yield _record("Section 1", f"{end} efficient N_a/N of the nine models", printed, *values, unit="%")
    own = [100 * float(active) / float(total) for _, active, total in MODELS.values()]
    best = [100 * _theoretical(total, 7.0, 0.31) for total in totals]
    inside = [sum(low <= o <= high for low, o, high in zip(lows, own, best, strict=True)) for lows in (fine, coarse)]
    values = inside[0], Reading(inside[1], column)
    yield _record("Section 5.3", "of nine models, those with N_a/N in the range (most)", ">=5", *values)
    for model in ("Kimi-K2", "gpt-oss-120b"):
        _, active, total = MODELS[model]
        yield _record("Section 5.3", f"{model}: N_a/N", "<=4", 100 * float(active) / float(total), unit="%")
    lows = [low for _, (low, _) in map(_ranges, MODELS)]
    mean = Reading(100 * statistics.mean(lows), "the mean of the nine lowest values in Table 3")
    yield _record("Section 1", "lowest share of shared experts with little loss", "13", 100 * min(lows), mean, unit="%")
    yield _record("Section 1", "highest share of shared experts with little loss", "31", 100 * EXACT_S, unit="%")
    yield _record(
        "Section 5.2",
        "of nine ranges of S at 0.001 nats, those that contain all of [0.13, 0.31] (most)",
        ">=5",
        sum(low <= 0.13 for low in lows),
        note="0.13 is the mean of the nine lowest values, so about half of the ranges begin above it",
    )


def _compute_curve() -> Records:
    structure = LAW.structure(optima.with_experts(7, 0.31))
    limit = optima.loss_compute_limit(LAW, 1e12, structure)
    reading = "the limit of Eqs. 30 to 32 for h = 0, with C = D·N_a as in the text, without the factor 6"
    yield _record("Eq. 33", "C_0 at N = 1T, G = 7, S = 0.31", "1.87", limit.irreducible)
    yield _record("Eq. 33", "coefficient of C", "576", None, Reading(limit.scale, reading))
    yield _record("Eq. 33", "exponent of C", "-0.158", None, Reading(limit.exponent, reading))
    curve = LossCompute(scale=576.0, exponent=-0.158, irreducible=1.87)
    for flops in (1e20, 1e22, 1e24, 1e26):
        claim = optima.optimal_active_at_compute(LAW, flops, 1e12, 7.0, 0.31)
        exact = optima.loss_at_optimum(LAW, claim.value["params_active"], 1e12, structure)
        printed = f"{curve(Design(flops=flops)):.4f}"
        yield _record(
            "Eq. 33",
            f"L*(C) at C = {short(flops)}, to half a unit of its last digit",
            printed,
            Reading(float(exact), within=0.005 / float(printed)),
            unit="nats",
            note="Eq. 33 leaves out the term with h, which grows with compute, and lies below the exact optimum",
            implied=True,
        )


def _fit_quality() -> Records:
    for where, law, printed in (
        ("Figure 6", "Eq. 4", "0.0180"),
        ("Figure 7", "Eq. 7", "0.0125"),
        ("Figure 9", "Eq. 9", "0.0083"),
        ("Figure 12", "Eq. 11", "0.0059"),
        ("Figure 5", "Krajewski et al.", "0.0179"),
        ("Figure 5", "Abnar et al.", "0.0152"),
    ):
        yield _record(where, f"average validation error of {law}", printed, None, unit="nats", note=NO_LOSSES)


NO_LOSSES = "the losses of the 446 runs are not published"
