"""A training's checkpoint becomes a folder of weights: the very parameters, whatever mesh wrote them."""

import dataclasses
import json
import shutil
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from small_model import SMALL
from tokenizers import Tokenizer, models, processors

from moejax.config import dump
from moejax.data.config import WeightedSource
from moejax.data.prepared import MANIFEST, CorruptRecords, Manifest, SplitTotals, TokenizerName
from moejax.errors import UserError
from moejax.sharding import MESH_AXES
from moejax.stored import write_json
from moejax.train.batch_schedule import RampStage
from moejax.train.directory.manifest import write_hashes
from moejax.train.directory.saved_weights import SavedState, find_saved_state, is_training, write_saved_weights
from moejax.train.loop import train
from moejax.weights.folder import EXPERT_BIAS, load_weights, nested, parameters

ARCHITECTURE = SMALL.replace(
    vocab_size=6,
    model_dim=8,
    num_layers=3,
    head_dim=4,
    num_experts=8,
    expert_hidden=4,
    num_dense_layers=1,
    dense_hidden=6,
    router="sigmoid_topk",
    expert_bias=True,
)
SHARDED = {"moe_layers.feed_forward.gate_up": ("data", "expert", None, "fsdp"), "embedding": (None, "fsdp")}


def write(folder, training, steps):
    """A training's folder with checkpoints as Orbax saves a state; parameters are numbered by step."""
    (folder / "checkpoints").mkdir(parents=True)
    write_json(folder / "training.json", training.as_json())
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(1, 4, 2, 1), MESH_AXES)
    for phase, step in steps:
        random = np.random.default_rng(step)
        arrays = {}
        for name, parameter in parameters(training.architecture).items():
            array = random.normal(size=parameter.shape).astype(np.float32)
            axes = SHARDED.get(name, ())
            sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
            arrays[name] = jax.device_put(array, sharding)
        bias = arrays.pop(EXPERT_BIAS, None)
        state = {"step": jnp.asarray(step), "params": nested(arrays), "expert_bias": bias}
        with ocp.CheckpointManager((folder / "checkpoints" / phase).resolve()) as manager:
            metadata = ocp.args.JsonSave({"training": training.as_json(), "phase": phase, "step": step, "seconds": 1.0})
            items = {"state": ocp.args.StandardSave(state), "metadata": metadata}
            manager.save(step, args=ocp.args.Composite(**items))
    return folder


@pytest.fixture
def two_branches(training, tmp_path):
    phases = [("trunk", 4), ("branch-2048", 8), ("branch-4096", 12), ("branch-4096", 16)]
    return write(tmp_path / "run", training, phases)


def test_the_end_of_a_budget_has_its_row_and_other_checkpoints_have_none(two_branches):
    row = {"model": "tiny", "tokens": 4096, "loss": 3.5, "fingerprint": "f"}
    write_json(two_branches / "branch-4096.json", row)
    assert find_saved_state(two_branches, verify=False).row == row
    places = [two_branches / "checkpoints" / place for place in ("branch-4096/12", "branch-2048", "trunk")]
    assert [find_saved_state(place, verify=False).row for place in places] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("at", "is_before"), [("2000-01-01T00:00:00+00:00", True), ("2999-01-01T00:00:00+00:00", False)]
)
def test_a_checkpoint_has_its_own_settings_and_the_changes_before_it(two_branches, training, at, is_before):
    path, budgets = "recipe.optimizer.learning_rate", "recipe.budgets_tokens"
    history = [{path: [0.03, 0.02], budgets: [[2048], [2048, 4096]]}, {path: [0.02, 0.01], "recipe.mesh.data": [1, 2]}]
    write_json(two_branches / "history.json", [{"at": at, "changes": changes} for changes in history])
    optimizer = dataclasses.replace(training.recipe.optimizer, learning_rate=0.5)
    now = dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, optimizer=optimizer))
    write_json(two_branches / "training.json", now.as_json())
    found = find_saved_state(two_branches)
    assert found.training == now
    assert found.trained_with == training
    assert found.changes == ({path: [0.03, 0.02, 0.01]} if is_before else {})


