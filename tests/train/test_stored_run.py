"""A working folder and its copy in a store: what is sent in which order, and which of the two a start goes on from."""

import dataclasses
import json
import os
import time
import uuid

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from moejax.errors import UserError
from moejax.storage import open_storage, within
from moejax.stored import claim
from moejax.train import store_lock
from moejax.train.identity import TRAINING
from moejax.train.manifest import COMMITTED, write_hashes, write_sizes
from moejax.train.store_lock import LOCKS, StoreLock, TakenOver
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


def checkpoint(folder, step, text="state"):
    """A committed checkpoint with its manifest."""
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
        write(tmp_path / "training.json", "{}")
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
        write(tmp_path / "branch-64.json", "{}")
        checkpoint(tmp_path, 4)
        write(tmp_path / "metrics.jsonl", log_of(4))
        run.send()
    at = "checkpoints/trunk/4"
    names = ["metrics.jsonl", f"{at}/state/array", f"{at}/manifest-0.json", f"{at}/{COMMITTED}", "branch-64.json"]
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


def kill(run):
    """What is left of a process that was killed: its number of the lock, given to one that is dead."""
    run._over.set()
    for thread in run._threads:
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


def test_a_training_whose_store_was_emptied_begins_anew(tmp_path, url, store):
    """As in a new folder: whatever stays on a machine when its files are replaced."""
    with StoredRun(url, tmp_path):
        claim(tmp_path, TRAINING, {"of": "one"})
        write(tmp_path / "data" / "tokens", "many")
        checkpoint(tmp_path, 4)
    store.fs.rm(store.path, recursive=True)
    for _ in range(2):
        with StoredRun(url, tmp_path):
            claim(tmp_path, TRAINING, {"of": "another"})
            write(tmp_path / "data" / "tokens", "others")


def test_a_second_writer_is_refused_until_the_first_has_ended(tmp_path, url):
    with StoredRun(url, tmp_path / "first"), pytest.raises(UserError, match="Another process"):
        StoredRun(url, tmp_path / "second").__enter__()
    with StoredRun(url, tmp_path / "second"):
        pass


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
    write(tmp_path / "training.json", "{}")
    with pytest.raises(TakenOver):
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


def test_a_folder_that_is_something_else_is_refused(tmp_path, url):
    write(tmp_path / "mine", "text")
    with pytest.raises(UserError, match="--local"):
        StoredRun(url, tmp_path).__enter__()
    with StoredRun(url, tmp_path / "copy"):
        pass
    with pytest.raises(UserError, match="--local"):
        StoredRun(f"{url}-other", tmp_path / "copy").__enter__()
    assert (tmp_path / "mine").read_text() == "text"


def test_a_process_that_does_not_see_the_working_folder_is_told_so(tmp_path, url):
    with StoredRun(url, tmp_path / "here") as run:
        check_shared(tmp_path / "here", run.number)
        with pytest.raises(UserError, match="a disk that all of them see"):
            check_shared(tmp_path / "elsewhere", run.number)


def test_what_tells_how_a_training_stands_is_fetched_without_arrays(tmp_path, url):
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    with StoredRun(url, here) as run:
        write(here / "training.json", "{}")
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
    write(tmp_path / "training.json", "{}")
    with pytest.raises(UserError, match="whole in"):
        run.__exit__(None)
    assert (tmp_path / "training.json").exists()
    assert json.loads((tmp_path / STORE).read_text())["url"] == url


def test_a_store_that_cannot_be_spoken_to_is_said_in_a_sentence():
    with pytest.raises(UserError, match="cannot be reached"):
        open_storage("nothing://bucket/run")


def test_a_store_that_does_not_answer_is_waited_for_so_long_and_no_longer():
    with pytest.raises(TimeoutError, match="no answer"):
        within(0.01, lambda: time.sleep(1))
    assert within(60, os.getpid) == os.getpid()
