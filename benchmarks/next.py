"""Measure the savings by ``moejax next``, in simulations with a published law as the truth and on real tables.

    python benchmarks/next.py                                        minutes on one core
    python benchmarks/next.py --tables DIR                           also the tables of Clark et al. and of Marin
    python benchmarks/next.py --laws abnar --shares 0.1 --seeds 20   less

A simulation measures losses by a law with 0.3 % noise. One arm is the paper's grid. The designed arm spends a share of
the grid's FLOPs: first on a pilot of the cheapest runs, and then on rounds in which the law is fitted to the
measurements and ``moejax next`` plans the next runs. Its candidates are spread over the grid's ranges, and none is
larger than the grid's largest run. The random arm draws from the same candidates for as many FLOPs. Each arm's last fit
extrapolates to the loss of a run with 1e24 FLOPs (Abnar: 1e23) and to the best size at this budget. Errors are
|log(estimate / truth)|, as medians over seeds. No fit starts near the truth.

On a real table, the rows above a size are held out. The other rows are bought in the order of ``moejax next``, whose
target is all held-out losses jointly, and in random orders. The output compares the errors on the held-out rows, at
several budgets, with the error of a fit to all rows.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.experimental_design.candidates import spread
from moejax.experimental_design.criterion import posterior_arrays
from moejax.experimental_design.experiment_plan import RunBudget, exchange, relax
from moejax.experimental_design.laplace_posterior import Undefined, laplace_posterior
from moejax.fit.runs import Runs, runs_from
from moejax.fit.search.objective import FitObjective, Squared, data_of, laws_at
from moejax.fit.search.starts import Sobol
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.estimands import decision_estimands, find, prediction_estimand
from moejax.float64 import float64
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.design import FIELDS, Design

NOISE = 0.003
POOL = 1024
PILOT, ROUNDS = 0.1, (0.2, 0.4, 0.7, 1.0)
"""Shares of the designed arm's FLOPs and runs spent by the end of the pilot and of each round."""
SWEEPS = 0
STARTS = 12


@dataclass(frozen=True)
class Truth:
    """A law that serves as the truth, and its paper's grid."""

    law: Any
    grid: Design
    pool: Design
    asked: tuple[Any, ...]


def cost(design: Design) -> np.ndarray:
    """Return the FLOPs of every run."""
    return 6 * np.asarray(design.params_active) * np.asarray(design.tokens)


def zhao() -> Truth:
    """Return the 268 rows of Table 6 that the paper fits."""
    from moejax.papers.zhao.table_6 import table_6

    rows = [row for row in table_6() if row.index < 268]
    columns = {
        "params_total": [row.total for row in rows],
        "params_active": [row.active for row in rows],
        "tokens": [row.tokens for row in rows],
        "top_k": [row.experts * (1 - row.shared) for row in rows],
        "num_shared_experts": [row.experts * row.shared for row in rows],
    }
    grid = Design(**{name: np.asarray(values, float) for name, values in columns.items()})
    low, high = _ranges(grid, ("params_total", "expansion", "tokens", "active_experts"))
    drawn = _spread(low, high, ("params_total", "expansion", "tokens", "active_experts"), extra=1)
    total, expansion, tokens, experts, share = drawn.T
    share = share * 0.8
    pool = Design(
        params_total=total,
        params_active=total / expansion,
        tokens=tokens,
        top_k=experts * (1 - share),
        num_shared_experts=experts * share,
    )
    law = PUBLISHED["five_factor"]["zhao-2025"].law
    run = {"params_total": 1e12, "params_active": 4e10, "tokens": 4.2e12, "top_k": 5.0, "num_shared_experts": 2.0}
    asked = (prediction_estimand(law, run), _decision(law, "N_a*", flops=1e24, params_total=1e12))
    return Truth(law, grid, _affordable(pool, grid), asked)


