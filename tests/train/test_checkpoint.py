"""Checkpoints: restored on any mesh, never half, and a damaged one is passed over."""

import dataclasses
import re
import shutil

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from moejax.model.sharding import MESH_AXES
from moejax.train import checkpoint
from moejax.train.checkpoint import Checkpoints
from moejax.train.manifest import MANIFEST
from moejax.train.program import make_program

MESHES = {
    "one device": (1, 1, 1, 1),
    "data": (8, 1, 1, 1),
    "fsdp, tensor": (1, 4, 1, 2),
    "data, fsdp, expert": (2, 2, 2, 1),
    "expert, tensor": (1, 1, 4, 2),
}
ABOUT = {"next_batch": 3, "seconds": 1.5}


def program(training, sizes):
    devices = jax.devices()[: int(np.prod(sizes))]
    return make_program(training, jax.make_mesh(sizes, MESH_AXES, (AxisType.Auto,) * 4, devices=devices))


@pytest.fixture
def full(training):
    """With everything that a state can hold."""
    architecture = training.architecture.replace(balance_bias=True)
    recipe = dataclasses.replace(training.recipe, average_decay=0.9)
    return dataclasses.replace(training, architecture=architecture, recipe=recipe)


@pytest.fixture
def saved(full, tmp_path):
    """Checkpoints of steps 1 to 3; only the last two are kept."""
    state = program(full, MESHES["one device"]).init(0)
    with Checkpoints(tmp_path / "trunk") as saves:
        for step in (1, 2, 3):
            saves.save(step, dataclasses.replace(state, step=np.int32(step)), ABOUT)
    return tmp_path / "trunk"


@pytest.mark.parametrize("written_on", MESHES)
def test_what_any_mesh_saves_every_mesh_restores(full, tmp_path, written_on):
    """orbax #646, #648, #657, #986, #2473."""
    state = program(full, MESHES[written_on]).init(7)
    expected = jax.tree.map(np.asarray, state)
    with Checkpoints(tmp_path) as saves:
        saves.save(3, state, ABOUT)
        for sizes in MESHES.values():
            here = program(full, sizes)
            found, about = saves.restore(3, here)
            assert about == ABOUT
            assert jax.tree.map(lambda leaf: leaf.sharding, found) == here.shardings
            for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_the_newest_are_kept_those_asked_for_and_every_so_many(full, tmp_path):
    state = program(full, MESHES["one device"]).init(0)
    with Checkpoints(tmp_path, newest=2, keep=[2], every=3) as saves:
        for step in range(1, 9):
            saves.save(step, state, ABOUT)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [2, 3, 6, 7, 8]


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def truncate(folder):
    path = largest(folder)
    path.write_bytes(path.read_bytes()[:-7])


def turn_a_bit(folder):
    path = largest(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove(folder):
    largest(folder).unlink()


def tear_the_manifest(folder):
    (folder / MANIFEST).write_text((folder / MANIFEST).read_text()[:50])


DAMAGES = {
    "bytes missing": (truncate, r"has [\d,]+ of [\d,]+ bytes"),
    "a bit turned": (turn_a_bit, "has other content than was written"),
    "a file missing": (remove, "is not there"),
    "a torn manifest": (tear_the_manifest, "it cannot be read"),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(full, saved, how):
    harm, words = DAMAGES[how]
    harm(saved / "3")
    said = []
    with Checkpoints(saved, say=said.append) as saves:
        assert saves.newest() == 2
        state, _ = saves.restore(2, program(full, MESHES["one device"]))
        assert int(state.step) == 2
        # It makes room for a new one of its step.
        saves.save(3, state, ABOUT)
    (sentence,) = said
    assert "The checkpoint of step 3" in sentence
    assert "Going on from step 2" in sentence
    assert re.search(words, sentence)
    assert (saved.parent / "damaged" / "trunk-3").is_dir()
    with Checkpoints(saved) as saves:
        assert saves.newest() == 3


def test_when_all_are_damaged_nothing_is_trained_over_them(saved):
    for step in saved.iterdir():
        turn_a_bit(step)
    with Checkpoints(saved) as saves, pytest.raises(ValueError, match=r"There is none before it; bring back a copy"):
        saves.newest()


def test_one_without_a_manifest_was_never_finished(saved):
    (saved / "3" / MANIFEST).unlink()
    with Checkpoints(saved) as saves:
        assert saves.newest() == 2
    assert not (saved / "3").exists()


def test_the_newest_before_a_step(saved):
    with Checkpoints(saved) as saves:
        assert saves.newest(at_most=2) == 2
        assert saves.newest(at_most=1) is None


def test_a_disk_that_fills_up_is_a_sentence_and_leaves_what_was_saved(full, saved, monkeypatch):
    state = program(full, MESHES["one device"]).init(0)

    def full_disk(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_manifest", full_disk)
    with Checkpoints(saved) as saves:
        saves.save(4, state, ABOUT)
        with pytest.raises(ValueError, match=r"cannot be written .*No space left on device.*whole: make room"):
            saves.save(5, state, ABOUT)
    monkeypatch.undo()
    with Checkpoints(saved) as saves:
        assert saves.newest() == 3


def test_a_folder_without_checkpoints_has_none(tmp_path):
    shutil.rmtree(tmp_path)
    with Checkpoints(tmp_path / "new") as saves:
        assert saves.newest() is None
