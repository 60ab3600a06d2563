"""Define a run: one training run in one folder, with its rows, log, attempts and checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from moejax.data.corpus import PartRead, Summary
from moejax.errors import UserError
from moejax.folder import HeldLock
from moejax.stored import read_json, write_json
from moejax.train.devices import Speed, memory
from moejax.train.directory.attempts import AttemptRecorder
from moejax.train.directory.checkpoint import CheckpointManager, NotRestored
from moejax.train.directory.identity import (
    CORPUS,
    DIVERGED,
    INITIAL_WEIGHTS,
    check_trained,
    decisive_changes,
    read_history,
)
from moejax.train.directory.manifest import PHASE, STEP
from moejax.train.directory.metrics import MetricsLog, module_name
from moejax.train.directory.row import make_row
from moejax.train.directory.row_file import row_file
from moejax.train.evaluation import Evaluated
from moejax.train.processes import ProcessGroup
from moejax.train.program import Program
from moejax.train.step import LAYERS, TrainState
from moejax.train.training import Phase, Training
from moejax.wording import told


@dataclass(kw_only=True)
class TrainingRun:
    """One training run in its folder. Every process of the group has an instance."""

    training: Training
    folder: Path
    rows: list[dict[str, Any] | None]
    """Rows by budget; None for an unfinished budget."""
    attempts: AttemptRecorder
    group: ProcessGroup
    log: Callable[[str], None]
    lock: HeldLock | None = None
    """Lock of the folder, in the process that writes to it."""
    diverged: str | None = None
    """Reason why this run was excluded from vmapped training; None if it was not excluded. Only the main process reads
    ``diverged.json``, because other machines may see an outdated copy of a shared folder.
    """
    metrics: MetricsLog = field(init=False)
    speed: Speed = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = MetricsLog(self.folder / "metrics.jsonl", writes=self.group.is_main, log=self.log)
        self.speed = Speed(self.training)

    def recall_divergence(self) -> None:
        """Read from ``diverged.json`` whether this run was excluded earlier."""

        def read() -> str | None:
            path, remedy = self.folder / DIVERGED, "remove it to try the run again"
            return read_json(path, {"why": str}, remedy=remedy)["why"] if path.exists() else None

        self.diverged = self.group.run_on_main(read)

    def set_divergence(self, why: str | None) -> None:
        """Exclude this run from now on, or include it again if ``why`` is None."""
        path = self.folder / DIVERGED
        self.group.run_on_main(lambda: write_json(path, {"why": why}) if why else path.unlink(missing_ok=True))
        self.diverged = why

    def check_lock(self) -> None:
        """Raise ``UserError`` if the folder has been replaced since this process began to write to it."""
        if self.lock is not None:
            self.lock.check()

    def rewind(self, phase: Phase, step: int) -> None:
        """Remove the logged lines of a phase after a step."""
        self.attempts.reach(phase.name, self.metrics.rewind(phase.name, step, phase.start))

    def log_step(
        self,
        phase: Phase,
        step: int,
        since: int,
        seconds_since: float,
        seconds: float,
        metrics: Mapping[str, Any],
        validation: Mapping[str, float],
        digest: int,
    ) -> dict[str, Any]:
        """Write a log line and return it, keyed by field. ``seconds_since`` is the time since the previous line, which
        was written after step ``since``.
        """
        recipe = self.training.recipe
        tokens = recipe.tokens(step)
        values = {
            "tokens": tokens,
            "steps_done": phase.steps_done(step),
            "seconds": seconds,
            **self.speed.of(tokens - recipe.tokens(since), seconds_since),
            **memory(),
            **self._as_numbers(metrics),
            **validation,
            "batch_digest": digest,
        }
        self.check_lock()
        line = self.metrics.write(phase.name, step, values)
        self.attempts.reach(phase.name, step)
        return line

    def _as_numbers(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a step's metrics from host arrays to numbers, keyed by metric. ``layers`` has a list for each layer
        statistic. Its entry ``layer`` lists the layer indices, or ``mtp_k`` for a multi-token-prediction module.
        """
        depth, routed = self.training.architecture.num_layers, self.training.architecture.routed_layers
        layers = {
            name.removeprefix(LAYERS): np.asarray(value).tolist()
            for name, value in metrics.items()
            if name.startswith(LAYERS)
        }
        values = {name: float(value) for name, value in metrics.items() if not name.startswith(LAYERS)}
        names = [number if number < depth else module_name(number - depth + 1) for number in routed]
        return {**values, "layers": {"layer": names, **layers}} if layers else values

    def divergence(self, phase: Phase, step: int, values: Mapping[str, float]) -> str | None:
        """Return a message if the guard has skipped too many steps in a row; otherwise None."""
        if values["skipped_in_a_row"] < self.training.recipe.guard.patience:
            return None
        first = step - int(values["skipped_in_a_row"])
        return (
            f"{self.training.name} diverged: all steps of its {phase.name} were skipped from step {first} to {step}, "
            f"where the loss is {values['loss']} and the gradient norm {values['gradient_norm']}. They read batches "
            f"{first} to {step - 1} of the data order with seed {self.training.order_seed}. The state before these "
            "steps is saved. Lower optimizer.learning_rate or lengthen the warm-up, and train in a new --out."
        )

    def check_corpus(self, text: Summary) -> None:
        """Record the hashes of the run's text and tokenizer; raise ``UserError`` if one has changed."""
        path = self.folder / CORPUS
        now = {"source": text.source, "sha256": text.sha256, "tokenizer": text.tokenizer}
        known = read_json(path, {"sha256": str, "tokenizer": str}, remedy=_REMEDY) if path.exists() else now
        if known["sha256"] != text.sha256:
            raise UserError(
                f"{self.folder} was trained on text with SHA-256 {known['sha256'][:12]}…, but {text.source} now has "
                f"{text.sha256[:12]}…. Continue with the original text (python_stdlib depends on the Python version), "
                "or start in another --out."
            )
        if known["tokenizer"] != text.tokenizer:
            raise UserError(
                f"{self.folder} was trained with a tokenizer of SHA-256 {known['tokenizer'][:12]}…, but "
                f"{text.source} now has {text.tokenizer[:12]}…. Give the original data set, or start again in "
                "another --out."
            )
        if not path.exists():
            write_json(path, now)
        self.training.check_vocabulary(text.vocab_size, text.source)

    def begin_with(self, weights: str) -> None:
        """Record the SHA-256 of the initial weights; raise ``UserError`` if it differs from an earlier start."""
        source, path = self.training.recipe.initial_weights.source, self.folder / INITIAL_WEIGHTS
        if not path.exists():
            write_json(path, {"source": source, "sha256": weights})
        elif read_json(path, {"sha256": str}, remedy=_REMEDY)["sha256"] != weights:
            raise UserError(
                f"The weights in initial_weights.source {source} have changed since {self.folder} was started. Restore "
                "the original weights, or start again in another --out."
            )

    def write_row(self, number: int, evaluated: Evaluated, text: Summary, read: Sequence[PartRead]) -> dict[str, Any]:
        """Write the row of a budget and return it, keyed by column."""
        budget = self.training.recipe.budgets_tokens[number]
        row = make_row(self.training, budget, text, read, evaluated, self.metrics.lines(), self.attempts)
        if changed := decisive_changes(self.folder):
            mark = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]
            row["fingerprint"] = f"{row['fingerprint']}-changed-{mark}"
        self.check_lock()
        write_json(self.folder / row_file(budget), row)
        return row


