"""Hooks of the training loop: time accounting, evaluation, log, divergence guard and profile."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from moejax.train.batches import batch_digest
from moejax.train.evaluation import Evaluated
from moejax.train.run import TrainingRun
from moejax.train.step import Batch, TrainState
from moejax.train.training import Phase

OnLog = Callable[[int, dict[str, Any]], None]
"""Callback for every logged step: receives the number of steps done in trunk and branches, and the log line."""


class Elapsed(NamedTuple):
    """Training time up to a log line."""

    since: int
    """Step of the previous log line, or the step where this process began."""
    seconds_since: float
    seconds: float
    """Seconds of training since the start of the phase."""


class Stopwatch:
    """Seconds of training in a phase, excluding evaluations and checkpoints."""

    def __init__(self, step: int, seconds: float):
        self._step, self._seconds, self._started = step, seconds, time.perf_counter()

    def now(self) -> float:
        """Return the seconds up to now."""
        return self._seconds + time.perf_counter() - self._started

    def lap(self, step: int) -> Elapsed:
        """Return the time since the previous lap, after a step."""
        now, since = time.perf_counter(), self._step
        took = now - self._started
        self._step, self._seconds, self._started = step, self._seconds + took, now
        return Elapsed(since, took, self._seconds)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the context, during which devices do not train."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began


@dataclass(eq=False)
class LoggedStep:
    """A step after which the hooks are called."""

    phase: Phase
    step: int
    state: TrainState
    metrics: dict[str, Any]
    batch: Batch
    elapsed: Elapsed
    validation: list[dict[str, float] | None] | None = None
    """Validation losses of each run, set by ``Evaluate``; None for diverged runs."""


class StepHook(Protocol):
    """An action after a logged step; every process calls it."""

    def after_step(self, at: LoggedStep) -> None: ...


@dataclass(frozen=True)
class RecordTime:
    """Hook that records the time spent, and thus shows that the training run is alive."""

    runs: Sequence[TrainingRun]

    def after_step(self, at: LoggedStep) -> None:
        for run in self.runs:
            if not run.diverged:
                run.attempts.write(at_once=False)


@dataclass(frozen=True)
class Evaluate:
    """Hook that measures the validation loss every ``every`` steps; 0 disables it."""

    evaluate: Callable[[TrainState], list[Evaluated | None]]
    every: int
    watch: Stopwatch

    def after_step(self, at: LoggedStep) -> None:
        if is_due(at.step, self.every):
            with self.watch.paused():
                at.validation = [evaluated and evaluated.for_log() for evaluated in self.evaluate(at.state)]


@dataclass(frozen=True)
class WriteLog:
    """Hook that writes each run's log line, with its share of the time."""

    runs: Sequence[TrainingRun]
    progress: OnLog

    def after_step(self, at: LoggedStep) -> None:
        count, lines = len(self.runs), []
        digests_of = batch_digest if count == 1 else _digest_of_each
        values, digests = jax.device_get((at.metrics, digests_of(at.batch)))
        for number, run in enumerate(self.runs):
            if not run.diverged:
                own = values if count == 1 else {name: value[number] for name, value in values.items()}
                losses = at.validation[number] if at.validation else None
                digest = int(np.ravel(digests)[number])
                seconds = at.elapsed.seconds_since / count, at.elapsed.seconds / count
                lines.append(run.log_step(at.phase, at.step, at.elapsed.since, *seconds, own, losses or {}, digest))
        best = min(lines, key=lambda line: line["loss"] if isinstance(line["loss"], float) else math.inf)
        self.progress(best["steps_done"], best)


@dataclass(frozen=True)
class DivergenceGuard:
    """Hook that excludes runs with too many consecutive skipped steps, and ends training if no run remains."""

    runs: Sequence[TrainingRun]
    save: Callable[[LoggedStep], None]

    def after_step(self, at: LoggedStep) -> None:
        values = jax.device_get({name: at.metrics[name] for name in ("skipped_in_a_row", "loss", "gradient_norm")})
        diverged = {}
        for number, run in enumerate(self.runs):
            own = {name: float(np.ravel(value)[number]) for name, value in values.items()}
            if not run.diverged and (why := run.divergence(at.phase, at.step, own)):
                diverged[number] = why
        if not diverged:
            return
        self.save(at)
        if len(self.runs) > 1:
            for number, why in diverged.items():
                self.runs[number].set_divergence(why)
        if len(self.runs) == 1 or all(run.diverged for run in self.runs):
            self.runs[0].group.abort(" ".join(run.diverged or diverged[n] for n, run in enumerate(self.runs)))


class Profile:
    """A recorder of the steps ``first`` to ``last``, counted over trunk and branches; ``None`` records nothing."""

    def __init__(self, steps: tuple[int, int] | None, folder: Path, log: Callable[[str], None]):
        self._first, self._last = steps or (0, 0)
        self._folder, self._log = folder / "profile", log
        self._recording, self._recorded = False, steps is None

    def step(self, number: int) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which to run a step."""
        if self._first <= number <= self._last and not (self._recording or self._recorded):
            jax.profiler.start_trace(str(self._folder))
            self._recording = True
        return jax.profiler.StepTraceAnnotation("step", step_num=number) if self._recording else _NOTHING

    def after(self, number: int, metrics: Mapping[str, jax.Array]) -> None:
        """Stop recording after the last step, once the devices have finished it."""
        if self._recording and number >= self._last:
            jax.block_until_ready(metrics)
            self.close()

    def close(self) -> None:
        """Stop recording if it is in progress."""
        if self._recording:
            self._recording, self._recorded = False, True
            jax.profiler.stop_trace()
            self._log(
                f"The profile is in {self._folder}. Open it with xprof --logdir {self._folder} (pip install xprof), "
                "or "
                f"its trace.json.gz at ui.perfetto.dev."
            )
        elif not self._recorded:
            self._recorded = True
            self._log(f"None of the steps {self._first} to {self._last} was run, so there is no profile.")


def is_due(step: int, every: int) -> bool:
    """Return whether an action with this period (0: never) is due after this step."""
    return bool(every) and step % every == 0


_NOTHING = contextlib.nullcontext()
_digest_of_each = jax.jit(jax.vmap(batch_digest))
