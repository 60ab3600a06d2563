"""Record the attempts of a training run in ``attempts.json``: start, host, end and time spent.

An attempt lasts from one start of a training run until it ends or dies. Every second belongs to one time bucket. The
goodput is the share of time spent on steps that run for the first time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from moejax.config import dump
from moejax.errors import UserError
from moejax.folder import HeldLock, changes
from moejax.stored import Damaged, Unreadable, parse_json, read_bytes, write_json
from moejax.train.host import DETERMINISTIC
from moejax.wording import some, told

ATTEMPTS = "attempts.json"

TIME_BUCKETS = {
    "training": "steps run for the first time",
    "starting": "from the process's start to the first step: data, restoring, compilation",
    "data": "devices waited for the next batch",
    "evaluation": "evaluation on the validation set, and its compilation",
    "checkpointing": "steps waited for a checkpoint to be copied or written",
    "redone": "steps repeated because their results were lost",
}

DONE, RUNNING, INTERRUPTED, FAILED, WAITING = STATES = ("done", "running", "interrupted", "failed", "waiting")
"""States of a training run. Done: all rows exist. Running: it is active. Interrupted: it ended with everything saved,
or died without a record. Failed: it ended with an error, which may recur with the same command. Waiting: it has not
been started.
"""

ACTIVITIES = ("opening data", "initializing", "compiling", "stepping")
OPENING_DATA, INITIALIZING, COMPILING, STEPPING = ACTIVITIES
"""Activities of an attempt. Opening data: it checks, prepares and opens its text. Initializing: it initializes its
state, or restores it from a checkpoint. Compiling: it compiles the step. Stepping: it runs, logs and saves steps.
"""

SILENT_SECONDS = {OPENING_DATA: 24 * 3600.0, INITIALIZING: 24 * 3600.0, COMPILING: 2 * 3600.0, STEPPING: 900.0}
"""Maximum seconds between two updates of a running attempt, by activity. Activities before the first step are recorded
when they begin, and not again.
"""

BEFORE_LOG = "before its first logged step"

SECONDS_BETWEEN_WRITES = 1.0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One recorded start of a training run."""

    began: float
    """Unix time, seconds."""
    until: float
    """Unix time of the last update."""
    state: str = RUNNING
    """One of ``STATES`` as last recorded; a killed attempt remains "running"."""
    why: str = ""
    """Reason for an interruption or a failure."""
    activity: str = ""
    """One of ``ACTIVITIES`` at the last update; empty if it was not recorded."""
    where: str = ""
    """Name of the job or process, and the host."""
    processes: int = 1
    devices: int = 1
    device_kind: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    """Everything that affects rounding except settings and seed, keyed by name: ``row.versions`` of all processes, the
    mesh and the number of processes.
    """
    vmapped_runs: int = 1
    """Number of vmapped runs that share the devices and the time of this attempt."""
    phases: dict[str, int] = field(default_factory=dict)
    """Number of steps of each phase, in order."""
    reached: dict[str, int] = field(default_factory=dict)
    """Last logged step of each phase, in this or an earlier attempt."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds in each time bucket, keyed as in ``TIME_BUCKETS``."""

    def moment(self, has_logged: bool = False) -> str:
        """Return a phrase for the activity at the last update, such as ``while compiling, before its first step``. It
        is empty if the run has begun to log steps, or if the activity was not recorded.

        Args:
          has_logged: whether the log has a step. The log is newer than the record of attempts.
        """
        if not self.activity:
            return ""
        has_logged = has_logged or any(self.reached.values())
        if self.activity == STEPPING:
            return "" if has_logged else BEFORE_LOG
        return f"while {self.activity}" + ("" if has_logged else ", before its first step")


