"""Surfaces over size and sparsity have the degrees and the optima of the losses that they are fitted to."""

import dataclasses
import re

import jax
import numpy as np
import pytest
from known_isoflops import BUDGETS, CONVENTION, SPARSITIES, abnar_runs

from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.float64 import float64
from moejax.laws.mixtures.isoflop_surface import IsoflopSurface, fit_surface, optimal_params_total, optimal_sparsity
from moejax.laws.mixtures.sparsity import ABNAR_2025, best_params_total
from moejax.papers.abnar.isoflop_analysis import best_sizes_by_law
from moejax.papers.abnar.isoflop_budgets import isoflop_budgets
from moejax.papers.abnar.isoflop_surfaces import (
    best_pair,
    best_sizes,
    best_sparsities,
    chosen,
    columns_of,
    fit_surfaces,
    least_squares,
    round_sizes,
    search_degrees,
)


@pytest.fixture(scope="module")
def budget():
    (found,), _ = isoflop_budgets(abnar_runs(budgets=(1e20,)))
    return found


def with_losses(budget, losses):
    return dataclasses.replace(budget, runs=dataclasses.replace(budget.runs, loss=np.asarray(losses)))


def planted(budget, degrees, noise=0.0, seed=0):
    """A budget whose losses are those of a surface of these degrees, the one nearest to its own, with noise in nats."""
    columns = columns_of(budget)[:, chosen(degrees)]
    weights = least_squares(columns, budget.runs.loss, budget.runs.weight)
    losses = columns @ weights[:-1] + weights[-1]
    return with_losses(budget, losses + noise * np.random.default_rng(seed).normal(size=len(losses)))


@pytest.fixture(scope="module")
def budgets():
    return isoflop_budgets(abnar_runs(budgets=BUDGETS[:3], sizes=6))[0]


@pytest.mark.parametrize("degrees", [(2, 2, 2), (2, 1, 1), (3, 2, 1)])
@pytest.mark.matrix(1)
def test_the_lowest_error_has_the_degrees_that_were_planted(budgets, degrees):
    noise = 0.0005
    found = search_degrees([planted(one, degrees, noise, seed) for seed, one in enumerate(budgets)])
    assert found.best == degrees
    assert noise < found.error < 1.3 * noise
    for part, degree in enumerate(degrees):
        fewer = tuple(degree - 1 if i == part else other for i, other in enumerate(degrees))
        assert found.errors[fewer] > 1.2 * found.error


@pytest.mark.slow
def test_errors_are_known_of_all_125_combinations_where_runs_suffice(budgets):
    assert len(search_degrees(budgets).errors) == 125


def test_powers_that_three_sparsities_cannot_tell_apart_are_no_candidates():
    few, _ = isoflop_budgets(abnar_runs(sparsities=(0.0, 0.5, 0.9), budgets=(1e20,), sizes=6))
    errors = search_degrees(few).errors
    assert (2, 2, 2) in errors
    assert not [degrees for degrees in errors if degrees[1] > 2]


def test_runs_too_few_for_any_surface_are_counted(budgets):
    one = budgets[0]
    four = np.arange(2)
    tiny = dataclasses.replace(one, runs=one.runs.where(four), sparsity=one.sparsity[four])
    with pytest.raises(ValueError, match=r"too few to cross-validate any surface \(2 at"):
        search_degrees([tiny])


@pytest.mark.parametrize("degrees", [(2, 2, 2), (3, 1, 0), (0, 2, 1)])
@pytest.mark.matrix(1)
def test_least_squares_is_that_of_the_law(budgets, degrees):
    runs = budgets[1].runs
    ours = least_squares(columns_of(budgets[1])[:, chosen(degrees)], runs.loss, runs.weight)
    with float64():
        theirs = fit_surface(runs.design, runs.loss, degrees)
    values = iter(ours)
    size, sparsity, interaction = (tuple(next(values) for _ in range(degree)) for degree in degrees)
    law = IsoflopSurface(size=size, sparsity=sparsity, interaction=interaction, offset=next(values))
    np.testing.assert_allclose(predict(law, runs), predict(theirs, runs), rtol=1e-7)


def test_a_run_that_counts_twice_is_two_runs(budgets):
    columns, losses = columns_of(budgets[0])[:, chosen((2, 1, 1))], budgets[0].runs.loss
    twice = np.where(np.arange(len(losses)) < 5, 2.0, 1.0)
    written_out = np.concatenate([np.arange(len(losses)), np.arange(5)])
    np.testing.assert_allclose(
        least_squares(columns, losses, twice),
        least_squares(columns[written_out], losses[written_out], np.ones(len(written_out))),
        rtol=1e-6,
    )


@pytest.fixture(scope="module")
def surface(budget):
    (found,) = fit_surfaces([planted(budget, (2, 2, 2), noise=0.002)], (2, 2, 2))
    return found


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


def resampled(*laws):
    stacked = jax.tree.map(lambda *leaves: np.array(leaves), *laws)
    return Bootstrap(laws=stacked, values=np.zeros(len(laws)), unfinished=0, by="group", draws=40)


def test_it_is_the_optimum_of_the_law_under_the_reading_that_made_the_table(budget):
    nearby = [dataclasses.replace(ABNAR_2025, tokens_exponent=0.3954 * factor) for factor in (0.99, 1.0, 1.01)]
    found = best_sizes_by_law(ABNAR_2025, resampled(*nearby), budget)
    assert [one.held["sparsity"] for one in found] == list(SPARSITIES)
    with float64():
        for one in found:
            truth = float(best_params_total(ABNAR_2025, 1e20, one.held["sparsity"], CONVENTION))
            assert one.value == pytest.approx(truth, rel=1e-5)
            assert one.low < one.value < one.high


def test_among_sizes_that_are_all_too_large_there_is_no_best_one(budget):
    with float64():
        best = np.array([float(best_params_total(ABNAR_2025, 1e20, s, CONVENTION)) for s in budget.sparsity])
    large = budget.size > 1.2 * best
    found = best_sizes_by_law(
        ABNAR_2025,
        resampled(ABNAR_2025),
        dataclasses.replace(budget, runs=budget.runs.where(large), sparsity=budget.sparsity[large]),
    )
    assert len(found) == len(SPARSITIES)
    for one in found:
        assert one.value is None
        assert "the loss rises from" in one.why
