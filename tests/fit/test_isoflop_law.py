"""The best size by Eq. 6, read off a table's own tokens, is that of the law with the table's N_a(N, S)."""

import dataclasses

import jax
import numpy as np
import pytest
from test_isoflop_degrees import CONVENTION, SPARSITIES, abnar_runs

from moejax.fit.sweeps.isoflop_curves import isoflop_budgets
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.float64 import float64
from moejax.laws.mixtures.sparsity import ABNAR_2025, best_params_total
from moejax.papers.abnar.isoflop_analysis import best_sizes_by_law


@pytest.fixture(scope="module")
def budget():
    (found,), _ = isoflop_budgets(abnar_runs(budgets=(1e20,)))
    return found


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
