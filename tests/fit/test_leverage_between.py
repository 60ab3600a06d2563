"""Leverage of one family of runs over another, by their loss-compute curves."""

import dataclasses

import jax
import numpy as np
import pytest
from known_fit import known_fit

import moejax as mj
from moejax.fit.runs import runs_from
from moejax.fit.sweeps.leverage import leverage_of
from moejax.float64 import float64
from moejax.laws.dense.loss_compute import LossCompute
from moejax.laws.design import Design
from moejax.report.leverage import constant

DENSE = LossCompute(scale=60.0, exponent=-0.08, irreducible=1.2)
NO_FLOOR = LossCompute(scale=60.0, exponent=-0.07, irreducible=0.0)
BUDGETS = np.geomspace(3e18, 3e20, 6)


def test_a_leverage_that_is_the_same_at_every_budget_is_said_to_be():
    table = mj.speedup({"expansion": 16}, {"expansion": 1}, law=known_fit(), flops=1e24)
    assert "Under this law the leverage is the same at every budget" in " ".join(table.notes)
    published = mj.speedup({"expert_expansion": 16}, {"expert_expansion": 1}, law="expert_count", flops=[1e21, 1e24])
    assert published.rows[0].leverage != pytest.approx(published.rows[1].leverage, rel=1e-3)
    assert not any("the same at every budget" in note for note in published.notes)
    assert not constant([2.0, 3.0], [2.0, 3.1])


def family(leverage, noise=0.0, seed=0):
    """Three sizes a budget, the middle one the best."""
    flops, worse = (a.ravel() for a in np.meshgrid(BUDGETS, [1.02, 1.0, 1.03], indexing="ij"))
    with float64():
        loss = np.asarray(jax.vmap(DENSE)(Design(flops=flops * leverage))) * worse
    return runs_from(Design(flops=flops), loss * np.exp(noise * np.random.default_rng(seed).normal(size=len(flops))))


def test_the_leverage_that_was_put_in_is_found_at_every_budget():
    found = leverage_of(family(3.0), family(1.0))
    assert found.flops == pytest.approx(BUDGETS)
    assert found.value == pytest.approx(np.full(6, 3.0), rel=1e-4)


def test_a_family_whose_flops_increase_in_small_steps_has_no_leverage_over_itself():
    def runs(spent, seed):
        flops, offset = (a.ravel() for a in np.meshgrid(spent, np.linspace(-0.7, 0.7, 5), indexing="ij"))
        size, tokens = np.sqrt(flops / 6) * np.exp(offset), np.sqrt(flops / 6) / np.exp(offset)
        noise = 0.001 * np.random.default_rng(seed).normal(size=len(flops))
        loss = (1.7 + 400 / size**0.34 + 400 / tokens**0.34) * np.exp(noise)
        return runs_from(Design(flops=flops, params_active=size, tokens=tokens), loss)

    chains = (np.array([1e18, 1e19, 1e20, 1e21])[:, None] * 1.09 ** np.arange(-7, 8)).ravel()
    found = leverage_of(runs(chains, 0), runs(np.array([3e18, 3e19, 3e20, 3e21]), 1), np.asarray([1e19, 1e20]))
    assert found.value == pytest.approx([1, 1], rel=0.05)
    assert (found.low <= 1).all()
    assert (found.high >= 1).all()


@pytest.mark.slow
def test_the_interval_holds_the_truth_as_often_as_it_says():
    held = []
    for seed in range(20):
        found = leverage_of(family(3.0, 0.002, seed), family(1.0, 0.002, 100 + seed), np.asarray([1e20]), level=0.8)
        held.append(bool(found.low[0] <= 3.0 <= found.high[0]))
    assert 0.55 <= np.mean(held) <= 1.0


def swept(leverage, count, seed):
    """As many sizes a budget, within .4 % of the best, and .3 % of noise."""
    flops, offset = (a.ravel() for a in np.meshgrid(BUDGETS, np.linspace(-0.6, 0.6, count), indexing="ij"))
    with float64():
        loss = np.asarray(jax.vmap(DENSE)(Design(flops=flops * leverage))) * (1 + 0.01 * offset**2)
    noise = 0.003 * np.random.default_rng(seed).normal(size=len(flops))
    return runs_from(Design(flops=flops, params_active=np.sqrt(flops / 120) * np.exp(offset)), loss * np.exp(noise))


