"""The process that compiles: it ends with the one that started it, and a killed one is a sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moejax.cli.config_file import load
from moejax.errors import UserError
from moejax.plan.process import plan
from moejax.plan.topology import parse
from moejax.train.training import Training

TINY = Path(__file__).parent.parent.parent / "configs" / "tiny.py"
STARTS_ONE = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-m", "moejax.plan", str(os.getpid())])
print("started", flush=True)
time.sleep(600)
"""


def planned_by(monkeypatch, tmp_path, script):
    """A plan that a shell's script is asked for in place of Python."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return plan(load(Training, str(TINY), []), parse("cpu:1"))


@pytest.mark.parametrize(("signal", "why"), [("KILL", "when memory runs out"), ("TERM", "run the command again")])
def test_a_killed_compilation_is_a_sentence(monkeypatch, tmp_path, signal, why):
    with pytest.raises(UserError, match=f"The compilation for cpu:1 was killed by SIG{signal}; .*{why}"):
        planned_by(monkeypatch, tmp_path, f"kill -{signal} $$")


def test_a_compilation_that_fails_by_itself_is_no_mistake_of_the_users(monkeypatch, tmp_path):
    with pytest.raises(RuntimeError, match="failed with status -6"):
        planned_by(monkeypatch, tmp_path, "kill -ABRT $$")


def test_a_compilation_is_told_who_started_it(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=f"-m moejax.plan {os.getpid()}$"):
        planned_by(monkeypatch, tmp_path, """echo '{"mistake": "'"$*"'"}'""")


def test_a_compilation_ends_with_the_process_that_started_it():
    # A request that never comes keeps it waiting.
    reading, writing = os.pipe()
    with subprocess.Popen([sys.executable, "-c", STARTS_ONE], stdin=reading, stdout=subprocess.PIPE) as parent:
        os.close(reading)
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        parent.kill()
        # The end of what both write to is the end of both.
        assert parent.communicate(timeout=120) == (b"", None)
    os.close(writing)
