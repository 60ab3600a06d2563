"""AICc and BIC: the textbook's where runs are independent, and not deceived by the luck that a group's runs share."""

import tracemalloc

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from moejax.fit.runs import sums_by_group
from moejax.fit.selection.metrics import information_criteria

MODELS, BUDGETS = 12, 8
GROUP = np.repeat(np.arange(MODELS), BUDGETS)
ONES = np.ones(len(GROUP))


def test_of_runs_that_are_groups_of_their_own_it_is_the_textbooks():
    residual = np.random.default_rng(0).normal(size=20)
    aicc, bic = information_criteria(residual, np.zeros((20, 5)), np.ones(20), np.arange(20), 1.0)
    likely = -2 * scipy.stats.norm.logpdf(residual, scale=np.sqrt(np.mean(residual**2))).sum()
    constant = 20 * (np.log(2 * np.pi) + 1)
    assert aicc + constant == pytest.approx(likely + 2 * 6 + 2 * 6 * 7 / (20 - 7))
    assert bic + constant == pytest.approx(likely + 6 * np.log(20))


def test_of_groups_it_is_that_of_a_normal_distribution_with_their_covariance():
    rng = np.random.default_rng(1)
    group = np.repeat([0, 1, 2, 3], [1, 2, 4, 6])
    residual = rng.normal(size=4)[group] + 0.5 * rng.normal(size=13)

    def surprise(logs):
        runs, groups = np.exp(logs)
        covariance = runs * np.eye(13) + groups * (group[:, None] == group)
        return -2 * scipy.stats.multivariate_normal(cov=covariance).logpdf(residual)

    likely = scipy.optimize.minimize(surprise, [0.0, 0.0]).fun
    aicc, bic = information_criteria(residual, np.zeros((13, 3)), np.ones(13), group, 1.0)
    constant = 13 * (np.log(2 * np.pi) + 1)
    assert aicc + constant == pytest.approx(likely + 2 * 5 + 2 * 5 * 6 / (13 - 6), abs=1e-3)
    assert bic + constant == pytest.approx(likely + 5 * np.log(13), abs=1e-3)


def test_a_run_of_weight_0_does_not_count():
    rng = np.random.default_rng(2)
    residual, slopes = rng.normal(size=len(GROUP)), rng.normal(size=(len(GROUP), 3))
    kept = GROUP < 9
    some = information_criteria(residual[kept], slopes[kept], ONES[kept], GROUP[kept], 1.0)
    assert information_criteria(residual, slopes, np.where(kept, 1.0, 0.0), GROUP, 1.0) == pytest.approx(some)


def test_it_is_that_of_the_likeliest_coefficients_wherever_a_fit_ended():
    rng = np.random.default_rng(4)
    slopes = rng.normal(size=(len(GROUP), 3))
    residual = rng.normal(size=MODELS)[GROUP] + 0.3 * rng.normal(size=len(GROUP))
    beside = residual - slopes @ np.asarray([0.3, -0.2, 0.1])
    here, there = (information_criteria(e, slopes, ONES, GROUP, 1.0) for e in (residual, beside))
    assert here == pytest.approx(there)


@pytest.mark.parametrize("shared", [0.0, 0.5, 0.95])
def test_what_varies_between_models_alone_is_no_likelier_because_their_luck_is_shared(shared):
    rng = np.random.default_rng(3)
    trait = rng.normal(size=MODELS)[GROUP]
    weights = []
    for _ in range(150):
        own, luck = rng.normal(size=len(GROUP)), rng.normal(size=MODELS)[GROUP]
        loss = np.sqrt(1 - shared) * own + np.sqrt(shared) * luck
        laws = np.c_[ONES], np.c_[ONES, trait]
        true, other = (information_criteria(loss, law, ONES, GROUP, 1.0)[0] for law in laws)
        weights.append(1 / (1 + np.exp((true - other) / 2)))
    # Counted as independent, the true law's mean weight is .37 at a correlation of .95, and a quarter is below .05.
    assert np.mean(weights) > 0.6
    assert np.mean(np.asarray(weights) < 0.05) < 0.05


def test_sums_over_groups_are_those_of_the_matrix_of_runs_by_groups():
    rng = np.random.default_rng(5)
    group, values = rng.integers(0, 9, 40) * 3, rng.normal(size=(40, 2))
    matrix = group[:, None] == np.unique(group)
    np.testing.assert_allclose(sums_by_group(values, group), matrix.T @ values, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sums_by_group(values[:, 0], group), matrix.T @ values[:, 0], rtol=1e-12, atol=1e-12)


def test_it_takes_memory_by_runs_and_coefficients_and_not_by_runs_and_groups():
    rng, runs = np.random.default_rng(6), 200_000
    group, slopes = np.arange(runs) // 2, rng.normal(size=(runs, 3))
    tracemalloc.start()
    try:
        aicc, _ = information_criteria(rng.normal(size=runs), slopes, np.ones(runs), group, 1.0)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.isfinite(aicc)
    # A column of runs by groups alone would be 160 GB.
    assert held < 20 * slopes.nbytes
