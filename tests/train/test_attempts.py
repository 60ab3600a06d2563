"""Every second of a training is in one time bucket, over all the times it was started, and lost work is told apart."""

import json
import os
import time

import pytest

from moejax.errors import UserError
from moejax.train.directory import attempts
from moejax.train.directory.attempts import (
    ATTEMPTS,
    DONE,
    FAILED,
    INTERRUPTED,
    RUNNING,
    TIME_BUCKETS,
    AttemptRecorder,
    device_seconds,
    goodput,
    read_attempts,
    seconds_by_bucket,
    work_place,
)
from moejax.train.stopping import Stopped


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


def attempt(folder, log=print, **metadata):
    return AttemptRecorder(folder, metadata={"devices": 2, "phases": {"trunk": 100}, **metadata}, log=log)


def test_every_second_is_in_one_time_bucket(tmp_path, clock):
    with attempt(tmp_path) as clocks:
        clock(5)
        clocks.step("trunk", 1)
        clock(7)
        clocks.waited(2.0)
        clocks.enter("checkpointing")
        clock(3)
        clocks.enter("evaluation")
        clock(1)
    (found,) = read_attempts(tmp_path)
    expected = {"starting": 5, "training": 5, "data": 2, "checkpointing": 3, "evaluation": 1, "redone": 0}
    assert found.seconds == expected
    assert set(expected) == set(TIME_BUCKETS)
    assert sum(found.seconds.values()) == found.until - found.began
    assert (found.state, found.why) == (DONE, "")
    assert goodput([found]) == 5 / 16


def test_work_that_was_lost_counts_once(tmp_path, clock):
    """Killed after step 30, of which a checkpoint held 20; again after 25; then to the end."""
    first = attempt(tmp_path)
    first.step("trunk", 1)
    clock(30)
    first.reach("trunk", 30)
    first.write()
    for last in (25, 40):
        clocks = attempt(tmp_path)
        clock(1)
        for step in range(21, last + 1):
            clocks.step("trunk", step)
            clock(1)
        clocks.reach("trunk", last)
        clocks.write()
    seconds = seconds_by_bucket(read_attempts(tmp_path))
    # 5 steps of the second attempt, and all up to step 30 of the third.
    assert seconds == dict.fromkeys(TIME_BUCKETS, 0) | {"training": 40, "redone": 15, "starting": 2}


def test_the_processs_start_counts(tmp_path, clock):
    with AttemptRecorder(tmp_path, began=990.0, metadata={}) as clocks:
        clock(5)
        clocks.step("trunk", 1)
    assert read_attempts(tmp_path)[0].seconds["starting"] == 15


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (Stopped(15), INTERRUPTED, "stopped by SIGTERM"),
        (KeyboardInterrupt(), INTERRUPTED, "KeyboardInterrupt: "),
        (UserError("The disk is full."), FAILED, "The disk is full."),
        (RuntimeError("a mistake"), FAILED, "RuntimeError: a mistake"),
    ],
)
def test_how_it_ended_is_kept(tmp_path, error, state, why):
    with pytest.raises(type(error)), attempt(tmp_path):
        raise error
    found = read_attempts(tmp_path)[-1]
    assert (found.state, found.why) == (state, why)


def test_one_that_was_killed_says_that_it_runs(tmp_path):
    attempt(tmp_path).write()
    assert read_attempts(tmp_path)[-1].state == RUNNING


def test_where_it_was_worked_on_is_slurms_job_or_the_process(tmp_path, monkeypatch):
    assert work_place().startswith(f"process {os.getpid()} on ")
    for name, value in {"JOB_ID": "9", "ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "1", "RESTART_COUNT": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    attempt(tmp_path).write()
    assert read_attempts(tmp_path)[-1].where.startswith("Slurm job 7_1, restart 2 on ")


def test_vmapped_runs_share_the_seconds_of_their_devices(tmp_path, clock):
    with attempt(tmp_path):
        clock(30)
    with attempt(tmp_path, vmapped_runs=4):
        clock(10)
    assert device_seconds(read_attempts(tmp_path)) == 2 * 30 + 2 * 10 / 4


def test_a_file_that_is_torn_is_a_sentence_and_whoever_goes_on_counts_anew(tmp_path, clock):
    with attempt(tmp_path):
        clock(1)
    torn = (tmp_path / ATTEMPTS).read_bytes()[:50]
    (tmp_path / ATTEMPTS).write_bytes(torn)
    with pytest.raises(ValueError, match=r"attempts.json cannot be read: it is not JSON, or only a part of it"):
        read_attempts(tmp_path)
    said = []
    with attempt(tmp_path, log=said.append):
        clock(1)
    assert len(read_attempts(tmp_path)) == 1
    (sentence,) = said
    assert "It is renamed to attempts.json.damaged. Attempts are counted from the beginning" in sentence
    assert (tmp_path / "attempts.json.damaged").read_bytes() == torn


def test_while_steps_are_taken_it_is_written_at_most_once_a_second(tmp_path, clock, monkeypatch):
    written = []
    monkeypatch.setattr(attempts, "write_json", lambda path, value: written.append(json.dumps(value)))
    clocks = attempt(tmp_path)
    for _ in range(40):
        clock(0.25)
        clocks.write(at_once=False)
    assert len(written) == 10
