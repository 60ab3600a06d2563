"""Check the book chapter "MoE Scaling Laws" (chapter 002): its walkthrough, its two listings and its conclusions."""

from __future__ import annotations

import dataclasses
import itertools
import math

from moejax.laws.claim import check
from moejax.laws.dense.chinchilla import optimal_split, training_flops
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import CHAPTER_002 as LAW
from moejax.laws.mixtures.effective_params import compute_optimal, dense_slice
from moejax.laws.predict import published
from moejax.papers.record import Number, Reading, Records, constants, holds, last_digit, recorder, trend

TITLE = 'Book chapter "MoE Scaling Laws" (chapter 002)'
record = recorder("chapter_002")

BUDGET = 3.4e24
DEEPSEEK_TOKENS = 14.8e12
CONSTANTS = {"E": "1.69", "A": "406.4", "B": "410.7", "alpha": "0.34", "beta": "0.28", "gamma": "0.35"}
CONFIGURATIONS = {
    "dense 70B": (70e9, 1.0, ("7e10", "8.10", "0.099", "0.224", "2.013"), "1.34", "2.013"),
    "DeepSeek 671B / 37B": (37e9, 18.1, ("1.05e11", "15.3", "0.084", "0.184", "1.957"), "2.54", "1.957"),
    "Switch 112B / 7B": (7e9, 16.0, ("1.90e10", "81", "0.234", "0.138", "2.062"), "13.4", "2.062"),
}
"""Configurations: N_act and G; the walkthrough's N_eff, tokens in T, capacity term, data term and loss; the listing's
D* in T and L*.
"""
GRID_ACTIVE = tuple(size * 1e9 for size in (7, 13, 22, 37, 70, 120))
GRID_EXPANSION = (1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0)

WALK, LISTING, FRONTIER, SCALE = "Manual walkthrough", "Listing 1", "Listing 2", "At Massive Scale"


def records() -> Records:
    """Yield every number of the chapter."""
    yield from _dense_target()
    yield from constants(record, "Listing 1, lines 4-8", LAW, CONSTANTS)
    yield from _effective()
    yield from _allocation()
    yield from _walkthrough()
    yield from _listing()
    yield from _frontier()
    yield from _at_scale()
    yield from _conclusions()


def _design(active: Number, expansion: Number, tokens: Number) -> Design:
    return Design(params_active=active, params_total=active * expansion, tokens=tokens)


def _flops(active: Number, tokens: Number) -> float:
    return float(training_flops({"params_active": active, "tokens": tokens})["flops"])


def _affordable(active: Number, budget: Number = BUDGET) -> float:
    return budget / _flops(active, 1.0)


def _at_budget(active: Number, expansion: Number) -> float:
    return float(LAW(_design(active, expansion, _affordable(active))))


def _dense_target() -> Records:
    where = "The Real Problem"
    dense = _flops(671e9, 13.4e12)
    yield record(where, "tokens for 671B at 20 per parameter ('roughly')", "about 13.4", 20 * 671e9 / 1e12, unit="T")
    yield record(where, "FLOPs of 671B on 13.4T tokens", "5.4e25", dense)
    yield record(where, "FLOPs of DeepSeek-V3 (37B on 14.8T tokens)", "about 3e24", _flops(37e9, DEEPSEEK_TOKENS))
    fewer = dense / _flops(37e9, DEEPSEEK_TOKENS)
    rounded = Reading(5.4e25 / 3e24, "the ratio of the printed 5.4e25 and 3e24 FLOPs")
    yield record(where, "how many times cheaper than dense ('almost twenty')", "about 20", fewer, rounded)
    yield record(LISTING, "FLOPs of DeepSeek-V3, line 17", "3.3e24", _flops(37e9, DEEPSEEK_TOKENS))
    yield record(LISTING, "FLOPs of a dense 671B on 14.8T tokens", "6.0e25", _flops(671e9, DEEPSEEK_TOKENS))
    yield record(LISTING, "how many times more than the mixture's", "18", 671 / 37)
    yield record("Intuition", "experts that serve a token, 8 of 256, as 1 in", "32", 256 / 8)
    yield record("Intuition", "G of the DeepSeek design ('roughly 1/18')", "about 18", 671 / 37)


