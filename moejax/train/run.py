"""Define a run: one training in one folder, with its rows, log, attempts and checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moejax.data.corpus import PartRead, Summary
from moejax.errors import UserError
from moejax.folder import HeldLock
from moejax.stored import read_json, write_json
from moejax.train.devices import Speed, memory
from moejax.train.directory.attempts import AttemptRecorder, goodput
from moejax.train.directory.checkpoint import CheckpointManager, NotRestored
from moejax.train.directory.identity import (
    DIVERGED,
    INITIAL_WEIGHTS,
    TrainingInputs,
    check_state,
    decisive_changes,
    origin,
)
from moejax.train.directory.manifest import Hashing
from moejax.train.directory.metrics import MetricsLog, module_name
from moejax.train.directory.row import Measured, make_row
from moejax.train.directory.row_file import row_file
from moejax.train.evaluation import Evaluated
from moejax.train.phases import Phase
from moejax.train.processes import ProcessGroup
from moejax.train.program import Program
from moejax.train.step import LAYERS, TrainState
from moejax.train.training import Training


class Elapsed(NamedTuple):
    """Training time up to a line of the log."""

    since: int
    """Step of the previous line, or the step where this process began."""
    seconds_since: float
    seconds: float
    """Seconds of the phase."""

    def shared_by(self, runs: int) -> Elapsed:
        """Return the share of one of several runs that are trained together."""
        return Elapsed(self.since, self.seconds_since / runs, self.seconds / runs)


class Stopwatch:
    """Seconds of training in a phase, excluding evaluations and checkpoints."""

    def __init__(self, step: int, seconds: float):
        self.seconds = seconds
        """Seconds up to the last lap."""
        self._step, self._started = step, time.perf_counter()

    def now(self) -> float:
        """Return the seconds up to now."""
        return self.seconds + time.perf_counter() - self._started

    def lap(self, step: int) -> Elapsed:
        """Return the time since the previous lap, after a step."""
        since, took = self._step, time.perf_counter() - self._started
        self.seconds += took
        self._step, self._started = step, time.perf_counter()
        return Elapsed(since, took, self.seconds)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the context, during which devices do not train."""
        began = time.perf_counter()
        yield
        self._started += time.perf_counter() - began


