"""Check Tian et al. (2025): leverage, allocation and hyperparameter laws (Tables 5 and 6, Eqs. 1 to 6)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from moejax.laws.claim import check
from moejax.laws.design import Design
from moejax.laws.mixtures.leverage import optimal_granularity
from moejax.laws.predict import published
from moejax.papers.record import Number, Reading, Records, constants, holds, last_digit, recorder, same, short, trend
from moejax.papers.tian import models as tian_models
from moejax.papers.tian import tables as tian_tables

TITLE = 'Tian et al., "Towards Greater Leverage: Scaling Laws for Efficient Mixture-of-Experts" (2025)'
record = recorder("tian")

LEVERAGE = published("leverage", "tian-2025").law
TABLE_6 = {
    "a": "1.23",
    "d": "-7.61e-2",
    "gamma": "1.67e-2",
    "beta": "-1.17e-1",
    "A_start": "1.63e-2",
    "A_max": "5.28e16",
}
TABLE_5 = {
    "dense": {"k_M": "0.0655", "p_M": "0.5422", "k_D": "15.2582", "p_D": "0.4578"},
    "moe": {"k_M": "0.1915", "p_M": "0.5095", "k_D": "5.2232", "p_D": "0.4905"},
}
EQUATION_5 = {"k_eta": "1.1576", "p_eta": "-0.1529", "k_B": "0.0694", "p_B": "0.3644"}
BASES = {"ln": math.e, "log2": 2.0, "log10": 10.0}
NOT_PUBLISHED = "the losses of the runs are not published"


def records() -> Records:
    """Yield every number of the document."""
    yield from _constants()
    yield from _leverage()
    yield from tian_models.records()
    yield from _allocation()
    yield from _fit_quality()
    yield from tian_tables.records()


def _constants() -> Records:
    for where, law, printed in (
        ("Table 6", LEVERAGE, TABLE_6),
        ("Table 5, dense", published("allocation", "tian-2025-dense").law, TABLE_5["dense"]),
        ("Table 5, MoE", published("allocation", "tian-2025-moe").law, TABLE_5["moe"]),
        ("Eq. 5", published("hyperparameters", "tian-2025").law, EQUATION_5),
    ):
        yield from constants(record, where, law, printed)
    sign = "positive" if LEVERAGE.flops_slope > 0 else "negative"
    note = "with Table 6's negative d leverage grows with compute, as the text means"
    yield record("Section 4.2.2", "sign of d", "positive", sign, note=note)


def _in_bases(compute: Number, granularity: Number) -> Any:
    """Return Eq. 4 with other bases of the logarithms of C and G: Table 6's slopes, per unit of those logarithms."""
    decades, doublings = math.log(10.0) / math.log(compute), math.log(2.0) / math.log(granularity)
    return dataclasses.replace(
        LEVERAGE,
        flops_slope=LEVERAGE.flops_slope * decades,
        granularity_square=LEVERAGE.granularity_square * doublings**2,
        granularity_slope=LEVERAGE.granularity_slope * doublings,
    )


def _design(ratio: Number, granularity: Number, flops: Number) -> Design:
    return Design(
        num_experts=1.0, top_k=ratio, num_shared_experts=0.0, model_dim=granularity, expert_hidden=2.0, flops=flops
    )


def _el(law: Any, ratio: Number, granularity: Number, flops: Number) -> float:
    return float(law(_design(ratio, granularity, flops))["efficiency_leverage"])


def _best_granularity(law: Any) -> float:
    return float(optimal_granularity(law, 0.031, 1e22).value["granularity"])


