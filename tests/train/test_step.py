"""One step: the same however a batch is cut, and not taken where it would spoil the model."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from moejax.model.loss import LossWeights
from moejax.routing.routers import update_bias
from moejax.sharding import MESH_AXES
from moejax.train.optimizer import GuardConfig
from moejax.train.program import make_program, vmap_program
from moejax.train.training import phases

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
            state, metrics = program.step(state, batch, phases(training)[0].schedule)
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
@pytest.mark.matrix(1)
def test_microbatches_change_neither_the_losses_nor_the_update(training, batch, weights):
    """MaxText #1483."""
    bias = {"router": "sigmoid_topk", "expert_bias": True, "num_mtp_layers": 2 * isinstance(batch, dict)}
    data = {"packing": "documents"} if isinstance(batch, dict) else None
    whole = changed(training, bias, data, loss=weights)
    (one, of_one), (four, of_four) = (steps(changed(whole, microbatches=parts), [batch]) for parts in (1, 4))
    for name, value in of_one[0].items():
        np.testing.assert_allclose(of_four[0][name], value, rtol=2e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(one.expert_bias, four.expert_bias)
    # Adam's first step is a sign; its moments are the gradients themselves.
    for a, b in zip(jax.tree.leaves(one.optimizer), jax.tree.leaves(four.optimizer), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-4)


def with_previous_loads(training, parts=1, **recipe):
    weights = LossWeights(balance=0.5, router_z=0.3, balance_loads="previous_step")
    return changed(training, loss=weights, microbatches=parts, **recipe)


def shares(training, state, batch):
    """Each expert's share of a batch's assignments, under the parameters of a state."""
    mesh = one_device()
    program = make_program(training, mesh)
    with jax.set_mesh(mesh):
        _, sums = program.evaluate(state.params, None, {"tokens": batch}, np.ones(8, bool))
    return np.asarray(sums.counts / sums.counts.sum(-1, keepdims=True))


@pytest.mark.slow
def test_with_the_previous_steps_loads_any_number_of_microbatches_gives_the_same_two_steps(training):
    found = {parts: steps(with_previous_loads(training, parts), [TOKENS, TOKENS[::-1]]) for parts in (1, 2, 4)}
    one, of_one = found[1]
    for parts in (2, 4):
        state, metrics = found[parts]
        for ours, theirs in zip(metrics, of_one, strict=True):
            assert ours.keys() == theirs.keys()
            for name, value in theirs.items():
                np.testing.assert_allclose(ours[name], value, rtol=2e-4, atol=1e-5, err_msg=f"{parts}: {name}")
        np.testing.assert_allclose(state.balance_loads, one.balance_loads, atol=1e-6)
        for a, b in zip(jax.tree.leaves(one.optimizer), jax.tree.leaves(state.optimizer), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.matrix(1)
def test_where_the_previous_loads_are_the_batchs_the_gradient_is_that_of_the_exact_loss(training, parts):
    """Adam's moments after one step are the gradients themselves."""
    lagging = with_previous_loads(training, parts)
    exact = changed(lagging, loss=dataclasses.replace(lagging.recipe.loss, balance_loads="batch"))
    mesh, moments = one_device(), {}
    loads = shares(training, make_program(lagging, mesh).init(0), TOKENS)
    assert np.ptp(loads) > 0.05
    uniform = np.full_like(loads, 1 / 8)
    for name, one, start in [("exact", exact, None), ("equal", lagging, loads), ("uniform", lagging, uniform)]:
        program = make_program(one, mesh)
        with jax.set_mesh(mesh):
            state = dataclasses.replace(program.init(0), balance_loads=start)
            moments[name] = jax.tree.leaves(
                program.step(state, {"tokens": TOKENS}, phases(one)[0].schedule)[0].optimizer
            )
    for a, b in zip(moments["equal"], moments["exact"], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7, rtol=1e-4)
    assert any(not np.allclose(a, b, atol=1e-6) for a, b in zip(moments["uniform"], moments["exact"], strict=True))


@pytest.mark.slow
def test_loads_are_uniform_at_first_then_those_of_the_last_step_that_was_taken(training):
    training = with_previous_loads(training)
    start = make_program(training, one_device()).init(0)
    np.testing.assert_array_equal(start.balance_loads, np.full((2, 8), 1 / 8, np.float32))
    spoilt = TOKENS.copy()
    spoilt[0, 3] = 1_000_000
    for batches in ([TOKENS], [TOKENS, spoilt]):
        state, _ = steps(training, batches)
        np.testing.assert_allclose(state.balance_loads, shares(training, start, TOKENS), atol=1e-7)
    assert int(state.guard.skipped) == 1
    dense = {"num_experts": 0, "top_k": 0, "num_shared_experts": 0, "expert_hidden": 0, "dense_hidden": 32}
    for without in (changed(training, loss=LossWeights()), changed(training, dense)):
        assert make_program(without, one_device()).abstract.balance_loads is None


def test_an_expert_bias_takes_the_place_of_the_balance_loss_unless_a_config_gives_both(training):
    biased = {"expert_bias": True}
    assert training.recipe.loss.balance == 0.01
    default = changed(training, biased, loss=LossWeights())
    assert (default.recipe.loss.balance, default.as_json()["recipe"]["loss"]["balance"]) == (0.0, 0.0)
    assert changed(training, biased, loss=LossWeights(balance=0.01)).recipe.loss.balance == 0.01


@pytest.mark.slow
def test_the_previous_steps_loads_save_the_pass_that_counts_those_of_the_batch(training):
    def flops(**weights):
        program = make_program(changed(training, loss=LossWeights(**weights), microbatches=4), one_device())
        return program.compiled_step().cost_analysis()["flops"]

    none = flops(balance=0.0)
    assert flops(balance_loads="previous_step") == pytest.approx(none, rel=0.02)
    assert flops(balance_loads="batch") > 1.1 * none


@pytest.mark.slow
def test_side_by_side_each_training_has_its_own_loads(training):
    training, mesh = with_previous_loads(training, 2), one_device()
    program = make_program(training, mesh)
    batches = [TOKENS, TOKENS[:, ::-1].copy()]
    with jax.set_mesh(mesh):
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(program.init(seed) for seed in (0, 1)))
        schedule = jax.tree.map(lambda leaf: jnp.stack([jnp.float32(leaf)] * 2), phases(training)[0].schedule)
        both, _ = vmap_program(program, 2).step(both, {"tokens": np.stack(batches)}, schedule)
    for number, batch in enumerate(batches):
        alone, _ = steps(training, [batch], seed=number)
        np.testing.assert_allclose(both.balance_loads[number], alone.balance_loads, atol=1e-6)


@pytest.mark.slow
def test_an_evaluation_in_microbatches_is_that_of_the_batch_and_needs_no_more_memory_than_a_step(training):
    training = changed(training, {"model_dim": 64})
    mesh, real, found, working = one_device(), np.arange(8) != 5, {}, {}
    for parts in (1, 4):
        program = make_program(changed(training, microbatches=parts), mesh)
        with jax.set_mesh(mesh):
            evaluation = program.lowered_evaluation().compile()
            found[parts] = evaluation(program.init(0).params, None, {"tokens": TOKENS}, real)
            compiled = evaluation, program.compiled_step()
            working[parts] = [one.memory_analysis().temp_size_in_bytes for one in compiled]
    for whole, cut in zip(jax.tree.leaves(found[1]), jax.tree.leaves(found[4]), strict=True):
        np.testing.assert_allclose(cut, whole, rtol=2e-5)
    assert working[4][0] < 0.5 * working[1][0]
    assert working[4][0] <= working[4][1]


@pytest.mark.parametrize("change", [{"capacity_factor": 1.0}, {"router": "expert_choice"}])
@pytest.mark.matrix(1)
def test_a_measured_loss_does_not_depend_on_microbatches_where_tokens_share_the_room_of_experts(training, change):
    found = []
    for parts in (1, 4):
        program = make_program(changed(training, change, microbatches=parts), one_device())
        with jax.set_mesh(one_device()):
            params = jax.tree.map(lambda leaf: 3 * leaf, program.init(0).params)
            found.append(np.asarray(program.evaluate(params, None, {"tokens": TOKENS}, np.ones(8, bool))[0]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


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


def test_the_expert_bias_moves_once_a_step_against_the_loads_and_outside_the_optimizer(training):
    training = changed(training, {"router": "sigmoid_topk", "expert_bias": True})
    state, metrics = steps(training, [TOKENS])
    bias = np.asarray(state.expert_bias)
    assert bias.shape == (2, 8)
    np.testing.assert_allclose(bias.mean(axis=1), 0, atol=1e-9)
    assert 0 < np.ptp(bias, axis=1).max() <= 2.01 * training.recipe.loss.expert_bias_rate
    assert metrics[0]["bias_range"] == 0
    counts = jnp.array([[5, 1, 3, 3]])
    np.testing.assert_array_equal(np.sign(update_bias(jnp.zeros((1, 4)), counts, 0.1)), [[-1, 1, 0, 0]])


@pytest.mark.slow
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
    state, _ = steps(changed(training, ema_decay=0.75), [TOKENS])
    start = make_program(training, one_device()).init(0).params
    jax.tree.map(
        lambda ema, old, new: np.testing.assert_allclose(ema, 0.75 * old + 0.25 * new, atol=1e-6),
        state.ema,
        start,
        state.params,
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"microbatches": 3}, "all microbatches must have equally many"),
        ({"architecture": {"num_mtp_layers": 32}}, "the token 33 positions ahead, beyond the end"),
        ({"architecture": {"num_mtp_layers": -1}}, "num_mtp_layers is -1"),
        ({"loss": LossWeights(mtp=-0.1)}, "loss.mtp is -0.1"),
        ({"ema_decay": 1.0}, "ema_decay is 1.0"),
        ({"loss": LossWeights(balance_loads="steps")}, "is 'steps'; choose from batch, previous_step"),
        ({"guard": GuardConfig(spike=0.5)}, "it must be above 1"),
        ({"guard": GuardConfig(patience=0)}, "patience is 0; give a whole number from 1"),
    ],
)
def test_an_impossible_choice_is_refused(training, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        changed(training, **change).check()
