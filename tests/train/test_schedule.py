"""Warm-up, stable, decay; trunk and branches agree where they overlap."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.train.schedule import DECAYS, WarmupStableDecay
from moejax.train.training import phases


def schedule(**changes):
    fields = {"peak": 0.5, "warmup_steps": 4.0, "decay_start": 10.0, "decay_steps": 5.0, "final_share": 0.2}
    return WarmupStableDecay(**fields | changes)


def rate(phase, step):
    return phase.schedule.learning_rate(step)


def test_the_rate_warms_up_stays_and_falls_to_its_final_share():
    rates = [float(schedule()(step)) for step in range(15)]
    np.testing.assert_allclose(rates[:4], [0.125, 0.25, 0.375, 0.5])
    np.testing.assert_allclose(rates[4:10], 0.5)
    np.testing.assert_allclose(rates[10:], [0.42, 0.34, 0.26, 0.18, 0.1], rtol=1e-6)


@settings(max_examples=30)
@given(peak=st.floats(1e-5, 1.0), step=st.integers(0, 30), warmup=st.integers(0, 9))
def test_the_rate_never_exceeds_its_peak_and_never_is_negative(peak, step, warmup):
    assert 0 <= float(schedule(peak=peak, warmup_steps=float(warmup))(step)) <= peak * (1 + 1e-6)


def test_a_branch_starts_where_the_trunk_left_and_the_trunk_never_decays(training):
    """MaxText #2882."""
    trunk, branches = phases(training)
    assert trunk.end == max(branch.start for branch in branches)
    for branch in branches:
        assert float(rate(trunk, branch.start - 1)) == float(rate(branch, branch.start - 1))
        assert float(rate(branch, branch.end - 1)) < float(rate(branch, branch.start - 1))
    assert branches[-1].steps_before + branches[-1].end - branches[-1].start == training.recipe.total_steps


@pytest.mark.parametrize("shape", DECAYS)
def test_every_decay_falls_from_the_peak_to_its_final_share(shape):
    rates = [float(schedule(shape=shape)(step)) for step in range(9, 15)]
    assert rates[0] == 0.5
    assert rates[-1] == pytest.approx(0.1)
    assert np.all(np.diff(rates) < 0)


def test_decays_have_the_shapes_of_their_papers():
    middle = {shape: float(DECAYS[shape](jnp.float32(0.25), jnp.float32(0.01))) for shape in DECAYS}
    assert middle["cosine"] == pytest.approx(0.01 + 0.99 * (1 + np.cos(np.pi / 4)) / 2)
    assert middle["exponential"] == pytest.approx(0.01**0.25)
    assert middle["1-sqrt"] == pytest.approx(1 - 0.99 * 0.5)


def test_a_decay_share_of_one_is_a_schedule_without_a_stable_part(training):
    optimizer = dataclasses.replace(training.recipe.optimizer, decay_share=1.0, decay_shape="cosine")
    trunk, branches = phases(
        dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, optimizer=optimizer))
    )
    assert trunk.end == training.recipe.warmup_steps
    assert {branch.start for branch in branches} == {trunk.end}
