"""One step: the same however a batch is cut, and not taken where it would spoil the model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from moejax.model.loss import LossWeights
from moejax.model.sharding import MESH_AXES
from moejax.routing.sigmoid import update_bias
from moejax.train.guard import GuardConfig
from moejax.train.legs import legs
from moejax.train.program import make_program

TOKENS = np.random.default_rng(0).integers(0, 256, (8, 33)).astype(np.int32)


def changed(training, architecture=None, data=None, **recipe):
    recipe = dataclasses.replace(training.recipe, **recipe)
    if data:
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, **data))
    return dataclasses.replace(
        training, architecture=training.architecture.replace(**architecture or {}), recipe=recipe
    )


def one_device():
    return jax.make_mesh((1, 1, 1, 1), MESH_AXES, (AxisType.Auto,) * 4, devices=jax.devices()[:1])


def steps(training, batches, seed=0):
    """The state after some batches, and the metrics of each step."""
    mesh = one_device()
    program = make_program(training, mesh)
    with jax.set_mesh(mesh):
        state, found = program.init(seed), []
        for batch in batches:
            batch = batch if isinstance(batch, dict) else {"tokens": batch}
            state, metrics = program.step(state, batch, legs(training)[0].schedule)
            found.append(jax.tree.map(np.asarray, metrics))
    return state, found


def documents():
    """Rows of three documents and some padding, cut elsewhere in each row."""
    segments = np.ones((8, 33), np.int32)
    for row in range(8):
        segments[row, 5 + row :] = 2
        segments[row, 20 + row :] = 3
        segments[row, 33 - row :] = 0
    return {"tokens": TOKENS, "segments": segments}


@pytest.mark.parametrize(
    ("batch", "weights"),
    [
        (TOKENS, LossWeights(balance=0.5, router_z=0.3, sequence_balance=0.2)),
        pytest.param(TOKENS, LossWeights(balance=0.0, router_z=0.3), marks=pytest.mark.slow),
        (documents(), LossWeights(balance=0.5, router_z=0.3)),
    ],
    ids=["balance", "no balance", "documents"],
)
def test_microbatches_change_neither_the_losses_nor_the_update(training, batch, weights):
    """MaxText #1483."""
    bias = {"router": "sigmoid_topk", "balance_bias": True}
    data = {"packing": "documents"} if isinstance(batch, dict) else None
    whole = changed(training, bias, data, loss=weights)
    (one, of_one), (four, of_four) = (steps(changed(whole, microbatches=parts), [batch]) for parts in (1, 4))
    for name, value in of_one[0].items():
        np.testing.assert_allclose(of_four[0][name], value, rtol=2e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(one.balance_bias, four.balance_bias)
    # Adam's first step is a sign; its moments are the gradients themselves.
    for a, b in zip(jax.tree.leaves(one.optimizer), jax.tree.leaves(four.optimizer), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-4)


def test_a_document_is_predicted_from_itself_alone(training):
    training = changed(training, data={"packing": "documents"})
    batch = documents()
    other = {**batch, "tokens": np.where(batch["segments"] == 2, 7, batch["tokens"])}
    mesh = one_device()
    program = make_program(training, mesh)
    with jax.set_mesh(mesh):
        params = program.init(0).params
        costs = [program.evaluate(params, None, b, np.ones(8, bool))[0] for b in (batch, other)]
        first = {"tokens": batch["tokens"], "segments": np.where(batch["segments"] == 1, 1, 0)}
        alone = program.evaluate(params, None, first, np.ones(8, bool))[0]
    assert not np.allclose(costs[0], costs[1])
    assert np.all(np.asarray(alone) < np.asarray(costs[0]))
    # Four inputs of the first row have their targets in the same document.
    assert 0 < float(alone[0]) < 4 * 2 * np.log(257)


def test_the_balance_bias_moves_once_a_step_against_the_loads_and_outside_the_optimiser(training):
    training = changed(training, {"router": "sigmoid_topk", "balance_bias": True})
    state, metrics = steps(training, [TOKENS])
    bias = np.asarray(state.balance_bias)
    assert bias.shape == (2, 8)
    np.testing.assert_allclose(bias.mean(axis=1), 0, atol=1e-9)
    assert 0 < np.ptp(bias, axis=1).max() <= 2.01 * training.recipe.loss.balance_bias_rate
    assert metrics[0]["bias_range"] == 0
    counts = jnp.array([[5, 1, 3, 3]])
    np.testing.assert_array_equal(np.sign(update_bias(jnp.zeros((1, 4)), counts, 0.1)), [[-1, 1, 0, 0]])


def test_the_noise_of_a_router_depends_on_seed_and_step(training):
    training = changed(training, {"router": "noisy_topk"})
    again = [steps(training, [TOKENS])[1][0]["loss"] for _ in range(2)]
    assert again[0] == again[1]
    state, _ = steps(training, [TOKENS])
    assert int(state.step) == 1


def test_a_batch_that_would_spoil_the_model_changes_nothing_but_the_count(training):
    # A token beyond the vocabulary has no embedding: what comes of it is not a number.
    spoilt = TOKENS.copy()
    spoilt[0, 3] = 1_000_000
    clean, _ = steps(training, [TOKENS])
    state, metrics = steps(training, [TOKENS, spoilt])
    assert not np.isfinite(metrics[1]["loss"])
    assert (int(state.guard.skipped), int(state.guard.in_a_row), int(state.step)) == (1, 1, 2)
    for name in ("params", "optimizer"):
        jax.tree.map(np.testing.assert_array_equal, getattr(state, name), getattr(clean, name))
    state, _ = steps(training, [TOKENS, spoilt, TOKENS])
    assert (int(state.guard.skipped), int(state.guard.in_a_row)) == (1, 0)


def test_a_spike_is_a_gradient_far_above_the_mean_of_those_before(training):
    guard = make_program(training, one_device()).init(0).guard
    config = GuardConfig(spike=5.0)
    one = jnp.float32(1.0)
    for _ in range(30):
        assert guard.accepts(config, one, one)
        guard = guard.after(jnp.bool_(True), one)
    assert guard.accepts(config, one, jnp.float32(4.9))
    assert not guard.accepts(config, one, jnp.float32(5.1))
    assert guard.accepts(GuardConfig(), one, jnp.float32(1e9))


def test_the_average_follows_the_parameters(training):
    state, _ = steps(changed(training, average_decay=0.75), [TOKENS])
    start = make_program(training, one_device()).init(0).params
    jax.tree.map(
        lambda average, old, new: np.testing.assert_allclose(average, 0.75 * old + 0.25 * new, atol=1e-6),
        state.average,
        start,
        state.params,
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"microbatches": 3}, "every part gets as many"),
        ({"average_decay": 1.0}, "average_decay is 1.0"),
        ({"guard": GuardConfig(spike=0.5)}, "multiple above 1"),
        ({"guard": GuardConfig(patience=0)}, "at least 1 step"),
    ],
)
def test_an_impossible_choice_is_refused(training, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        changed(training, **change).check()
