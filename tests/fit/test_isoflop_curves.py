"""A parabola of one sparsity alone has its vertex where it was put, within its interval as often as it says."""

import dataclasses

import numpy as np
import pytest
from test_isoflop_degrees import abnar_runs

from moejax.fit.sweeps.isoflop_curves import best_sizes_by_curves, isoflop_budgets


@pytest.fixture(scope="module")
def budget():
    (found,), _ = isoflop_budgets(abnar_runs(budgets=(1e20,), sizes=6))
    return found


def bent(budget, curvature=0.03, move=0.0, noise=0.0, seed=0):
    """Every sparsity's losses as a parabola in log size, ``move`` e-folds from its middle; the best sizes beside it."""
    logs = np.log(budget.size)
    best = {s: logs[budget.sparsity == s].mean() + move for s in budget.levels}
    vertex = np.array([best[s] for s in budget.sparsity])
    losses = 2.5 + curvature * (logs - vertex) ** 2 + noise * np.random.default_rng(seed).normal(size=len(logs))
    runs = dataclasses.replace(budget.runs, loss=losses)
    return dataclasses.replace(budget, runs=runs), np.exp([best[s] for s in budget.levels])


def test_the_vertex_is_the_best_size_and_the_least_loss(budget):
    parabolas, best = bent(budget, move=0.3)
    found = best_sizes_by_curves(parabolas)
    assert [one.value for one in found] == pytest.approx(best)
    assert [one.loss for one in found] == pytest.approx([2.5] * 7)
    assert all(one.determined for one in found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"curvature": -0.03}, "does not open upwards"),
        ({"move": 5.0}, "its vertex lies above"),
        ({"move": -5.0}, "its vertex lies below"),
    ],
)
def test_what_is_no_minimum_among_the_sizes_trained_is_no_optimum(budget, options, words):
    parabolas, _ = bent(budget, **options)
    for one in best_sizes_by_curves(parabolas):
        assert one.value is None
        assert words in one.why


def test_nine_of_ten_intervals_hold_the_best_size(budget):
    """Fieller's interval is exact for noise that is normal and the same at every size."""
    hits = total = 0
    for seed in range(100):
        parabolas, best = bent(budget, noise=0.004, seed=seed)
        for one, truth in zip(best_sizes_by_curves(parabolas), best, strict=True):
            hits, total = hits + (one.low <= truth <= one.high), total + 1
    assert total == 700
    assert hits / total == pytest.approx(0.9, abs=0.035)


def test_where_the_curvature_is_noise_an_interval_has_ends_as_rarely_as_it_says(budget):
    found = []
    for seed in range(30):
        parabolas, _ = bent(budget, curvature=0.0, noise=0.01, seed=seed)
        found += best_sizes_by_curves(parabolas)
    # A flat line looks bent upwards at 95 % once in twenty.
    assert sum(one.determined for one in found) / len(found) < 0.07
    unbounded = [one for one in found if one.high == np.inf]
    assert len(unbounded) > 50
    assert all(one.to_json()["high"] is None and not one.determined for one in unbounded)


def test_a_sparsity_of_three_sizes_has_no_parabola(budget):
    dense = np.flatnonzero(budget.sparsity == 0)
    kept = np.setdiff1d(np.arange(len(budget.runs)), dense[:3])
    fewer = dataclasses.replace(budget, runs=budget.runs.where(kept), sparsity=budget.sparsity[kept])
    assert [one.held["sparsity"] for one in best_sizes_by_curves(fewer)] == budget.levels[1:]