_REMEDY = "restore a copy, or remove it"


class RunCheckpoints:
    """Checkpoints of one phase of all runs, each in its run's folder; all states are saved and restored together.

    Diverged runs are skipped. A kill may happen between the saves of two runs, so a step is valid only if every run has
    a checkpoint of it.
    """

    def __init__(self, runs: Sequence[TrainingRun], program: Program, phase: Phase, keep: Collection[int] = ()):
        self._program, self._phase, self._closing = program, phase, contextlib.ExitStack()
        self._managers = [(run, self._closing.enter_context(self._manager(run, keep))) for run in runs]

    def _manager(self, run: TrainingRun, keep: Collection[int]) -> CheckpointManager:
        recipe = run.training.recipe
        return CheckpointManager(
            run.folder / "checkpoints" / self._phase.name,
            run.group,
            newest=recipe.keep_checkpoints,
            keep=sorted(keep),
            every=recipe.keep_every_steps,
            best=recipe.keep_best,
        )

    def steps(self, at_most: int | None = None) -> list[int]:
        """Return the steps for which every run has a committed checkpoint, in order."""
        return sorted(set.intersection(*(set(manager.steps(at_most)) for _, manager in self._active())))

    def save(
        self,
        step: int,
        state: TrainState,
        seconds: float,
        validation: Sequence[Mapping[str, float] | None] | None = None,
    ) -> None:
        """Save each run's state in the background, with the origin of the state, the run's share of the ``seconds`` of
        training, and its validation losses."""
        for run, _ in self._managers:
            run.attempts.enter("checkpointing")
        states = self._program.unstack(state)
        for number, (run, manager) in enumerate(self._managers):
            if not run.diverged:
                metadata = {
                    "seconds": seconds / len(self._managers),
                    "versions": run.attempts.versions,
                    "training": run.training.as_json(),
                    PHASE: self._phase.name,
                    STEP: step,
                    **((validation[number] if validation else None) or {}),
                }
                run.check_lock()
                manager.save(step, states[number], metadata)

    def restore_newest(self, at_most: int | None = None) -> tuple[int, TrainState, float] | None:
        """Return the newest step that can be restored, its state, and the seconds of training up to that step. Return
        None if there is no checkpoint.

        Checkpoints that cannot be restored are moved to ``checkpoints/damaged`` once an earlier one is restored.

        Raises:
          UserError: a checkpoint does not belong to its folder's training run, or no checkpoint can be restored.
        """
        failed: list[tuple[int, CheckpointManager, str]] = []
        for step in reversed(self.steps(at_most)):
            restored = {}
            for run, manager in self._active():
                try:
                    restored[run.folder] = manager.restore(step, self._program)
                except NotRestored as error:
                    failed.append((step, manager, told(error)))
                    break
                self._check_origin(run, step, restored[run.folder][1])
            else:
                for other, manager, why in failed:
                    place = manager.set_aside(other)
                    self._managers[0][0].log(f"{why} The checkpoint was moved to {place}. Resuming from step {step}.")
                # A diverged run needs a state at its index; any state works, because it is discarded.
                any_state = next(iter(restored.values()))
                every = [restored.get(run.folder, any_state) for run, _ in self._managers]
                seconds = sum(metadata["seconds"] for _, metadata in every)
                return step, self._program.stack([state for state, _ in every]), seconds
        if failed:
            reasons = " ".join(why for _, _, why in failed)
            self._managers[0][0].group.abort(
                f"{reasons} No earlier checkpoint can be restored. Restore a copy, or move the checkpoints away to "
                "repeat their steps."
            )
        return None

    def _check_origin(self, run: TrainingRun, step: int, metadata: Mapping[str, Any]) -> None:
        what, trained = f"The checkpoint of step {step} of {self._phase.name}", metadata.get("training")
        run.group.run_on_main(lambda: check_trained(run.folder, read_history(run.folder), run.training, trained, what))

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
