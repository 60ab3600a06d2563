"""A working folder and its copy in a store: what is sent in which order, and which of the two a start goes on from."""

import dataclasses
import json
import os
import shutil
import threading
import time
import uuid

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from moejax.errors import CoordinatedError, UserError
from moejax.storage import open_storage, within
from moejax.stored import claim
from moejax.train import store_lock, stored_run
from moejax.train.identity import TRAINING
from moejax.train.manifest import COMMITTED, write_hashes, write_sizes
from moejax.train.store_lock import LOCKS, StoreLock, TakenOver, read_holder
from moejax.train.stored_run import STORE, StoredRun, check_shared, small_files


@pytest.fixture
def url():
    """A store in this process's memory."""
    return f"memory://{uuid.uuid4().hex}/run"


@pytest.fixture
def store(url):
    return open_storage(url)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def begin(folder, **settings):
    """A training's settings, as the first that is written of it."""
    claim(folder, TRAINING, {"of": "one", **settings})


def checkpoint(folder, step, text="state"):
    """A committed checkpoint with its manifest, of a training that has begun."""
    if not (folder / TRAINING).exists():
        begin(folder)
    place = folder / "checkpoints" / "trunk" / str(step)
    write(place / "state" / "array", text)
    write(place / COMMITTED, "{}")
    write_sizes(place)
    return place


def in_store(store):
    return {path.lstrip("/") for path in store.find("", detail=False) if f"{LOCKS}/" not in path}


def log_of(last):
    return "".join(json.dumps({"phase": "trunk", "step": step}) + "\n" for step in range(1, last + 1))


def test_everything_of_a_folder_is_in_the_store_at_the_end_but_what_stays_here(tmp_path, url, store):
    with StoredRun(url, tmp_path):
        begin(tmp_path)
        write(tmp_path / "notes.txt", "mine")
        write(tmp_path / "data" / "tokens", "many")
        write(tmp_path / ".1234.metrics.jsonl", "half")
        write(tmp_path / "checkpoints" / "trunk" / "8.orbax-checkpoint-tmp" / "state", "half")
        checkpoint(tmp_path, 4)
        write(tmp_path / "branch-64.json", "{}")
    at = "checkpoints/trunk/4"
    assert in_store(store) == {
        "training.json", "branch-64.json", f"{at}/state/array", f"{at}/{COMMITTED}", f"{at}/manifest-0.json"
    }  # fmt: skip


@pytest.fixture
def order(monkeypatch):
    """Paths in the order in which they were written to the store or, with a minus, removed."""
    seen, writing, removing = [], MemoryFileSystem.pipe_file, MemoryFileSystem.rm_file

    def pipe_file(self, path, *args, **options):
        seen.append(path.partition("/run/")[2])
        return writing(self, path, *args, **options)

    def rm_file(self, path):
        seen.append("-" + path.partition("/run/")[2])
        return removing(self, path)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    monkeypatch.setattr(MemoryFileSystem, "rm_file", rm_file)
    return seen


@pytest.fixture
def by_hand(monkeypatch):
    """Nothing is sent but by ``send``."""
    monkeypatch.setattr("moejax.train.stored_run._SECONDS_BETWEEN_PASSES", 1e6)


def test_the_log_goes_before_a_checkpoint_its_commit_last_and_then_rows(tmp_path, url, order, by_hand):
    with StoredRun(url, tmp_path) as run:
        begin(tmp_path)
        write(tmp_path / "branch-64.json", "{}")
        checkpoint(tmp_path, 4)
        write(tmp_path / "metrics.jsonl", log_of(4))
        run.send()
    at = "checkpoints/trunk/4"
    names = [
        TRAINING,
        "metrics.jsonl",
        f"{at}/state/array",
        f"{at}/manifest-0.json",
        f"{at}/{COMMITTED}",
        "branch-64.json",
    ]
    assert [path for path in order if path in names] == names


def test_a_checkpoint_that_is_taken_again_is_removed_before_the_shorter_log_is_sent(tmp_path, url, order, by_hand):
    with StoredRun(url, tmp_path) as run:
        checkpoint(tmp_path, 4)
        place = checkpoint(tmp_path, 8)
        write(tmp_path / "metrics.jsonl", log_of(8))
        run.send()
        place.rename(tmp_path / ".aside")
        write(tmp_path / "metrics.jsonl", log_of(4))
        order.clear()
        run.send()
        assert order.index(f"-checkpoints/trunk/8/{COMMITTED}") < order.index("metrics.jsonl")
        checkpoint(tmp_path, 8, "other")
        run.send()
        order.clear()
        run.send()
        assert not order


