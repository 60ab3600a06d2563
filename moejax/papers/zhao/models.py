"""Check Zhao et al. (2025): results of the law for nine published models (Tables 3 and 4, Section 5.3)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from moejax.architecture import Architecture
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.mixtures import five_factor as optima
from moejax.laws.mixtures.five_factor import ZHAO_2025 as LAW
from moejax.papers.record import Number, Reading, Records, recorder

record = recorder("zhao")

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
"""Name in the catalogue, then N_a and N in billions, as printed in Table 4."""

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
"""Printed G and S (1/9 to three digits), then the practical ranges of G and S."""

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
"""Optimal N_a/N in percent and N_a in billions: theoretical, then efficient at gains of 0.001 and 0.005 nats."""

ROUNDED = "G = 7 and S = 0.31, the configuration of Appendix G"
EXACT_G, EXACT_S = optima.best_active_experts(LAW), optima.best_shared_share(LAW)
"""Exact optima, which the document rounds to 6.78 or 7 and 0.31."""
GAINS = {"0.001": 0.001, "0.005": 0.005}


def records() -> Records:
    """Yield every number about the nine models, and the active shares at other sizes."""
    yield from _published_models()
    yield from _table_3()
    yield from _table_4()
    yield from _shares()


def _published_models() -> Records:
    for model, (name, active, total) in MODELS.items():
        entry = CATALOGUE[name]
        stated = (entry.params_total, entry.params_active)
        pairs = zip(("total", "active"), (total, active), entry.computed(), stated, strict=True)
        for which, printed, counted, own in pairs:
            yield record(
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
        yield record("Table 3", f"{model}: active experts", TABLE_3[model][0], experts)
        yield record("Table 3", f"{model}: share of shared experts", TABLE_3[model][1], _share(shape))


def _share(shape: Architecture) -> float:
    return shape.num_shared_experts / (shape.top_k + shape.num_shared_experts)


def _ranges(model: str) -> tuple[tuple[float, float], tuple[float, float]]:
    _, active, total = MODELS[model]
    at = optima.with_experts(7, 0.31, params_total=float(total) * 1e9, params_active=float(active) * 1e9)
    experts = optima.active_experts_range(LAW, at, tolerance=0.001)
    return experts, optima.shared_share_range(LAW, at, tolerance=0.001)


def _table_3() -> Records:
    inward = "rounded inward, so that both ends keep within 0.001 nats"
    for model, (_, _, *printed) in TABLE_3.items():
        for name, ends, texts in zip(("G", "S"), _ranges(model), printed, strict=True):
            for end, value, text, rounding in zip(("lowest", "highest"), ends, texts, ("up", "down"), strict=True):
                yield record(
                    "Table 3",
                    f"{model}: {end} {name} within 0.001 nats",
                    text,
                    value,
                    Reading(value, inward, rounding),
                    inputs={"N_a": MODELS[model][1] + "B", "N": MODELS[model][2] + "B"},
                )
    inside = [low >= 4 and high <= 11 for (low, high), _ in map(_ranges, MODELS)]
    yield record("Appendix D", "of nine ranges of G, those within [4, 11]", ">=5", sum(inside))
    own = [low <= float(TABLE_3[model][0]) <= high for model in MODELS for low, high in [_ranges(model)[0]]]
    yield record("Appendix D", "of nine models, those whose G lies in its range", ">=5", sum(own))


def _table_4() -> Records:
    for model, printed in TABLE_4.items():
        total = float(MODELS[model][2]) * 1e9
        rounded = _theoretical(total, 7.0, 0.31)
        shares = (
            (_theoretical(total, EXACT_G, EXACT_S), "", "nearest"),
            (rounded, ROUNDED, "nearest"),
            (rounded, f"{ROUNDED}, cut off after two digits", "down"),
        )
        yield from _two_ways(f"{model}: theoretical", printed[:2], total, *shares)
        for (text, gain), pair in zip(GAINS.items(), (printed[2:4], printed[4:]), strict=True):
            what = f"{model}: efficient at a gain of {text}"
            yield from _two_ways(what, pair, total, (_efficient(total, gain), "", "nearest"))


def _two_ways(what: str, printed: Sequence[str], total: Number, *shares: tuple[float, str, str]) -> Records:
    for text, name, scale, unit in zip(printed, ("N_a/N", "N_a"), (100, total / 1e9), ("%", "B"), strict=True):
        values = [Reading(share * scale, reading, rounding) for share, reading, rounding in shares]
        yield record("Table 4", f"{what} {name}", text, *values, unit=unit)


def _theoretical(total: Number, active_experts: Number, shared_share: Number) -> float:
    return float(optima.optimal_active_share(LAW, total, active_experts, shared_share).value["active_share"])


def _efficient(total: Number, gain: Number) -> float:
    return float(optima.efficient_active_share(LAW, total, EXACT_G, EXACT_S, least_gain=gain))


def _shares() -> Records:
    for where, total, printed in (
        ("Section 1", 1e12, "20"),
        ("Section 1", 20e9, "43"),
        ("Section 5.3", 30e9, "40.0"),
        ("Section 5.3", 671e9, "22.0"),
    ):
        exact, rounded = _theoretical(total, EXACT_G, EXACT_S), _theoretical(total, 7.0, 0.31)
        values = 100 * exact, Reading(100 * rounded, ROUNDED)
        yield record(where, f"optimal N_a/N at N = {total / 1e9:g}B", printed, *values, unit="%")
    totals = [float(total) * 1e9 for *_, total in MODELS.values()]
    fine, coarse = ([100 * _efficient(total, gain) for total in totals] for gain in GAINS.values())
    column = "the column of Table 4 for a gain of 0.005"
    for end, printed, pick in (("lowest", "5", min), ("highest", "9", max)):
        values = pick(fine), Reading(pick(coarse), column)
        yield record("Section 1", f"{end} efficient N_a/N of the nine models", printed, *values, unit="%")
    own = [100 * float(active) / float(total) for _, active, total in MODELS.values()]
    best = [100 * _theoretical(total, 7.0, 0.31) for total in totals]
    inside = [sum(low <= o <= high for low, o, high in zip(lows, own, best, strict=True)) for lows in (fine, coarse)]
    values = inside[0], Reading(inside[1], column)
    yield record("Section 5.3", "of nine models, those with N_a/N in the range (most)", ">=5", *values)
    for model in ("Kimi-K2", "gpt-oss-120b"):
        _, active, total = MODELS[model]
        yield record("Section 5.3", f"{model}: N_a/N", "<=4", 100 * float(active) / float(total), unit="%")
    lows = [low for _, (low, _) in map(_ranges, MODELS)]
    yield record(
        "Section 1",
        "lowest share of shared experts with little loss",
        "13",
        100 * min(lows),
        unit="%",
        note="the document does not state which statistic of Table 3's nine lowest values 13 % is; "
        f"their mean is {100 * statistics.mean(lows):.1f} %, their median {100 * statistics.median(lows):.1f} %",
        undefined=True,
    )
    yield record("Section 1", "highest share of shared experts with little loss", "31", 100 * EXACT_S, unit="%")
    yield record(
        "Section 5.2",
        "of nine ranges of S at 0.001 nats, those that contain all of [0.13, 0.31] (most)",
        ">=5",
        sum(low <= 0.13 for low in lows),
        note="the document states that appropriate S are 'approximately distributed' in [0.13, 0.31] for the majority "
        "of models; single ranges need not contain this whole interval",
        undefined=True,
    )