def test_parameters_are_those_of_the_checkpoint_to_the_bit_whatever_the_mesh(training, tmp_path):
    training = dataclasses.replace(training, architecture=ARCHITECTURE)
    folder = write(tmp_path / "run", training, [("branch-4096", 16)])
    write_saved_weights(find_saved_state(folder), tmp_path / "weights")
    found = load_weights(tmp_path / "weights")
    random = np.random.default_rng(16)
    expected = {
        name: random.normal(size=parameter.shape).astype(np.float32)
        for name, parameter in parameters(ARCHITECTURE).items()
    }
    np.testing.assert_array_equal(found.expert_bias, expected.pop(EXPERT_BIAS))
    jax.tree.map(np.testing.assert_array_equal, found.params, nested(expected))
    assert found.architecture == ARCHITECTURE


@pytest.mark.parametrize(
    ("path", "phase", "step"),
    [
        ("", "branch-4096", 16),
        ("checkpoints", "branch-4096", 16),
        ("checkpoints/trunk", "trunk", 4),
        ("checkpoints/branch-2048", "branch-2048", 8),
        ("checkpoints/branch-4096/12", "branch-4096", 12),
        ("checkpoints/branch-4096/12/state", "branch-4096", 12),
    ],
)
def test_a_path_names_a_checkpoint(two_branches, path, phase, step):
    found = find_saved_state(two_branches / path)
    assert (found.phase, found.step) == (phase, step)
    assert found.state.is_dir()