def test_an_old_checkpoint_is_removed_when_the_new_one_is_there(tmp_path, url, order, store, by_hand):
    with StoredRun(url, tmp_path) as run:
        old = checkpoint(tmp_path, 4)
        run.send()
        checkpoint(tmp_path, 8)
        old.rename(tmp_path / ".removed")
        order.clear()
        run.send()
        assert order.index(f"checkpoints/trunk/8/{COMMITTED}") < order.index(f"-checkpoints/trunk/4/{COMMITTED}")
        assert not any("/4/" in path for path in in_store(store))


def test_hashes_that_come_later_are_sent_by_themselves(tmp_path, url, order, by_hand):
    with StoredRun(url, tmp_path) as run:
        place = checkpoint(tmp_path, 4)
        run.send()
        write_hashes(place)
        order.clear()
        run.send()
        assert order == ["checkpoints/trunk/4/manifest-0.json"]


def test_the_lock_is_held_while_the_rest_is_sent(tmp_path, url, store, monkeypatch):
    """A checkpoint that is sent only when its training has ended may take longer than others wait for its sender."""
    monkeypatch.setattr(stored_run, "BEAT_SECONDS", 0.01)
    sending, told = StoredRun._send_file, []

    def slow(self, path):
        if self._over.is_set():
            before = read_holder(store, self.number).beats
            while read_holder(store, self.number).beats < before + 2:
                time.sleep(0.01)
        sending(self, path)

    monkeypatch.setattr(StoredRun, "_send_file", slow)
    monkeypatch.setattr(stored_run, "_SECONDS_BETWEEN_PASSES", 3600.0)
    with StoredRun(url, tmp_path, sent=told.append):
        checkpoint(tmp_path, 4)
    assert f"checkpoints/trunk/4/{COMMITTED}" in in_store(store)
    assert read_holder(store, 1).released
    assert sum(told) == sum(
        path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and path.name != STORE
    )


def kill(run):
    """What is left of a process that was killed: its number of the lock, given to one that is dead."""
    run._over.set()
    run._is_sent.set()
    for thread in (run._sending, run._beating):
        if thread.is_alive():
            thread.join()
    run._lock._me = dataclasses.replace(run._lock._me, pid=2**22 + 1)
    run._lock._write(run.number)


def test_who_had_the_lock_last_goes_on_from_its_own_folder(tmp_path, url, store):
    run = StoredRun(url, tmp_path).__enter__()
    checkpoint(tmp_path, 4)
    run.send()
    kill(run)
    place = checkpoint(tmp_path, 8)
    write(tmp_path / "metrics.jsonl", log_of(8))
    with StoredRun(url, tmp_path):
        assert (place / COMMITTED).exists()
    assert f"checkpoints/trunk/8/{COMMITTED}" in in_store(store)


def test_another_machine_goes_on_from_the_store_and_the_first_one_follows_it(tmp_path, url, store):
    first, second = tmp_path / "first", tmp_path / "second"
    run = StoredRun(url, first).__enter__()
    checkpoint(first, 4, "of the first")
    write(first / "metrics.jsonl", log_of(4))
    run.send()
    kill(run)
    # Not all of it was sent: the other takes these steps again.
    place = checkpoint(first, 8, "of the first")
    store.pipe_file("checkpoints/trunk/8/state/half", b"of the first")
    with StoredRun(url, second):
        assert (second / "metrics.jsonl").read_text() == log_of(4)
        assert not (second / "checkpoints" / "trunk" / "8").exists()
        checkpoint(second, 8, "of the second")
    with StoredRun(url, first):
        assert (place / "state" / "array").read_text() == "of the second"
    assert not any(path.endswith("half") for path in in_store(store))


@pytest.mark.parametrize("what", ["nothing", "an attempt"])
def test_what_was_not_sent_is_kept_where_another_process_had_the_lock_and_trained_nothing(tmp_path, url, store, what):
    first, second = tmp_path / "first", tmp_path / "second"
    run = StoredRun(url, first).__enter__()
    checkpoint(first, 4)
    write(first / "metrics.jsonl", log_of(4))
    write(first / "attempts.json", "{}")
    run.send()
    store.pipe_file("checkpoints/trunk/8/state/half", b"of a checkpoint")
    kill(run)
    place = checkpoint(first, 8, "not sent")
    write(first / "metrics.jsonl", log_of(8))
    with StoredRun(url, second):
        if what == "an attempt":
            write(second / "attempts.json", '{"failed": true}')
    with StoredRun(url, first):
        assert (place / "state" / "array").read_text() == "not sent"
    assert store.cat_file("checkpoints/trunk/8/state/array") == b"not sent"
    assert store.cat_file("metrics.jsonl").decode() == log_of(8)
    # What a start writes of its attempts is its own.
    assert store.cat_file("attempts.json") == b"{}"