def abnar() -> Truth:
    """Return the grid of configs/studies/abnar.py: 157 runs."""
    from moejax.cli.config_file import load
    from moejax.laws.accounting import design_of
    from moejax.study.study import Study

    study = load(Study, str(Path(__file__).parent.parent / "configs" / "studies" / "abnar.py"), [])
    designs = [design_of(t.architecture, float(b)) for t in study.trainings() for b in t.recipe.budgets_tokens]
    names = ("params_total", "params_active", "tokens", "num_experts", "top_k")
    grid = Design(**{name: np.asarray([getattr(d, name) for d in designs], float) for name in names})
    experts = np.maximum(np.asarray(grid.num_experts), 1)
    grid = Design(
        params_total=grid.params_total,
        params_active=grid.params_active,
        tokens=grid.tokens,
        num_experts=experts,
        top_k=np.where(np.asarray(grid.top_k) > 0, grid.top_k, 1),
    )
    names = ("params_active", "expert_expansion", "tokens")
    active, expansion, tokens = _spread(*_ranges(grid, names), names).T
    # Ratio of total to active parameters as in the grid, where attention and embeddings are not in experts.
    fit = np.polyfit(np.log(np.asarray(grid.expert_expansion)), np.log(np.asarray(grid.expansion)), 2)
    total = active * np.exp(np.maximum(np.polyval(fit, np.log(expansion)), 0.0))
    pool = Design(
        params_total=total, params_active=active, tokens=tokens, num_experts=expansion, top_k=np.ones(len(total))
    )
    law = PUBLISHED["sparsity"]["abnar-2025"].law
    run = {"params_total": 2e11, "params_active": 1e10, "tokens": 1.67e12, "num_experts": 20.0, "top_k": 1.0}
    asked = (prediction_estimand(law, run), _decision(law, "N*", flops=1e23, sparsity=0.95))
    return Truth(law, grid, _affordable(pool, grid), asked)


def ludziejewski(table: Path) -> Truth:
    """Return the 270 runs of the paper's Appendix E, from a table."""
    import pandas as pd

    rows = pd.read_csv(table)
    grid = Design(
        params_active=rows["N_act_eq10"].to_numpy(float),
        tokens=rows["D"].to_numpy(float),
        num_experts=rows["E"].to_numpy(float),
        top_k=np.ones(len(rows)),
    )
    names = ("params_active", "tokens", "num_experts")
    active, tokens, experts = _spread(*_ranges(grid, names), names).T
    pool = Design(params_active=active, tokens=tokens, num_experts=experts, top_k=np.ones(len(active)))
    law = PUBLISHED["expert_count"]["ludziejewski-2025"].law
    run = {"params_active": 6e10, "tokens": 2.8e12, "num_experts": 16.0, "top_k": 1.0}
    asked = (prediction_estimand(law, run), _decision(law, "N_act*", flops=1e24, expert_expansion=16.0))
    return Truth(law, grid, _affordable(pool, grid), asked)


def _decision(law: Any, letter: str, **given: float) -> Any:
    (found,) = find(letter, decision_estimands(type(law), given), type(law))
    return found


