"""Compare the speed of fitting laws with SciPy, on the same runs in the same process.

    python benchmarks/fit.py                 a minute or two
    python benchmarks/fit.py --long          also every start of Hoffmann's grid, and Abnar's 437,400

The runs are 240 points of Hoffmann's law with 0.75 % noise, or a CSV with columns params_active, tokens and loss
(--runs). SciPy is timed on a random sample of the grid, and the time is scaled to its 4,500 starts.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize

from moejax.fit.runs import Runs, runs_from
from moejax.fit.search.fit_law import EVERY_START, fit_law
from moejax.fit.search.starts import ABNAR_GRID, HOFFMANN_GRID
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.bootstrap import bootstrap
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.laws.mixtures.five_factor import ZHAO_2025, FiveFactor
from moejax.laws.mixtures.sparsity import ABNAR_2025, Sparsity

DELTA = 1e-3


def sweep(law: Any, count: int, noise: float) -> Runs:
    """Return runs by a law over four decades of compute."""
    rng = np.random.default_rng(0)
    active, tokens = np.exp(rng.uniform(np.log([5e7, 1e9]), np.log([1e10, 5e11]), (count, 2))).T
    experts = 2.0 ** rng.integers(1, 8, count)
    top_k = np.minimum(2.0 ** rng.integers(0, 4, count), experts)
    design = Design(
        params_active=active,
        params_total=active * (1 + 0.8 * (experts - top_k) / (top_k + 1)),
        tokens=tokens,
        num_experts=experts,
        top_k=top_k,
        num_shared_experts=rng.integers(0, 3, count).astype(float),
    )
    exact = predict(law, runs_from(design, np.ones(count)))
    return runs_from(design, exact * np.exp(noise * rng.normal(size=count)))


def published_objective(runs: Runs) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """Return Hoffmann's objective and its gradient as in the published notebooks, in logarithms of raw sizes."""
    sizes, tokens, losses = np.log(runs.design.params_active), np.log(runs.design.tokens), np.log(runs.loss)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        a, b, e, alpha, beta = x
        terms = np.stack([a - alpha * sizes, b - beta * tokens, np.full_like(sizes, e)])
        top = terms.max(axis=0)
        shares = np.exp(terms - top)
        total = shares.sum(axis=0)
        residual = top + np.log(total) - losses
        inside = np.abs(residual) < DELTA
        value = np.where(inside, 0.5 * residual**2, DELTA * (np.abs(residual) - 0.5 * DELTA)).sum()
        slope = np.where(inside, residual, DELTA * np.sign(residual)) / total
        parts = slope * shares
        sums = parts.sum(axis=1)
        return float(value), np.array([*sums, -(parts[0] @ sizes), -(parts[1] @ tokens)])

    return objective


def scipy_seconds(runs: Runs, starts: np.ndarray, *, analytic: bool) -> tuple[float, float]:
    """Return the seconds and lowest objective of SciPy's L-BFGS-B over some starts."""
    objective = published_objective(runs)
    options = {"ftol": 1e-15, "gtol": 1e-12, "maxiter": 5000, "maxfun": 50000} if analytic else {}
    began = time.perf_counter()
    found = [
        scipy.optimize.minimize(
            objective if analytic else lambda x: objective(x)[0], x, jac=analytic, method="L-BFGS-B", options=options
        ).fun
        for x in starts
    ]
    return time.perf_counter() - began, float(np.nanmin(found))


def published_starts(count: int) -> np.ndarray:
    """Return a random sample of Hoffmann's grid in the published coordinates."""
    v = HOFFMANN_GRID.values
    axes = [np.log(v[n]) for n in ("params_scale", "tokens_scale", "irreducible")]
    axes += [np.asarray(v[n], float) for n in ("params_exponent", "tokens_exponent")]
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    return grid[np.random.default_rng(1).permutation(len(grid))[:count]]


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the wall seconds of one call and its result."""
    began = time.perf_counter()
    found = run()
    return time.perf_counter() - began, found


def beside_scipy(runs: Runs, repeats: int) -> None:
    """Fit Hoffmann's grid with moejax and SciPy, interleaved so that other load affects both equally."""
    fit_law(Chinchilla, runs, starts=HOFFMANN_GRID)
    ours, numeric, analytic, best = [], [], [], {}
    for i in range(repeats):
        took, found = seconds(lambda: fit_law(Chinchilla, runs, starts=HOFFMANN_GRID))
        ours.append(took)
        sample = published_starts(40 * repeats)[40 * i : 40 * (i + 1)]
        for times, way in ((numeric, False), (analytic, True)):
            took, lowest = scipy_seconds(runs, sample, analytic=way)
            times.append(took / len(sample) * 4500)
            best[way] = min(lowest, best.get(way, np.inf))
        best["ours"] = found.value
    mine = statistics.median(ours)
    print(f"Hoffmann's 4,500 starts, screened and thinned out   {mine:8.2f} s   objective {best['ours']:.10g}")
    for name, times, way in (("finite differences", numeric, False), ("analytic, tight", analytic, True)):
        its = statistics.median(times)
        print(f"SciPy L-BFGS-B, {name:<30} {its:8.1f} s   objective {best[way]:.10g}   {its / mine:6.0f}x")


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--long", action="store_true", help="also the runs that take minutes")
    parser.add_argument("--runs", metavar="CSV", help="a table with params_active, tokens and loss")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.runs:
        from moejax.fit.tables.read_runs import read_runs

        runs = read_runs(arguments.runs, Chinchilla).runs
    else:
        runs = sweep(HOFFMANN_2022, 240, 0.0075)
    beside_scipy(runs, arguments.repeats)

    cold = "import sys; sys.path.insert(0, 'benchmarks'); import fit; r = fit.sweep(fit.HOFFMANN_2022, 240, 0.0075); "
    took, _ = seconds(
        lambda: subprocess.run([sys.executable, "-c", cold + "fit.fit_law(fit.Chinchilla, r)"], check=True)
    )
    print(f"one law from default starts, new process       {took:8.2f} s")
    took = statistics.median(seconds(lambda: fit_law(Chinchilla, runs))[0] for _ in range(3 + 1))
    print(f"one law from default starts, compiled          {took:8.2f} s")
    result = fit_law(Chinchilla, runs)
    took, _ = seconds(lambda: bootstrap(result, runs, 4000))
    print(f"4,000 bootstraps of Hoffmann's law             {took:8.2f} s")
    mixtures = sweep(ZHAO_2025, 446, 0.003)
    took, result = seconds(lambda: fit_law(FiveFactor, mixtures))
    print(f"five-factor law, 446 runs, compiling included  {took:8.2f} s")
    took, _ = seconds(lambda: bootstrap(result, mixtures, 1000))
    print(f"1,000 bootstraps of the five-factor law        {took:8.2f} s")
    if arguments.long:
        took, found = seconds(lambda: fit_law(Chinchilla, runs, starts=HOFFMANN_GRID, search=EVERY_START))
        print(f"every one of Hoffmann's starts to its end      {took:8.2f} s   {found.agreeing:.1%} agree")
        sparse = sweep(ABNAR_2025, 300, 0.003)
        took, found = seconds(lambda: fit_law(Sparsity, sparse, starts=ABNAR_GRID))
        print(f"Abnar's {found.starts:,} starts, 300 runs           {took:8.2f} s   {found.agreeing:.1%} agree")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"largest memory                                 {memory:8.2f} GiB")


if __name__ == "__main__":
    main()