class AttemptRecorder:
    """Time accounting of this attempt: time after ``enter(bucket)`` belongs to ``bucket`` until the next call.

    One process writes, and only while it holds the folder's ``lock``. Write errors are ignored, and a damaged file is
    replaced: accounting never ends a training run.
    """

    def __init__(
        self,
        folder: Path,
        *,
        writes: bool = True,
        lock: HeldLock | None = None,
        began: float | None = None,
        metadata: Mapping[str, Any],
        log: Callable[[str], None] = lambda text: None,
    ):
        self._path, self._writes, self._metadata = folder / ATTEMPTS, writes, dict(metadata)
        self._lock, self._log = lock, log
        self._earlier: list[Attempt] = []
        try:
            self._earlier = read_attempts(folder) if writes else []
        except Unreadable:
            raise
        except Damaged as problem:
            kept = self._path.with_name(f"{ATTEMPTS}.damaged")
            with contextlib.suppress(OSError):
                self._path.replace(kept)
            log(f"{told(problem)} It is renamed to {kept.name}. Attempts are counted from the beginning.")
        self._began = time.time() if began is None else began
        self._since = time.perf_counter() - (time.time() - self._began)
        self._seconds = dict.fromkeys(TIME_BUCKETS, 0.0)
        self._bucket, self._activity = "starting", OPENING_DATA
        self._reached: dict[str, int] = {}
        for attempt in self._earlier:
            for phase, step in attempt.reached.items():
                self.reach(phase, step)
        self._written = -SECONDS_BETWEEN_WRITES

    @property
    def versions(self) -> dict[str, str]:
        """``Attempt.versions`` of this attempt, keyed by name."""
        return self._metadata["versions"]

    def log_rounding_changes(self) -> None:
        """Log changes since the last attempt that affect rounding. Also log it if GPUs add in no fixed order."""
        now = self.versions
        before = next((attempt.versions for attempt in reversed(self._earlier) if attempt.versions), now)
        why = [
            f"{name} was {a or 'not recorded'}, is {b or 'not recorded'}"
            for name, (a, b) in changes(before, now).items()
        ]
        if self._earlier and "no" in now.get("deterministic", ""):
            why += [f"a GPU adds in a fixed order only if XLA_FLAGS contains {DETERMINISTIC} from the first start on"]
        if why:
            self._log(
                f"{self._path.parent} resumes with the same numbers up to rounding, not bit for bit: "
                f"{some(why, most=8, between='; ')}."
            )

    def enter(self, bucket: str) -> None:
        """Attribute time to ``bucket`` from now on."""
        now = time.perf_counter()
        self._seconds[self._bucket] += now - self._since
        self._since, self._bucket = now, bucket

    def begin(self, activity: str) -> None:
        """Record the activity that begins now."""
        self._activity = activity
        self.write()

    def step(self, phase: str, step: int) -> None:
        """Attribute time to this step from now on."""
        self.enter("redone" if step <= self._reached.get(phase, 0) else "training")

    def waited(self, seconds: float) -> None:
        """Move ``seconds`` from the current time bucket to "data"."""
        self._seconds[self._bucket] -= seconds
        self._seconds["data"] += seconds

    def reach(self, phase: str, step: int) -> None:
        """Record that a step of a phase has been logged; if the step is repeated, its time counts as redone work."""
        self._reached[phase] = max(step, self._reached.get(phase, 0))

    def all(self, state: str = RUNNING, why: str = "") -> list[Attempt]:
        """Return all attempts, including the current one up to now."""
        self.enter(self._bucket)
        now = Attempt(
            began=self._began,
            until=time.time(),
            state=state,
            why=why,
            activity=self._activity,
            where=work_place(),
            reached=dict(self._reached),
            seconds={bucket: round(seconds, 3) for bucket, seconds in self._seconds.items()},
            **self._metadata,
        )
        return [*self._earlier, now]

    def write(self, state: str = RUNNING, why: str = "", *, at_once: bool = True) -> None:
        """Write all attempts to disk, at most once a second unless ``at_once`` is set."""
        now = time.perf_counter()
        if not self._writes or (not at_once and now - self._written < SECONDS_BETWEEN_WRITES):
            return
        if self._lock is None or self._lock.is_held():
            self._written = now
            with contextlib.suppress(OSError):
                write_json(self._path, dump(self.all(state, why)))

    def stop(self, number: int) -> None:
        """Record that a signal ends the process at once. A signal handler may call this."""
        moment = self.all()[-1].moment()
        self.write(INTERRUPTED, " ".join(filter(None, (f"stopped by {signal.Signals(number).name}", moment))))

    def __enter__(self) -> AttemptRecorder:
        self.write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.write(*_ending(error))


def read_attempts(folder: Path) -> list[Attempt]:
    """Return the attempts recorded in a training run's folder, oldest first; an empty list if none are recorded.

    Raises:
      Damaged: the file cannot be read.
    """
    path = folder / ATTEMPTS
    return parse_attempts(read_bytes(path, remedy=_REMEDY), path) if path.exists() else []


def parse_attempts(content: bytes | str, path: object) -> list[Attempt]:
    """Parse the content of an ``attempts.json``.

    Raises:
      Damaged: the content is invalid.
    """
    return parse_json(content, list[Attempt], path, remedy=_REMEDY)


_REMEDY = "restore a copy, or remove it"


def running_text(attempts: Sequence[Attempt], has_logged: bool) -> str:
    """Return the activity of a running training run, such as ``compiling``; empty while it logs steps."""
    if attempts and attempts[-1].state == DONE:
        return ""
    if not attempts or attempts[-1].state != RUNNING:
        # Its process holds the folder's lock, but has not recorded the new attempt yet.
        return "starting"
    last = attempts[-1]
    return last.moment(has_logged) if last.activity == STEPPING else last.activity


def device_seconds(attempts: Sequence[Attempt]) -> float:
    """Return the device-seconds spent on a training run, including lost work. Vmapped runs share the time equally."""
    return sum((one.devices / one.vmapped_runs * (one.until - one.began) for one in attempts), 0.0)


def seconds_by_bucket(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Return the seconds of each time bucket, summed over attempts."""
    return {bucket: sum((attempt.seconds.get(bucket, 0.0) for attempt in attempts), 0.0) for bucket in TIME_BUCKETS}


def goodput(attempts: Sequence[Attempt]) -> float | None:
    """Return the share of all attempts' time spent on steps that run for the first time; None if no time has passed."""
    seconds = seconds_by_bucket(attempts)
    whole = sum(seconds.values())
    return seconds["training"] / whole if whole > 0 else None


def work_place() -> str:
    """Return the name of the job or process, and the host."""
    job = os.environ.get("SLURM_JOB_ID")
    if job and "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    by = f"Slurm job {job}, restart {os.environ.get('SLURM_RESTART_COUNT', '0')}" if job else f"process {os.getpid()}"
    return f"{by} on {socket.gethostname()}"


def _ending(error: BaseException | None) -> tuple[str, str]:
    if error is None:
        return DONE, ""
    # ``Stopped`` is recognized by its signal, because its module needs JAX.
    if (number := getattr(error, "number", None)) is not None:
        return INTERRUPTED, f"stopped by {signal.Signals(number).name}"
    why = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return FAILED if isinstance(error, Exception) else INTERRUPTED, why[:1000]
