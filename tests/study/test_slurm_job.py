"""A Slurm job queues itself again when its training can go on, and not when Slurm ended it. No Slurm is needed."""

import os
import signal
import subprocess
import sys

import pytest

from moejax.study import slurm_job
from moejax.study.slurm_job import AGAIN, RESTARTS, WARNING, Train

ENDS = f"raise SystemExit({AGAIN})"
WAITS = f"""
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit({AGAIN}))
os.kill(os.getppid(), signal.SIGNAL)
time.sleep(60)
"""
"""It lets its parent have a signal, and ends when it has SIGTERM itself."""
CANCELLED = WAITS.replace("SIGNAL", "SIGTERM").replace("time.sleep(60)", "os.kill(os.getpid(), signal.SIGTERM)")


@pytest.fixture
def requeued(monkeypatch):
    """A list of the calls of scontrol; the handlers of signals are brought back."""
    calls, before = [], {number: signal.getsignal(number) for number in (WARNING, signal.SIGTERM)}
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setattr(slurm_job.subprocess, "run", lambda words, **options: calls.append(words))
    yield calls
    for number, handler in before.items():
        signal.signal(number, handler)


def ended(monkeypatch, code):
    """The exit status of a job whose training is a program."""
    popen = subprocess.Popen
    monkeypatch.setattr(slurm_job.subprocess, "Popen", lambda words: popen([sys.executable, "-c", code]))
    with pytest.raises(SystemExit) as raised:
        Train(words=("train",))()
    return raised.value.code


@pytest.mark.parametrize(
    ("code", "restarts", "again"),
    [
        (ENDS, 0, True),
        (ENDS, RESTARTS - 1, True),
        (ENDS, RESTARTS, False),
        (WAITS.replace("SIGNAL", "SIGUSR2"), RESTARTS, True),
        (CANCELLED, 0, False),
    ],
    ids=["hangs", "hangs again", "hangs for ever", "warned", "cancelled"],
)
def test_a_job_queues_itself_again_unless_slurm_ended_it_or_it_never_gets_on(
    requeued, monkeypatch, code, restarts, again
):
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    assert ended(monkeypatch, code) == AGAIN
    assert requeued == [["scontrol", "requeue", "12"]] * again


def test_a_mistake_is_not_queued_again(requeued, monkeypatch):
    assert ended(monkeypatch, "raise SystemExit(2)") == 2
    assert requeued == []


def test_one_process_of_a_job_queues_it_again(requeued, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert ended(monkeypatch, ENDS) == AGAIN
    assert requeued == []
