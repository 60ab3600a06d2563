"""Where the time of a training went, over all the times it was started.

A session is one start of a training, until it ended or died. Every second of it has one cause; the share of those in
which steps were taken for the first time is the goodput.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moejax.config import build, dump
from moejax.folder import write_json

SESSIONS = "sessions.json"

CAUSES = {
    "training": "steps, each taken for the first time",
    "starting": "from the process's start to the first step: data, restoring, compilation",
    "data": "devices had nothing to do before a batch came",
    "evaluation": "the validation set, and compiling for it",
    "checkpointing": "steps waited for a checkpoint to be taken or written",
    "redone": "steps that had been taken before, and were lost",
}

SECONDS_BETWEEN_WRITES = 1.0


@dataclass(frozen=True, kw_only=True)
class Session:
    """One start of a training, as far as is known."""

    began: float
    """Unix time, seconds."""
    until: float
    """Unix time of its last sign of life."""
    end: str | None = None
    """Why it ended; None while it lasts, and ever after if it was killed."""
    processes: int = 1
    devices: int = 1
    device_kind: str = ""
    legs: dict[str, int] = field(default_factory=dict)
    """Steps of each leg, in their order."""
    reached: dict[str, int] = field(default_factory=dict)
    """The last step that was logged of each leg, in this session or before."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By cause."""


class Sessions:
    """The clock of this session. Between two calls of ``enter``, all seconds have the cause that the first one named.

    Of several processes one writes. Writing is as good as the disk: what cannot be written is not told.
    """

    def __init__(self, folder: Path, *, writes: bool = True, began: float | None = None, about: Mapping[str, Any]):
        self._path, self._writes, self._about = folder / SESSIONS, writes, dict(about)
        self._earlier = read_sessions(folder)
        self._began = time.time() if began is None else began
        self._since = time.perf_counter() - (time.time() - self._began)
        self._seconds = dict.fromkeys(CAUSES, 0.0)
        self._cause = "starting"
        self._reached: dict[str, int] = {}
        for session in self._earlier:
            for leg, step in session.reached.items():
                self.reach(leg, step)
        self._written = -SECONDS_BETWEEN_WRITES

    def enter(self, cause: str) -> None:
        """From now on, time goes to ``cause``."""
        now = time.perf_counter()
        self._seconds[self._cause] += now - self._since
        self._since, self._cause = now, cause

    def step(self, leg: str, step: int) -> None:
        """From now on, time goes to taking this step."""
        self.enter("redone" if step <= self._reached.get(leg, 0) else "training")

    def waited(self, seconds: float) -> None:
        """So much of the present cause's time was waiting for data."""
        self._seconds[self._cause] -= seconds
        self._seconds["data"] += seconds

    def reach(self, leg: str, step: int) -> None:
        """A step of a leg has been logged: whoever takes it again does lost work."""
        self._reached[leg] = max(step, self._reached.get(leg, 0))

    def all(self, end: str | None = None) -> list[Session]:
        """All sessions, this one as it is now."""
        self.enter(self._cause)
        now = Session(
            began=self._began,
            until=time.time(),
            end=end,
            reached=dict(self._reached),
            seconds={cause: round(seconds, 3) for cause, seconds in self._seconds.items()},
            **self._about,
        )
        return [*self._earlier, now]

    def write(self, *, end: str | None = None, at_once: bool = True) -> None:
        """Put all sessions on disk; unless ``at_once``, no more than once a second."""
        now = time.perf_counter()
        if not self._writes or (not at_once and now - self._written < SECONDS_BETWEEN_WRITES):
            return
        self._written = now
        with contextlib.suppress(OSError):
            write_json(self._path, dump(self.all(end)))

    def __enter__(self) -> Sessions:
        self.write()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self.write(end=_how(error))


def read_sessions(folder: Path) -> list[Session]:
    """The sessions of a training's folder, oldest first; none if it tells of none."""
    try:
        found = json.loads((folder / SESSIONS).read_text())
        return [build(Session, session, SESSIONS) for session in found]
    except (OSError, ValueError):
        return []


def seconds_by_cause(sessions: Sequence[Session]) -> dict[str, float]:
    """Sums over sessions."""
    return {cause: sum((session.seconds.get(cause, 0.0) for session in sessions), 0.0) for cause in CAUSES}


def goodput(sessions: Sequence[Session]) -> float | None:
    """Share of the time of all sessions in which steps were taken for the first time; None if no time has passed."""
    seconds = seconds_by_cause(sessions)
    whole = sum(seconds.values())
    return seconds["training"] / whole if whole > 0 else None


def _how(error: BaseException | None) -> str:
    if error is None:
        return "finished"
    # Here, so that reading sessions needs no JAX.
    from moejax.train.stopping import Stopped

    if isinstance(error, Stopped):
        return f"stopped by {signal.Signals(error.number).name}"
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
