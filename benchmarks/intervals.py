"""How often printed 90 % intervals hold the truth: laws measured with noise, many times.

    python benchmarks/intervals.py                     60 tables of every size and noise
    python benchmarks/intervals.py --tables 200 --bootstrap 200
    python benchmarks/intervals.py --only "15 x 1"     tables of 15 runs
    python benchmarks/intervals.py --only lone         the settings whose name holds that
    python benchmarks/intervals.py --few               N* of 8 architectures: decided, resampled and designed
    python benchmarks/intervals.py --laws all          every law that is fitted, on tables of ``law_tables.py``
    python benchmarks/intervals.py --laws sparsity,kaplan --tables 200 --search

A table has so many architectures, each trained for so many budgets from 2 to 200 tokens a parameter. Noise of log loss
is of each run alone, shared by the runs of an architecture as well, or grows with a run's tokens. Three kinds of table:

- hoffmann: dense models of Hoffmann's law, whose N* at 1e23 FLOPs is asked besides the coefficients;
- lone: mixtures whose total parameters are 1 to 1.5 times the active ones, but for one architecture's 32 times, which
  so carries gamma almost alone;
- routed: Clark's law, whose coupling c may have either sign.

Printed: the share of tables whose interval holds the true number, for each number. With ``--laws``: of how many tables
that have an interval it holds the truth, for every coefficient, for what the law gives of a run ten times beyond the
table, and for what such a run is measured to be; the open and the unknown are counted on their own. ``!`` marks a count
that intervals of 90 % come to in one of a hundred cases or less. A fit starts at the truth, so that its intervals are
asked and not its search; with ``--search`` it does not.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
from law_tables import MadeUp, fitted, larger, made_up
from law_tables import table as made_up_table

from moejax.cli.process import compile_quickly
from moejax.design.decide import design
from moejax.fit.runs import Runs, runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Huber, Penalty, Squared, outputs
from moejax.fit.search.starts import WarmStart
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.bootstrap import bootstrap
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.fit.uncertainty.estimands import Estimand, coefficient_estimands, decision_estimands
from moejax.fit.uncertainty.estimates import estimate
from moejax.fit.uncertainty.uncertainty import keeps_sign
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design, design_from, known
from moejax.laws.law import coefficients
from moejax.laws.mixtures import routed
from moejax.laws.mixtures.effective_params import CHAPTER_002

CLARK = routed.PUBLISHED["clark-2022-s-base"].law
Groups = np.ndarray


def _hoffmann(sizes: np.ndarray, tokens: np.ndarray, group: Groups) -> Design:
    return Design(params_active=sizes, tokens=tokens)


def _lone(sizes: np.ndarray, tokens: np.ndarray, group: Groups) -> Design:
    count = int(group.max()) + 1
    expansion = np.random.default_rng(5).permutation(np.geomspace(1, 1.5, count))
    expansion[count // 2] = 32.0
    return Design(params_active=sizes, params_total=sizes * expansion[group], tokens=tokens)


def _routed(sizes: np.ndarray, tokens: np.ndarray, group: Groups) -> Design:
    experts = np.geomspace(2, 512, int(len(group) / (group.max() + 1)))
    return Design(params_active=sizes, num_experts=np.tile(experts, int(group.max()) + 1), top_k=np.ones(len(group)))


FLOPS = 1e23

KINDS: dict[str, tuple[Any, Callable[..., Design]]] = {
    "hoffmann": (HOFFMANN_2022, _hoffmann),
    "lone": (CHAPTER_002, _lone),
    "routed": (CLARK, _routed),
}
"""The true law of a kind of table, and its designs."""


@dataclass(frozen=True)
class Setting:
    """A size of table, and how it scatters."""

    architectures: int
    budgets: int
    shared_noise: float
    """Standard deviation of log loss that the runs of an architecture share."""
    own_noise: float
    """Of every run alone."""
    squared: bool = False
    """Whether squares are minimised, and not Huber's penalty."""
    kind: str = "hoffmann"
    growing: bool = False
    """Whether a run's own noise grows with its tokens, from a third of ``own_noise`` to three times it."""

    @property
    def penalty(self) -> Penalty:
        """What is minimised."""
        return Squared() if self.squared else Huber()

    def __str__(self) -> str:
        noise = f"shared {self.shared_noise:g}, own {self.own_noise:g}{' growing' if self.growing else ''}"
        return f"{self.kind}, {self.architectures} x {self.budgets} runs, {noise}, {type(self.penalty).__name__}"


