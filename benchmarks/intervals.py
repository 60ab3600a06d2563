"""Measure the coverage of 90 % intervals on many synthetic tables with noise.

    python benchmarks/intervals.py                     60 tables of every size and noise
    python benchmarks/intervals.py --tables 200 --bootstrap 200
    python benchmarks/intervals.py --only "15 x 1"     tables of 15 runs
    python benchmarks/intervals.py --only lone         the settings whose name contains this text
    python benchmarks/intervals.py --few               N* of 8 architectures: decided, resampled and designed
    python benchmarks/intervals.py --laws all          every law that is fitted, on tables of ``law_tables.py``
    python benchmarks/intervals.py --laws sparsity,kaplan --tables 200 --search

A table has several architectures, each trained for several budgets from 2 to 200 tokens per parameter. The noise of the
log loss is independent for each run, partly shared by the runs of an architecture, or grows with a run's tokens. There
are three kinds of tables:

- hoffmann: dense models by Hoffmann's law; N* at 1e23 FLOPs is checked in addition to the coefficients;
- lone: MoE models with 1 to 1.5 times as many total as active parameters, except for one architecture with 32 times,
  which almost alone determines gamma;
- routed: models by Clark's law, whose coupling c may have either sign.

The output is the share of tables whose interval contains the true value of each quantity. With ``--laws``, it is the
number of tables whose interval contains the truth among tables with an interval, for every coefficient, for the law's
value at a run ten times as large as the table's, and for a noisy measurement of this run. Unbounded and missing
intervals are counted separately. ``!`` marks counts with a probability of at most 1 % under correct coverage. Fits
start at the truth, to measure intervals rather than the search; with ``--search`` they do not.
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

from moejax.api.commands import design
from moejax.cli.process import compile_quickly
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
"""The true law and the designs of each kind of table."""


@dataclass(frozen=True)
class Setting:
    """A kind and size of table with its noise."""

    architectures: int
    budgets: int
    shared_noise: float
    """Standard deviation of the log-loss noise that the runs of an architecture share."""
    own_noise: float
    """Standard deviation of the independent noise of each run."""
    squared: bool = False
    """True for least squares, False for the Huber loss."""
    kind: str = "hoffmann"
    growing: bool = False
    """True if a run's independent noise grows with its tokens, from a third to three times ``own_noise``."""

    @property
    def penalty(self) -> Penalty:
        """Return the penalty of the residuals."""
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
"""Small tables, with one run per architecture."""
OTHERS = [
    *(Setting(*size, *noise, kind="lone") for size in SIZES[1:] for noise in (NOISES[0], NOISES[2])),
    *(Setting(*size, *noise, True, kind="routed") for size in SIZES[1:] for noise in (NOISES[0], NOISES[2])),
    *(Setting(*size, 0.0, 0.004, squared, growing=True) for size in SIZES[1:] for squared in (False, True)),
]


def settings() -> list[Setting]:
    """Return all combinations of sizes, noise and penalties, and the other kinds of tables."""
    of_hoffmann = [Setting(*size, *noise, squared) for size in SIZES for noise in NOISES for squared in (False, True)]
    return [*SMALL, *of_hoffmann, *OTHERS]


def table(setting: Setting, seed: int) -> Runs:
    """Return runs by the true law with noise."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(setting.architectures), setting.budgets)
    sizes = np.geomspace(5e7, 5e9, setting.architectures)[group]
    # With one budget per architecture, architectures differ in tokens per parameter.
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
    """Return the checked quantities: the coefficients and, if the law has one, the optimum."""
    law = type(KINDS[setting.kind][0])
    decisions = decision_estimands(law, {"flops": FLOPS})[:1] if setting.kind == "hoffmann" else []
    return {estimand.symbol: estimand for estimand in (*coefficient_estimands(law), *decisions)}


def covered(setting: Setting, tables: int, resamples: int = 0) -> dict[str, float]:
    """Return the share of tables whose interval (by resampling, if requested) contains each true value."""
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
    """Return, for N* at 1e22 FLOPs and each method, the coverage and the median ratio of the interval's ends."""
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
"""Quantities besides the coefficients: a measurement at ``LARGER``, and the true law's value there."""
HELD, MISSED, OPEN, UNKNOWN = "held", "missed", "open", "unknown"


def recovered(one: MadeUp, tables: int, *, level: float = 0.9, searched: bool = False) -> dict[str, Counter[str]]:
    """Count, for each quantity, the tables whose interval contains the truth, misses it, is unbounded, or is
    missing.
    """
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
    """Return the 99 % range of the number of intervals that contain the truth under correct coverage."""
    least, most = scipy.stats.binom.interval(0.99, count, level)
    return int(least), int(most)


def in_words(name: str, count: Counter[str], level: float = 0.9) -> str:
    """Format a count, such as ``alpha 52/60``, with missing intervals, and a mark if chance hardly explains the
    count.
    """
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
    parser.add_argument(
        "--bootstrap", type=int, default=0, metavar="COUNT", help="number of resamples, for bootstrap intervals"
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="only settings whose name contains this text")
    parser.add_argument("--few", action="store_true", help="N* of few architectures, by every interval method")
    parser.add_argument(
        "--laws", default="", metavar="NAMES", help="laws of law_tables.py, separated by commas, or all"
    )
    parser.add_argument("--search", action="store_true", help="with --laws: do not start fits at the truth")
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