@pytest.mark.parametrize("counts", [(3, 15), (15, 3)])
def test_a_family_of_more_runs_a_budget_gains_nothing_by_their_luck(counts):
    found = [
        leverage_of(swept(3.0, counts[0], seed), swept(1.0, counts[1], 100 + seed), np.asarray([3e19]))
        for seed in range(16)
    ]
    logs = np.log([one.value[0] / 3.0 for one in found])
    assert abs(logs.mean()) < 3 * logs.std() / np.sqrt(len(found))
    assert np.mean([one.low[0] <= 3.0 <= one.high[0] for one in found]) >= 0.75


def test_how_far_each_curve_is_read_beyond_its_runs_is_told_in_flops():
    found = leverage_of(family(3.0), family(1.0), np.asarray([1e18, 3e19, 2e20, 3e21]))
    first, second = found.beyond
    assert first == pytest.approx([1 / 3, 1, 1, 10], rel=1e-6)
    assert second == pytest.approx([1, 1, 2, 30], rel=1e-3)


def test_losses_that_do_not_fall_with_compute_are_refused():
    fallen = family(3.0)
    risen = dataclasses.replace(fallen, loss=fallen.loss[::-1].copy())
    with pytest.raises(ValueError, match="first group's loss does not fall with compute"):
        leverage_of(risen, family(1.0))


def test_what_the_runs_do_not_determine_has_no_interval_but_a_reason():
    with float64():
        loss = np.asarray(jax.vmap(NO_FLOOR)(Design(flops=BUDGETS)))
    reasons = []
    for seed in range(6):
        noise = 0.004 * np.random.default_rng(seed).normal(size=len(BUDGETS))
        found = leverage_of(family(3.0), runs_from(Design(flops=BUDGETS), loss * np.exp(noise)))
        told = [not reason for reason in found.unknown]
        assert np.isfinite(found.low).tolist() == np.isfinite(found.high).tolist() == told
        reasons += found.unknown
    assert any("do not determine irreducible" in reason for reason in reasons)


def curve_of(leverage, budgets, noise=0.0, seed=0):
    """One run a budget."""
    with float64():
        loss = np.asarray(jax.vmap(DENSE)(Design(flops=budgets * leverage)))
    return runs_from(
        Design(flops=budgets), loss * np.exp(noise * np.random.default_rng(seed).normal(size=len(budgets)))
    )


PINNED = {"irreducible": DENSE.irreducible}


def test_two_budgets_are_enough_where_the_asymptote_is_given_and_have_an_interval_if_the_exponent_is_too():
    few = (curve_of(3.0, BUDGETS[:2]), curve_of(1.0, BUDGETS[:2]))
    pinned, both = (
        leverage_of(*few, np.asarray([1e19]), fixed=fixed) for fixed in (PINNED, {**PINNED, "exponent": DENSE.exponent})
    )
    assert pinned.value == pytest.approx([3.0], rel=1e-6)
    assert "no budget is left" in pinned.unknown[0]
    assert np.isnan(pinned.low).all()
    assert both.value == pytest.approx([3.0], rel=1e-6)
    assert both.unknown == ("",)


def test_families_of_too_few_budgets_for_an_asymptote_have_power_laws():
    found = leverage_of(curve_of(1.2, BUDGETS), curve_of(1.0, BUDGETS[:3]), np.asarray([BUDGETS[0]]))
    assert found.without_asymptote == (False, True)
    assert found.against.fixed == {"irreducible": 0.0}
    assert found.value == pytest.approx([1.2], rel=0.02)
    assert found.low[0] < 1.2 < found.high[0]


def test_what_is_given_makes_the_interval_narrower():
    runs = (curve_of(3.0, BUDGETS, 0.002, 0), curve_of(1.0, BUDGETS, 0.002, 1))
    free, pinned = (leverage_of(*runs, np.asarray([1e20]), fixed=fixed) for fixed in (None, PINNED))
    assert np.log(pinned.high / pinned.low) < np.log(free.high / free.low)
    assert (pinned.low < 3.0).all()
    assert (pinned.high > 3.0).all()


def test_fewer_budgets_than_free_coefficients_are_refused_and_told_what_to_give():
    one = family(2.0).where(np.arange(18) < 3)
    with pytest.raises(ValueError, match=r"second group was trained at 1 budget; .* needs 2.*fixed=\{\"exponent\": "):
        leverage_of(family(3.0), one)