def _ranges(grid: Design, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    values = np.stack([np.asarray(getattr(grid, name), float) for name in names])
    return values.min(axis=1), values.max(axis=1)


def _spread(low: np.ndarray, high: np.ndarray, names: Sequence[str], extra: int = 0) -> np.ndarray:
    """Return points spread like the candidates of ``moejax next``, evenly in logarithms, with ``extra`` columns between
    0 and 1.
    """
    cube = spread(len(names) + extra, 16 * POOL, seed=0)
    cube[:, : len(names)] = np.exp(np.log(low) + cube[:, : len(names)] * np.log(high / low))
    return cube


def _affordable(pool: Design, grid: Design) -> Design:
    """Return the runs of the pool within the grid's ranges of FLOPs and active parameters."""
    flops, own = cost(pool), cost(grid)
    active, of_grid = np.asarray(pool.params_active), np.asarray(grid.params_active)
    kept = (flops <= own.max()) & (flops >= own.min()) & (active >= of_grid.min()) & (active <= of_grid.max())
    return _rows(pool, np.flatnonzero(kept)[:POOL])


def _rows(design: Design, rows: np.ndarray) -> Design:
    values = {name: v for name in FIELDS if (v := getattr(design, name)) is not None}
    return Design(**{name: np.asarray(v, float)[rows] for name, v in values.items()})


def _joined(*designs: Design) -> Design:
    names = [name for name in FIELDS if all(getattr(d, name) is not None for d in designs)]
    return Design(**{name: np.concatenate([np.asarray(getattr(d, name), float) for d in designs]) for name in names})


@dataclass(frozen=True)
class Residuals:
    """Residuals of a law's log losses in units of the noise, for the runs of one vmapped fit (lane)."""

    objective: FitObjective

    def __call__(self, point: Any, shared: Any, lane: Any) -> Any:
        off = jnp.log(self.objective.predicted(point, {**shared, "design": lane["design"]})) - jnp.log(lane["loss"])
        return jnp.sqrt(lane["weight"]) * off / NOISE


@functools.partial(jax.jit, static_argnums=0)
def fitted(residuals: Residuals, starts: Any, shared: Any, lane: Any) -> Any:
    """Return a lane's best fit over all its starts, by Levenberg-Marquardt.

    L-BFGS, which ``moejax fit`` uses for other penalties, takes ten times as long here and stops before the minimum.
    """

    def one(start: Any) -> tuple[Any, Any]:
        def off(point: Any) -> Any:
            return residuals(point, shared, lane)

        def step(carry: Any) -> Any:
            point, here, slopes, damping, steps, small = carry
            information, gradient = slopes.T @ slopes, slopes.T @ here
            there = point - jnp.linalg.solve(information + damping * jnp.diag(jnp.diag(information) + 1e-9), gradient)
            new = off(there)
            better = new @ new < here @ here
            small = jnp.where(better, jnp.where(here @ here - new @ new < 1e-9 * (here @ here), small + 1, 0), small)
            point, here = jnp.where(better, there, point), jnp.where(better, new, here)
            slopes = jax.lax.cond(better, lambda: jax.jacfwd(off)(there), lambda: slopes)
            return point, here, slopes, jnp.where(better, damping / 4, damping * 4), steps + 1, small

        def unfinished(carry: Any) -> Any:
            _, here, _, damping, steps, small = carry
            return (steps < 300) & (small < 3) & (damping < 1e10) & jnp.isfinite(here @ here)

        begun = (start, off(start), jax.jacfwd(off)(start), jnp.asarray(1e-2), 0, 0)
        point, here, *_ = jax.lax.while_loop(unfinished, step, begun)
        return point, jnp.where(jnp.isfinite(here @ here), here @ here, jnp.inf)

    points, values = jax.lax.map(one, starts)
    return points[jnp.argmin(values)]


@functools.partial(jax.jit, static_argnums=0)
def squares(residuals: Residuals, points: Any, shared: Any, lane: Any) -> Any:
    """Return a lane's sums of squares at many points."""
    return jax.vmap(lambda point: jnp.sum(residuals(point, shared, lane) ** 2))(points)


class Fitter:
    """Vmapped least-squares fits of a law's log loss to subsets of runs, from starts independent of the truth.

    Each vmapped fit (lane) has a row in ``chosen``, with an entry of 1 or 0 per run, and at most ``most`` runs.
    """

    def __init__(self, law: type, design: Design, losses: np.ndarray, most: int):
        self.objective = FitObjective(law, Squared())
        self.design, self.losses, self.most = design, losses, most
        data = data_of(self.objective, runs_from(design, losses[0]), {}) | {"scale": np.float64(1.0)}
        self.starts = Sobol(512, seed=1)(self.objective, data)
        self.centered = data.pop("design")
        self.data = {name: value for name, value in data.items() if name != "loss"}

    def _lane(self, lane: int, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of a lane's runs, padded with runs of weight 0, and the weights."""
        rows = np.flatnonzero(chosen[lane])
        filled = np.r_[rows, np.zeros(self.most - len(rows), int)]
        return filled, (np.arange(self.most) < len(rows)).astype(float)

    def fit(self, chosen: np.ndarray, near: np.ndarray | None = None) -> np.ndarray:
        """Return every lane's best fit, from the best of many starts and, if given, the fit of an earlier round."""
        residuals, points = Residuals(self.objective), []
        with float64():
            for number in range(len(chosen)):
                rows, weight = self._lane(number, chosen)
                lane = {
                    "design": jax.tree.map(lambda v, r=rows: np.asarray(v)[r], self.centered),
                    "loss": self.losses[number, rows],
                    "weight": weight,
                }
                at = np.nan_to_num(np.asarray(squares(residuals, self.starts, self.data, lane)), nan=np.inf)
                starts = self.starts[np.argsort(at)[:STARTS]]
                if near is not None:
                    starts[-1] = near[number]
                points.append(np.asarray(fitted(residuals, starts, self.data, lane)))
        return np.stack(points)

    def law(self, point: np.ndarray) -> Any:
        """Return the law with the coefficients of a point."""
        with float64():
            return jax.tree.map(float, self.objective.law_at(point, {**self.data, "design": self.centered}))

    def planned(
        self,
        lane: int,
        chosen: np.ndarray,
        point: np.ndarray,
        asked: Sequence[Any],
        budget: RunBudget,
        rows: np.ndarray,
    ) -> np.ndarray:
        """Return a lane's runs with the runs that ``moejax next`` adds from some rows within a budget."""
        old, weight = self._lane(lane, chosen)
        runs = Runs(
            design=_rows(self.design, old), loss=self.losses[lane, old], weight=weight, group=np.arange(self.most)
        )
        prices = cost(self.design)[rows]
        # Trained runs get a cost above the budget, so that they are not chosen again.
        prices = np.where(chosen[lane, rows] > 0, 10 * max(budget.flops, prices.max()), prices)
        if not (prices <= budget.flops).any() or budget.runs < 1:
            return chosen[lane]
        law, candidates = self.law(point), _rows(self.design, rows)
        try:
            posterior = laplace_posterior(law, runs, candidates, asked, noise=NOISE)
        except Undefined:
            # This fit has no optimum yet, so plan only for the other target, a loss.
            posterior = laplace_posterior(law, runs, candidates, self.otherwise, noise=NOISE)
        arrays = posterior_arrays([posterior])
        counts = exchange(arrays, prices, budget, relax(arrays, prices, budget).counts, sweeps=SWEEPS)
        more = chosen[lane].copy()
        more[rows[counts > 0]] = 1.0
        return more

    otherwise: Sequence[Any] = ()

    def pilot(self, row: np.ndarray, rows: np.ndarray, flops: float, rng: np.random.Generator) -> None:
        """Select cheap runs for a pilot, up to two per coefficient."""
        prices, free = cost(self.design), len(self.objective.free)
        cheapest = rows[np.argsort(prices[rows])][: max(3 * free, len(rows) // 3)]
        draw(row, rng.permutation(cheapest), prices, flops, 2 * free)


def draw(row: np.ndarray, order: np.ndarray, prices: np.ndarray, flops: float, most: float) -> None:
    """Select up to ``most`` runs in an order, skipping runs that exceed the remaining FLOPs."""
    left = flops - float(row @ prices)
    for i in order:
        if not row[i] and prices[i] <= left and row.sum() < most:
            row[i], left = 1.0, left - prices[i]


class Laboratory(Fitter):
    """Simulated losses of all runs for all seeds, with a law as the truth."""

    def __init__(self, truth: Truth, seeds: Sequence[int]):
        self.truth, self.seeds = truth, seeds
        every = _joined(truth.grid, truth.pool)
        self.on_grid = np.arange(len(cost(truth.grid)))
        self.in_pool = np.arange(len(self.on_grid), len(cost(every)))
        exact = predict(truth.law, runs_from(every, np.ones(len(cost(every)))))
        noise = np.stack([np.random.default_rng([0, seed]).normal(size=len(exact)) for seed in seeds])
        super().__init__(type(truth.law), every, exact * np.exp(NOISE * noise), len(self.on_grid))
        self.otherwise = [truth.asked[0].functional]
        with float64():
            self.answers = [np.log(float(a.functional(truth.law))) for a in truth.asked]

    def errors(self, points: np.ndarray) -> np.ndarray:
        """Return |log(estimate / truth)| for every seed and target; infinite if there is no estimate."""
        with float64():
            laws = laws_at(self.objective, points, {**self.data, "design": self.centered})
            found = [np.log(np.asarray(jax.vmap(estimand.functional)(laws), float)) for estimand in self.truth.asked]
        off = np.abs(np.stack(found, axis=1) - np.asarray(self.answers))
        return np.where(np.isfinite(off), off, np.inf)

    def random(self, flops: float) -> np.ndarray:
        """Draw runs from the pool until the FLOPs are spent, at most as many as in the grid."""
        chosen, prices = np.zeros((len(self.seeds), len(self.losses[0]))), cost(self.design)
        for row, seed in zip(chosen, self.seeds, strict=True):
            draw(row, np.random.default_rng([1, seed]).permutation(self.in_pool), prices, flops, self.most)
        return chosen

    def designed(self, flops: float, asked: Sequence[Any], say: Callable[[str], None]) -> tuple[np.ndarray, np.ndarray]:
        """Return the runs and the last fits of the designed arm, planned jointly for some targets."""
        prices, chosen = cost(self.design), np.zeros((len(self.seeds), len(self.losses[0])))
        for row, seed in zip(chosen, self.seeds, strict=True):
            self.pilot(row, self.in_pool, PILOT * flops, np.random.default_rng([2, seed]))
        points = self.fit(chosen)
        for number, share in enumerate(ROUNDS):
            for lane, row in enumerate(chosen):
                left = RunBudget(flops=share * flops - float(row @ prices), runs=int(share * self.most - row.sum()))
                wanted = [estimand.functional for estimand in asked]
                chosen[lane] = self.planned(lane, chosen, points[lane], wanted, left, self.in_pool)
            points = self.fit(chosen, points)
            say(f"    round {number + 1}: {chosen.sum(axis=1).mean():.0f} runs")
        return chosen, points


def simulate(
    name: str, truth: Truth, shares: Sequence[float], seeds: Sequence[int], together: bool
) -> list[dict[str, Any]]:
    """Simulate every arm with one law."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{text}  ({time.monotonic() - began:.0f} s)", flush=True)

    lab = Laboratory(truth, seeds)
    whole = float(cost(truth.grid).sum())
    chosen = np.zeros((len(seeds), len(lab.losses[0])))
    chosen[:, lab.on_grid] = 1.0
    say(f"{name}: grid of {len(lab.on_grid)} runs, {whole:.3g} FLOPs; pool of {len(lab.in_pool)}")
    of_grid = lab.errors(lab.fit(chosen))
    rows = [_row(name, "the paper's grid", 1.0, lab, chosen, of_grid)]
    say(_line(rows[-1]))
    for share in shares:
        drawn = lab.random(share * whole)
        rows.append(_row(name, "random", share, lab, drawn, lab.errors(lab.fit(drawn))))
        say(_line(rows[-1]))
        for asked in [truth.asked] if together else [(answer,) for answer in truth.asked]:
            chosen, points = lab.designed(share * whole, asked, say)
            arm = "designed" if together else f"for {asked[0].name}"
            errors = lab.errors(points)
            rows.append(_row(name, arm, share, lab, chosen, errors) | {"to_grid": ratios(errors, of_grid)})
            say(_line(rows[-1]))
            for answer, found in zip(truth.asked, rows[-1]["to_grid"], strict=True):
                if answer in asked:
                    say("    {}: {:.2f} of the grid's error ({:.2f} to {:.2f})".format(answer.name, *found))
    return rows


def ratios(errors: np.ndarray, others: np.ndarray) -> list[tuple[float, float, float]]:
    """Return the ratio of two arms' median errors for each target, with the 90 % bootstrap range over seeds."""
    draws = np.random.default_rng(0).integers(0, len(errors), (2000, len(errors)))
    drawn = np.median(errors[draws], axis=1) / np.median(others[draws], axis=1)
    ends = np.quantile(drawn, (0.05, 0.95), axis=0)
    return list(zip(*(part.tolist() for part in (np.median(errors, 0) / np.median(others, 0), *ends)), strict=True))


def _row(name: str, arm: str, share: float, lab: Laboratory, chosen: np.ndarray, errors: np.ndarray) -> dict[str, Any]:
    return {
        "law": name,
        "arm": arm,
        "share": share,
        "runs": float(chosen.sum(axis=1).mean()),
        "flops": float((chosen @ cost(lab.design)).mean()),
        "median": np.median(errors, axis=0).tolist(),
        "worst_tenth": np.quantile(errors, 0.9, axis=0).tolist(),
    }


def _line(row: dict[str, Any]) -> str:
    errors = ", ".join(f"{m:.2%} ({w:.2%})" for m, w in zip(row["median"], row["worst_tenth"], strict=True))
    return f"  {row['arm']:<18}{row['share']:>6.3f} of the FLOPs, {row['runs']:>5.0f} runs: {errors}"


SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 0.85, 0.95, 1.0)
"""Shares of the FLOPs of a real table's buyable rows at which errors are measured."""


def retrospective(name: str, law: type, runs: Runs, far: np.ndarray, lanes: int) -> list[dict[str, Any]]:
    """Buy rows of a real table in the designed and in random orders, and measure the errors on the held-out rows."""
    near = np.flatnonzero(~far)
    prices = cost(runs.design)
    fitter = Fitter(law, runs.design, np.tile(runs.loss, (lanes, 1)), len(near))
    beyond = _rows(runs.design, np.flatnonzero(far))
    asked = [prediction_estimand(law, _one(beyond, law.inputs, i)).functional for i in range(far.sum())]
    whole, rng = float(prices[near].sum()), np.random.default_rng(0)

    def error(points: np.ndarray) -> float:
        found = [predict(fitter.law(point), runs_from(beyond, runs.loss[far])) for point in points]
        off = np.sqrt(np.mean((np.log(np.stack(found)) - np.log(runs.loss[far])) ** 2, axis=1))
        return float(np.median(off))

    all_rows = np.zeros((lanes, len(prices)))
    all_rows[:, near] = 1.0
    full = error(fitter.fit(all_rows[:1]))
    print(f"{name}: {len(near)} rows of {whole:.3g} FLOPs predict {far.sum()} larger ones to {full:.3%}", flush=True)
    designed, drawn = np.zeros((lanes, len(prices))), np.zeros((lanes, len(prices)))
    orders = [rng.permutation(near) for _ in range(lanes)]
    for row in designed:
        fitter.pilot(row, near, SHARES[0] * whole, rng)
    points, rows = fitter.fit(designed), []
    for share in SHARES:
        for lane in range(lanes):
            left = share * whole * (1 + 1e-9) - float(designed[lane] @ prices)
            budget = RunBudget(flops=left, runs=len(near))
            designed[lane] = fitter.planned(lane, designed, points[lane], asked, budget, near)
            draw(drawn[lane], orders[lane], prices, share * whole * (1 + 1e-9), np.inf)
        points = fitter.fit(designed, points)
        found = {
            "table": name,
            "share": share,
            "rows_designed": float(designed.sum(axis=1).mean()),
            "rows_random": float(drawn.sum(axis=1).mean()),
            "designed": error(points),
            "random": error(fitter.fit(drawn)),
            "whole": full,
        }
        rows.append(found)
        print(
            f"  {share:>5.2f} of the FLOPs: designed {found['rows_designed']:>4.0f} rows {found['designed']:.3%}, "
            f"random {found['rows_random']:>4.0f} rows {found['random']:.3%}",
            flush=True,
        )
    return rows


def _one(design: Design, names: Sequence[str], row: int) -> dict[str, float]:
    return {name: float(np.asarray(getattr(design, name))[row]) for name in names}


def clark(folder: Path, router: str) -> tuple[str, type, Runs, np.ndarray]:
    """Clark et al.'s released runs of one router and their dense runs; the 1.3B models are held out."""
    import pandas as pd

    frame = pd.read_csv(folder / "clark2022_routing" / "curves.csv.gz")
    subset = frame.query("k == 1 and seed == 42 and routing_frequency == 0.5 and router_type in ['Dense', @router]")
    last = subset.dropna(subset="loss_validation").sort_values("step").groupby("hyper_id").last().reset_index()
    design = Design(
        params_active=last["dense_parameter_count"].to_numpy(float),
        tokens=last["step"].to_numpy(float) * 520_000,
        num_experts=last["num_experts"].to_numpy(float),
        top_k=last["k"].to_numpy(float),
    )
    runs = runs_from(design, last["loss_validation"].to_numpy(float))
    return f"Clark {router}", LAWS["routed"], runs, np.asarray(design.params_active) > 1e9


def marin(folder: Path, data: str) -> tuple[str, type, Runs, np.ndarray]:
    """Marin's dense IsoFLOP runs on one dataset; the largest budget is held out."""
    import pandas as pd

    frame = pd.read_csv(folder / "open_athena_isoflops" / "isoflops_transformed.csv")
    rows = frame.query("source == 'marin_202603' and dataset == @data and not outlier")
    design = Design(params_active=rows["params"].to_numpy(float), tokens=rows["tokens"].to_numpy(float))
    budget = rows["budget"].to_numpy(float)
    return (
        f"Marin {data}",
        LAWS["chinchilla"],
        runs_from(design, rows["loss"].to_numpy(float)),
        budget > 0.99 * budget.max(),
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--laws", default="zhao,abnar,ludziejewski", help="laws to simulate, or none")
    parser.add_argument("--shares", default="0.3333,0.1")
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--together", action="store_true", help="plan for both targets jointly instead of separately")
    parser.add_argument("--real", default="clark,marin", help="real tables to use, or none")
    parser.add_argument("--lanes", type=int, default=20, help="number of pilots and random orders on a real table")
    parser.add_argument(
        "--tables", type=Path, default=os.environ.get("MOEJAX_RUN_TABLES"), help="folder of public run tables"
    )
    parser.add_argument("--json", type=Path, help="file for the rows")
    arguments = parser.parse_args()
    tables, rows = arguments.tables and Path(arguments.tables), []
    for name in arguments.laws.split(",") if arguments.laws != "none" else []:
        if name != "ludziejewski":
            truth = {"zhao": zhao, "abnar": abnar}[name]()
        elif tables is not None:
            truth = ludziejewski(tables / "ludziejewski2025_design" / "design_with_published_law_loss.csv")
        else:
            print("ludziejewski: the paper's runs are listed in a table; give --tables")
            continue
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        rows += simulate(name, truth, [float(word) for word in arguments.shares.split(",")], seeds, arguments.together)
    if tables is not None:
        real = {
            "clark": [functools.partial(clark, tables, router) for router in ("S-Base", "RL-R", "Hash")],
            "marin": [functools.partial(marin, tables, data) for data in ("comma", "dclm", "nemotron")],
        }
        for source in arguments.real.split(",") if arguments.real != "none" else []:
            for one in real[source]:
                rows += retrospective(*one(), arguments.lanes)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