SIZES = ((8, 4), (10, 6), (20, 6), (40, 6))
NOISES = ((0.0, 0.004), (0.0, 0.01), (0.003, 0.003), (0.006, 0.002))
SMALL = [
    Setting(runs, 1, 0.0, noise, squared)
    for runs in (9, 15, 30)
    for noise in (0.002, 0.02)
    for squared in (False, True)
]
"""Few runs, each of an architecture of its own."""
OTHERS = [
    *(Setting(*size, *noise, kind="lone") for size in SIZES[1:] for noise in (NOISES[0], NOISES[2])),
    *(Setting(*size, *noise, True, kind="routed") for size in SIZES[1:] for noise in (NOISES[0], NOISES[2])),
    *(Setting(*size, 0.0, 0.004, squared, growing=True) for size in SIZES[1:] for squared in (False, True)),
]


def settings() -> list[Setting]:
    """Every size with every noise, under both penalties; and the other kinds."""
    of_hoffmann = [Setting(*size, *noise, squared) for size in SIZES for noise in NOISES for squared in (False, True)]
    return [*SMALL, *of_hoffmann, *OTHERS]


def table(setting: Setting, seed: int) -> Runs:
    """Runs of a law with noise."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(setting.architectures), setting.budgets)
    sizes = np.geomspace(5e7, 5e9, setting.architectures)[group]
    # One budget an architecture: they differ in their tokens per parameter.
    ratios = np.resize(np.geomspace(2, 200, max(setting.budgets, 3)), len(group))
    tokens = np.clip(ratios * sizes, 1e9, 5e11) * np.exp(0.1 * rng.normal(size=len(group)))
    truth, design_of = KINDS[setting.kind]
    designs = design_of(sizes, tokens, group)
    exact = predict(truth, runs_from(designs, np.ones(len(group))))
    place = np.log(tokens / tokens.min()) / np.log(tokens.max() / tokens.min())
    own = setting.own_noise * (3 ** (2 * place - 1) if setting.growing else np.ones(len(group)))
    noise = setting.shared_noise * rng.normal(size=setting.architectures)[group]
    noise = noise + own * rng.normal(size=len(group))
    return runs_from(designs, exact * np.exp(noise), group=group)


def asked(setting: Setting) -> dict[str, Estimand]:
    """The numbers whose intervals are tried: the coefficients, and a decision where the law makes one."""
    law = type(KINDS[setting.kind][0])
    decisions = decision_estimands(law, {"flops": FLOPS})[:1] if setting.kind == "hoffmann" else []
    return {estimand.symbol: estimand for estimand in (*coefficient_estimands(law), *decisions)}


def covered(setting: Setting, tables: int, resamples: int = 0) -> dict[str, float]:
    """The share of tables whose interval (of resamples, if any) holds each number."""
    truth, estimands = KINDS[setting.kind][0], asked(setting)
    signs = keeps_sign(truth)
    one_sign = np.array([signs.get(estimand.name, True) for estimand in estimands.values()])

    def numbers(law: Any) -> list[Any]:
        return [estimand.functional(law) for estimand in estimands.values()]

    wanted, found = np.array(numbers(truth), np.float64), []
    for seed in range(tables):
        runs = table(setting, seed)
        fit = fit_law(type(truth), runs, starts=WarmStart((truth,)), penalty=setting.penalty)
        if resamples:
            intervals = bootstrap(fit, runs, resamples).interval(numbers)
            low, high = ([getattr(one, end) for one in intervals] for end in ("low", "high"))
        else:
            low, high = with_uncertainty(fit, runs).spread(numbers).ends(0.9, one_sign)
        found.append((np.array(low, np.float64) <= wanted) & (wanted <= np.array(high, np.float64)))
    return dict(zip(estimands, np.mean(found, axis=0).tolist(), strict=True))


def few(architectures: int, tables: int, resamples: int = 200) -> dict[str, tuple[float, float]]:
    """Of N* at 1e22 FLOPs, by way: the share of intervals that hold the truth, and the median of high over low."""
    setting = Setting(architectures, 4, 0.003, 0.003)
    (estimand,) = decision_estimands(Chinchilla, {"flops": 1e22})[:1]
    truth, found = float(estimand.functional(HOFFMANN_2022)), {}
    for seed in range(tables):
        runs = table(setting, seed)
        fit = with_uncertainty(fit_law(Chinchilla, runs, starts=WarmStart((HOFFMANN_2022,)), penalty=Huber()), runs)
        ways = {
            "fit --decide": estimate(fit, [estimand])[0].interval,
            "resamples": bootstrap(fit, runs, resamples).interval(estimand.functional),
            "design": design(fit, flops=1e22).intervals["params_active"],
        }
        for way, one in ways.items():
            found.setdefault(way, []).append((one.low <= truth <= one.high, one.high / one.low))
    return {way: (np.mean(each, axis=0)[0], np.median(each, axis=0)[1]) for way, each in found.items()}


RUN, EXACT = "a run beyond", "the law beyond"
"""What is asked beside the coefficients: what is measured at ``LARGER``, and what the true law gives there."""
HELD, MISSED, OPEN, UNKNOWN = "held", "missed", "open", "unknown"


def recovered(one: MadeUp, tables: int, *, level: float = 0.9, searched: bool = False) -> dict[str, Counter[str]]:
    """By number, how many tables' intervals hold the truth, miss it, have no end, or are not given at all."""
    truths, at = coefficients(one.whole), larger(one)
    found = {name: Counter() for name in (*truths, EXACT, RUN)}
    exact = float(predict(one.whole, runs_from(_one_of_each(at), np.ones(1)), one.output)[0])
    for seed in range(tables):
        fit = fitted(one, made_up_table(one, seed), searched=searched)
        intervals = fit.conf_int(level)
        luck = one.chance(seed, 1).normal(size=2) @ (one.shared, one.own)
        (low,), (high,) = fit.spread(lambda law: outputs(law, _one_of_each(at), one.output)).ends(level, True)
        run = fit.predict(at, level).iloc[0]
        asked = {
            **{name: (*intervals.loc[name, ["low", "high"]], value) for name, value in truths.items()},
            EXACT: (low, high, exact),
            RUN: (run["low"], run["high"], exact * np.exp(luck)),
        }
        for name, (least, most, value) in asked.items():
            found[name][_verdict(float(least), float(most), value)] += 1
    return found


