"""Leverage of one family of runs over another, by their loss-compute curves."""

import jax
import numpy as np
import pytest

from moejax.fit.leverages import leverage_of
from moejax.fit.runs import runs_from
from moejax.laws.design import Design
from moejax.laws.loss_compute import LossCompute

DENSE = LossCompute(scale=60.0, exponent=-0.08, irreducible=1.2)
BUDGETS = np.geomspace(3e18, 3e20, 6)


def family(leverage, noise=0.0, seed=0):
    """Three sizes a budget, the middle one the best."""
    flops, worse = (a.ravel() for a in np.meshgrid(BUDGETS, [1.02, 1.0, 1.03], indexing="ij"))
    with jax.enable_x64(True):
        loss = np.asarray(jax.vmap(DENSE)(Design(flops=flops * leverage))) * worse
    return runs_from(Design(flops=flops), loss * np.exp(noise * np.random.default_rng(seed).normal(size=len(flops))))


def test_the_leverage_that_was_put_in_is_found_at_every_budget():
    found = leverage_of(family(3.0), family(1.0))
    assert found.flops == pytest.approx(BUDGETS)
    assert found.value == pytest.approx(np.full(6, 3.0), rel=1e-4)


@pytest.mark.slow
def test_the_interval_holds_the_truth_as_often_as_it_says():
    held = []
    for seed in range(20):
        found = leverage_of(family(3.0, 0.002, seed), family(1.0, 0.002, 100 + seed), np.asarray([1e20]), level=0.8)
        held.append(bool(found.low[0] <= 3.0 <= found.high[0]))
    assert 0.55 <= np.mean(held) <= 1.0


def test_a_family_of_few_budgets_is_refused():
    few = family(2.0).only(np.arange(18) < 9)
    with pytest.raises(ValueError, match="second family was trained at 3 budgets"):
        leverage_of(family(3.0), few.where(few.weight > 0))
