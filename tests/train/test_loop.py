"""Trunk and branches, and a training that is the same however often it is interrupted."""

import dataclasses
import json
import shutil
from hashlib import sha256

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from few_documents import Few
from interrupted import Killed, lasting, logged, on_one_device, train_killed_at_every_log

from moejax.config import build
from moejax.data.shard import is_held_out
from moejax.errors import UserError
from moejax.train import hooks, loop, run, step
from moejax.train.directory import metrics
from moejax.train.directory.row import seconds_until
from moejax.train.loop import train
from moejax.train.mesh import MeshShape, make_mesh
from moejax.train.optimizer import OPTIMIZERS, OptimizerConfig
from moejax.train.program import make_program
from moejax.train.training import InitialWeights, Training, phases


@pytest.fixture
def uninterrupted(training, trained, tmp_path):
    training = on_one_device(training)
    rows, folder = trained(training)
    shutil.copytree(folder, tmp_path / "whole")
    return training, rows, logged(folder)


def test_a_row_tells_what_was_trained(uninterrupted):
    training, rows, log = uninterrupted
    assert [row["tokens"] for row in rows] == [2048, 4096]
    assert rows[1]["loss"] < rows[0]["loss"] < np.log(257)
    assert rows[0]["decay_tokens"] == 768
    assert build(Training, json.loads(rows[0]["config"])) == training
    assert rows[0]["params_active"] < rows[0]["params_total"]
    assert rows[0]["dropped_share"] == 0
    assert rows[0]["params_active_served"] == rows[0]["params_active"]
    assert {line["phase"] for line in log} == {"trunk", "branch-2048", "branch-4096"}
    assert rows[0]["bits_per_byte"] > rows[0]["loss"] / np.log(2)
    # A token for each byte and one for the end, of every document that is not held out.
    kept = [len(one.content) + 1 for one in Few().documents() if not is_held_out(sha256(one.key).digest(), 0.2)]
    assert 20 < len(kept) < 40
    assert [row["unique_tokens"] for row in rows] == [sum(kept)] * 2


@pytest.mark.slow
def test_a_training_killed_at_every_log_ends_the_same(uninterrupted, tmp_path):
    training, rows, log = uninterrupted
    folder = tmp_path / "killed"
    assert lasting(train_killed_at_every_log(training, folder)) == lasting(rows)
    assert logged(folder) == log


def test_without_checkpoint_tokens_a_long_training_is_saved_by_the_time_its_steps_take(
    uninterrupted, tmp_path, monkeypatch
):
    training, rows, log = uninterrupted
    training = dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, checkpoint_tokens=0))
    monkeypatch.setattr(loop, "UNSAVED_SECONDS", 1e-9)
    monkeypatch.setattr(loop, "TIMED_STEPS", 2)

    def kill(steps, values):
        if steps == 9:
            raise Killed

    with pytest.raises(Killed):
        train(training, tmp_path / "timed", progress=kill)
    saved = {int(path.name) for path in (tmp_path / "timed" / "checkpoints" / "trunk").iterdir() if path.name.isdigit()}
    # Where a branch starts, and the newest two.
    assert saved == {5, 7, 8}
    again = train(training, tmp_path / "timed")
    assert [row["loss"] for row in again] == [row["loss"] for row in rows]
    of_log = {(line["phase"], line["step"]): line["loss"] for line in log}
    assert all(line["loss"] == of_log[line["phase"], line["step"]] for line in logged(tmp_path / "timed"))


def test_steps_are_timed_when_they_are_done_and_not_when_they_are_launched(training, tmp_path, monkeypatch):
    """Nothing is logged before, so that no other line waits."""
    training = on_one_device(training)
    recipe = dataclasses.replace(training.recipe, checkpoint_tokens=0, log_every_steps=1000)
    events, wait = [], jax.block_until_ready
    monkeypatch.setattr(loop, "TIMED_STEPS", 2)
    monkeypatch.setattr(jax, "block_until_ready", lambda tree: [events.append("waited"), wait(tree)][1])
    monkeypatch.setattr(loop.Trainer, "steps_unsaved", lambda self, seconds: [events.append("timed"), 1000][1])
    train(dataclasses.replace(training, recipe=recipe), tmp_path / "timed")
    assert events[events.index("timed") - 1] == "waited"


