"""Checkpoints: restored on any mesh, never half, and a damaged one is passed over."""

import contextlib
import dataclasses
import errno
import gc
import math
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.errors import JaxRuntimeError
from jax.sharding import AxisType

from moejax.errors import CoordinatedError, StartAgain, UserError
from moejax.sharding import MESH_AXES
from moejax.train.directory import checkpoint, manifest
from moejax.train.directory.checkpoint import CheckpointManager, NotRestored
from moejax.train.directory.manifest import damage, part_name, read_manifest
from moejax.train.processes import ProcessGroup
from moejax.train.program import make_program
from moejax.train.step import TrainState
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
    path.write_bytes(path.read_bytes()[:-7])


@pytest.fixture
def overwritten(saved):
    """The newest checkpoint has a file of the right size with other content."""
    path = largest(saved / "3")
    path.write_bytes(bytes(path.stat().st_size))
    yield saved
    gc.collect()


def remove(folder):
    largest(folder).unlink()


def tear_the_manifest(folder):
    (folder / part_name(0)).write_text((folder / part_name(0)).read_text()[:50])


DROPPED = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""Orbax drops the reads that it does not wait for, and each fails again as it is collected."""

DAMAGES = {
    "bytes missing": (truncate, r"has [\d,]+ of [\d,]+ bytes"),
    "a file missing": (remove, "is not there"),
    "a torn manifest": (tear_the_manifest, "it cannot be read"),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(full, saved, how):
    harm, words = DAMAGES[how]
    harm(saved / "3")
    said = []
    with CheckpointManager(saved, log=said.append) as saves:
        assert saves.newest() == 2
        state, _ = saves.restore(2, program(full, MESHES["one device"]))
        assert int(state.step) == 2
        # It makes room for a new one of its step.
        saves.save(3, state, METADATA)
    (sentence,) = said
    assert "The checkpoint of step 3" in sentence
    assert "Going on from step 2" in sentence
    assert re.search(words, sentence)
    assert (saved.parent / "damaged" / "trunk-3").is_dir()
    with CheckpointManager(saved) as saves:
        assert saves.newest() == 3


@DROPPED
def test_a_checkpoint_that_is_not_restored_is_named_and_the_one_before_it_used(full, overwritten):
    """Its files have the sizes that were recorded; their hashes are compared once it was not restored."""
    said, here = [], program(full, MESHES["one device"])
    with CheckpointManager(overwritten, log=said.append) as saves:
        assert saves.newest() == 3
        with pytest.raises(NotRestored):
            saves.restore(3, here)
        assert saves.newest() == 2
        state, _ = saves.restore(2, here)
    assert int(state.step) == 2
    (sentence,) = said
    assert re.search(r"step 3 .* has other content than was written.*Going on from step 2", sentence)


@DROPPED
def test_when_the_only_one_is_not_restored_nothing_is_trained_over_it(full, overwritten):
    shutil.rmtree(overwritten / "2")
    with CheckpointManager(overwritten) as saves:
        with pytest.raises(NotRestored):
            saves.restore(3, program(full, MESHES["one device"]))
        with pytest.raises(CoordinatedError, match="There is none before it"):
            saves.newest()


@DROPPED
def test_of_several_processes_one_that_restores_nothing_ends_and_the_next_start_has_the_one_before(full, overwritten):
    with pytest.raises(StartAgain, match=r"is damaged.*The same command goes on from the one before"):  # noqa: SIM117
        with CheckpointManager(overwritten, Two()) as saves:
            saves.restore(3, program(full, MESHES["one device"]))
    with CheckpointManager(overwritten) as saves:
        assert saves.newest() == 2


def test_a_restart_reads_the_files_of_a_checkpoint_once(full, saved, monkeypatch):
    def refuse(*words, **named):
        raise AssertionError("a file was read for its hash")

    with CheckpointManager(saved) as saves:
        monkeypatch.setattr(manifest, "_sha256", refuse)
        state, _ = saves.restore(saves.newest(), program(full, MESHES["one device"]))
    assert int(state.step) == 3


def test_a_state_without_hashes_that_holds_no_number_is_not_gone_on_from(full, tmp_path):
    """The guard would skip every step, call it a divergence, and save that over what is whole."""
    here = program(full, MESHES["one device"])
    state = here.init(0)
    broken = dataclasses.replace(state, params=jax.tree.map(lambda leaf: leaf.at[..., 0].set(jnp.nan), state.params))
    with CheckpointManager(tmp_path) as saves:
        saves.save(1, broken, METADATA)
    # With hashes, it is what was written.
    with CheckpointManager(tmp_path) as saves:
        saves.restore(1, here)
    (tmp_path / "1" / part_name(0)).unlink()
    with CheckpointManager(tmp_path) as saves:
        assert saves.newest() == 1
        with pytest.raises(ValueError, match=r"holds what is no number.*not all.*move .*/1 away"):
            saves.restore(1, here)


def test_a_folder_of_somebody_elses_is_set_aside_and_one_that_was_being_removed_is_removed(saved):
    (saved / "7").mkdir()
    (saved / "7" / "notes.txt").write_text("mine")
    (saved / "8" / "state").mkdir(parents=True)
    said = []
    with CheckpointManager(saved, log=said.append) as saves:
        assert saves.newest() == 3
    assert sorted(path.name for path in saved.iterdir()) == ["2", "3"]
    assert (saved.parent / "damaged" / "trunk-7" / "notes.txt").read_text() == "mine"
    assert "trunk/7 was no checkpoint, it had notes.txt; it is now" in said[0]


@pytest.mark.parametrize("place", ["checkpoints", "checkpoints/trunk"])
def test_a_file_where_checkpoints_are_kept_is_named_before_any_step(tmp_path, place):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("mine")
    with pytest.raises(ValueError, match=rf"{place} is no folder.*move it away"):
        CheckpointManager(tmp_path / "checkpoints" / "trunk")


class Two(ProcessGroup):
    """The first of two processes, of which the other has nothing to say."""

    def __init__(self):
        super().__init__()
        self.count = 2

    def all_gather(self, value, *, wait_seconds=None, progress=None):
        return [value, None]

    def broadcast(self, value, *, wait_seconds=None):
        return value

    def run_on_first(self, work):
        return work()


UNREAD = {
    "the folder of a phase": (os, "listdir", "trunk", errno.EIO),
    "the folder of a checkpoint": (os, "listdir", "trunk/3", errno.ESTALE),
    "the size of a file": (Path, "stat", "trunk/3/state/manifest.ocdbt", errno.ESTALE),
    "a manifest": (os, "open", "trunk/3/manifest-0.json", errno.EIO),
}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("what", UNREAD)
def test_what_cannot_be_read_now_is_not_taken_for_damaged(saved, monkeypatch, what):
    owner, name, place, number = UNREAD[what]
    before, plain = contents(saved), getattr(owner, name)

    def fail(path, *words, **named):
        if Path(path).is_relative_to(saved.parent / place):
            raise OSError(number, os.strerror(number), str(path))
        return plain(path, *words, **named)

    monkeypatch.setattr(owner, name, fail)
    # One that ended without asking the other would leave it waiting.
    with pytest.raises(CoordinatedError, match=rf"{os.strerror(number)}.*none was moved or removed.*the same command"):  # noqa: SIM117
        with CheckpointManager(saved, Two()) as saves:
            saves.newest()
    monkeypatch.undo()
    assert contents(saved) == before
    with CheckpointManager(saved) as saves:
        assert saves.newest() == 3


def test_a_loss_that_cannot_be_read_now_is_not_taken_for_none(full, tmp_path, monkeypatch):
    """What counts as not measured is removed as not among the best."""
    state = program(full, MESHES["one device"]).init(0)
    with CheckpointManager(tmp_path, newest=1, best=1) as saves:
        for step, loss in ((1, 2.0), (2, 3.0)):
            saves.save(step, state, {**METADATA, "validation_loss": loss})
    plain = os.open

    def fail(path, *words, **named):
        if Path(path) == tmp_path / "1" / "metadata" / "metadata":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return plain(path, *words, **named)

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(ValueError, match="cannot be read now"), CheckpointManager(tmp_path, newest=1, best=1):
        pass
    monkeypatch.undo()
    with CheckpointManager(tmp_path, newest=1, best=1) as saves:
        saves.save(3, state, {**METADATA, "validation_loss": 4.0})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3"]


def test_what_cannot_be_moved_away_ends_all_processes(saved, monkeypatch):
    truncate(saved / "3")

    def fail(path, target):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "rename", fail)
    with (
        CheckpointManager(saved, Two()) as saves,
        pytest.raises(CoordinatedError, match=r"Process 0 of 2: .*Permission denied"),
    ):
        saves.newest()


def test_a_damaged_checkpoint_never_takes_the_place_of_another(full, saved):
    state = program(full, MESHES["one device"]).init(0)
    for _ in range(3):
        with CheckpointManager(saved) as saves:
            truncate(saved / "3")
            assert saves.newest() == 2
            saves.save(3, state, METADATA)
    aside = saved.parent / "damaged"
    assert sorted(path.name for path in aside.iterdir()) == ["trunk-3", "trunk-3-2", "trunk-3-3"]
    assert all(damage(place) for place in aside.iterdir())


@pytest.mark.parametrize("at_once", [True, False])
def test_a_checkpoint_that_is_removed_while_it_is_verified_is_left_out(saved, monkeypatch, at_once):
    """Retention of the training that runs."""
    folder, place = saved.parent / "training", saved.parent / "training" / "checkpoints" / "trunk" / "2"
    shutil.copytree(saved, place.parent)
    rest, plain = sorted(path for path in place.rglob("*") if path.is_file()), manifest._sha256

    def remove(path, *words):
        if path.is_relative_to(place):
            # Threads meet here.
            shutil.rmtree(place, ignore_errors=True) if at_once else path.unlink(missing_ok=True)
        return plain(path, *words)

    def look_again(seconds):
        assert not at_once
        while rest:
            path = rest.pop()
            if path.exists():
                path.unlink()
                break

    monkeypatch.setattr(manifest, "_sha256", remove)
    monkeypatch.setattr(manifest.time, "sleep", look_again)
    found = manifest.verify(folder)
    assert (found.checkpoints, found.damaged, found.unreadable) == (1, (), ())


def test_what_cannot_be_verified_now_is_named_apart_from_what_is_damaged(saved, monkeypatch):
    shutil.copytree(saved, saved.parent / "training" / "checkpoints" / "trunk")
    plain = Path.open

    def fail(path, *words, **named):
        if path.name == "manifest.ocdbt" and "3" in path.parts:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return plain(path, *words, **named)

    monkeypatch.setattr(Path, "open", fail)
    found = manifest.verify(saved.parent / "training")
    (text,) = found.unreadable
    assert "trunk/3: " in text
    assert os.strerror(errno.EIO) in text
    assert (found.checkpoints, found.damaged) == (2, ())


def test_a_folder_named_by_another_digit_is_no_checkpoint(saved):
    steps = manifest.finished_steps(saved)
    shutil.copytree(saved / str(steps[0]), saved / "²")
    assert manifest.finished_steps(saved) == steps


def test_when_all_are_damaged_nothing_is_trained_over_them(saved):
    for step in saved.iterdir():
        truncate(step)
    with (
        CheckpointManager(saved) as saves,
        pytest.raises(ValueError, match=r"There is none before it; bring back a copy"),
    ):
        saves.newest()


def test_one_without_a_manifest_counts_since_orbax_has_committed_it(full, saved):
    (saved / "3" / part_name(0)).unlink()
    with CheckpointManager(saved) as saves:
        assert saves.newest() == 3
        state, metadata = saves.restore(3, program(full, MESHES["one device"]))
    assert int(state.step) == 3
    assert metadata == METADATA


@dataclasses.dataclass(frozen=True, kw_only=True)
class OlderState(TrainState):
    """As one that a version without balance loads has written."""

    balance_loads: None = None


SINCE = ["balance_loads"]
KEPT = [field.name for field in dataclasses.fields(TrainState) if field.name not in SINCE]
jax.tree_util.register_dataclass(OlderState, data_fields=KEPT, meta_fields=[], drop_fields=SINCE)


def of_an_older_version(state):
    return OlderState(**{name: getattr(state, name) for name in KEPT})


@pytest.mark.parametrize(
    ("write", "difference"),
    [
        (of_an_older_version, "balance_loads is missing in it"),
        (lambda state: dataclasses.replace(state, balance_loads=None), "balance_loads has no array in it and shape"),
        (lambda state: dataclasses.replace(state, seed=np.zeros(3, np.uint32)), r"seed has shape \(3,\) in it"),
    ],
    ids=["older", "without loads", "another shape"],
)
def test_a_checkpoint_of_another_state_is_a_sentence_with_a_remedy(full, tmp_path, write, difference):
    here = program(full, MESHES["one device"])
    with CheckpointManager(tmp_path) as saves:
        saves.save(1, write(here.init(0)), METADATA)
    sentence = f"step 1 in .*{difference}.*another --out"
    with CheckpointManager(tmp_path) as saves, pytest.raises(ValueError, match=sentence) as raised:
        saves.restore(1, here)
    assert "\n" not in str(raised.value)


def test_what_a_process_died_over_before_the_commit_does_not_count(saved):
    """Renamed file by file, as an object store mounted as a file system does it."""
    shutil.copytree(saved / "3", saved / "4")
    (saved / "4" / part_name(0)).unlink()
    (saved / "4.orbax-checkpoint-tmp").mkdir()
    with CheckpointManager(saved) as saves:
        assert saves.newest() == 3
    assert not (saved / "4").exists()


def save_and_stop(folder, state, steps):
    """As a training does that is asked to stop."""
    with contextlib.suppress(Stopped), CheckpointManager(folder, newest=2) as saves:
        for step in steps:
            saves.save(step, state, METADATA)
        saves.wait()
        raise Stopped(15)


@pytest.fixture
def slow_hashing(monkeypatch):
    """Hashing takes for ever, until it is asked to stop."""

    def wait(path, stop=None, read=None):
        assert stop is not None, "hashes are waited for"
        stop.wait()

    monkeypatch.setattr(manifest, "_sha256", wait)


def test_a_save_counts_at_its_commit_and_a_stop_does_not_wait_for_hashes(full, tmp_path, slow_hashing, monkeypatch):
    state = program(full, MESHES["one device"]).init(0)
    save_and_stop(tmp_path, state, [1])
    monkeypatch.undo()
    assert all(file.bytes > 0 and file.sha256 is None for file in read_manifest(tmp_path / "1").values())
    with CheckpointManager(tmp_path) as saves:
        assert saves.newest() == 1
    truncate(tmp_path / "1")
    with CheckpointManager(tmp_path) as saves, pytest.raises(ValueError, match=r"has [\d,]+ of [\d,]+ bytes"):
        saves.newest()


def test_hashes_of_what_is_about_to_be_removed_are_dropped(full, tmp_path, slow_hashing):
    state = program(full, MESHES["one device"]).init(0)
    save_and_stop(tmp_path, state, range(1, 6))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (RuntimeError("no such chunk"), ValueError, "no such chunk.*Whether it is whole is not known"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GB"), JaxRuntimeError, "^RESOURCE_EXHAUSTED: 9 GB$"),
    ],
)
def test_a_restore_that_failed_says_only_what_is_known(full, saved, monkeypatch, error, kind, said):
    def fail(*_, **__):
        raise error

    (saved / "3" / part_name(0)).unlink()
    with CheckpointManager(saved) as saves:
        monkeypatch.setattr(saves._manager, "restore", fail)
        with pytest.raises(kind, match=said):
            saves.restore(3, program(full, MESHES["one device"]))


def record(place, process, processes):
    manifest.write_sizes(place, process, processes)
    manifest.write_hashes(place, process)


def test_each_process_records_what_it_wrote_and_the_first_the_rest(saved):
    place = saved / "3"
    (place / "state" / "ocdbt.process_1").mkdir()
    (place / "state" / "ocdbt.process_1" / "data").write_bytes(b"1")
    (place / part_name(0)).unlink()
    record(place, 0, 2)
    assert "state/ocdbt.process_1/data" not in read_manifest(place)
    record(place, 1, 2)
    known = read_manifest(place)
    files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert known.keys() == files - {part_name(0), part_name(1)}
    assert all(file.sha256 for file in known.values())
    assert damage(place) is None


def test_hashes_that_a_stop_prevented_are_taken_up_when_a_checkpoint_is_restored(
    full, tmp_path, slow_hashing, monkeypatch
):
    folder, one = tmp_path / "checkpoints" / "trunk", program(full, MESHES["one device"])
    save_and_stop(folder, one.init(0), [1, 2])
    monkeypatch.undo()
    (folder / "1" / part_name(0)).unlink()
    assert manifest.verify(tmp_path).without_hash > 0
    with CheckpointManager(folder) as saves:
        saves.restore(saves.newest(), one)
    assert {file.later for file in read_manifest(folder / "2").values() if file.sha256} == {True}
    # What nobody has restored may be damaged by now.
    assert not any(file.sha256 for file in read_manifest(folder / "1").values())
    found, files = manifest.verify(tmp_path), [len(manifest._files(folder / step)) for step in ("1", "2")]
    assert (found.checkpoints, found.without_hash, found.hashed_later, found.damaged) == (2, *files, ())
    assert found.bytes == 0


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_another_number_of_processes_takes_up_the_hashes_of_those_that_died(tmp_path, processes):
    """Of three, the first had hashed its files, the second had recorded sizes, the third nothing."""
    folder = tmp_path / "1"
    for process in range(3):
        (folder / "state" / f"ocdbt.process_{process}").mkdir(parents=True)
        for number in range(2):
            (folder / "state" / f"ocdbt.process_{process}" / f"{number}").write_bytes(b"1" * (process + 1))
    record(folder, 0, 3)
    manifest.write_sizes(folder, 1, 3)
    # A file that is too short by now must not pass for what was written.
    (folder / "state" / "ocdbt.process_1" / "0").write_bytes(b"")
    for process in range(processes):
        with manifest.Hashing(process, processes) as hashing:
            hashing.begin(folder, again=True)
            hashing.begin(folder, again=True)
            hashing._thread.shutdown()
    known = read_manifest(folder)
    assert len(known) == 6
    assert sum(file.later for file in known.values()) == 4
    assert all(file.sha256 for file in known.values())
    assert manifest.wrong_size(folder) == "state/ocdbt.process_1/0 has 0 of 2 bytes"


ENDS_AT_ONCE = """
import sys, time
from concurrent.futures import thread
from pathlib import Path
from moejax.train.directory import manifest
plain = manifest._sha256_of
def late(*words):
    while not thread._shutdown:
        time.sleep(0.01)
    return plain(*words)