def _effective() -> Records:
    gain = LAW.dense_equivalent(_design(1.0, 18.0, 1.0))
    effective = LAW.dense_equivalent(_design(37e9, 18.1, 1.0))
    note = "18^0.35 is 2.750, and 1.05e11 and 105B inherit the 2.83"
    yield record(LISTING, "18^0.35, line 10", "2.83", gain, note=note)
    where = "The effective parameter count"
    for place in (where, LISTING, SCALE):
        yield record(place, "N_eff of DeepSeek-V3, 37e9·18.1^0.35", "1.05e11", effective, note=note)
    yield record(where, "dense equivalent of DeepSeek-V3", "105", effective / 1e9, unit="B", note=note)
    yield record(SCALE, "G of DeepSeek-V3, 671/37", "18.1", 671 / 37)
    slope = math.log2(LAW.dense_equivalent(_design(1.0, 2.0, 1.0))) - 1
    yield record("Intuition", "exponent of G in the marginal gain", "-0.65", slope)
    dense = LAW(_design(70e9, 1.0, 1e12)) - dense_slice(LAW, 1.0)(_design(70e9, 1.0, 1e12))
    yield record("The Mathematical Form", "G = 1 minus the dense law, nats", "0", float(dense))
    yield from _krajewski()


def _krajewski() -> Records:
    """Yield the check that Krajewski et al.'s law, which the chapter credits for N_act·G^gamma, depends on N_act."""
    credited = published("granularity", "krajewski-2024").law
    designs = [
        Design(params_active=active, params_total=8e9, tokens=2e10, model_dim=2.0, expert_hidden=2.0)
        for active in (4e9, 2e9, 1e9)
    ]
    own, theirs = (trend(float(law(design)) for design in designs) for law in (LAW, credited))
    note = (
        "the term of Krajewski et al. (2024) is (g/G^gamma + a)/N^alpha, where N counts all parameters and G is the "
        "width of a dense feed-forward over an expert's width: a different G, and no effective parameter count"
    )
    name = "loss by Krajewski et al., to whom the form is credited, as N_act falls at equal N_total"
    yield record("The effective parameter count", name, own, theirs, note=note, implied=True)


def _allocation() -> Records:
    where = "The compute-optimal point"
    one, two = (compute_optimal(LAW, BUDGET, expansion).value for expansion in (1.0, 2.0))
    note = "G enters N_act* through A·G^(-gamma·alpha), so that its exponent is -gamma·alpha/(alpha+beta)"
    size, tokens = (math.log2(two[name] / one[name]) for name in ("params_active", "tokens"))
    yield record(where, "exponent of G in N_act* ('roughly')", "about -0.16", size, note=note)
    yield record(where, "exponent of G in D*, gamma·beta/(alpha+beta)", "0.16", tokens, note=note, implied=True)
    more = compute_optimal(LAW, 2 * BUDGET, 1.0).value
    for quantity, name, exponent in (
        ("N_act*, beta/(alpha+beta)", "params_active", "0.45"),
        ("D*, alpha/(alpha+beta)", "tokens", "0.55"),
    ):
        yield record(where, f"exponent of C in {quantity}", exponent, math.log2(more[name] / one[name]), implied=True)
    ratio, doubled = (float(best["tokens"] / best["params_active"]) for best in (one, more))
    twenty = BUDGET * (20 / ratio) ** (1 / math.log2(doubled / ratio))
    note = f"D*/N* grows with compute: these constants give 20 at {twenty:.1e} FLOPs, and the chapter names no budget"
    name = "tokens per parameter of the dense optimum at 3.4e24 FLOPs ('roughly twenty')"
    # A rule of thumb of Hoffmann et al., stated without a budget or constants; it does not follow from the chapter's
    # constants.
    yield record("First paragraph", name, "about 20", ratio, note=note, undefined=True)
    claim = check(compute_optimal(LAW, BUDGET, 18.1))
    yield record(
        where,
        "optimum with the exponent put right is stationary, a minimum, where a search ends",
        "holds",
        Reading(holds(claim.holds), "-gamma·alpha/(alpha+beta) for the exponent of G"),
    )
    for quantity, best, printed in (
        ("dense size at 3.4e24 FLOPs", one, "70"),
        ("active size at 3.4e24 FLOPs, G = 18.1", claim.value, "37"),
    ):
        note = "70B and 37B are the sizes of the walkthrough, not optima of its constants"
        size = best["params_active"] / 1e9
        yield record(where, f"compute-optimal {quantity}", printed, size, unit="B", note=note)


