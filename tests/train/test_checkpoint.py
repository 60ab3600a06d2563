"""Checkpoints: restored on any mesh, never half, and a damaged one is passed over."""

import contextlib
import dataclasses
import errno
import gc
import math
import os
import shutil
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from jax.errors import JaxRuntimeError
from jax.sharding import AxisType

from moejax.errors import CoordinatedError, UserError
from moejax.sharding import MESH_AXES
from moejax.train.directory import checkpoint, manifest
from moejax.train.directory.checkpoint import CheckpointManager, NotRestored
from moejax.train.directory.manifest import COMMITTED, damage, finished_steps, read_hashes, verify, write_hashes
from moejax.train.processes import ProcessGroup
from moejax.train.program import make_program
from moejax.train.stopping import Stopped

MESHES = {
    "one device": (1, 1, 1, 1),
    "data": (8, 1, 1, 1),
    "fsdp, tensor": (1, 4, 1, 2),
    "data, fsdp, expert": (2, 2, 2, 1),
    "expert, tensor": (1, 1, 4, 2),
}
METADATA = {"seconds": 1.5}


def program(training, sizes):
    devices = jax.devices()[: int(np.prod(sizes))]
    return make_program(training, jax.make_mesh(sizes, MESH_AXES, (AxisType.Auto,) * 4, devices=devices))


@pytest.fixture
def full(training):
    """With everything that a state can hold."""
    architecture = training.architecture.replace(expert_bias=True)
    loss = dataclasses.replace(training.recipe.loss, balance_loads="previous_step")
    recipe = dataclasses.replace(training.recipe, ema_decay=0.9, loss=loss)
    return dataclasses.replace(training, architecture=architecture, recipe=recipe)


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    return tmp_path_factory.mktemp("saved") / "trunk"


@pytest.fixture
def saved(full, tmp_path, saved_once):
    """Checkpoints of steps 1 to 3; only the last two are kept. A copy for each test."""
    if not saved_once.exists():
        state = program(full, MESHES["one device"]).init(0)
        with CheckpointManager(saved_once) as saves:
            for step in (1, 2, 3):
                saves.save(step, dataclasses.replace(state, step=np.int32(step)), METADATA)
    return shutil.copytree(saved_once, tmp_path / "trunk")


