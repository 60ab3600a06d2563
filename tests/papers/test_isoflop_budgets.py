"""Runs are sorted into budgets; a parabola of one sparsity has its vertex where it was put, within its interval."""

import dataclasses

import numpy as np
import pytest
from known_isoflops import SPARSITIES, abnar_runs

from moejax.papers.abnar.isoflop_budgets import best_sizes_by_curves, isoflop_budgets


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
        ({"move": 5.0}, "its vertex is above"),
        ({"move": -5.0}, "its vertex is below"),
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


@pytest.fixture(scope="module")
def runs():
    return abnar_runs(budgets=(3e19, 1e20))


def changed(runs, **fields):
    return dataclasses.replace(runs, design=dataclasses.replace(runs.design, **fields))


def test_budgets_met_to_a_few_per_cent_are_recognized(runs):
    met = runs.design.flops * np.random.default_rng(0).uniform(0.97, 1.03, len(runs))
    found, left_out = isoflop_budgets(changed(runs, flops=met))
    assert [one.flops for one in found] == pytest.approx([3e19, 1e20], rel=0.01)
    assert [len(one.runs) for one in found] == [56, 56]
    assert found[0].levels == pytest.approx(SPARSITIES)
    assert not left_out


def test_a_budget_of_too_few_sparsities_is_left_out_and_said(runs):
    (found,), (sentence,) = isoflop_budgets(runs.where((runs.design.flops > 5e19) | (runs.design.num_experts < 1.5)))
    assert found.flops == pytest.approx(1e20)
    assert sentence == "3e+19 FLOPs: 16 runs with 2 sparsities, 2 of them with at least 3 sizes."


def test_runs_of_weight_0_take_no_part(runs):
    found, _ = isoflop_budgets(runs.only(runs.design.flops > 5e19))
    assert [one.flops for one in found] == pytest.approx([1e20])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"flops": None}, "have no flops"),
        ({"num_experts": None, "tokens": None}, "have no tokens, num_experts"),
        ({"top_k": np.full(112, 60.0)}, "num_experts is 1 and top_k 60 in run 1"),
        (
            {"flops": np.geomspace(3e19, 1e30, 112)},
            "1 run with 1 sparsity, 0 of them with at least 3 sizes.* And 107 more budgets",
        ),
        (
            {"num_experts": np.ones(112)},
            r"sizes \(params_total\).*56 runs with 1 sparsity, 1 of them with at least 3 sizes",
        ),
    ],
)
def test_what_a_table_lacks_is_a_sentence_with_its_columns(runs, fields, words):
    with pytest.raises(ValueError, match=words):
        isoflop_budgets(changed(runs, **fields))


def test_more_experts_to_a_token_than_there_are_is_said_of_the_run_as_its_table_has_it(runs):
    chosen = runs.where(np.arange(112) >= 10)
    top_k = np.where(np.arange(len(chosen)) == 3, 1e4, chosen.design.top_k)
    with pytest.raises(ValueError, match=r"top_k 10000 in run 14, but the sparsity .* \(1 such run\)\."):
        isoflop_budgets(changed(chosen, top_k=top_k))


def test_active_parameters_take_the_place_of_total_ones(runs):
    (one, _), _ = isoflop_budgets(runs)
    assert (one.by_active().size == one.runs.design.params_active).all()
    np.testing.assert_array_less(one.by_active().size, one.size * (1 + 1e-9))
