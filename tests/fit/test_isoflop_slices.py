"""Optima of a surface are where its closed form has them, and nowhere if the loss is least at an end."""

import dataclasses
import re

import numpy as np
import pytest
from test_isoflop_degrees import abnar_runs, planted

from moejax.fit.sweeps.isoflop_curves import isoflop_budgets
from moejax.laws.mixtures.isoflop_surface import optimal_params_total, optimal_sparsity
from moejax.papers.abnar.isoflop_surfaces import best_pair, best_sizes, best_sparsities, fit_surfaces, round_sizes


@pytest.fixture(scope="module")
def budget():
    (found,), _ = isoflop_budgets(abnar_runs(budgets=(1e20,)))
    return found


@pytest.fixture(scope="module")
def surface(budget):
    (found,) = fit_surfaces([planted(budget, (2, 2, 2), noise=0.002)], (2, 2, 2))
    return found


def with_losses(budget, losses):
    return dataclasses.replace(budget, runs=dataclasses.replace(budget.runs, loss=np.asarray(losses)))


def bowl(budget, size=0.0, sparsity=0.0):
    """Losses that are least where log N is ``size`` past its middle and log 1/(1-S) ``sparsity`` past its own."""
    x, y = np.log(budget.size), -np.log1p(-budget.sparsity)
    return 2.5 + 0.02 * (x - x.mean() - size) ** 2 + 0.03 * (y - y.mean() - sparsity) ** 2


def test_best_sizes_are_those_of_the_closed_form(surface):
    for one in best_sizes(surface):
        exact = optimal_params_total(surface.law, one.held["sparsity"]).value["params_total"]
        assert one.value == pytest.approx(float(exact), rel=1e-6)
        assert one.low < one.value < one.high
        assert one.determined


def test_best_sparsities_are_those_of_the_closed_form(surface):
    found = [one for one in best_sparsities(surface, round_sizes(1e8, 1e10)) if one.value is not None]
    assert len(found) >= 3
    for one in found:
        exact = 1 - optimal_sparsity(surface.law, one.held["params_total"]).value["active_experts_share"]
        assert one.value == pytest.approx(float(exact), rel=1e-5)


def test_an_optimum_inside_is_found_in_both_factors_at_once(budget):
    (surface,) = fit_surfaces([with_losses(budget, bowl(budget))], (2, 2, 0), resamples=20)
    size, sparsity = best_pair(surface)
    x, y = np.log(budget.size), -np.log1p(-budget.sparsity)
    assert np.log(size.value) == pytest.approx(x.mean(), abs=1e-4)
    assert -np.log1p(-sparsity.value) == pytest.approx(y.mean(), abs=np.ptp(y) / 128)


@pytest.mark.parametrize(
    ("size", "sparsity", "words"),
    [
        (0.0, 9.0, r"falls up to a sparsity of 0\.9"),
        (0.0, -9.0, "rises from a sparsity of 0 on"),
        (9.0, 0.0, "falls up to [0-9.e+]*, the largest size reached"),
        (-9.0, 0.0, "rises from [0-9.e+]* on, the smallest size reached"),
    ],
)
def test_a_loss_that_is_least_at_an_end_has_no_optimum(budget, size, sparsity, words):
    (surface,) = fit_surfaces([with_losses(budget, bowl(budget, size, sparsity))], (2, 2, 0), resamples=20)
    pair = best_pair(surface)
    slices = best_sizes(surface) if size else best_sparsities(surface, [2e9])
    for one in (*pair, *slices):
        assert one.value is None
        assert one.loss is None
        assert not one.determined
    assert [one.why for one in pair if one.why] == [pair[0].why] * 2
    assert all(re.search(words, one.why) for one in slices)


def test_a_surface_without_size_has_no_best_size(budget):
    (surface,) = fit_surfaces([budget], (0, 2, 0), resamples=5)
    for one in best_sizes(surface):
        assert one.value is None
        assert "does not vary" in one.why


def test_slices_end_where_the_trained_points_do(budget):
    """Beyond the hull of what was trained a fitted polynomial says anything: no slice looks there."""
    (surface,) = fit_surfaces([with_losses(budget, bowl(budget, sparsity=-9.0))], (2, 2, 0), resamples=5)
    largest_dense = budget.size[budget.sparsity == 0].max()
    within, beyond = best_sparsities(surface, [0.9 * largest_dense, 5 * largest_dense])
    lowest = [float(re.search("sparsity of ([0-9.]+) on", one.why)[1]) for one in (within, beyond)]
    assert lowest[0] == 0 < lowest[1] < 0.98
    assert not best_sparsities(surface, [2 * budget.size.max(), budget.size.min() / 2])


def test_resamples_that_end_at_an_edge_leave_an_optimum_undetermined(budget):
    x = np.log(budget.size)
    past = x.max() - x.mean() - 0.02
    noisy = bowl(budget, size=past) + 0.01 * np.random.default_rng(0).normal(size=len(x))
    (surface,) = fit_surfaces([with_losses(budget, noisy)], (2, 2, 0))
    (sparsest,) = [one for one in best_sizes(surface) if one.held["sparsity"] == 0.98]
    assert not sparsest.determined


def test_round_sizes_have_one_leading_digit():
    assert round_sizes(9e7, 1.1e9) == [1e8, 2e8, 5e8, 1e9]