def test_a_checkpoint_that_was_damaged_here_is_fetched_again(tmp_path, url):
    with StoredRun(url, tmp_path):
        place = checkpoint(tmp_path, 4)
    (place / "state" / "array").write_text("cut")
    with StoredRun(url, tmp_path):
        assert (place / "state" / "array").read_text() == "state"


def test_a_fetch_that_was_killed_begins_anew(tmp_path, url, monkeypatch):
    with StoredRun(url, tmp_path / "first"):
        checkpoint(tmp_path / "first", 4)
    second = tmp_path / "second"
    monkeypatch.setattr(StoredRun, "_fetch", lambda *of: write(second / "metrics.jsonl", "half"))
    second.mkdir()
    killed = StoredRun(url, second)
    killed._lock.acquire()
    killed._replace(["metrics.jsonl"])
    kill(killed)
    monkeypatch.undo()
    with StoredRun(url, second):
        assert (second / "checkpoints" / "trunk" / "4" / COMMITTED).exists()
        assert not (second / "metrics.jsonl").exists()
    assert not [*second.glob(".replaced-*")]


def trained(folder, url, steps=(4, 8)):
    """A training that was ended, all of it in its store."""
    with StoredRun(url, folder):
        begin(folder)
        write(folder / "data" / "tokens", "many")
        for step in steps:
            checkpoint(folder, step)
        write(folder / "metrics.jsonl", log_of(max(steps)))
        write(folder / "branch-64.json", "{}")


