"""Measure the coverage of intervals of loss-curve laws under autocorrelated noise.

Command:  python benchmarks/curve_coverage.py --sets 60 --law momentum
Synthetic curves follow the multi-power law (``tests/fit/known_curves.py``) or the momentum law, with a constant
learning rate, a cosine, and one step decay; they have 4,000 steps, a point every 20 steps, and AR(1) noise of the log
loss. Coverage is measured for the true final loss of a new schedule and of a schedule three times as long, for new
measured losses there, and for every coefficient.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fit"))

from known_curves import STEPS, TRUTH, curve, curves, rates  # pyright: ignore[reportMissingImports]

from moejax.cli.process import compile_quickly
from moejax.curves.loss_curves import fit_curves, losses_at, predict_curve
from moejax.curves.read_curves import runs_of
from moejax.fit.fit_result import FitResult
from moejax.fit.search.fit_law import EVERY_START
from moejax.fit.search.starts import WarmStart
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.float64 import float64
from moejax.laws.curves.momentum import Momentum
from moejax.laws.law import coefficients

ASKED = {"wsd": ("wsd", 1), "cosine, three times": ("cosine", 3)}


TRUTHS = {
    "multi_power": TRUTH,
    "momentum": Momentum(irreducible=2.6, sum_scale=0.6, sum_exponent=0.45, drop_scale=100.0, memory_steps=300.0),
}


def coverage(
    truth: Any, sets: int, noise: float, along: float, blocks: Sequence[int], level: float = 0.9
) -> dict[str, Counter]:
    """Count the sets whose intervals contain each true value, by the number of segments per curve that are
    resampled.
    """
    inside: dict[str, Counter] = {f"{count} stretches": Counter() for count in blocks}
    for number in range(sets):
        read = curves(seed=number + 1, law=truth, noise=noise, along=along, every=20)
        # The search starts only at the truth, to measure coverage rather than the search.
        found = fit_curves(read, truth, starts=WarmStart((truth,)), search=EVERY_START)
        for count, own in zip(blocks, inside.values(), strict=True):
            own.update(_inside(truth, with_uncertainty(found, runs_of(read, blocks=count)), noise, number, level))
        if (number + 1) % 20 == 0:
            print(number + 1, {name: dict(own) for name, own in inside.items()}, file=sys.stderr, flush=True)
    return inside


def _inside(law: Any, result: FitResult, noise: float, number: int, level: float) -> dict[str, int]:
    table = result.conf_int(level)
    inside = {n: int(table.loc[n, "low"] <= v <= table.loc[n, "high"]) for n, v in coefficients(law).items()}
    for name, (kind, times) in ASKED.items():
        schedule, end = rates(kind, times * STEPS), np.array([times * STEPS])
        truth = float(curve(kind, law, steps=times * STEPS, every=40).loss[-1])
        with float64():
            spread = result.spread(lambda law, schedule=schedule, end=end: losses_at(law, schedule, end))
        (low,), (high,) = spread.ends(level, True)
        measured = truth * np.exp(noise * np.random.default_rng(10_000 + number).normal())
        found = predict_curve(result, schedule, end, level).iloc[0]
        inside[f"exact, {name}"] = int(low <= truth <= high)
        inside[f"measured, {name}"] = int(found["low"] <= measured <= found["high"])
    return inside


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--sets", type=int, default=60)
    parser.add_argument("--law", choices=TRUTHS, default="multi_power")
    parser.add_argument("--noise", type=float, default=1e-3)
    parser.add_argument("--along", type=float, nargs="+", default=[0.0, 0.8, 0.95])
    parser.add_argument("--blocks", type=int, nargs="+", default=[4, 8, 10_000])
    arguments = parser.parse_args()
    compile_quickly()
    for along in arguments.along:
        for name, found in coverage(
            TRUTHS[arguments.law], arguments.sets, arguments.noise, along, arguments.blocks
        ).items():
            said = ", ".join(f"{truth} {count}" for truth, count in found.items())
            print(f"AR {along}, {name} a curve, of {arguments.sets}: {said}", flush=True)


if __name__ == "__main__":
    main()
