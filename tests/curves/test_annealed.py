"""Annealed losses from a trunk's curve: branches that were left out, and budgets to which none was trained."""

import dataclasses

import numpy as np
import pytest
from known_curves import PEAK, STEPS, WARMUP, curve

from moejax.curves.annealed import AnnealedLosses, Branch, anneal, branch_loss
from moejax.laws.curves.momentum import Momentum

LAW = Momentum(irreducible=2.6, sum_scale=0.6, sum_exponent=0.45, drop_scale=150.0, memory_steps=60.0)
ENDS = (1600, 2200, 3000, 4000)


def trunk(**options):
    return curve("constant", LAW, **options)


def branch(end, **options):
    """Four fifths of the trunk, then down to the end."""
    own, start = curve("wsd", LAW, steps=end, **options), int(0.8 * end)
    later = own.steps > start
    return Branch(
        start=start, curve=dataclasses.replace(own, name=f"to {end}", steps=own.steps[later], loss=own.loss[later])
    )


@pytest.fixture(scope="module")
def noisy() -> AnnealedLosses:
    return anneal(trunk(noise=1e-3), [branch(end, noise=1e-3, seed=end) for end in ENDS])


def test_each_branch_is_predicted_without_its_own_losses(noisy):
    assert [one.end for one in noisy.left_out] == list(ENDS)
    for one in noisy.left_out:
        assert one.predicted.loss == pytest.approx(one.measured, rel=5e-3)
        assert one.predicted.low < one.predicted.loss < one.predicted.high
    # Where a straight line between other branches misses, as before the first, the curve knows more.
    first = noisy.left_out[0]
    assert abs(first.predicted.loss - first.measured) < abs(first.interpolated - first.measured)


def test_a_branch_that_is_left_out_has_no_part_in_its_prediction(noisy):
    moved = [branch(end, noise=1e-3, seed=end) for end in ENDS]
    odd = dataclasses.replace(moved[1].curve, loss=1.2 * moved[1].curve.loss)
    found = anneal(trunk(noise=1e-3), [moved[0], dataclasses.replace(moved[1], curve=odd), *moved[2:]])
    assert found.left_out[1].predicted.loss == pytest.approx(noisy.left_out[1].predicted.loss, rel=1e-4)
    assert not found.left_out[1].inside
    assert found.left_out[0].predicted.loss != pytest.approx(noisy.left_out[0].predicted.loss, rel=1e-3)


def test_a_budget_that_was_not_trained_is_predicted_with_a_range_that_holds_it(noisy):
    asked = branch(2600)
    not_trained = dataclasses.replace(asked.curve, steps=asked.curve.steps[:0], loss=asked.curve.loss[:0])
    found = noisy.predict(Branch(start=asked.start, curve=not_trained))
    assert found.low < asked.curve.loss[-1] < found.high
    assert found.high - found.low < 0.05
    assert found.standard_error == pytest.approx(found.loss * np.sqrt(np.mean(noisy.errors**2)))


def test_a_trunk_that_lies_above_the_law_where_a_branch_leaves_lifts_its_prediction():
    exact, leaves = trunk(), branch(3000)
    near = np.abs(exact.steps - leaves.start) <= leaves.end - leaves.start
    lifted = dataclasses.replace(exact, loss=np.where(near, 1.01, 1.0) * exact.loss)
    assert branch_loss(LAW, exact, leaves) == pytest.approx(leaves.curve.loss[-1], rel=1e-4)
    assert branch_loss(LAW, lifted, leaves) == pytest.approx(1.01 * branch_loss(LAW, exact, leaves))
    sparse = dataclasses.replace(exact, steps=exact.steps[:1], loss=exact.loss[:1])
    assert branch_loss(LAW, sparse, leaves) == pytest.approx(leaves.curve.loss[-1], rel=1e-4)


def test_what_says_nothing_of_annealing_is_refused(noisy):
    with pytest.raises(ValueError, match="constant has 1 branch; give at least 3"):
        anneal(trunk(), [branch(3000)])
    flat = dataclasses.replace(branch(3000).curve, name="flat", rates=np.full(3000, PEAK))
    with pytest.raises(ValueError, match="The learning rate of flat never falls"):
        anneal(trunk(), [*(branch(end) for end in ENDS), Branch(start=2400, curve=flat)])
    later = Branch(start=STEPS + 1, curve=dataclasses.replace(branch(3000).curve, name="later"))
    with pytest.raises(ValueError, match=r"later leaves the trunk after 4,001 steps, but the trunk has only 4,000"):
        noisy.predict(later)
    assert noisy.trunk.steps[0] > WARMUP