def contents(folder):
    """Of every file that belongs in a store."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_text() for name, path in found.items() if not name.startswith((".", "data/"))}


def test_a_training_whose_store_was_emptied_is_sent_again(tmp_path, url, store):
    trained(tmp_path, url)
    before, there = contents(tmp_path), in_store(store)
    store.fs.rm(store.path, recursive=True)
    said = []
    with StoredRun(url, tmp_path, said.append):
        assert contents(tmp_path) == before
    assert in_store(store) == there
    assert "is sent there again" in said[0]


def test_a_store_that_lost_files_is_given_them_again_whoever_had_the_lock(tmp_path, url, store):
    first = tmp_path / "first"
    trained(first, url)
    before, there = contents(first), in_store(store)
    for lost in ([TRAINING], [path for path in there if "/8/" in path], ["metrics.jsonl", "branch-64.json"]):
        with StoredRun(url, tmp_path / "another"):
            pass
        for path in lost:
            store.rm_file(path)
        with StoredRun(url, first):
            assert contents(first) == before
        assert in_store(store) == there


def test_a_training_whose_store_and_folder_were_emptied_begins_anew(tmp_path, url, store):
    trained(tmp_path, url)
    store.fs.rm(store.path, recursive=True)
    shutil.rmtree(tmp_path / "checkpoints")
    for path in contents(tmp_path):
        (tmp_path / path).unlink()
    for attempt in range(2):
        with StoredRun(url, tmp_path):
            assert (tmp_path / "data").exists() == (attempt == 1)
            begin(tmp_path, other=True)
            write(tmp_path / "data" / "tokens", "others")


def test_part_of_a_training_whose_store_was_emptied_is_refused(tmp_path, url, store):
    trained(tmp_path, url)
    store.fs.rm(store.path, recursive=True)
    (tmp_path / TRAINING).unlink()
    before = contents(tmp_path)
    with pytest.raises(UserError, match="holds a part of a training"):
        StoredRun(url, tmp_path).__enter__()
    assert contents(tmp_path) == before
    assert not store.exists("")


@pytest.mark.parametrize(
    "removed", [".", "checkpoints", "checkpoints/trunk/8", "checkpoints/trunk/4/state", "metrics.jsonl", TRAINING]
)
@pytest.mark.parametrize("had", ["it", "another"])
def test_what_was_removed_here_between_two_runs_is_fetched_again(tmp_path, url, store, removed, had):
    first = tmp_path / "first"
    trained(first, url)
    before, there = contents(first), in_store(store)
    if had == "another":
        with StoredRun(url, tmp_path / "another"):
            pass
    places = [first / path for path in before if removed == "." or f"{path}/".startswith(f"{removed}/")]
    assert places
    for place in places:
        place.unlink()
    with StoredRun(url, first):
        assert contents(first) == before
    assert in_store(store) == there


def test_a_training_whose_file_of_settings_is_removed_while_it_runs_removes_nothing(tmp_path, url, store, by_hand):
    trained(tmp_path, url)
    there = in_store(store)
    run = StoredRun(url, tmp_path).__enter__()
    for path in contents(tmp_path):
        (tmp_path / path).unlink()
    with pytest.raises(UserError, match="was removed while"):
        run.__exit__(None)
    assert in_store(store) == there


def test_a_run_that_diverged_is_tried_again_where_its_mark_was_removed(tmp_path, url, store):
    with StoredRun(url, tmp_path):
        begin(tmp_path)
        write(tmp_path / "diverged.json", "{}")
    (tmp_path / "diverged.json").unlink()
    with StoredRun(url, tmp_path):
        assert not (tmp_path / "diverged.json").exists()
    assert "diverged.json" not in in_store(store)


def test_a_checkpoint_that_the_log_was_rewound_from_is_not_fetched_again(tmp_path, url, store):
    trained(tmp_path, url)
    (tmp_path / "checkpoints" / "trunk" / "8").rename(tmp_path / ".aside")
    write(tmp_path / "metrics.jsonl", log_of(4))
    with StoredRun(url, tmp_path):
        assert not (tmp_path / "checkpoints" / "trunk" / "8").exists()
    assert not any("/8/" in path for path in in_store(store))


def test_a_folder_that_is_replaced_is_kept_aside(tmp_path, url, store):
    """Here in a store that was emptied, where somebody began another training under the same number of the lock."""
    first = tmp_path / "first"
    trained(first, url)
    before, said = contents(first), []
    store.fs.rm(store.path, recursive=True)
    trained(tmp_path / "second", url, steps=[4])
    (first / "metrics.jsonl").touch()
    with StoredRun(url, first, said.append):
        assert contents(first) == contents(tmp_path / "second")
    (aside,) = first.glob(".replaced-*")
    assert contents(aside) == before
    assert str(aside) in said[0]


def test_of_a_folder_whose_training_has_gone_on_elsewhere_only_what_was_not_sent_is_kept(tmp_path, url):
    first, second = tmp_path / "first", tmp_path / "second"
    trained(first, url)
    checkpoint(first, 12, "not sent")
    with StoredRun(url, second):
        checkpoint(second, 12)
        write(second / "metrics.jsonl", log_of(12))
    with StoredRun(url, first):
        assert contents(first) == contents(second)
    (aside,) = first.glob(".replaced-*")
    at = "checkpoints/trunk/12"
    assert set(contents(aside)) == {f"{at}/state/array", f"{at}/{COMMITTED}", f"{at}/manifest-0.json"}
    with StoredRun(url, second):
        checkpoint(second, 16)
    with StoredRun(url, first):
        assert contents(first) == contents(second)
    assert [*first.glob(".replaced-*")] == [aside]


def test_a_second_writer_is_refused_until_the_first_has_ended(tmp_path, url):
    with StoredRun(url, tmp_path / "first"), pytest.raises(UserError, match="Another process"):
        StoredRun(url, tmp_path / "second").__enter__()
    with StoredRun(url, tmp_path / "second"):
        pass


def test_a_training_that_was_refused_before_it_began_leaves_nothing_in_the_store(tmp_path, url, store):
    with pytest.raises(UserError, match="no such config"), StoredRun(url, tmp_path / "here"):
        raise UserError("no such config")
    assert store.find("", detail=False) == []
    said = []
    with pytest.raises(UserError, match="no such config"), StoredRun(url, tmp_path / "here", said.append):
        raise UserError("no such config")
    assert said == []
    for place in ("here", "there"):
        with StoredRun(url, tmp_path / place):
            checkpoint(tmp_path / place, 4)
        assert in_store(store) >= {TRAINING, f"checkpoints/trunk/4/{COMMITTED}"}


def test_a_store_that_answers_no_more_holds_no_training_that_is_done(tmp_path, url, monkeypatch):
    """Its client would wait for minutes, several times."""
    monkeypatch.setattr(stored_run, "CONTACT_SECONDS", 0.1)
    monkeypatch.setattr(stored_run, "_SECONDS_BETWEEN_PASSES", 0.01)
    answers, said = threading.Event(), []
    run = StoredRun(url, tmp_path / "here", said.append)
    run.__enter__()
    checkpoint(tmp_path / "here", 4)
    monkeypatch.setattr(StoreLock, "check", lambda self: answers.wait())
    with pytest.raises(UserError, match=r"no answer within .*: the same command on this machine sends it"):
        run.__exit__(None)
    answers.set()
    assert f"Sending the rest to {url}." in said


def test_of_two_that_begin_at_once_one_is_refused(url, store, monkeypatch):
    first, second = StoreLock(store, url), StoreLock(store, url)
    taking = StoreLock._write

    def between(self, number, **options):
        if self is second:
            assert first.acquire() == 0
        return taking(self, number, **options)

    monkeypatch.setattr(StoreLock, "_write", between)
    with pytest.raises(UserError, match="Another process"):
        second.acquire()
    first.check()


def test_a_holder_of_another_machine_is_waited_for_and_taken_over_when_it_is_silent(url, store, monkeypatch):
    far, near = StoreLock(store, url), StoreLock(store, url)
    far._me = dataclasses.replace(far._me, machine="far")
    far.acquire()
    monkeypatch.setattr(time, "sleep", lambda seconds: far.beat())
    with pytest.raises(UserError, match="on far"):
        near.acquire()
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(store_lock, "LEASE_SECONDS", 0.0)
    assert near.acquire() == 1
    with pytest.raises(TakenOver):
        far.beat()


def test_who_has_lost_the_lock_writes_nothing_more(tmp_path, url, store):
    run = StoredRun(url, tmp_path).__enter__()
    kill(run)
    StoreLock(store, url).acquire()
    begin(tmp_path)
    with pytest.raises(CoordinatedError, match="taken over by another process"):
        run.__exit__(None)
    assert "training.json" not in in_store(store)


def test_who_loses_the_lock_while_it_sends_a_checkpoint_does_not_commit_it(tmp_path, url, store, by_hand, monkeypatch):
    run = StoredRun(url, tmp_path).__enter__()
    checkpoint(tmp_path, 4)
    send_file = StoredRun._send_file

    def sent(self, path):
        send_file(self, path)
        if path.endswith("/state/array"):
            monkeypatch.setattr(StoredRun, "_send_file", send_file)
            kill(run)
            StoreLock(store, url).acquire()

    monkeypatch.setattr(StoredRun, "_send_file", sent)
    with pytest.raises(TakenOver):
        run.send()
    there = in_store(store)
    assert any(path.endswith("/state/array") for path in there)
    assert not any(path.endswith(COMMITTED) for path in there)


OTHERS = {
    "thesis.tex": b"mine",
    "notes.txt": b"mine",
    "checkpoints/llama/1000/model.safetensors": b"weights",
    "checkpoints/llama/1000/x/state": b"weights",
    "tiny/checkpoints/trunk/5/array": b"an array",
    "runs/tiny/training.json": b"{}",
    "runs/tiny/checkpoints/trunk/5/array": b"begun by another process",
}


def test_a_store_with_files_of_others_is_refused_and_left_as_it_is(tmp_path, url, store):
    store.pipe(OTHERS)
    with pytest.raises(UserError, match=f"{url}/NAME"):
        StoredRun(url, tmp_path / "local").__enter__()
    assert set(store.find("", detail=False)) == set(OTHERS)
    assert not (tmp_path / "local").exists()


def test_settings_that_moejax_did_not_write_make_no_training(tmp_path, url, store):
    store.pipe({TRAINING: b'{"of": "another program"}', "checkpoints/trunk/5/array": b"an array"})
    with pytest.raises(UserError, match="nothing there was touched"):
        StoredRun(url, tmp_path / "local").__enter__()
    assert in_store(store) == {TRAINING, "checkpoints/trunk/5/array"}
    assert not store.exists(LOCKS)
    assert not (tmp_path / "local").exists()


def test_files_of_others_beside_a_training_are_left_alone(tmp_path, url, store):
    first, second = tmp_path / "first", tmp_path / "second"
    trained(first, url)
    store.pipe(OTHERS)
    there = in_store(store)
    for folder in (first, second, first):
        with StoredRun(url, folder):
            assert contents(folder) == contents(first)
    assert in_store(store) == there
    assert not any((second / path).exists() for path in OTHERS)


def test_runs_of_a_training_with_axes_are_its_own(tmp_path, url, store):
    first, second = tmp_path / "first", tmp_path / "second"
    with StoredRun(url, first):
        begin(first, vmap={"seed": [1, 2]})
        checkpoint(first / "runs" / "seed-1", 4)
    with StoredRun(url, second):
        assert contents(second) == contents(first)
    assert "runs/seed-1/checkpoints/trunk/4/state/array" in in_store(store)


def test_a_folder_that_is_something_else_is_refused(tmp_path, url, store):
    write(tmp_path / "mine", "text")
    with pytest.raises(UserError, match=r"name an empty folder .* stays"):
        StoredRun(url, tmp_path).__enter__()
    assert not store.exists("")
    with StoredRun(url, tmp_path / "copy"):
        begin(tmp_path / "copy")
    with pytest.raises(UserError, match="--local"):
        StoredRun(f"{url}-other", tmp_path / "copy").__enter__()
    assert (tmp_path / "mine").read_text() == "text"


@pytest.mark.parametrize("state", ["lost", "cut"])
def test_a_folder_whose_state_is_lost_is_refused_and_not_advised_to_be_removed(tmp_path, url, state):
    trained(tmp_path, url)
    checkpoint(tmp_path, 12, "not sent")
    (tmp_path / STORE).unlink() if state == "lost" else (tmp_path / STORE).write_text("{")
    with pytest.raises(UserError, match="may hold steps that the store lacks") as refused:
        StoredRun(url, tmp_path).__enter__()
    assert "remove" not in str(refused.value)


def test_a_training_to_go_on_with_that_is_nowhere_is_said_and_leaves_nothing(tmp_path, url, store):
    with pytest.raises(UserError, match=f"{url} holds no training to go on with"):
        StoredRun(url, tmp_path / "local", begins=False).__enter__()
    assert not store.exists("")
    assert not (tmp_path / "local").exists()
    trained(tmp_path / "first", url)
    with StoredRun(url, tmp_path / "second", begins=False):
        assert contents(tmp_path / "second") == contents(tmp_path / "first")


def test_a_process_that_does_not_see_the_working_folder_is_told_so(tmp_path, url):
    with StoredRun(url, tmp_path / "here") as run:
        check_shared(tmp_path / "here", run.number)
        with pytest.raises(UserError, match="a disk that all of them see"):
            check_shared(tmp_path / "elsewhere", run.number)


def test_what_tells_how_a_training_stands_is_fetched_without_arrays(tmp_path, url):
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    with StoredRun(url, here) as run:
        begin(here)
        checkpoint(here, 4)
        run.send()
        with small_files(url, there):
            found = {path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()}
    at = "checkpoints/trunk/4"
    assert found == {"training.json", ".lock", f"{at}/{COMMITTED}", f"{at}/manifest-0.json"}
    with pytest.raises(UserError, match="holds no training"), small_files(f"{url}-none", tmp_path):
        pass


def test_a_store_that_fails_at_the_end_leaves_all_here_and_says_so(tmp_path, url, monkeypatch):
    monkeypatch.setattr("moejax.train.stored_run._SECONDS_BETWEEN_PASSES", 0.01)

    def refuse(*of, **options):
        raise OSError("no")

    run = StoredRun(url, tmp_path).__enter__()
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    begin(tmp_path)
    with pytest.raises(UserError, match="whole in"):
        run.__exit__(None)
    assert (tmp_path / "training.json").exists()
    assert json.loads((tmp_path / STORE).read_text())["url"] == url


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("nothing://bucket/run", "give s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a folder"),
        ("reference://x", "give s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or a folder"),
        ("S3://bucket/run", "write s3://"),
    ],
)
def test_a_store_that_cannot_be_spoken_to_is_said_in_a_sentence(url, remedy):
    with pytest.raises(UserError, match=f"^{url} cannot be reached from here: .*; {remedy}.$") as refused:
        open_storage(url)
    assert "Error" not in str(refused.value)


@pytest.mark.parametrize(("url", "extra"), [("s3://bucket/run", "s3"), ("gs://bucket/run", "gs")])
def test_a_package_that_is_missing_is_named_by_what_installs_it(url, extra, monkeypatch):
    def missing(protocol):
        raise ImportError(f"Install it to access {protocol}")

    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    with pytest.raises(UserError, match=rf"pip install 'moejax\[{extra}\]'"):
        open_storage(url)


def test_a_store_that_does_not_answer_is_waited_for_so_long_and_no_longer():
    with pytest.raises(TimeoutError, match="no answer"):
        within(0.01, lambda: time.sleep(1))
    assert within(60, os.getpid) == os.getpid()