@pytest.mark.parametrize("written_on", MESHES)
@pytest.mark.matrix(1)
def test_what_any_mesh_saves_every_mesh_restores(full, tmp_path, written_on):
    """orbax #646, #648, #657, #986, #2473."""
    state = program(full, MESHES[written_on]).init(7)
    expected = jax.tree.map(np.asarray, state)
    with CheckpointManager(tmp_path) as saves:
        saves.save(3, state, METADATA)
        for sizes in MESHES.values():
            here = program(full, sizes)
            found, metadata = saves.restore(3, here)
            assert metadata == METADATA
            assert jax.tree.map(lambda leaf: leaf.sharding, found) == here.shardings
            for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_the_newest_are_kept_those_asked_for_and_every_so_many(full, tmp_path):
    state = program(full, MESHES["one device"]).init(0)
    with CheckpointManager(tmp_path, newest=2, keep=[2], every=3) as saves:
        for step in range(1, 9):
            saves.save(step, state, METADATA)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [2, 3, 6, 7, 8]


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def truncate(folder):
    path = largest(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(folder):
    """The right size, with other content."""
    path = largest(folder)
    path.write_bytes(bytes(path.stat().st_size))


def remove(folder):
    largest(folder).unlink()


def spoil_the_metadata(folder):
    (folder / "metadata" / "metadata").write_text("{")


def move(folder):
    """A copy of another step, whole and of this training."""
    path = folder / "metadata" / "metadata"
    path.write_text(path.read_text().replace("}", ', "phase": "trunk", "step": 1}'))


DAMAGES = {
    "bytes missing": truncate,
    "other content": zero,
    "a file missing": remove,
    "torn metadata": spoil_the_metadata,
    "a copy of another step": move,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_not_restored_and_a_verification_names_it(full, saved, how):
    here = program(full, MESHES["one device"])
    DAMAGES[how](saved / "3")
    assert damage(saved / "3") is not None
    with CheckpointManager(saved) as saves:
        with pytest.raises(NotRestored, match=r"The checkpoint of step 3 in .*trunk cannot be restored \(.*\)\.$"):
            saves.restore(3, here)
        state, _ = saves.restore(2, here)
        assert int(state.step) == 2
        # It makes room for a new one of its step, and the copies of earlier ones are removed.
        (saved.parent / "damaged" / "trunk-2").mkdir(parents=True)
        for _ in range(2):
            assert saves.set_aside(3) == str(saved.parent / "damaged" / "trunk-3")
            assert [path.name for path in (saved.parent / "damaged").iterdir()] == ["trunk-3"]
            saves.save(3, state, METADATA)
            assert saves.steps() == [2, 3]
    # Reads that Orbax did not wait for fail as they are collected.
    gc.collect()


def test_a_state_that_is_not_finite_is_not_restored(full, tmp_path):
    """The guard would skip every step, call it a divergence, and save that over what is whole."""
    here = program(full, MESHES["one device"])
    state = here.init(0)
    broken = dataclasses.replace(state, params=jax.tree.map(lambda leaf: leaf.at[..., 0].set(jnp.nan), state.params))
    with CheckpointManager(tmp_path) as saves:
        saves.save(1, broken, METADATA)
        with pytest.raises(NotRestored, match="its state has non-finite values"):
            saves.restore(1, here)


class Two(ProcessGroup):
    """The first of two processes, of which the other could not restore its part."""

    def __init__(self, other):
        super().__init__()
        self.count, self.other, self.waits = 2, other, []

    def all_gather(self, value, *, wait_seconds=None):
        self.waits.append(wait_seconds)
        return [value, self.other]


@pytest.mark.parametrize(
    ("other", "error", "sentence"),
    [
        (["Orbax says: it is torn", "", "damaged"], NotRestored, "it is torn"),
        (
            ["trunk/3: Input/output error", "", "unreadable"],
            CoordinatedError,
            "read now .*output error.*was moved",
        ),
        # It may not see the file yet.
        (
            ["trunk/3/metadata is not there", "", "missing"],
            CoordinatedError,
            "read now .*is not there.*was moved",
        ),
        (
            [None, "seed has no array in it", "damaged"],
            CoordinatedError,
            "does not match this training run's state.*seed has no array in it",
        ),
    ],
)
def test_what_one_of_several_processes_cannot_restore_none_of_them_uses(full, saved, other, error, sentence):
    """However long one of them reads."""
    with CheckpointManager(saved) as saves:
        saves._group = group = Two(other)
        with pytest.raises(error, match=sentence):
            saves.restore(3, program(full, MESHES["one device"]))
    assert group.waits == [checkpoint.WRITING_SECONDS]


def test_a_checkpoint_that_only_the_main_process_does_not_see_is_not_taken_for_damaged(full, saved):
    """After a move to other machines each may have an older view of a shared folder."""
    (saved / "3" / "metadata" / "metadata").unlink()
    with CheckpointManager(saved) as saves:
        for other, error in ((None, CoordinatedError), ("trunk/3/metadata is not there", NotRestored)):
            saves._group = Two([other, "", "missing" if other else "damaged"])
            with pytest.raises(error):
                saves.restore(3, program(full, MESHES["one device"]))


def test_a_checkpoint_that_the_system_cannot_read_now_is_not_taken_for_damaged(full, saved):
    here, path = program(full, MESHES["one device"]), saved / "3" / "metadata" / "metadata"
    path.rename(saved.parent / "away")
    # Reading fails as from a disk or mount with errors: the file is there.
    path.symlink_to(path.name)
    with CheckpointManager(saved) as saves:
        with pytest.raises(CoordinatedError, match=r"cannot be read now .*nothing was moved"):
            saves.restore(3, here)
        path.unlink()
        (saved.parent / "away").rename(path)
        saves.restore(3, here)


@pytest.mark.parametrize(("target", "unreadable"), [("array", True), ("missing/array", False)])
def test_an_error_of_the_system_is_known_from_the_words_of_tensorstore(tmp_path, target, unreadable):
    (tmp_path / "array").symlink_to(tmp_path / target)
    files = tensorstore.KvStore.open({"driver": "file", "path": f"{tmp_path}/"}).result()
    try:
        content = files.read("array").result()
        assert (content.state, unreadable) == ("missing", False)
    except ValueError as error:
        orbax = Exception("Encountered error while reading")
        orbax.__cause__ = error
        assert checkpoint._kind(orbax) == ("unreadable" if unreadable else "missing")


def test_without_memory_a_checkpoint_is_not_taken_for_damaged(full, saved, monkeypatch):
    def fail(*words, **named):
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GB")

    monkeypatch.setattr(checkpoint.ocp.StandardCheckpointHandler, "restore", fail)
    with CheckpointManager(saved) as saves, pytest.raises(JaxRuntimeError, match="9 GB"):
        saves.restore(3, program(full, MESHES["one device"]))


@pytest.mark.parametrize(
    ("write", "difference"),
    [
        (
            lambda state: dataclasses.replace(state, balance_loads=None),
            "balance_loads has no array in the checkpoint and shape",
        ),
        (
            lambda state: dataclasses.replace(state, seed=np.zeros(3, np.uint32)),
            r"seed has shape \(3,\) in the checkpoint",
        ),
    ],
    ids=["without loads", "another shape"],
)
def test_a_checkpoint_of_another_state_is_a_sentence_with_a_remedy(full, tmp_path, write, difference):
    here = program(full, MESHES["one device"])
    sentence = f"step 1 in .*{difference}.*another --out"
    with CheckpointManager(tmp_path) as saves:
        saves.save(1, write(here.init(0)), METADATA)
        with pytest.raises(UserError, match=sentence) as raised:
            saves.restore(1, here)
    assert "\n" not in str(raised.value)


def test_what_orbax_has_not_committed_does_not_count_and_is_removed(saved):
    shutil.copytree(saved / "3", saved / "4")
    # A mounted bucket renames file by file.
    (saved / "4.orbax-checkpoint-tmp").mkdir()
    (saved / "8" / "state").mkdir(parents=True)
    assert finished_steps(saved) == [2, 3]
    with CheckpointManager(saved) as saves:
        assert saves.steps() == [2, 3]
        assert saves.steps(at_most=2) == [2]
    assert not {"4", "8"} & {path.name for path in saved.iterdir()}


def test_a_checkpoint_that_lost_the_file_of_its_commit_is_kept(full, saved):
    """Its hashes were written after the commit, and its state is whole."""
    (saved / "3" / COMMITTED).unlink()
    with CheckpointManager(saved) as saves:
        assert saves.steps() == [2, 3]
        saves.restore(3, program(full, MESHES["one device"]))
    assert COMMITTED in damage(saved / "3")


def save_and_stop(folder, state, steps):
    """As a training does that is asked to stop."""
    with contextlib.suppress(Stopped), CheckpointManager(folder, newest=2) as saves:
        for step in steps:
            saves.save(step, state, METADATA)
        saves.wait()
        raise Stopped(15)


def test_neither_a_stop_nor_the_next_save_waits_for_hashes(full, tmp_path, monkeypatch):
    """Hashing takes for ever, until it is asked to stop."""

    def wait(path, read):
        while True:
            read(1)
            time.sleep(0.001)

    state = program(full, MESHES["one device"]).init(0)
    monkeypatch.setattr(manifest, "sha256", wait)
    save_and_stop(tmp_path, state, range(1, 4))
    monkeypatch.undo()
    assert finished_steps(tmp_path) == [2, 3]
    assert read_hashes(tmp_path / "3") == {}
    # What has no hash is used.
    with CheckpointManager(tmp_path) as saves:
        saves.restore(3, program(full, MESHES["one device"]))


def test_each_process_records_what_it_wrote_and_the_first_the_rest(saved):
    place = saved / "3"
    (place / "state" / "ocdbt.process_1").mkdir()
    (place / "state" / "ocdbt.process_1" / "data").write_bytes(b"1")
    (place / "manifest-0.json").unlink()
    write_hashes(place, 0, 2, threading.Event())
    assert "state/ocdbt.process_1/data" not in read_hashes(place)
    write_hashes(place, 1, 2, threading.Event())
    files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert read_hashes(place).keys() == files - {"manifest-0.json", "manifest-1.json"}
    assert damage(place) is None


def training_of(saved):
    return shutil.copytree(saved, saved.parent / "training" / "checkpoints" / "trunk").parents[1]


def test_a_checkpoint_that_is_removed_while_it_is_verified_is_left_out(saved, monkeypatch):
    """Retention of the training that runs."""
    folder, plain = training_of(saved), manifest.sha256
    place = folder / "checkpoints" / "trunk" / "2"

    def remove(path, read):
        if path.is_relative_to(place):
            shutil.rmtree(place, ignore_errors=True)
        return plain(path, read)

    monkeypatch.setattr(manifest, "sha256", remove)
    found = verify(folder)
    assert (found.checkpoints, found.damaged, found.unreadable) == (1, (), ())


def test_what_cannot_be_verified_now_is_named_apart_from_what_is_damaged(saved, monkeypatch):
    folder, plain = training_of(saved), Path.open

    def fail(path, *words, **named):
        if path.name == "manifest.ocdbt" and "3" in path.parts:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return plain(path, *words, **named)

    monkeypatch.setattr(Path, "open", fail)
    found = verify(folder)
    (text,) = found.unreadable
    assert "trunk/3: " in text
    assert os.strerror(errno.EIO) in text
    assert (found.checkpoints, found.damaged) == (2, ())


@pytest.mark.parametrize("lost", [False, True])
def test_what_cannot_be_written_is_a_sentence_unless_the_other_processes_are_lost(full, saved, monkeypatch, lost):
    error = OSError(28, "No space left on device")
    if lost:
        error = TimeoutError("Timed out")
        error.__cause__ = JaxRuntimeError("UNAVAILABLE: gone")

    def fail(*words, **named):
        raise error

    with CheckpointManager(saved) as saves:
        monkeypatch.setattr(saves._manager, "save", fail)
        expected = r"cannot be written .*No space left on device.*complete\. Free disk space"
        with pytest.raises(JaxRuntimeError if lost else UserError, match="UNAVAILABLE" if lost else expected):
            saves.save(4, program(full, MESHES["one device"]).init(0), METADATA)


def test_of_checkpoints_the_newest_are_kept_and_those_up_to_the_one_that_is_saved():
    kept = checkpoint._Kept(2, frozenset({5}), 4, 1, {5: 2.0, 7: 1.0, 9: math.nan})
    kept.saved = 12
    assert kept.of([4, 5, 6, 7, 9, 10, 11, 12]) == {4, 5, 7, 11, 12}
    # Of steps that are taken once more, while later ones are there.
    kept.saved = 3
    assert kept.of([1, 2, 3, 5, 7, 11, 12]) == {2, 3, 5, 7, 11, 12}
    assert checkpoint._Kept(1, frozenset(), 0, 2, {1: 3.0, 2: 2.0, 3: 2.0, 4: 9.0}, saved=4).of([1, 2, 3, 4]) == {
        2,
        3,
        4,
    }


def test_the_best_are_known_after_a_restart(full, tmp_path):
    state = program(full, MESHES["one device"]).init(0)
    with CheckpointManager(tmp_path, newest=1, best=1) as saves:
        for step, loss in ((1, 2.0), (2, 3.0)):
            saves.save(step, state, {**METADATA, "validation_loss": loss})
    with CheckpointManager(tmp_path, newest=1, best=1) as saves:
        saves.save(3, state, {**METADATA, "validation_loss": 4.0})
    assert finished_steps(tmp_path) == [1, 3]
