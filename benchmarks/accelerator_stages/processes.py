"""Runs a stage in a process of its own, with a limit; a case that crashes or hangs costs that case alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from accelerator_stages.cases import DEVICE_LOST, NO_TIME, ROWS, append, ended, read


@dataclass(frozen=True)
class Stage:
    """A part of the benchmark."""

    function: str
    """``module:function``, called with the ``Cases`` of a process."""
    share: float
    """Of the minutes, relative to the stages behind; what one does not use goes to those."""
    processes: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"": {}})
    """A process for each case with its environment; usually one for all cases. XLA's flags are added to those set."""
    python: str = sys.executable


@dataclass(frozen=True)
class Limits:
    """How long a run, and one case of it, may take."""

    seconds: float
    silence_seconds: float
    """Without a new row for so long, a process hangs."""
    shortest_seconds: float = 5.0
    """With less time left no process is started."""


@dataclass(frozen=True)
class Runner:
    """Runs stages one after another, each in processes of its own."""

    out: Path
    run: int
    """Unix time at which the run began; rows carry it."""
    limits: Limits
    program: Path
    """Started as ``program --child FUNCTION --stage NAME --case CASE ...`` with ``arguments`` behind."""
    arguments: Sequence[str] = ()

    def stages(self, stages: Mapping[str, Stage], after: Callable[[str], bool] = lambda name: True) -> None:
        """Run all, until ``after(name)``, called behind each, is False."""
        end = time.time() + self.limits.seconds
        names = list(stages)
        for number, name in enumerate(names):
            stage, shares = stages[name], [stages[later].share for later in names[number:]]
            limit = time.time() + (end - time.time()) * shares[0] / sum(shares)
            for done, case in enumerate(stage.processes):
                # Of processes for single cases, each gets as much of what is left.
                until = time.time() + (limit - time.time()) / (len(stage.processes) - done)
                while self._must_start_again(name, stage, case, until):
                    pass
            if not after(name):
                return

    def _must_start_again(self, name: str, stage: Stage, case: str, until: float) -> bool:
        """Run one process of a stage; whether another is needed for the cases behind one that ended it."""
        left = until - time.time()
        if left < self.limits.shortest_seconds:
            self._write(name, case or "the rest", left_out=NO_TIME)
            return False
        command = [stage.python, str(self.program), "--child", stage.function, "--stage", name, "--case", case]
        command += ["--out", str(self.out), "--run", str(self.run), "--parent", str(os.getpid())]
        # What is begun before the deadline has some time to end.
        command += ["--deadline", str(time.time() + 0.85 * left), *self.arguments]
        ending = run_process(command, stage.processes[case], self.out, until, self.limits.silence_seconds)
        begun = self._begun(name)
        for one in begun:
            self._write(name, one, error=ending.why)
        if ending.why and not begun and not ending.is_device_lost:
            self._write(name, case or "the process", error=ending.why)
        return bool(begun) or ending.is_device_lost

    def _begun(self, stage: str) -> list[str]:
        """Cases that were begun and have no end."""
        rows = [row for row in read(self.out / ROWS) if row["run"] == self.run and row["stage"] == stage]
        done = {row["case"] for row in ended(rows)}
        return [row["case"] for row in rows if "begun" in row and row["case"] not in done]

    def _write(self, stage: str, case: str, **values: str) -> None:
        append(self.out / ROWS, {"run": self.run, "stage": stage, "case": case, **values})


class Ending(NamedTuple):
    """How a process ended."""

    why: str
    """Empty if it ended well."""
    is_device_lost: bool = False


def run_process(
    command: Sequence[str], environment: Mapping[str, str], out: Path, until: float, silence_seconds: float
) -> Ending:
    """Run to the end or until a limit; what is printed goes to ``log.txt``."""
    rows = out / ROWS
    flags = " ".join(filter(None, (values.get("XLA_FLAGS", "").strip() for values in (os.environ, environment))))
    with (out / "log.txt").open("ab") as log:
        # A group of its own, so that whatever it started ends with it.
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment, "XLA_FLAGS": flags},
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        size, since = _size(rows), time.time()
        try:
            while process.poll() is None:
                time.sleep(0.05)
                if _size(rows) != size:
                    size, since = _size(rows), time.time()
                if time.time() > until:
                    return Ending("stopped at the limit of its stage")
                if time.time() - since > silence_seconds:
                    return Ending(f"stopped after {silence_seconds:.0f} s without a new row")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # A process that waits for a broken driver cannot be ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
    if process.returncode < 0:
        return Ending(f"the process died of {signal.Signals(-process.returncode).name}")
    why = f"the process ended with exit status {process.returncode}" if process.returncode else ""
    return Ending(why, process.returncode == DEVICE_LOST)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