@dataclass(kw_only=True)
class TrainingRun:
    """One training in its folder, as every process of the group represents it."""

    training: Training
    folder: Path
    rows: list[dict[str, Any] | None]
    """Rows by budget; None for unfinished ones."""
    attempts: AttemptRecorder
    metrics: MetricsLog
    speed: Speed
    hashing: Hashing
    group: ProcessGroup
    log: Callable[[str], None]
    inputs: TrainingInputs = field(default_factory=TrainingInputs)
    """Inputs of the training, in the main process."""
    lock: HeldLock | None = None
    """Lock of the folder, in the process that writes to it."""
    diverged: str | None = None
    """Reason why this run was excluded from vmapped training; None if it was not. Only the main process reads the file:
    other machines may see an outdated copy of a shared folder."""

    def recall_divergence(self) -> None:
        """Read whether this run was excluded earlier."""

        def read() -> str | None:
            path, remedy = self.folder / DIVERGED, "remove it, and the run is tried again"
            return read_json(path, {"why": str}, remedy=remedy)["why"] if path.exists() else None

        self.diverged = self.group.run_on_main(read)

    def mark_diverged(self, why: str) -> None:
        """Exclude this run from now on."""
        self.group.run_on_main(lambda: write_json(self.folder / DIVERGED, {"why": why}))
        self.diverged = why

    def forget_divergence(self) -> None:
        """Clear the record, so that this run is tried again."""
        self.group.run_on_main(lambda: (self.folder / DIVERGED).unlink(missing_ok=True))
        self.diverged = None

    def check_lock(self) -> None:
        """Raise ``UserError`` if the folder has been replaced since this process began to write to it."""
        if self.lock is not None:
            self.lock.check()

    def rewind(self, phase: Phase, step: int) -> None:
        """Remove the logged lines of a phase after a step."""
        every = self.training.recipe.log_every_steps
        self.attempts.reach(phase.name, self.metrics.rewind(phase.name, step, start=phase.start, every=every))

    def as_numbers(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return a step's metrics, host arrays, as numbers. Those of layers are lists under ``layers``, with the
        layers' numbers counted from the input, or ``mtp_k`` for a multi-token-prediction module."""
        values: dict[str, Any] = {}
        depth, routed = self.training.architecture.num_layers, self.training.architecture.routed_layers
        names = [number if number < depth else module_name(number - depth + 1) for number in routed]
        layers: dict[str, list[Any]] = {"layer": names}
        for name, value in metrics.items():
            if name.startswith(LAYERS):
                layers[name.removeprefix(LAYERS)] = np.asarray(value).tolist()
            else:
                values[name] = float(value)
        return values if len(layers) == 1 else {**values, "layers": layers}

    def log_step(
        self, phase: Phase, step: int, elapsed: Elapsed, values: Mapping[str, Any], digest: int
    ) -> dict[str, Any]:
        """Add a line to the log and return it."""
        recipe = self.training.recipe
        tokens = recipe.tokens(step)
        line = {
            "tokens": tokens,
            "steps_done": phase.steps_done(step),
            "seconds": elapsed.seconds,
            **self.speed.of(tokens - recipe.tokens(elapsed.since), elapsed.seconds_since),
            **memory(),
            **values,
            "batch_digest": digest,
        }
        self.metrics.write(phase.name, step, line)
        self.check_lock()
        self.metrics.flush()
        self.attempts.reach(phase.name, step)
        self.attempts.write(at_once=False)
        return line

    def divergence(self, phase: Phase, step: int, values: Mapping[str, Any]) -> str | None:
        """Return a message if the guard has skipped too many steps in a row; otherwise None."""
        if values["skipped_in_a_row"] < self.training.recipe.guard.patience:
            return None
        first = step - int(values["skipped_in_a_row"])
        return (
            f"{self.training.name} diverged: no step of its {phase.name} could be taken from step {first} to {step}, "
            f"where the loss is {values['loss']} and the gradient norm {values['gradient_norm']}. Those were the "
            f"batches {first} to {step - 1} of the data order of seed {self.training.order_seed}. The state before "
            f"them is saved; lower optimizer.learning_rate or lengthen the warm-up, in a new --out."
        )

    def checkpoints(self, phase: Phase, keep: Sequence[int] = ()) -> CheckpointManager:
        """Return the checkpoint manager of a phase; checkpoints at the steps in ``keep`` are always kept."""
        recipe = self.training.recipe
        return CheckpointManager(
            self.folder / "checkpoints" / phase.name,
            self.group,
            newest=recipe.keep_checkpoints,
            keep=keep,
            every=recipe.keep_every_steps,
            best=recipe.keep_best,
            hashing=self.hashing,
            log=self.log,
        )

    def metadata(
        self, phase: Phase, step: int, seconds: float, validation: Mapping[str, float] | None
    ) -> dict[str, Any]:
        """Return a checkpoint's metadata: the origin of the state, the training time, software versions and validation
        losses."""
        known = {"seconds": seconds, "versions": self.attempts.versions}
        return {**known, **origin(self.training, self.inputs, phase.name, step), **(validation or {})}

    def check_metadata(self, metadata: Mapping[str, Any], phase: Phase, step: int) -> None:
        """Abort if a checkpoint belongs to another training or began with other inputs."""
        self.group.run_on_main(lambda: check_state(self.folder, self.training, metadata, phase.name, step, self.inputs))

    def begin_with(self, weights: str) -> None:
        """Record the SHA-256 of the initial weights; raise if it differs from an earlier start."""
        source, known = self.training.recipe.initial_weights.source, self.inputs.initial_weights
        if known and weights != known:
            raise UserError(
                f"initial_weights.source {source} holds other weights than when {self.folder} was begun. Bring those "
                f"back, or start anew in another --out."
            )
        if weights and not known:
            write_json(self.folder / INITIAL_WEIGHTS, {"source": source, "sha256": weights})
            self.inputs = replace(self.inputs, initial_weights=weights)

    def write_row(
        self, number: int, branch: Phase, evaluated: Evaluated, text: Summary, read: Sequence[PartRead]
    ) -> dict[str, Any]:
        """Write the row of a budget and return it."""
        budget = self.training.recipe.budgets_tokens[number]
        measured = Measured(
            evaluated,
            self.metrics.lines(),
            branch.name,
            goodput(self.attempts.all()),
            memory()["memory_peak_bytes"],
            self.attempts.versions,
        )
        row = make_row(self.training, budget, text, read, measured)
        if row["train_seconds"] is None:
            self.log(f"The log in {self.folder} does not tell how long all steps took: the row of {budget:,} tokens "
                     f"has no time and no speed.")  # fmt: skip
        changed = decisive_changes(self.folder)
        if changed:
            mark = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
            row["fingerprint"] = f"{row['fingerprint']}-changed-{mark}"
        self.check_lock()
        write_json(self.folder / row_file(budget), row)
        return row


class RunCheckpoints:
    """Checkpoints of one phase of all runs, each in its run's folder; all states are saved and restored together.

    Diverged runs are skipped. A kill may happen between the saves of two runs, so the valid step is the newest one for
    which every run has a complete checkpoint.
    """

    def __init__(self, runs: Sequence[TrainingRun], program: Program, phase: Phase, keep: Sequence[int] = ()):
        self._program, self._phase, self._closing = program, phase, contextlib.ExitStack()
        self._managers = [(run, self._closing.enter_context(run.checkpoints(phase, keep))) for run in runs]

    def newest(self, at_most: int | None = None) -> int | None:
        """Return the newest step for which every run has a complete checkpoint, or None."""
        while True:
            found = {manager.newest(at_most) for _, manager in self._active()}
            if len(found) == 1:
                return found.pop()
            if None in found:
                return None
            at_most = min(step for step in found if step is not None)

    def last_step(self) -> int | None:
        """Return the smallest of the runs' newest committed steps, or None if a run has none; no file is read."""
        found = [manager.last_step() for _, manager in self._active()]
        return None if None in found else min(step for step in found if step is not None)

    def save(
        self,
        step: int,
        state: TrainState,
        seconds: float,
        validation: Sequence[Mapping[str, float] | None] | None = None,
    ) -> None:
        """Save each run's state in the background, with its share of the ``seconds`` and its validation losses."""
        for run, _ in self._managers:
            run.attempts.enter("checkpointing")
        share = seconds / len(self._managers)
        states = self._program.unstack(state)
        for number, (run, manager) in enumerate(self._managers):
            if not run.diverged:
                losses = validation[number] if validation else None
                run.check_lock()
                manager.save(step, states[number], run.metadata(self._phase, step, share, losses))

    def restore_newest(self, at_most: int | None = None) -> tuple[int, TrainState, float] | None:
        """Return the newest restorable step, its state, and the seconds of training up to it; or None.

        Raises:
          UserError: a checkpoint belongs to another training than its folder's, or none can be restored.
        """
        while (step := self.newest(at_most)) is not None:
            with contextlib.suppress(NotRestored):
                return step, *self._restore(step)
        return None

    def _restore(self, step: int) -> tuple[TrainState, float]:
        found = {}
        for run, manager in self._active():
            found[run.folder] = manager.restore(step, self._program)
            run.check_metadata(found[run.folder][1], self._phase, step)
        # A diverged run needs some state at its index. Any state will do, since it is discarded.
        any_state = next(iter(found.values()))
        every = [found.get(run.folder, any_state) for run, _ in self._managers]
        seconds = sum(metadata["seconds"] for _, metadata in every)
        return self._program.stack([state for state, _ in every]), seconds

    def wait(self) -> None:
        """Wait until no checkpoint is being written."""
        for _, manager in self._managers:
            manager.wait()

    def __enter__(self) -> RunCheckpoints:
        return self

    def __exit__(self, *raised: object) -> None:
        self._closing.__exit__(*raised)  # type: ignore[arg-type]

    def _active(self) -> list[tuple[TrainingRun, CheckpointManager]]:
        return [(run, manager) for run, manager in self._managers if not run.diverged]
