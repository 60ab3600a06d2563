"""Check Zhao et al. (2025): the law, its optima, and the loss at fixed compute (Table 2, Eqs. 12 to 33)."""

from __future__ import annotations

import math

from scipy.optimize import root_scalar

from moejax.laws.claim import check
from moejax.laws.dense.loss_compute import LossCompute
from moejax.laws.design import Design
from moejax.laws.mixtures import five_factor as optima
from moejax.laws.mixtures.five_factor import ZHAO_2025 as LAW
from moejax.papers.record import Reading, Records, constants, holds, recorder, trend
from moejax.papers.zhao import models as zhao_models
from moejax.papers.zhao import table_6 as zhao_experiments
from moejax.quantities import short

TITLE = 'Zhao et al., "Towards a Comprehensive Scaling Law of Mixture-of-Experts" (2025)'
record = recorder("zhao")

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

EQUATION_33 = LossCompute(scale=576.0, exponent=-0.158, irreducible=1.87)
"""Printed L*(C), with C = D·N_a."""


def records() -> Records:
    """Yield every number of the document."""
    yield from constants(record, "Table 2", LAW, TABLE_2)
    yield from _words()
    yield from _structure_optima()
    yield from zhao_models.records()
    yield from _shared_share_by_size()
    yield from _compute_curve()
    yield from _fit_quality()
    yield from zhao_experiments.records()


def _words() -> Records:
    """Yield statements that contradict other parts of the document."""
    note = "Section 3 states WSD for all experiments, but Appendix B and Table 1 state a cosine decay"
    yield record("Section 3, Appendix B and Table 1", "schedule of the learning rate", "WSD", "cosine", note=note)
    note = "Eqs. 16 and 23 have s where Eqs. 1, 11 and 15 and Table 2 have epsilon"
    yield record("Appendices D and F", "letter of the irreducible loss", "epsilon", "s", note=note)


def _structure_optima() -> Records:
    for where, printed in (("Section 5.1", "6.78"), ("Appendix D", "6.78"), ("Abstract and Section 1", "about 7")):
        yield record(where, "optimal number of active experts", printed, zhao_models.EXACT_G)
    for where in ("Section 5.2", "Appendix E"):
        yield record(where, "optimal share of shared experts", "0.31", zhao_models.EXACT_S)
    shared = [
        LAW(Design(params_total=1e12, params_active=32e9, tokens=1e13, top_k=7 - n, num_shared_experts=n))
        for n in range(8)
    ]
    yield record("Section 5.2", "best whole number of shared experts among G = 7", "<=2", shared.index(min(shared)))
    mixture = optima.with_experts(7, 0.31, params_total=1e12, params_active=32e9, tokens=15e12)
    claims = {
        "Eq. 12": optima.optimal_active_experts(LAW, mixture),
        "Eq. 13": optima.optimal_shared_share(LAW, mixture),
        "Eq. 14": optima.optimal_active_share(LAW, 671e9, 7.0, 0.31),
        "Eq. 31": optima.optimal_active_at_compute(LAW, 1e24, 1e12, 7.0, 0.31),
    }
    for where, claim in claims.items():
        what = f"{claim.statement} is stationary, a minimum, and where a search ends"
        yield record(where, what, "holds", holds(check(claim).holds))


def _parabola(active: float, total: float) -> tuple[float, float, float]:
    """Return m and n of loss = m·S² + n·S + psi at G = 10 and 50B tokens, and the gain of the best S over S = 0, in
    nats.
    """
    none, half, whole = (
        float(LAW(optima.with_experts(10.0, shared, params_total=total, params_active=active, tokens=50e9)))
        for shared in (0.0, 0.5, 1.0)
    )
    square = 2 * (none - 2 * half + whole)
    slope = whole - none - square
    return square, slope, slope**2 / (4 * square)


