"""Compute budgets of runs: which runs spent one, and how wide it may be."""

import numpy as np
import pytest

from moejax.fit.runs import WIDEST, budgets


def widths(flops):
    number, _ = budgets(flops)
    return np.array([np.ptp(np.log(flops[number == one])) for one in range(number.max() + 1)])


def test_budgets_met_to_a_few_per_cent_are_one():
    number, spent = budgets(np.array([1.02e19, 3e18, 1e19, 2.95e18]))
    assert number.tolist() == [1, 0, 1, 0]
    assert spent == pytest.approx([np.sqrt(3e18 * 2.95e18), np.sqrt(1.02e19 * 1e19)])


@pytest.mark.parametrize("step", [1.001, 1.02, 1.09])
def test_flops_that_increase_in_small_steps_are_several_budgets_of_limited_width(step):
    flops = 1e18 * step ** np.arange(np.ceil(np.log(100) / np.log(step)))
    assert widths(flops).max() <= np.log(WIDEST) * (1 + 1e-9)
    # The fewest that suffice, of about the same width.
    assert len(widths(flops)) <= np.ceil(np.log(100) / (np.log(WIDEST) - np.log(step)))
    assert widths(flops).min() > 0


@pytest.mark.parametrize("seed", range(5))
def test_budgets_whose_runs_scatter_until_they_touch_are_told_apart(seed):
    scatter = np.random.default_rng(seed).uniform(-0.05, 0.05, (3, 40))
    flops = np.array([[1e19], [1.2e19], [1.44e19]]) * np.exp(scatter)
    number, _ = budgets(flops.ravel())
    assert number.reshape(flops.shape).tolist() == [[0] * 40, [1] * 40, [2] * 40]


def test_budgets_do_not_depend_on_the_order_of_the_runs():
    flops = 10 ** np.random.default_rng(0).uniform(18, 19, 60)
    shuffled = np.random.default_rng(1).permutation(60)
    number, spent = budgets(flops)
    again, spent_again = budgets(flops[shuffled])
    assert again.tolist() == number[shuffled].tolist()
    assert spent_again == pytest.approx(spent)