def test_what_a_save_holds_up_is_no_time_of_training(monkeypatch):
    clock = iter([0.0, 10.0, 12.0, 15.0, 20.0]).__next__
    monkeypatch.setattr(hooks.time, "perf_counter", clock)
    watch = hooks.Stopwatch(4, 100.0)
    assert watch.lap(6) == hooks.Elapsed(4, 10.0, 110.0)
    with watch.paused():  # From 12 to 15.
        pass
    assert watch.lap(9) == hooks.Elapsed(6, 7.0, 117.0)


def test_time_in_saves_is_left_out_of_a_rows(training, tmp_path, monkeypatch):
    """Saves are made to last by the clock alone: it jumps by an hour in each."""
    save, late = run.CheckpointManager.save, [0.0]
    monkeypatch.setattr(hooks.time, "perf_counter", lambda clock=hooks.time.perf_counter: clock() + late[0])

    def slow(self, *given):
        save(self, *given)
        late[0] += 3600.0

    monkeypatch.setattr(run.CheckpointManager, "save", slow)
    rows = train(on_one_device(training), tmp_path / "slow")
    assert late[0] >= 3 * 3600
    assert all(row["train_seconds"] < 3600 for row in rows)


def test_a_skipped_step_at_the_end_of_a_branch_is_no_part_of_its_row(training, tmp_path, monkeypatch):
    training, gradient = on_one_device(training), step._batch_gradient
    # Another loss than other tests have, so that no program of theirs is taken.
    loss = dataclasses.replace(training.recipe.loss, router_z=1.23e-3)
    training = dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, loss=loss))
    last = training.recipe.steps(training.recipe.budgets_tokens[-1]) - 1

    def without_the_last(training, state, batch):
        gradients, metrics, *rest = gradient(training, state, batch)
        factor = jnp.where(state.step == last, jnp.nan, 1.0)
        gradients, metrics = jax.tree.map(lambda x: x * factor.astype(x.dtype), (gradients, metrics))
        return gradients, metrics, *rest

    monkeypatch.setattr(step, "_batch_gradient", without_the_last)
    rows = train(training, tmp_path / "skipped")
    lines = [line for line in logged(tmp_path / "skipped") if line["phase"] == "branch-4096"][-3:]
    assert [isinstance(line["loss"], str) for line in lines] == [False, False, True]
    assert rows[-1]["train_loss"] == pytest.approx(np.mean([line["loss"] for line in lines[:2]]))


@pytest.mark.slow
@pytest.mark.parametrize("change", ["muon", "previous_step"])
def test_with_another_optimizer_or_older_loads_too_and_it_goes_on_on_another_mesh(training, trained, tmp_path, change):
    recipe = dataclasses.replace(on_one_device(training).recipe, budgets_tokens=(2048,))
    if change in OPTIMIZERS:
        recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, name=change))
    else:
        recipe = dataclasses.replace(recipe, loss=dataclasses.replace(recipe.loss, balance_loads=change, balance=0.1))
    training = dataclasses.replace(training, recipe=recipe)
    rows, whole = trained(training)
    folder = tmp_path / "killed"
    assert lasting(train_killed_at_every_log(training, folder)) == lasting(rows)
    assert logged(folder) == logged(whole)
    shutil.copytree(whole, tmp_path / "other")
    shutil.rmtree(tmp_path / "other" / "checkpoints" / "branch-2048")
    (tmp_path / "other" / "branch-2048.json").unlink()
    mesh = dataclasses.replace(recipe, mesh=MeshShape(data=2, expert=2, tensor=2))
    (row,) = train(dataclasses.replace(training, recipe=mesh), tmp_path / "other")
    assert row["loss"] == pytest.approx(rows[0]["loss"], abs=1e-4)


def test_finished_rows_are_not_trained_again(uninterrupted, tmp_path, monkeypatch):
    training, rows, _ = uninterrupted
    monkeypatch.setattr("moejax.train.loop.make_program", None)
    assert train(training, tmp_path / "whole") == rows


def test_two_budgets_from_one_trunk_equal_each_budget_by_itself(uninterrupted, tmp_path):
    training, rows, _ = uninterrupted
    for row in rows:
        recipe = dataclasses.replace(training.recipe, budgets_tokens=(row["tokens"],))
        alone = train(dataclasses.replace(training, recipe=recipe), tmp_path / str(row["tokens"]))[0]
        assert alone["loss"] == row["loss"]


def test_the_trunk_is_the_longest_budgets_stable_part(training):
    trunk, branches = phases(training)
    assert (trunk.start, trunk.end) == (0, 10)
    assert [(branch.start, branch.end) for branch in branches] == [(5, 8), (10, 16)]
    assert training.recipe.total_steps == 10 + 3 + 6