def test_a_checkpoint_with_other_bytes_than_were_recorded_is_refused(training, tmp_path):
    folder = write(tmp_path / "run", training, [("trunk", 4)])
    place = folder / "checkpoints" / "trunk" / "4"
    write_hashes(place, 0, 1, threading.Event())
    assert find_saved_state(folder).step == 4
    part = max(place.glob("state/**/d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(ValueError, match="differs from what was written; resume the training run"):
        find_saved_state(folder)


def test_before_a_branch_is_trained_the_trunk_is_taken(training, tmp_path):
    found = find_saved_state(write(tmp_path / "run", training, [("trunk", 4)]))
    assert (found.phase, found.step) == ("trunk", 4)


def test_what_is_no_training_or_has_no_checkpoint_is_refused(training, tmp_path):
    assert not is_training(tmp_path)
    with pytest.raises(ValueError, match=r"has a training\.json"):
        find_saved_state(tmp_path)
    folder = write(tmp_path / "run", training, [])
    assert is_training(folder)
    with pytest.raises(ValueError, match="has no finished checkpoint"):
        find_saved_state(folder)


def test_a_checkpoint_of_another_architecture_is_refused(two_branches, training, tmp_path):
    settings = training.as_json()
    settings["architecture"]["qk_norm"] = True
    write_json(two_branches / "training.json", settings)
    with pytest.raises(ValueError, match=r"architecture.qk_norm was False, is True"):
        find_saved_state(two_branches)
    other = dataclasses.replace(training, architecture=training.architecture.replace(qk_norm=True))
    with pytest.raises(ValueError, match=r"has no array params\..*_norm"):
        write_saved_weights(SavedState(other, two_branches, "branch-4096", 16), tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


def prepare_tokens(folder):
    """A prepared set without tokens, whose tokenizer has a template of its own."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    name, none = TokenizerName("tokenizer.json#</s>", "", 4, 3), SplitTotals(0, 0, 0, 0)
    write_json(folder / MANIFEST, dump(Manifest("", "", name, 0.0, none, none, CorruptRecords(0, 0, ()), ())))


FILES = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]


def test_the_tokenizer_of_the_tokens_travels_along_and_opens_texts_as_the_training_did(two_branches, tmp_path):
    prepare_tokens(two_branches / "data")
    assert write_saved_weights(find_saved_state(two_branches), tmp_path / "weights") == FILES
    assert Tokenizer.from_file(str(tmp_path / "weights" / "tokenizer.json")).encode("ab").ids == [3, 0, 1]
    config, generation = (json.loads((tmp_path / "weights" / name).read_text()) for name in FILES[1:])
    assert (config["bos_token"], config["eos_token"]) == ("</s>", "</s>")
    assert generation == {"bos_token_id": 3, "eos_token_id": 3, "pad_token_id": 3}


def test_a_study_has_the_tokenizer_of_its_trainings(two_branches, tmp_path):
    place = tmp_path / "study" / "models" / "small"
    shutil.copytree(two_branches, place)
    assert write_saved_weights(find_saved_state(place), tmp_path / "none") == []
    prepare_tokens(tmp_path / "study" / "data")
    # A folder that happens to lie there is no study's.
    assert write_saved_weights(find_saved_state(place), tmp_path / "no-study") == []
    (tmp_path / "study" / "study.json").write_text("{}")
    assert write_saved_weights(find_saved_state(place), tmp_path / "weights") == FILES


def test_of_a_mixture_the_first_tokenizer_travels_along(training, tmp_path):
    data = dataclasses.replace(
        training.recipe.data, mixture=(WeightedSource(name="web", source="nowhere", weight=1.0),)
    )
    mixed = dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, data=data))
    folder = write(tmp_path / "run", mixed, [("branch-4096", 16)])
    prepare_tokens(folder / "data" / "web")
    assert write_saved_weights(find_saved_state(folder), tmp_path / "weights") == FILES


def test_a_tokenizer_that_is_not_there_any_more_leaves_the_weights(training, tmp_path):
    data = dataclasses.replace(training.recipe.data, tokenizer="nowhere/tokenizer.json")
    moved = dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, data=data))
    folder = write(tmp_path / "run", moved, [("branch-4096", 16)])
    assert write_saved_weights(find_saved_state(folder), tmp_path / "weights") == []


@pytest.mark.slow
def test_orbax_reads_the_same_parameters_and_average_of_a_real_training(training, tmp_path):
    recipe = dataclasses.replace(training.recipe, ema_decay=0.5)
    train(dataclasses.replace(training, recipe=recipe), tmp_path / "run")
    saved = find_saved_state(tmp_path / "run")
    assert (saved.phase, saved.step) == ("branch-4096", 16)
    with warnings.catch_warnings():
        # Orbax says that it takes the mesh from the file.
        warnings.simplefilter("ignore")
        state = ocp.StandardCheckpointer().restore(saved.state.resolve())
    write_saved_weights(saved, tmp_path / "weights")
    jax.tree.map(np.testing.assert_array_equal, load_weights(tmp_path / "weights").params, state["params"])
    write_saved_weights(saved, tmp_path / "mean", ema=True)
    mean = load_weights(tmp_path / "mean").params
    jax.tree.map(np.testing.assert_array_equal, mean, state["ema"])
    assert not np.array_equal(mean["embedding"], state["params"]["embedding"])


def test_a_training_that_keeps_no_average_has_none_to_write(two_branches, tmp_path):
    with pytest.raises(UserError, match="has no moving average of its parameters"):
        write_saved_weights(find_saved_state(two_branches), tmp_path / "mean", ema=True)
    assert not (tmp_path / "mean").exists()


def test_a_checkpoint_has_read_the_tokens_of_its_steps_whatever_their_batch(training, tmp_path):
    recipe, before = training.recipe, SavedState(training, tmp_path, "trunk", 3)
    assert before.tokens == 3 * recipe.batch_tokens
    half = recipe.batch_tokens // 2
    ramp = (RampStage(tokens=4 * half, batch_tokens=half),)
    ramped = dataclasses.replace(training, recipe=dataclasses.replace(recipe, batch_ramp=ramp))
    assert SavedState(ramped, tmp_path, "trunk", 5).tokens == 4 * half + recipe.batch_tokens
