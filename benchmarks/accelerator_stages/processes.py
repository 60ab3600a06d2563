"""Run each stage in its own process with a time limit; a case that crashes or hangs does not affect other cases."""

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
    """Share of the minutes, relative to the later stages, which get the time that this stage does not use."""
    processes: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"": {}})
    """Environment variables of each case that needs its own process; usually one process runs all cases. ``XLA_FLAGS``
    are appended to existing flags.
    """
    python: str = sys.executable


@dataclass(frozen=True)
class Limits:
    """Time limits of a run and its cases."""

    seconds: float
    silence_seconds: float
    """Seconds without a new row after which a process counts as hanging."""
    shortest_seconds: float = 5.0
    """Minimum remaining seconds to start a process."""


@dataclass(frozen=True)
class Runner:
    """A runner of stages, one after another, each in its own processes."""

    out: Path
    run: int
    """Unix time at which the run began, which rows record."""
    limits: Limits
    program: Path
    """The program, started as ``program --child FUNCTION --stage NAME --case CASE ...`` followed by ``arguments``."""
    arguments: Sequence[str] = ()

    def stages(self, stages: Mapping[str, Stage], after: Callable[[str], bool] = lambda name: True) -> None:
        """Run all stages, until ``after(name)``, called after each stage, returns False."""
        end = time.time() + self.limits.seconds
        names = list(stages)
        for number, name in enumerate(names):
            stage, shares = stages[name], [stages[later].share for later in names[number:]]
            limit = time.time() + (end - time.time()) * shares[0] / sum(shares)
            for done, case in enumerate(stage.processes):
                # Processes for single cases share the remaining time equally.
                until = time.time() + (limit - time.time()) / (len(stage.processes) - done)
                while self._must_start_again(name, stage, case, until):
                    pass
            if not after(name):
                return

    def _must_start_again(self, name: str, stage: Stage, case: str, until: float) -> bool:
        """Run one process of a stage; return whether the remaining cases need another process."""
        left = until - time.time()
        if left < self.limits.shortest_seconds:
            self._write(name, case or "the rest", left_out=NO_TIME)
            return False
        command = [stage.python, str(self.program), "--child", stage.function, "--stage", name, "--case", case]
        command += ["--out", str(self.out), "--run", str(self.run), "--parent", str(os.getpid())]
        # A case that starts before the deadline gets some time to finish.
        command += ["--deadline", str(time.time() + 0.85 * left), *self.arguments]
        ending = run_process(command, stage.processes[case], self.out, until, self.limits.silence_seconds)
        begun = self._begun(name)
        for one in begun:
            self._write(name, one, error=ending.why)
        if ending.why and not begun and not ending.is_device_lost:
            self._write(name, case or "the process", error=ending.why)
        return bool(begun) or ending.is_device_lost

    def _begun(self, stage: str) -> list[str]:
        """Return cases that have started but have no final row."""
        rows = [row for row in read(self.out / ROWS) if row["run"] == self.run and row["stage"] == stage]
        done = {row["case"] for row in ended(rows)}
        return [row["case"] for row in rows if "begun" in row and row["case"] not in done]

    def _write(self, stage: str, case: str, **values: str) -> None:
        append(self.out / ROWS, {"run": self.run, "stage": stage, "case": case, **values})


class Ending(NamedTuple):
    """The outcome of a process."""

    why: str
    """Reason of a failure; empty on success."""
    is_device_lost: bool = False


def run_process(
    command: Sequence[str], environment: Mapping[str, str], out: Path, until: float, silence_seconds: float
) -> Ending:
    """Run a process to its end or a time limit, with its output in ``log.txt``."""
    rows = out / ROWS
    flags = " ".join(filter(None, (values.get("XLA_FLAGS", "").strip() for values in (os.environ, environment))))
    with (out / "log.txt").open("ab") as log:
        # A separate process group, so that child processes end with it.
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
            # A process that waits for a broken driver cannot be killed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
    if process.returncode < 0:
        return Ending(f"the process died of {signal.Signals(-process.returncode).name}")
    why = f"the process ended with exit status {process.returncode}" if process.returncode else ""
    return Ending(why, process.returncode == DEVICE_LOST)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