def _shared_share_by_size() -> Records:
    """Yield the claims of Section 4.5, Appendix C.5 and Figure 14 about m, n and the effect of S, computed by Eq.
    11."""
    where, note = (
        "Section 4.5, Appendix C.5 and Figure 14",
        "by Eq. 11, m and n are Table 2's values times 1/N^alpha + k/N_a^alpha + h·N_a/N, a factor that falls with N",
    )
    sizes = ((48e6, 247e6), (99e6, 496e6), (181e6, 907e6), (240e6, 1209e6), (476e6, 2404e6), (793e6, 3964e6))
    along = {
        "N, in the six models of Figure 14": sizes,
        "N, at N_a = 240M": [(240e6, total) for _, total in sizes[3:]],
        "N_a, at N = 2.4B": [(share * 2404e6, 2404e6) for share in (0.2, 0.4, 0.8)],
    }
    for what, pairs in along.items():
        square, slope, gain = zip(*(_parabola(*pair) for pair in pairs), strict=True)
        for name, printed, values in (
            ("m", "rises", square),
            ("n", "falls", slope),
            ("what the best S gains over S = 0", "rises", gain),
        ):
            yield record(where, f"{name} with {what}", printed, trend(values), note=note, implied=True)


def _compute_curve() -> Records:
    structure = LAW.structure(optima.with_experts(7, 0.31))
    limit = optima.loss_compute_limit(LAW, 1e12, structure)
    reading = "the limit of Eqs. 30 to 32 for h = 0, with C = D·N_a as in the text, without the factor 6"
    yield record("Eq. 33", "C_0 at N = 1T, G = 7, S = 0.31", "1.87", limit.irreducible)
    yield record("Eq. 33", "coefficient of C", "576", None, Reading(float(limit.scale), reading))
    yield record("Eq. 33", "exponent of C", "-0.158", None, Reading(float(limit.exponent), reading))
    for flops in (1e20, 1e22, 1e24, 1e26):
        note = (
            "Eq. 33 omits the term with h, which grows with compute, and is below the exact optimum: "
            f"{EQUATION_33(Design(flops=flops)):.4f} instead of {_exact(flops):.4f}"
        )
        name = f"L* of Eqs. 30 to 32 less that of Eq. 33, at C = {short(flops)}"
        yield record("Eq. 33", name, "0.00", _missing(flops), unit="nats", note=note, implied=True)
    yield from _without_end_of_compute()
    yield from _limits_of_validity()


def _exact(flops: float) -> float:
    claim = optima.optimal_active_at_compute(LAW, flops, 1e12, 7.0, 0.31)
    structure = LAW.structure(optima.with_experts(7, 0.31))
    return float(optima.loss_at_optimum(LAW, claim.value["params_active"], 1e12, structure))


def _missing(flops: float) -> float:
    return _exact(flops) - float(EQUATION_33(Design(flops=flops)))


def _without_end_of_compute() -> Records:
    """Yield L* in the limit of infinite compute, where active parameters have Eq. 14's share of N."""
    total, shape = 1e12, (7.0, 0.31)
    share = optima.optimal_active_share(LAW, total, *shape).value["active_share"]
    best = optima.with_experts(*shape, params_total=total, params_active=share * total, tokens=math.inf)
    note = "the term with h limits N_a to Eq. 14's share of N, so L* stays above C_0"
    yield record("Eq. 33", "L* at N = 1T as C grows without end", "1.87", float(LAW(best)), unit="nats", note=note)


def _limits_of_validity() -> Records:
    """Yield the largest compute at which the printed Eq. 33 is within a tolerance of the exact optimum."""
    for tolerance in (0.005, 0.01, 0.02, 0.05):
        log_flops = root_scalar(lambda x, t=tolerance: _missing(10.0**x) - t, bracket=(20.0, 32.0)).root
        name = f"C up to which it lies within {tolerance:g} nats of Eqs. 30 to 32"
        yield record("Eq. 33", name, None, 10.0**log_flops, note="the document gives no range for Eq. 33")


AVERAGE_ERRORS = {
    ("Figure 6", "Eq. 4"): "0.0180",
    ("Figure 7", "Eq. 7"): "0.0125",
    ("Figure 9", "Eq. 9"): "0.0083",
    ("Figure 12", "Eq. 11"): "0.0059",
    ("Figure 5", "Krajewski et al."): "0.0179",
    ("Figure 5", "Abnar et al."): "0.0152",
}
"""Average errors in nats on the validation runs, by figure and law."""


def _fit_quality() -> Records:
    for (where, law), printed in AVERAGE_ERRORS.items():
        yield record(where, f"average validation error of {law}", printed, None, unit="nats", note=NO_LOSSES)


NO_LOSSES = "the losses of the 446 runs are not published"
