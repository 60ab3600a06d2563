"""A signal between steps waits for the step; at any other time it ends the process, whatever frame is running."""

import os
import signal
import subprocess
import sys

import pytest

from moejax.train import stopping
from moejax.train.directory.attempts import INTERRUPTED, read_attempts
from moejax.train.stopping import Stopped, stop_on_signals

IN_A_LIBRARY = """
import signal
from moejax.train.stopping import stop_on_signals

with stop_on_signals():
    try:
        signal.raise_signal(signal.SIGNAL)
    except BaseException as error:
        raise TypeError("a library that meets an exception fails in its own way") from error
"""


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 75), ("SIGINT", 130)])
def test_a_signal_in_a_librarys_frame_ends_the_process(tmp_path, name, status):
    code = IN_A_LIBRARY.replace("signal.SIGNAL", f"signal.{name}")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, env=_environment()
    )
    assert (done.returncode, done.stderr.strip()) == (
        status,
        f"moejax: Stopped before a step was taken; {stopping._RESUMES}",
    )


WHILE_COMPILING = """
import signal
from pathlib import Path
from moejax.train.directory.attempts import COMPILING, AttemptRecorder
from moejax.train.stopping import stop_on_signals

with stop_on_signals() as stop, AttemptRecorder(Path(), metadata={}) as attempts:
    stop.before_exit.append(attempts.stop)
    attempts.begin(COMPILING)
    signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_before_the_first_step_is_recorded(tmp_path):
    done = subprocess.run([sys.executable, "-c", WHILE_COMPILING], cwd=tmp_path, check=False, env=_environment())
    assert done.returncode == 75
    (last,) = read_attempts(tmp_path)
    assert (last.state, last.why) == (INTERRUPTED, "stopped by SIGTERM while compiling, before its first step")


def _environment():
    return os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}


def test_what_processes_agreed_on_in_the_last_step_of_a_phase_stops_the_next(monkeypatch):
    """JAX says so after one step alone."""
    monkeypatch.setattr(stopping.multihost_utils, "reached_preemption_sync_point", lambda step: step == 2)
    stop = stopping.Stop(processes=2)
    assert [stop.after_step() for _ in range(4)] == [False, True, True, True]
    assert stop.number == signal.SIGTERM


def test_a_signal_after_the_last_step_stops_when_that_is_saved():
    saved = []

    def last_step():
        with stop_on_signals() as stop, stop.stepping():
            signal.raise_signal(signal.SIGTERM)
            saved.append("the last step")

    with pytest.raises(Stopped) as stopped:
        last_step()
    assert saved
    assert stopped.value.number == signal.SIGTERM


def test_the_first_of_two_signals_decides_the_exit_status():
    def step():
        with stop_on_signals() as stop, stop.stepping():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped) as stopped:
        step()
    assert stopping.exit_status(stopped.value.number) == 75
