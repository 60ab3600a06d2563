"""Tian et al. (2025): leverage, allocation and hyperparameter laws, and the two models (Tables 1, 5, 6 and 8)."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from moejax.laws.accounting import params
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.claim import check
from moejax.laws.conventions import FLOPS, PARAMS
from moejax.laws.design import Design
from moejax.laws.door import published
from moejax.laws.leverage import optimal_granularity
from moejax.reproduce import tian_tables
from moejax.reproduce.record import Number, Reading, Record, Records, readings, short, trend

TITLE = 'Tian et al., "Towards Greater Leverage: Scaling Laws for Efficient Mixture-of-Experts" (2025)'

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
MINI, DENSE = (CATALOGUE[name].architecture for name in ("moe-mini", "dense-6.1b"))


def records() -> Records:
    """Every number of the document."""
    yield from _constants()
    yield from _leverage()
    yield from _activation_ratios()
    yield from _sizes()
    yield from _allocation()
    yield from _fit_quality()
    yield from tian_tables.records()


def _record(where: str, quantity: str, published: str | None, *values: Any, **rest: Any) -> Record:
    return Record(paper="tian", where=where, quantity=quantity, published=published, readings=readings(*values), **rest)


def _constants() -> Records:
    for where, law, printed in (
        ("Table 6", LEVERAGE, TABLE_6),
        ("Table 5, dense", published("allocation", "tian-2025-dense").law, TABLE_5["dense"]),
        ("Table 5, MoE", published("allocation", "tian-2025-moe").law, TABLE_5["moe"]),
        ("Eq. 5", published("hyperparameters", "tian-2025").law, EQUATION_5),
    ):
        by_symbol = {f.metadata["symbol"]: getattr(law, f.name) for f in dataclasses.fields(law)}
        for symbol, text in printed.items():
            yield _record(where, f"constant {symbol} of the law in use here", text, by_symbol[symbol])
    sign = "positive" if LEVERAGE.flops_slope > 0 else "negative"
    note = "with Table 6's negative d leverage grows with compute, as the text means"
    yield _record("Section 4.2.2", "sign of d", "positive", sign, note=note)


def _in_bases(compute: Number, granularity: Number) -> Any:
    """Eq. 4 with the logarithms of C and G to other bases: Table 6's slopes, per unit of those logarithms."""
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
    yield _record(
        where,
        "EL between 7 and 8 at A = 3.1 %, G = 12, C = 1e22, with the best G between 8 and 12",
        "yes",
        *each(fits),
        note=bases,
    )
    value = Reading(_el(LEVERAGE, 0.031, 12.0, 1e22), "log10 of C and log2 of G")
    yield _record(where, "EL at A = 3.1 %, G = 12, C = 1e22", ">7", value)
    best = [
        Reading(_best_granularity(law), f"{name} of G", within=0.1)
        for name, law in ((name, _in_bases(10.0, BASES[name])) for name in BASES)
    ]
    yield _record("Section 4.1", "granularity of greatest leverage ('around 12')", "12", *best, note=bases)
    for bound in (">=8", "<=12"):
        value = Reading(_best_granularity(LEVERAGE), "log2 of G")
        yield _record("Section 1", f"granularity of greatest leverage, {bound[:2]} {bound[2:]}", bound, value)
    claim = check(optimal_granularity(LEVERAGE, 0.031, 1e22))
    holds = Reading("holds" if claim.holds else "fails", "log2 of G")
    yield _record("Eq. 4", "G* = 2^(-beta/(2 gamma)) is stationary, a maximum of EL", "holds", holds)
    reading = "log10 of C and log2 of G"
    for flops in (1e20, 1e22):
        value = Reading(_el(LEVERAGE, 1.0, 2.0, flops), reading, within=1e-3)
        note = "the saturated activation ratio at A = 1 is 1.016 with Table 6, not 1"
        yield _record("Eq. 1", f"EL of a dense model (A = 1) at C = {short(flops)}", "1", value, note=note)
    own = [
        Reading(_el(LEVERAGE, 13 / 385, granularity, 1e22), f"{reading}, and G = {short(round(granularity, 2))}")
        for granularity in (12.0, 2 * MINI.model_dim / MINI.expert_hidden)
    ]
    note = "A = 3.1 % of the prediction is 12/384, without the shared expert"
    yield _record("Section 5", "EL of MoE-mini at its stated A = 3.4 %, C = 1e22", ">7", *own, note=note)
    for variable, trend_printed, values in (
        (
            "a falling A from 50 % to 0.8 %",
            "rises",
            [_el(LEVERAGE, a, 12, 1e20) for a in (0.5, 0.25, 0.1, 0.03, 0.008)],
        ),
        ("C from 3e18 to 1e22", "rises", [_el(LEVERAGE, 0.031, 12, c) for c in (3e18, 3e19, 3e20, 1e21, 1e22)]),
        ("G from 2 to 16", "turns", [_el(LEVERAGE, 0.031, g, 1e20) for g in (2, 4, 8, 12, 16)]),
    ):
        yield _record("Section 4.2", f"EL with {variable}", trend_printed, Reading(trend(values), reading))