def _leverage() -> Records:
    laws = {
        f"{c} of C and {g} of G": _in_bases(BASES[c], BASES[g])
        for c, g in [("ln", "ln"), *((c, g) for c in BASES for g in BASES if (c, g) != ("ln", "ln"))]
    }

    def each(find: Any) -> list[Reading]:
        return [Reading(find(law), "" if name == "ln of C and ln of G" else name) for name, law in laws.items()]

    def fits(law: Any) -> str:
        in_range = 7 < _el(law, 0.031, 12.0, 1e22) < 8 and 8 <= _best_granularity(law) <= 12
        return "yes" if in_range else "no"

    bases = "the document does not print the bases of its logarithms, and no other pair of 2, e and 10 does it"
    where = "Abstract, Sections 1 and 5"
    yield record(
        where,
        "EL between 7 and 8 at A = 3.1 %, G = 12, C = 1e22, with the best G between 8 and 12",
        "yes",
        *each(fits),
        note=bases,
    )
    value = Reading(_el(LEVERAGE, 0.031, 12.0, 1e22), "log10 of C and log2 of G")
    yield record(where, "EL at A = 3.1 %, G = 12, C = 1e22", ">7", value)
    best = [
        Reading(_best_granularity(law), f"{name} of G")
        for name, law in ((name, _in_bases(10.0, BASES[name])) for name in BASES)
    ]
    yield record("Section 4.1", "granularity of greatest leverage ('around 12')", "about 12", *best, note=bases)
    for bound in (">=8", "<=12"):
        value = Reading(_best_granularity(LEVERAGE), "log2 of G")
        yield record("Section 1", f"granularity of greatest leverage, {bound[:2]} {bound[2:]}", bound, value)
    yield from _over_rounding()
    stationary = Reading(holds(check(optimal_granularity(LEVERAGE, 0.031, 1e22)).holds), "log2 of G")
    yield record("Eq. 4", "G* = 2^(-beta/(2 gamma)) is stationary, a maximum of EL", "holds", stationary)
    reading = "log10 of C and log2 of G"
    for flops in (1e20, 1e22):
        dense = _el(LEVERAGE, 1.0, 2.0, flops)
        note = f"the saturated activation ratio at A = 1 is 1.016 with Table 6, not 1, and EL is {dense:.4f}"
        name = f"EL of a dense model (A = 1) is 1 at C = {short(flops)}"
        yield record("Eq. 1", name, "holds", same(dense, 1.0), note=note)
    built = 2 * tian_models.MINI.model_dim / tian_models.MINI.expert_hidden
    own = [
        Reading(_el(LEVERAGE, ratio, granularity, 1e22), f"{reading}{also}")
        for ratio, granularity, also in (
            (0.034, 12.0, ""),
            (13 / 385, 12.0, ", and A = 13/385 before it is rounded"),
            (13 / 385, built, f", and A = 13/385 with the G = {built:.4g} of Table 1"),
        )
    ]
    rounded = [_el(law, 0.034, 12.0, 1e22) for law in _that_round_to_table_6()]
    note = (
        "A = 3.4 % is Table 3's (E_a + E_s)/(E + E_s); the prediction's A = 3.1 % is E_a/E = 12/384 of the same model, "
        f"with which EL is {_el(LEVERAGE, 12 / 384, 12.0, 1e22):.4g}; the rounding of Table 6's coefficients alone "
        f"moves EL at 3.4 % from {min(rounded):.2f} to {max(rounded):.2f}"
    )
    yield record("Section 5", "EL of MoE-mini at its stated A = 3.4 % and G = 12, C = 1e22", ">7", *own, note=note)
    for variable, trend_printed, values in (
        (
            "a falling A from 50 % to 0.8 %",
            "rises",
            [_el(LEVERAGE, a, 12, 1e20) for a in (0.5, 0.25, 0.1, 0.03, 0.008)],
        ),
        ("C from 3e18 to 1e22", "rises", [_el(LEVERAGE, 0.031, 12, c) for c in (3e18, 3e19, 3e20, 1e21, 1e22)]),
        ("G from 2 to 16", "turns", [_el(LEVERAGE, 0.031, g, 1e20) for g in (2, 4, 8, 12, 16)]),
    ):
        yield record("Section 4.2", f"EL with {variable}", trend_printed, Reading(trend(values), reading))