def _one_of_each(design: Design) -> Design:
    return design_from({name: np.atleast_1d(value) for name, value in known(design).items()})


def _verdict(low: float, high: float, truth: float) -> str:
    if np.isnan(low) or np.isnan(high):
        return UNKNOWN
    if np.isinf(high):
        return OPEN
    return HELD if low <= truth <= high else MISSED


def expected(count: int, level: float = 0.9) -> tuple[int, int]:
    """Fewest and most of so many intervals that hold the truth, but for one case in a hundred."""
    least, most = scipy.stats.binom.interval(0.99, count, level)
    return int(least), int(most)


def in_words(name: str, count: Counter[str], level: float = 0.9) -> str:
    """``alpha 52/60``, with what is not known, and a mark where luck hardly explains the count."""
    known_ones = count[HELD] + count[MISSED]
    least, most = expected(known_ones, level) if known_ones else (0, 0)
    said = f"{name} {count[HELD]}/{known_ones}" + ("" if least <= count[HELD] <= most else " !")
    return said + "".join(f" ({count[kind]} {kind})" for kind in (OPEN, UNKNOWN) if count[kind])


def main() -> None:
    """Print a line per setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--tables", type=int, default=60)
    parser.add_argument("--bootstrap", type=int, default=0, metavar="COUNT", help="of resamples instead")
    parser.add_argument("--only", default="", metavar="WORDS", help="settings whose name holds these")
    parser.add_argument("--few", action="store_true", help="N* of few architectures, by every way to an interval")
    parser.add_argument("--laws", default="", metavar="NAMES", help="laws of law_tables.py, with commas; or all")
    parser.add_argument("--search", action="store_true", help="of --laws: fits that do not start at the truth")
    given = parser.parse_args()
    if given.laws:
        compile_quickly()
        laws = made_up()
        for name in laws if given.laws == "all" else given.laws.split(","):
            counts = recovered(laws[name], given.tables, searched=given.search)
            print(f"{name}: {', '.join(in_words(*each) for each in counts.items())}", flush=True)
        return
    for architectures in (8,) if given.few else ():
        for way, (share, width) in few(architectures, given.tables).items():
            print(f"{architectures} architectures, {way:<14}holds {share:.2f}, high over low {width:.3g}", flush=True)
    if given.few:
        return
    for setting in settings():
        if given.only in str(setting):
            hits = covered(setting, given.tables, given.bootstrap)
            each = "  ".join(f"{name} {share:.2f}" for name, share in hits.items())
            print(f"{setting!s:<62}all {np.mean([*hits.values()]):.3f}  {each}", flush=True)


if __name__ == "__main__":
    main()