def _activation_ratios() -> Records:
    routed = "routed experts alone: E_a/E"
    both = "shared experts counted among the active but not among all: (E_a + E_s)/E"
    for where, experts, active, printed in (
        ("Abstract, A of MoE-mini's prediction", 384, 12, "3.1"),
        ("Section 5, A of MoE-mini", 384, 12, "3.4"),
        ("Section 4.1, lowest A (1/128)", 256, 2, "0.8"),
        ("Appendix E.1, A of 4 of 64 experts", 64, 4, "7.8"),
        ("Figure 8, lowest A (2 of 64)", 64, 2, "4.7"),
        ("Figure 8, highest A (6 of 64)", 64, 6, "10.9"),
        ("Appendix C, A of 1/32", 64, 2, "3.1"),
    ):
        design = Design(num_experts=experts, top_k=active, num_shared_experts=1)
        values = (
            float(design.activation_ratio) * 100,
            Reading(100 * active / experts, routed),
            Reading(100 * float(design.active_experts) / experts, both),
        )
        section, quantity = where.split(", ", 1)
        note = "Table 3 defines A as (E_a + E_s)/(E + E_s)"
        yield _record(section, quantity, printed, *values, unit="%", note=note)


def _sizes() -> Records:
    layers = [
        Reading(PARAMS["tian"].total(MINI.replace(num_dense_layers=dense)) / 1e9, name)
        for dense, name in ((0, ""), (1, "one dense layer, whose number is not printed"))
    ]
    yield _record("Table 1", "N of MoE-mini, without the vocabulary", "17.5", *layers, unit="B")
    for quantity in ("N", "N_a"):
        yield _record("Table 1", f"{quantity} of Dense-6.1B", "6.11", PARAMS["tian"].total(DENSE) / 1e9, unit="B")
    with_router = PARAMS["tian"].active(MINI) / 1e9
    without = with_router - params(MINI).router / 1e9
    values = with_router, Reading(without, "the router left out")
    yield _record("Table 1", "N_a of MoE-mini", "0.85", *values, unit="B")
    yield _record("Table 1", "N_a of MoE-mini in its name (A0.8B)", "0.8", *values, unit="B")
    yield _record(
        "Table 1 and Section 5",
        "G of MoE-mini",
        "12",
        2 * MINI.model_dim / MINI.expert_hidden,
        note="G = 12 would need d_expert = 341; Table 1 has 384",
    )
    dense = PARAMS["tian"].active(DENSE) / 1e9
    yield _record("Section 5", "active parameters of Dense-6.1B over MoE-mini's", ">7", dense / with_router)
    share = (
        100 * with_router / dense,
        Reading(100 * without / dense, "the router left out"),
        Reading(100 * without / dense, "the router left out, and cut off", "down"),
    )
    yield _record("Section 5.2", "active parameters of MoE-mini over Dense-6.1B's", "13", *share, unit="%")
    ratios = [
        Reading(_ratio(name), reading)
        for name, reading in (
            ("tian", ""),
            ("exact", "all products, logits too"),
            ("tian-printed", "Eqs. 10 to 12 as printed"),
        )
    ]
    note = "seven is the ratio of active parameters"
    yield _record(
        "Abstract", "training FLOPs per token of Dense-6.1B over MoE-mini's ('over 7')", ">7", *ratios, note=note
    )
    yield _record("Appendix L", "size of the final MoE model", "16", layers[1], unit="B", note="Table 1 has 17.5B")
    hours = 360_000 + 200_000 + 120_000
    yield _record("Appendix L", "GPU-hours, summed over the three parts", "680000", hours)
    yield _record(
        "Section 1",
        "active parameters of a 7B dense model over DeepSeekMoE's",
        "2.5",
        7e9 / CATALOGUE["deepseek-moe-16b"].params_active,
    )


def _ratio(convention: str) -> float:
    return FLOPS[convention].per_token(DENSE, 4096) / FLOPS[convention].per_token(MINI, 4096)


def _allocation() -> Records:
    for name in ("dense", "moe"):
        law = published("allocation", f"tian-2025-{name}").law
        where = f"Table 5, {'dense' if name == 'dense' else 'MoE'}"
        yield _record(where, "sum of the exponents of C", "1.0000", law.model_exponent + law.tokens_exponent)
        for flops in (1e18, 1e20, 1e22):
            found = law(Design(flops=flops))
            product = found["flops_per_token"] * found["tokens"] / flops
            yield _record(where, f"M·D over C at C = {short(flops)}", "1", Reading(product, within=1e-3))
        for quantity, exponent in (("M", law.model_exponent), ("D", law.tokens_exponent)):
            yield _record("Appendix E.2", f"exponent of C in {quantity}, {where[9:]} ('close to 0.5')", "0.5", exponent)
    dense, mixture = (published("allocation", f"tian-2025-{name}").law for name in ("dense", "moe"))
    for flops in (1e18, 1e20, 1e22):
        one, other = dense(Design(flops=flops)), mixture(Design(flops=flops))
        for name, sign, letter in (("flops_per_token", "<1", "M"), ("tokens", ">1", "D")):
            quantity = f"{letter} of the mixture over the dense model's at C = {short(flops)}"
            yield _record("Section 2.3", quantity, sign, other[name] / one[name])


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
        yield _record(where, quantity, printed, None, note=NOT_PUBLISHED)
