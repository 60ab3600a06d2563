"""The loss of a family at each budget, by quadratics in log size or by the run of lowest loss."""

import numpy as np
import pytest

from moejax.fit.runs import WIDEST, budgets, runs_from
from moejax.fit.sweeps.budget_losses import budget_losses
from moejax.laws.design import Design

BUDGETS = np.geomspace(1e18, 1e21, 5)


def law(size, flops):
    """Chinchilla's, at the tokens that the FLOPs leave."""
    return 1.7 + 400 / size**0.34 + 410 / (flops / 6 / size) ** 0.28


TRIED = np.exp(np.linspace(np.log(1e6), np.log(1e13), 20_001))
BEST = np.array([TRIED[np.argmin(law(TRIED, flops))] for flops in BUDGETS])
LEAST = law(BEST, BUDGETS)


def family(offsets, noise=0.0, seed=0, sizes=True, **columns):
    """Runs at some log sizes about the best of each budget."""
    flops, offset = (each.ravel() for each in np.meshgrid(BUDGETS, offsets, indexing="ij"))
    size = np.repeat(BEST, len(offsets)) * np.exp(offset)
    loss = law(size, flops) * np.exp(noise * np.random.default_rng(seed).normal(size=len(size)))
    given = {"params_active": size, "tokens": flops / 6 / size} if sizes else {}
    return runs_from(Design(flops=flops, **given, **columns), loss)


@pytest.mark.parametrize(
    ("step", "count", "shift"), [(2, 3, 0.3), (2, 7, 0.3), (1.5, 5, 0.4), (1.3, 7, 0.2), (2, 3, 0)]
)
def test_the_minima_are_those_of_the_law_whatever_sizes_were_tried(step, count, shift):
    found = budget_losses(family(np.log(step) * (np.arange(count) - (count - 1) / 2) + shift))
    assert found.smoothed.all()
    assert not found.at_an_end.any()
    assert found.runs.loss == pytest.approx(LEAST, rel=7e-4)
    assert found.runs.design.flops == pytest.approx(BUDGETS)


def test_more_runs_a_budget_are_no_luckier_and_errors_are_as_they_are_told():
    noise, luck = 0.003, {}
    for count in (3, 15):
        every = [budget_losses(family(np.linspace(-0.6, 0.6, count), noise, seed)) for seed in range(200)]
        off = np.log([one.runs.loss for one in every]) - np.log(LEAST)
        luck[count] = off.mean()
        told = noise**2 * np.mean([np.diag(one.own) + one.shared for one in every], axis=0)
        # The mean over budgets shows what they share; a minimum at an end makes it less.
        assert off.mean(axis=1).std() == pytest.approx(np.sqrt(told.mean()), rel=0.3)
        assert np.sqrt(np.diag(told)).mean() == pytest.approx(off.std(axis=0).mean(), rel=0.3)
        scatter = sum(one.residual for one in every) / sum(one.degrees_of_freedom for one in every)
        assert np.sqrt(scatter) == pytest.approx(noise, rel=0.1)
    assert abs(luck[3] - luck[15]) < 0.15 * noise
    lowest = {count: budget_losses(family(np.linspace(-0.6, 0.6, count), noise, sizes=False)) for count in (3, 15)}
    assert np.log(lowest[3].runs.loss / lowest[15].runs.loss).mean() > 0.5 * noise


@pytest.mark.parametrize(
    "runs",
    [
        family([-0.3, 0.0, 0.3], noise=0.002, sizes=False),
        family([0.0, 0.3], noise=0.002),
        family([0.0], noise=0.002),
        family([-0.3, 0.0, 0.3], noise=0.002, num_experts=np.tile([8.0, 16.0, 8.0], 5), top_k=1.0),
    ],
    ids=["no sizes", "two sizes", "one run", "several kinds of model"],
)
def test_where_no_quadratic_is_said_the_lowest_loss_counts(runs):
    found = budget_losses(runs)
    assert not found.smoothed.any()
    assert found.runs.loss.tolist() == [runs.loss[runs.design.flops == flops].min() for flops in BUDGETS]
    assert found.degrees_of_freedom == 0


def test_a_minimum_at_the_end_of_what_was_tried_is_marked_and_no_end_is_one_that_a_worse_run_lies_beyond():
    beyond = budget_losses(family([0.5, 0.8, 1.1]))
    assert beyond.at_an_end.all()
    assert beyond.runs.loss == pytest.approx(law(BEST * np.exp(0.5), BUDGETS), rel=1e-3)
    # The largest sizes are far worse, and take no part.
    assert not budget_losses(family([-0.5, 0.0, 0.5, 3.0])).at_an_end.any()


def test_runs_of_weight_0_take_no_part():
    runs = family([-0.3, 0.0, 0.3, 0.6])
    wrong = runs.only(np.arange(len(runs)) % 4 < 3)
    assert budget_losses(wrong).counts.tolist() == [3] * 5


def grid(noise=0.0, seed=0):
    """Six sizes by six ratios of tokens to parameters: budgets of few runs at the corners, far from their best size."""
    size, ratio = (each.ravel() for each in np.meshgrid(2e7 * 2.0 ** np.arange(6), 5 * 2.0 ** np.arange(6)))
    flops = 6 * size**2 * ratio
    loss = law(size, flops) * np.exp(noise * np.random.default_rng(seed).normal(size=len(size)))
    return runs_from(Design(flops=flops, params_active=size, tokens=size * ratio), loss, group=range(len(size)))


def test_budgets_whose_best_size_was_not_tried_take_no_part():
    found = budget_losses(grid())
    flops = found.runs.design.flops
    assert len(found.left_out) > 0
    assert sorted([*flops, *found.left_out]) == pytest.approx(np.unique(grid().design.flops.round(-8)))
    least = np.array([law(TRIED, one).min() for one in flops])
    assert found.runs.loss == pytest.approx(least, rel=1e-3)
    # Where the corners would have been worse than the best by several times that.
    lowest = grid().where(grid().design.flops < 1.5e16)
    assert lowest.loss[0] > 1.01 * law(TRIED, lowest.design.flops[0]).min()


def test_what_noise_alone_puts_beyond_the_sizes_is_kept():
    left_out = [len(budget_losses(family([-0.3, 0.0, 0.3], 0.003, seed)).left_out) for seed in range(20)]
    assert np.mean(left_out) < 0.5


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