def _that_round_to_table_6() -> list[Any]:
    """Return Eq. 4 at the corners of the coefficients that round to those of Table 6; A_max has no effect."""
    ends = {
        f.name: [float(text) + sign * last_digit(text, float(text)) / 2 for sign in (-1, 1)]
        for f in dataclasses.fields(LEVERAGE)
        if (text := TABLE_6[f.metadata["symbol"]]) != TABLE_6["A_max"]
    }
    corners = itertools.product(*ends.values())
    return [dataclasses.replace(LEVERAGE, **dict(zip(ends, corner, strict=True))) for corner in corners]


def _over_rounding() -> Records:
    laws = _that_round_to_table_6()
    where, over = "Eq. 4 and Table 6", "over all coefficients that round to Table 6's"
    for ratio, text in ((0.031, "3.1"), (0.034, "3.4")):
        values = [_el(law, ratio, 12.0, 1e22) for law in laws]
        for end, pick, printed in (("lowest", min, ">7" if ratio == 0.031 else None), ("highest", max, None)):
            value = Reading(pick(values), "log10 of C and log2 of G")
            yield record(where, f"{end} EL at A = {text} %, G = 12, C = 1e22, {over}", printed, value)
    best = [_best_granularity(law) for law in laws]
    for end, pick in (("lowest", min), ("highest", max)):
        value = Reading(pick(best), "log2 of G")
        yield record(where, f"{end} granularity of greatest leverage ('around 12'), {over}", "about 12", value)


def _allocation() -> Records:
    for name in ("dense", "moe"):
        law = published("allocation", f"tian-2025-{name}").law
        where = f"Table 5, {'dense' if name == 'dense' else 'MoE'}"
        yield record(where, "sum of the exponents of C", "1.0000", law.model_exponent + law.tokens_exponent)
        for flops in (1e18, 1e20, 1e22):
            optimum = law(Design(flops=flops))
            product = optimum["flops_per_token"] * optimum["tokens"] / flops
            yield record(where, f"M·D over C at C = {short(flops)}", "1.00", product, implied=True)
        for quantity, exponent in (("M", law.model_exponent), ("D", law.tokens_exponent)):
            yield record(
                "Appendix E.2", f"exponent of C in {quantity}, {where[9:]} ('close to 0.5')", "about 0.5", exponent
            )
    dense, mixture = (published("allocation", f"tian-2025-{name}").law for name in ("dense", "moe"))
    for flops in (1e18, 1e20, 1e22):
        one, other = dense(Design(flops=flops)), mixture(Design(flops=flops))
        for name, sign, letter in (("flops_per_token", "<1", "M"), ("tokens", ">1", "D")):
            quantity = f"{letter} of the mixture over the dense model's at C = {short(flops)}"
            yield record("Section 2.3", quantity, sign, other[name] / one[name])


def _fit_quality() -> Records:
    for where, quantity, printed in (
        ("Figure 5", "R² of Eq. 4", "0.9858"),
        ("Figure 5", "RMSE over 200 fitted points", "0.2169"),
        ("Figure 5", "RMSE over 24 validation points", "0.5275"),
        ("Figure 17", "mean of the residuals", "-0.0273"),
        ("Figure 17", "standard deviation of the residuals", "0.2803"),
        ("Table 16", "R² with the saturating transformation", "0.9915"),
        ("Table 16", "R² of a power law in A", "0.9772"),
        ("Table 17", "R² of the log-polynomial in G", "0.9575"),
        ("Table 17", "R² of a power law in G", "0.8276"),
        ("Table 17", "R² with a saturating transformation of G", "0.9432"),
    ):
        yield record(where, quantity, printed, None, note=NOT_PUBLISHED)
    fitted, held_out, spread, mean = 0.2169, 0.5275, 0.2803, -0.0273
    pooled = math.sqrt((200 * fitted**2 + 24 * held_out**2) / 224)
    yield record(
        "Figures 5 and 17",
        "root mean square of the residuals, from their mean and standard deviation",
        f"{math.hypot(spread, mean):.4f}",
        pooled,
        Reading(fitted, "the residuals of the 200 fitted points alone"),
        Reading(held_out, "the residuals of the 24 validation points alone"),
        note="computed from the two RMSEs and their numbers of points, which do not give the spread of Figure 17",
        implied=True,
    )
