"""Warm-up, stable, decay; trunk and branches agree where they overlap; decay touches matrices alone."""

import jax
import numpy as np
import optax
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.model import transformer
from moejax.train.loop import legs
from moejax.train.optimizer import OptimizerConfig, adamw
from moejax.train.schedule import WarmupStableDecay


def schedule(**changes):
    fields = {"peak": 0.5, "warmup_steps": 4.0, "decay_start": 10.0, "decay_steps": 5.0, "final_share": 0.2}
    return WarmupStableDecay(**fields | changes)


def test_the_rate_warms_up_stays_and_falls_to_its_final_share():
    rates = [float(schedule()(step)) for step in range(15)]
    np.testing.assert_allclose(rates[:4], [0.125, 0.25, 0.375, 0.5])
    np.testing.assert_allclose(rates[4:10], 0.5)
    np.testing.assert_allclose(rates[10:], [0.42, 0.34, 0.26, 0.18, 0.1], rtol=1e-6)


@settings(deadline=None, max_examples=30)
@given(peak=st.floats(1e-5, 1.0), step=st.integers(0, 30), warmup=st.integers(0, 9))
def test_the_rate_never_exceeds_its_peak_and_never_is_negative(peak, step, warmup):
    assert 0 <= float(schedule(peak=peak, warmup_steps=float(warmup))(step)) <= peak * (1 + 1e-6)


def test_a_branch_starts_where_the_trunk_left_and_the_trunk_never_decays(training):
    trunk, branches = legs(training)
    assert trunk.end == max(branch.start for branch in branches)
    for branch in branches:
        assert float(trunk.schedule(branch.start - 1)) == float(branch.schedule(branch.start - 1))
        assert float(branch.schedule(branch.end - 1)) < float(branch.schedule(branch.start - 1))
    assert branches[-1].steps_before + branches[-1].end - branches[-1].start == training.recipe.total_steps


def test_adamw_is_optax_adamw_at_the_schedules_rate():
    config = OptimizerConfig(clip_norm=1e9)
    params = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}
    gradients = jax.tree.map(lambda p: p**2 - 0.3, params)
    ours = adamw(config, {"w": True})
    theirs = optax.adamw(0.01, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)
    with jax.numpy_dtype_promotion("standard"):
        direction, _ = ours.update(gradients, ours.init(params), params)
        update, _ = theirs.update(gradients, theirs.init(params), params)
    np.testing.assert_allclose(-0.01 * direction["w"], update["w"], rtol=1e-6)


def test_weight_decay_touches_matrices_and_not_norms(training):
    decays = transformer.matrices(training.architecture)
    layers = decays["mixture_layers"]
    assert layers["feed_forward"]["gate"]
    assert layers["feed_forward"]["router"]
    assert layers["attention"]["output"]
    assert decays["embedding"]
    assert not layers["attention_norm"]
    assert not decays["final_norm"]