def _walkthrough() -> Records:
    losses = {}
    for name, (active, expansion, printed, *_) in CONFIGURATIONS.items():
        tokens = _affordable(active)
        design = _design(active, expansion, tokens)
        whole = losses[name] = float(LAW(design))
        capacity = float(LAW(_design(active, expansion, math.inf))) - LAW.irreducible
        data = whole - capacity - LAW.irreducible
        values = (float(LAW.dense_equivalent(design)), tokens / 1e12, capacity, data, whole)
        for quantity, unit, text, value in zip(
            ("N_eff", "tokens", "capacity term", "data term", "loss"),
            ("", "T", "nats", "nats", "nats"),
            printed,
            values,
            strict=True,
        ):
            yield record(WALK, f"{name}: {quantity}", text, value, unit=unit)
        terms = [f"{LAW.irreducible:g}", *printed[2:4]]
        # Each printed term and the printed sum may be wrong by half a unit of the last digit.
        off = sum(last_digit(text, 1.0) / 2 for text in printed[2:])
        adds_up = holds(abs(sum(map(float, terms)) - float(printed[4])) < off)
        for letter, scale, base, term in (
            ("alpha", LAW.params_scale, printed[0], printed[2]),
            ("beta", LAW.tokens_scale, f"{printed[1]}e12", printed[3]),
        ):
            note = f"no single {letter} gives the three printed terms"
            exponent = -math.log(float(term) / scale) / math.log(float(base))
            what = f"{name}: {letter} that the printed term implies, {term} = {scale:g}·{base}^-{letter}"
            yield record(WALK, what, CONSTANTS[letter], exponent, note=note, implied=True)
        what = f"{name}: {' + '.join(terms)} is {printed[4]}, but for the rounding of each"
        yield record(WALK, what, "holds", adds_up)
    order = sorted(losses, key=lambda name: losses[name])
    yield record(WALK, "from lowest loss", "DeepSeek, dense, Switch", ", ".join(name.split()[0] for name in order))
    dense, mixture, switch = losses.values()
    yield record(WALK, "DeepSeek's advantage over dense 70B", "0.056", dense - mixture, unit="nats")
    note = "this difference determines the order of the two"
    yield record(
        WALK,
        "Switch's loss less that of dense 70B, 2.062 - 2.013",
        "0.049",
        switch - dense,
        unit="nats",
        note=note,
        implied=True,
    )


def _listing() -> Records:
    for name, (active, expansion, _, tokens_printed, loss_printed) in CONFIGURATIONS.items():
        affordable = [1e9 * 10 ** (k / 50) for k in range(251) if _flops(active, 1e9 * 10 ** (k / 50)) <= BUDGET]
        loss, tokens = min((float(LAW(_design(active, expansion, tokens))), tokens) for tokens in affordable)
        yield record(
            LISTING,
            f"{name}: D* that the listing prints",
            tokens_printed,
            tokens / 1e12,
            unit="T",
            note="the annotated tokens are about a sixth of the tokens that the budget allows",
        )
        yield record(LISTING, f"{name}: L* that the listing prints", loss_printed, loss, unit="nats")
    yield record(LISTING, "tokens of the 37B mixture over those of dense 70B", "2", 70 / 37)


