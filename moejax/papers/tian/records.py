"""Check Tian et al. (2025): laws (Tables 5 and 6, Eqs. 1 to 6), the two models, and the quoted activation ratios."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

from moejax.architecture import Architecture
from moejax.laws.accounting import flops_per_token, params
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.claim import check
from moejax.laws.conventions import FLOPS, PARAMS, multi_head
from moejax.laws.design import Design
from moejax.laws.mixtures.leverage import Leverage, optimal_granularity
from moejax.laws.predict import published
from moejax.papers.record import Number, Reading, Records, constants, holds, last_digit, recorder, same, trend
from moejax.papers.tian import tables as tian_tables
from moejax.quantities import short

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
MINI, DENSE = (CATALOGUE[name].architecture for name in ("moe-mini", "dense-6.1b"))

COUNTS: dict[str, Callable[[Architecture], Number]] = {
    "": lambda a: FLOPS["tian"].per_token(a, 4096),
    "Eqs. 10 to 12 as printed": lambda a: FLOPS["tian-printed"].per_token(a, 4096),
    "Eqs. 10 and 11 as printed, no logits": lambda a: (
        FLOPS["tian-printed"].per_token(a, 4096) - 3 * flops_per_token(a, 4096).unembedding
    ),
    "all products, logits too": lambda a: FLOPS["exact"].per_token(a, 4096),
    "all products, with half of the scores by a causal mask": lambda a: FLOPS["exact-causal"].per_token(a, 4096),
    "all products, with as many key-value heads as heads": lambda a: FLOPS["exact"].per_token(multi_head(a), 4096),
}
"""Functions that count training FLOPs per token at sequences of 4096 tokens, keyed by their assumptions."""

NOT_PUBLISHED = "the losses of the runs are not published"


def records() -> Records:
    """Yield every number of the document."""
    yield from _constants()
    yield from _leverage()
    yield from _activation_ratios()
    yield from _sizes()
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
    note = "with Table 6's negative d, leverage grows with compute, which the text intends"
    yield record("Section 4.2.2", "sign of d", "positive", sign, note=note)


def _in_bases(compute: Number, granularity: Number) -> Leverage:
    """Return Eq. 4 with Table 6's slopes, interpreted per unit of logarithms to the bases ``compute`` and
    ``granularity``."""
    decades, doublings = math.log(10.0) / math.log(compute), math.log(2.0) / math.log(granularity)
    return dataclasses.replace(
        LEVERAGE,
        flops_slope=LEVERAGE.flops_slope * decades,
        granularity_square=LEVERAGE.granularity_square * doublings**2,
        granularity_slope=LEVERAGE.granularity_slope * doublings,
    )


def _el(law: Leverage, ratio: Number, granularity: Number, flops: Number) -> float:
    design = Design(
        num_experts=1.0, top_k=ratio, num_shared_experts=0.0, model_dim=granularity, expert_hidden=2.0, flops=flops
    )
    return float(law(design)["efficiency_leverage"])


def _best_granularity(law: Leverage) -> float:
    return float(optimal_granularity(law, 0.031, 1e22).value["granularity"])


def _leverage() -> Records:
    laws = {
        f"{c} of C and {g} of G": _in_bases(BASES[c], BASES[g])
        for c, g in [("ln", "ln"), *((c, g) for c in BASES for g in BASES if (c, g) != ("ln", "ln"))]
    }

    def each(find: Callable[[Leverage], str]) -> list[Reading]:
        return [Reading(find(law), "" if name == "ln of C and ln of G" else name) for name, law in laws.items()]

    def fits(law: Leverage) -> str:
        in_range = 7 < _el(law, 0.031, 12.0, 1e22) < 8 and 8 <= _best_granularity(law) <= 12
        return "yes" if in_range else "no"

    bases = "the document does not print the bases of its logarithms, and no other pair of 2, e and 10 gives this"
    where = "Abstract, Sections 1 and 5"
    name = "EL between 7 and 8 at A = 3.1 %, G = 12, C = 1e22, with the best G between 8 and 12"
    yield record(where, name, "yes", *each(fits), note=bases)
    value = Reading(_el(LEVERAGE, 0.031, 12.0, 1e22), "log10 of C and log2 of G")
    yield record(where, "EL at A = 3.1 %, G = 12, C = 1e22", ">7", value)
    best = [Reading(_best_granularity(_in_bases(10.0, base)), f"{name} of G") for name, base in BASES.items()]
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
    built = 2 * MINI.model_dim / MINI.expert_hidden
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
        f"for which EL is {_el(LEVERAGE, 12 / 384, 12.0, 1e22):.4g}; within the rounding of Table 6's coefficients, "
        f"EL at 3.4 % is between {min(rounded):.2f} and {max(rounded):.2f}"
    )
    yield record("Section 5", "EL of MoE-mini at its stated A = 3.4 % and G = 12, C = 1e22", ">7", *own, note=note)
    falling = (0.5, 0.25, 0.1, 0.03, 0.008)
    for variable, trend_printed, values in (
        ("a falling A from 50 % to 0.8 %", "rises", [_el(LEVERAGE, a, 12, 1e20) for a in falling]),
        ("C from 3e18 to 1e22", "rises", [_el(LEVERAGE, 0.031, 12, c) for c in (3e18, 3e19, 3e20, 1e21, 1e22)]),
        ("G from 2 to 16", "turns", [_el(LEVERAGE, 0.031, g, 1e20) for g in (2, 4, 8, 12, 16)]),
    ):
        yield record("Section 4.2", f"EL with {variable}", trend_printed, Reading(trend(values), reading))


def _that_round_to_table_6() -> list[Leverage]:
    """Return Eq. 4 at the corners of the coefficient ranges that round to Table 6; A_max has no effect."""
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


def _activation_ratios() -> Records:
    """Yield every printed activation ratio, computed by Table 3's definition and by the two definitions of the
    labels."""
    note = (
        "Table 3 defines A = (E_a + E_s)/(E + E_s), which gives 4.6 and 1.2 % for the paper's ratios of 3.1 and 0.8 %; "
        "the data of Table 6 are labeled with E_a/E, those of Appendix E.1 with (E_a + E_s)/E. The document does not "
        "state which A is in Eq. 4: Table 3's is used here, and the label's where a printed label is compared"
    )
    for where, quantity, experts, active, printed in (
        ("Abstract", "A of MoE-mini's prediction", 384, 12, "3.1"),
        ("Section 5", "A of MoE-mini", 384, 12, "3.4"),
        ("Section 4.1 and Appendix F.1", "lowest A (2 of 256)", 256, 2, "0.8"),
        ("Appendix E.1", "A of 4 of 64 experts", 64, 4, "7.8"),
        ("Figure 8", "lowest A (2 of 64)", 64, 2, "4.7"),
        ("Figure 8", "highest A (6 of 64)", 64, 6, "10.9"),
        ("Figure 4b and Appendix C", "A of 2 of 64 experts (1/32)", 64, 2, "3.1"),
    ):
        design = Design(num_experts=experts, top_k=active, num_shared_experts=1)
        values = (
            100 * float(design.activation_ratio),
            Reading(100 * active / experts, "E_a/E, without the shared experts"),
            Reading(100 * float(design.active_experts) / experts, "(E_a + E_s)/E"),
        )
        yield record(where, quantity, printed, *values, unit="%", note=note)


def _sizes() -> Records:
    layers = [
        Reading(PARAMS["tian"].total(MINI.replace(num_dense_layers=dense)) / 1e9, name)
        for dense, name in ((0, ""), (1, "one dense layer, whose number is not printed"))
    ]
    yield record("Table 1", "N of MoE-mini, without the vocabulary", "17.5", *layers, unit="B")
    for quantity in ("N", "N_a"):
        yield record("Table 1", f"{quantity} of Dense-6.1B", "6.11", PARAMS["tian"].total(DENSE) / 1e9, unit="B")
    with_router = PARAMS["tian"].active(MINI) / 1e9
    without = with_router - params(MINI).router / 1e9
    embedding = params(MINI).vocabulary / 2e9
    values = (
        with_router,
        Reading(without, "the router left out"),
        Reading(with_router + embedding, "one embedding matrix counted"),
        Reading(with_router + 2 * embedding, "both embedding matrices counted"),
        Reading(PARAMS["tian"].active(multi_head(MINI)) / 1e9, "as many key-value heads as heads"),
        Reading(PARAMS["tian"].active(MINI.replace(num_dense_layers=0)) / 1e9, "no dense layer"),
        Reading(PARAMS["tian"].active(MINI.replace(num_dense_layers=3)) / 1e9, "three dense layers"),
    )
    note = "no count of the model's parts gives this number, and the document does not state which parts N_a includes"
    yield record("Table 1", "N_a of MoE-mini", "0.85", *values, unit="B", note=note, undefined=True)
    yield record("Table 1", "N_a of MoE-mini in its name (A0.8B)", "0.8", *values, unit="B")
    note = "G = 12 would need d_expert = 341; Table 1 has 384"
    yield record("Table 1 and Section 5", "G of MoE-mini", "12", 2 * MINI.model_dim / MINI.expert_hidden, note=note)
    dense = PARAMS["tian"].active(DENSE) / 1e9
    yield record("Section 5", "active parameters of Dense-6.1B over MoE-mini's", ">7", dense / with_router)
    share = 100 * with_router / dense
    yield record("Section 5.2", "active parameters of MoE-mini over Dense-6.1B's", "about 13", share, unit="%")
    ratios = [Reading(count(DENSE) / count(MINI), reading) for reading, count in COUNTS.items()]
    name = "training FLOPs per token of Dense-6.1B over MoE-mini's ('over 7')"
    note = "seven is the ratio of active parameters"
    yield record("Abstract", name, ">7", *ratios, note=note)
    spent = [Reading(count(MINI) * 1e12, reading) for reading, count in COUNTS.items()]
    name = "training FLOPs of MoE-mini on 1T tokens, for the 1e22 of EL"
    note = "EL grows with C, so at these FLOPs it is below the prediction for 1e22"
    yield record("Section 5", name, "1e22", *spent, note=note, implied=True)
    yield record("Appendix L", "size of the final MoE model", "16", layers[1], unit="B", note="Table 1 has 17.5B")
    hours = 360_000 + 200_000 + 120_000
    yield record("Appendix L", "GPU-hours, summed over the three parts", "about 680000", hours)
    share = 7e9 / CATALOGUE["deepseek-moe-16b"].params_active
    yield record("Section 1", "active parameters of a 7B dense model over DeepSeekMoE's", "about 2.5", share)


def _allocation() -> Records:
    for name in ("dense", "moe"):
        law = published("allocation", f"tian-2025-{name}").law
        where = f"Table 5, {'dense' if name == 'dense' else 'MoE'}"
        yield record(where, "sum of the exponents of C", "1.0000", law.model_exponent + law.tokens_exponent)
        for flops in (1e18, 1e20, 1e22):
            optimum = law(Design(flops=flops))
            product = optimum["flops_per_token"] * optimum["tokens"] / flops
            yield record(where, f"M·D over C at C = {short(flops)}", "1.00", product, implied=True)
        for letter, exponent in (("M", law.model_exponent), ("D", law.tokens_exponent)):
            quantity = f"exponent of C in {letter}, {where[9:]} ('close to 0.5')"
            yield record("Appendix E.2", quantity, "about 0.5", exponent)
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