def test_out_of_memory_is_a_sentence_with_the_sizes(training, tmp_path, monkeypatch):
    def too_much(*arguments):
        return [jnp.zeros(2**48).block_until_ready()]

    monkeypatch.setattr(loop.Trainer, "initial_state", too_much)
    sizes = r"too little memory.* 1125899906842624 bytes.*parameters and optimizer of .* need [\d.]+ kB on each device"
    with pytest.raises(UserError, match=rf"{sizes}.*recipe\.microbatches"):
        train(on_one_device(training), tmp_path)


def test_a_diverging_training_says_so(training, tmp_path):
    optimizer = dataclasses.replace(training.recipe.optimizer, learning_rate=1e6)
    recipe = dataclasses.replace(on_one_device(training).recipe, optimizer=optimizer)
    with pytest.raises(
        ValueError, match=r"all steps of its trunk were skipped from step 1 to 6.*batches 1 to 5 .*Lower"
    ):
        train(dataclasses.replace(training, recipe=recipe), tmp_path)


@pytest.mark.slow
def test_seconds_of_the_trunk_are_counted_however_rarely_it_is_logged(training, tmp_path):
    recipe = dataclasses.replace(on_one_device(training).recipe, log_every_steps=1000)
    rows = train(dataclasses.replace(training, recipe=recipe), tmp_path)
    trunk = [line for line in metrics.read(tmp_path / "metrics.jsonl") if line["phase"] == "trunk"]
    assert {5, 10} <= {line["step"] for line in trunk}
    assert all(row["train_seconds"] > trunk[0]["seconds"] > 0 for row in rows)


def test_the_validation_set_does_not_depend_on_the_batch(training, tmp_path):
    program = make_program(on_one_device(training), make_mesh(MeshShape(data=8)))
    tokens = np.random.default_rng(0).integers(0, 256, (8, 33)).astype(np.int32)
    params = program.init(0).params
    _, of_all = program.evaluate(params, None, {"tokens": tokens}, np.ones(8, bool))
    _, of_five = program.evaluate(params, None, {"tokens": tokens}, np.arange(8) < 5)
    assert of_all.tokens.tolist() == [256, 256]
    assert of_five.tokens.tolist() == [160, 160]
    assert of_five.counts.sum(axis=1).tolist() == [320, 320]


def test_a_torn_last_line_of_the_log_is_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    line = '{"phase": "trunk", "step": 1, "tokens": 32, "seconds": 2.0, "steps_done": 1, "loss": 5.5}\n'
    path.write_text(line + '{"phase": "trunk", "st')
    assert [line["step"] for line in metrics.read(path)] == [1]
    log = metrics.MetricsLog(path)
    log.rewind("trunk", 1, 0)
    assert path.read_text() == line
    log.rewind("trunk", 0, 0)
    assert path.read_text() == ""


def test_seconds_of_a_step_that_the_log_does_not_reach_are_not_known():
    lines = [{"phase": "trunk", "step": step, "seconds": seconds} for step, seconds in ((4, 2.0), (8, 3.0))]
    assert seconds_until(lines, "trunk", 0) == 0
    assert seconds_until(lines, "trunk", 6) == pytest.approx(2.5)
    assert seconds_until(lines, "trunk", 9) is None
    assert seconds_until(lines, "branch-64", 9, start=8) is None
    assert seconds_until([], "trunk", 0) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch_tokens": 100}, "positive multiple of data.sequence_length, which is 32"),
        ({"budgets_tokens": ()}, "budgets_tokens is empty"),
        ({"budgets_tokens": (4096, 2048)}, "ascending order"),
        ({"budgets_tokens": (300,)}, "shorter than two steps"),
        ({"budgets_tokens": (512,)}, "before the warm-up of 512 tokens"),
        ({"optimizer": OptimizerConfig(decay_share=0.99)}, "or the first step, ends"),
        ({"optimizer": OptimizerConfig(epsilon=0.0)}, "epsilon is 0.0"),
        ({"optimizer": OptimizerConfig(final_share=2.0)}, "final_share is 2.0"),
        ({"log_every_steps": 0}, "log_every_steps is 0; give a whole number from 1"),
        ({"keep_checkpoints": 1}, "keep_checkpoints is 1; give a whole number from 2"),
        ({"keep_every_tokens": 768}, "so make keep_every_tokens a multiple"),
        ({"initial_weights": InitialWeights(noise=0.1)}, "no weights to add noise to"),
    ],
)
def test_an_impossible_recipe_is_refused(training, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, **change)).check()
