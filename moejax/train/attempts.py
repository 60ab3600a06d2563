"""``attempts.jsonl``: when and where a training was worked on, and how each attempt ended.

A line when an attempt starts, ``{"event": "started", "at": UTC seconds, "where": …, "devices": …}``, and one when it
ends: ``done``, ``failed`` with ``why``, or ``interrupted``. An attempt that is killed leaves no second line; the next
one writes it, ``lost``, with the time of the last sign of life.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from moejax.train.identity import TRAINING
from moejax.train.stopping import Stopped

ATTEMPTS = "attempts.jsonl"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process's, or group of processes', work on a training."""

    started: float
    """Seconds since 1970."""
    where: str
    devices: int
    result: str
    """``running`` (as far as the file tells), ``done``, ``failed``, ``interrupted`` or ``lost``."""
    ended: float | None
    why: str


@contextlib.contextmanager
def attempt(folder: Path) -> Iterator[None]:
    """Write down that a training is worked on, and how that ended."""
    path = folder / ATTEMPTS
    before = parse_attempts(path.read_text() if path.exists() else "")
    if before and before[-1].result == "running":
        _append(path, event="lost", at=max(before[-1].started, _last_sign(folder)))
    _append(path, event="started", at=time.time(), where=_where(), devices=jax.device_count())
    event: dict[str, Any] = {"event": "interrupted"}
    try:
        yield
        event = {"event": "done"}
    except Stopped:
        raise
    except Exception as error:
        name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        event = {"event": "failed", "why": f"{name}{error}"[:1000]}
        raise
    finally:
        _append(path, at=time.time(), **event)


@contextlib.contextmanager
def refusal(folder: Path) -> Iterator[None]:
    """Write down why a training that a study has laid out cannot start; where there is none, nothing is written."""
    try:
        yield
    except ValueError as error:
        if (folder / TRAINING).exists():
            _append(folder / ATTEMPTS, event="started", at=time.time(), where=_where(), devices=jax.device_count())
            _append(folder / ATTEMPTS, event="failed", at=time.time(), why=str(error)[:1000])
        raise


def parse_attempts(text: str) -> list[Attempt]:
    """The attempts that a file tells of; a line that was cut short is passed over."""
    found: list[Attempt] = []
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if event["event"] == "started":
            about = {"started": event["at"], "where": event["where"], "devices": event["devices"]}
            found.append(Attempt(**about, result="running", ended=None, why=""))
        elif found:
            last = found.pop()
            ending = {"result": event["event"], "ended": event["at"], "why": event.get("why", "")}
            found.append(dataclasses.replace(last, **ending))
    return found


def _append(path: Path, **event: Any) -> None:
    # A full disk, of which the training itself will speak, must not hide what else went wrong.
    with contextlib.suppress(OSError), path.open("a+b") as file:
        file.seek(-1, os.SEEK_END) if file.tell() else None
        torn = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * torn + json.dumps(event).encode() + b"\n")


def _where() -> str:
    """The engine's name for this work, and the machine."""
    job = os.environ.get("SLURM_JOB_ID")
    if job and "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    by = f"Slurm job {job}, restart {os.environ.get('SLURM_RESTART_COUNT', '0')}" if job else f"process {os.getpid()}"
    return f"{by} on {socket.gethostname()}"


def _last_sign(folder: Path) -> float:
    metrics = folder / "metrics.jsonl"
    return metrics.stat().st_mtime if metrics.exists() else 0.0