def _frontier() -> Records:
    for active, printed in ((7e9, "80.9"), (70e9, "8.09")):
        value = _affordable(active) / 1e12
        values = value, Reading(value, "cut off, not rounded", "down")
        yield record(FRONTIER, f"D_max at {active / 1e9:g}B activated", printed, *values, unit="T")
    cells = {(active, g): _at_budget(active, g) for active in GRID_ACTIVE for g in GRID_EXPANSION}
    active, expansion = min(cells, key=lambda cell: cells[cell])
    note = "the loss always falls with G, so the best G is the largest of the grid"
    yield record(FRONTIER, "activated parameters of the best cell", "37", active / 1e9, unit="B")
    yield record(FRONTIER, "G of the best cell (16 to 24)", "<=24", expansion, note=note)
    yield record(FRONTIER, "tokens of the best cell", "14", _affordable(active) / 1e12, unit="T")
    yield record(FRONTIER, "cells of the grid, 6 by 7", "42", len(cells))
    yield record("Observations, 1", "evaluations of a 50 by 50 grid ('ten thousand')", "10000", 50 * 50)


def _at_scale() -> Records:
    mixture = float(LAW(_design(37e9, 18.1, DEEPSEEK_TOKENS)))
    dense = optimal_split(dense_slice(LAW, 1.0), 3e24)
    loss = float(LAW(_design(dense["params_active"], 1.0, dense["tokens"])))
    yield record(SCALE, "loss of DeepSeek-V3 at 14.8T tokens", "1.96", mixture, unit="nats")
    yield record(SCALE, "dense optimum at 3e24 FLOPs: parameters", "65", dense["params_active"] / 1e9, unit="B")
    yield record(SCALE, "dense optimum at 3e24 FLOPs: tokens", "7.7", dense["tokens"] / 1e12, unit="T")
    yield record(SCALE, "dense optimum at 3e24 FLOPs: loss", "2.02", loss, unit="nats")
    yield record(SCALE, "advantage of the mixture", "0.06", loss - mixture, unit="nats")


def _gap(flops: Number, expansion: Number) -> float:
    dense, mixture = (optimal_split(dense_slice(LAW, g), flops) for g in (1.0, expansion))
    best = _design(mixture["params_active"], expansion, mixture["tokens"])
    return float(LAW(_design(dense["params_active"], 1.0, dense["tokens"])) - LAW(best))


def _conclusions() -> Records:
    where, budgets = "What changes at the frontier", [10.0**power for power in range(15, 31)]
    gaps = [_gap(flops, 18.1) for flops in budgets]
    crossings = sum(one * other < 0 for one, other in itertools.pairwise(gaps))
    note = "the mixture's optimal loss is below the dense optimum at every compute from 1e15 to 1e30"
    yield record(
        where, "budgets at which mixtures start to win (one, near 5e22 FLOPs)", "1", crossings, note=note, implied=True
    )
    slope = math.log10(gaps[-1] / gaps[-2])
    note = f"the gap is proportional to compute to the power {slope:.4f}"
    yield record(where, "the gap between mixture and dense, with compute", "rises", trend(gaps), note=note)
    better = all(_gap(flops, g) > 0 for flops in (1e23, 1e24, 1e25) for g in (4.5, 8.0, 18.1, 64.0))
    yield record(where, "above 5e22 FLOPs every G > 4 beats dense", "yes", "yes" if better else "no")
    above = any(_at(7e9, 16.0, flops) > _at(7e9, 1.0, flops) for flops in budgets)
    note = "at equal N_act and D a larger G can only lower the law's loss"
    yield record(
        "Visualizing",
        "at small compute Switch lies above the dense curve of equal N_act",
        "yes",
        "yes" if above else "no",
        note=note,
    )
    low, high = (dataclasses.replace(LAW, expansion_exponent=gamma) for gamma in (0.25, 0.38))
    design = _design(37e9, 18.1, DEEPSEEK_TOKENS)
    yield record(
        "Engineering Reality, 1",
        "what gamma = 0.25 for 0.38 changes in the loss of 671B",
        "0.1",
        float(low(design) - high(design)),
        unit="nats",
    )
    yield record(
        "Engineering Reality, 3",
        "misprediction by a single beta",
        "0.02",
        None,
        unit="nats",
        note="the betas of the domains are not printed",
    )
    rising = trend([_at_budget(37e9, g) for g in GRID_EXPANSION])
    yield record("The empirical signal", "loss with G at equal N_act and compute", "falls", rising)


def _at(active: Number, expansion: Number, flops: Number) -> float:
    return float(LAW(_design(active, expansion, _affordable(active, flops))))