manifest._sha256_of = late
with manifest.Hashing(0, 2) as first, manifest.Hashing(0, 2) as second:
    for hashing, folders in ((first, sys.argv[1:3]), (second, sys.argv[3:])):
        for folder in folders:
            hashing.begin(Path(folder))
"""
"""Hashing begins when the interpreter ends, after the process has parted from the others."""


def test_what_is_queued_when_one_of_several_processes_ends_is_hashed(tmp_path):
    folders = [tmp_path / str(number) for number in range(4)]
    for folder in folders:
        folder.mkdir()
        (folder / "data").write_bytes(b"1")
        manifest.write_sizes(folder)
    done = subprocess.run([sys.executable, "-c", ENDS_AT_ONCE, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(read_manifest(folder)["data"].sha256 for folder in folders)


def test_what_waits_behind_another_checkpoints_hashes_is_dropped_at_once(tmp_path, monkeypatch):
    began, go = threading.Event(), threading.Event()
    hashed = []

    def hash_slowly(folder, process, stop, **_):
        hashed.append(folder)
        began.set()
        # If the second were dropped only in its turn, it would come here too.
        go.wait(10)

    monkeypatch.setattr(manifest, "write_hashes", hash_slowly)
    with manifest.Hashing() as hashing:
        hashing.begin(tmp_path / "trunk")
        hashing.begin(tmp_path / "branch")
        began.wait()
        hashing.drop([tmp_path / "branch"])
        assert hashing.under_way() == [tmp_path / "trunk"]
        go.set()
    assert hashed == [tmp_path / "trunk"]


def test_files_are_looked_for_once_in_a_save(full, tmp_path, monkeypatch):
    looks, plain = [], manifest._own
    monkeypatch.setattr(manifest, "_own", lambda *words: looks.append(words) or plain(*words))
    with CheckpointManager(tmp_path) as saves:
        saves.save(1, program(full, MESHES["one device"]).init(0), METADATA)
    assert len(looks) == 1
    assert all(file.sha256 for file in read_manifest(tmp_path / "1").values())


def test_the_newest_before_a_step(saved):
    with CheckpointManager(saved) as saves:
        assert saves.newest(at_most=2) == 2
        assert saves.newest(at_most=1) is None


def test_a_disk_that_fills_up_is_a_sentence_and_leaves_what_was_saved(full, saved, monkeypatch):
    state = program(full, MESHES["one device"]).init(0)

    def full_disk(*folder_and_process):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_sizes", full_disk)
    with CheckpointManager(saved) as saves:
        saves.save(4, state, METADATA)
        with pytest.raises(ValueError, match=r"cannot be written .*No space left on device.*whole: make room"):
            saves.save(5, state, METADATA)
    monkeypatch.undo()
    with CheckpointManager(saved) as saves:
        # Orbax had committed it.
        assert saves.newest() == 4


@pytest.mark.parametrize("what", ["disk", "file system", "others"])
def test_a_checkpoint_that_takes_too_long_is_told_from_one_that_cannot_be_written(full, saved, monkeypatch, what):
    monkeypatch.setattr(checkpoint, "WRITING_SECONDS", 7200.0)
    lost, late = JaxRuntimeError("UNAVAILABLE: gone"), TimeoutError("Timed out after 7200 seconds.")
    late.__cause__ = lost if what == "others" else None
    error = {"disk": late, "others": late, "file system": OSError(errno.ETIMEDOUT, "Connection timed out")}[what]
    said = {
        "disk": r"was not written to .* within 2 hours .*too slow",
        "file system": "cannot be written to .*Connection timed out",
        "others": "UNAVAILABLE: gone",
    }[what]

    def fail(*folder_and_process):
        raise error

    with CheckpointManager(saved) as saves:
        assert saves._manager._options.async_options.timeout_secs == 7200
        monkeypatch.setattr(checkpoint, "write_sizes", fail)
        saves.save(4, program(full, MESHES["one device"]).init(0), METADATA)
        with pytest.raises(JaxRuntimeError if what == "others" else UserError, match=said):
            saves.wait()


def test_of_checkpoints_the_newest_are_kept_and_those_up_to_the_one_that_is_saved():
    kept = checkpoint._Kept(2, frozenset({5}), 4, 1, {5: 2.0, 7: 1.0, 9: math.nan})
    kept.saved = 12
    assert kept.of([4, 5, 6, 7, 9, 10, 11, 12]) == {4, 5, 7, 11, 12}
    # Of steps that are taken once more, while later ones are there.
    kept.saved = 3
    assert kept.of([1, 2, 3, 5, 7, 11, 12]) == {2, 3, 5, 7, 11, 12}


def test_a_folder_without_checkpoints_has_none(tmp_path):
    shutil.rmtree(tmp_path)
    with CheckpointManager(tmp_path / "new") as saves:
        assert saves.newest() is None
