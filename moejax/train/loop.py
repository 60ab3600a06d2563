"""Train: open runs, restore, step, log, evaluate, save and write rows.

``train`` opens runs and passes them to a ``Trainer``. The trainer trains one run, or several in one vmapped program. It
trains the trunk that all token budgets share, then a branch for each budget, which ends in a row of a run table. After
a stop, a kill or a failure at any moment, the same command resumes with bitwise identical numbers.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from moejax.compilation_cache import keep_programs, remove_damaged
from moejax.data.corpus import Corpus
from moejax.errors import UserError
from moejax.train.batches import read_batches
from moejax.train.devices import without_mfu
from moejax.train.directory.attempts import COMPILING, INITIALIZING, SILENT_SECONDS, STEPPING
from moejax.train.directory.identity import DATA
from moejax.train.evaluation import Evaluated, evaluate
from moejax.train.hooks import (
    DivergenceGuard,
    Evaluate,
    LoggedStep,
    OnLog,
    Profile,
    RecordTime,
    StepHook,
    Stopwatch,
    WriteLog,
    is_due,
)
from moejax.train.host import decides_programs, fix_threads, release_memory
from moejax.train.initial_weights import initial_weights_sha256, state_from_weights
from moejax.train.opening import PREPARING_SECONDS, open_runs, report_disk_errors, report_memory
from moejax.train.processes import WAIT_SECONDS, ProcessGroup
from moejax.train.program import Program, StepsInFlight, make_program, vmap_program
from moejax.train.run import RunCheckpoints, TrainingRun
from moejax.train.step import Batch, TrainState
from moejax.train.stopping import HangWatch, Stop, Stopped
from moejax.train.training import Phase, Recipe, Training, phases

COMPILING_SECONDS = SILENT_SECONDS[COMPILING]
"""Timeout for processes that wait for another process to compile. Compiling a large model's step takes a quarter of an
hour, or no time if it is cached on disk.
"""

UNSAVED_SECONDS = 900.0
"""Approximate time between checkpoints if ``checkpoint_tokens`` is 0, in seconds. A kill loses at most this much work.
"""

TIMED_STEPS = 10
"""Number of steps that are timed at the beginning of a phase to convert ``UNSAVED_SECONDS`` to steps."""


def train(
    training: Training,
    folder: Path,
    *,
    beside: Sequence[tuple[Training, Path]] = (),
    data_folder: Path | None = None,
    programs_folder: Path | None = None,
    accept_changes: bool = False,
    wait_seconds: float = WAIT_SECONDS,
    stop: Stop | None = None,
    began: float | None = None,
    profile: tuple[int, int] | None = None,
    log: Callable[[str], None] = lambda text: None,
    progress: OnLog = lambda steps, values: None,
    on_accepted: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Train all budgets in ``folder`` and return their run rows, ordered by run, then by budget.

    Results in ``folder`` are kept, and budgets with a row are not trained again. An unfinished trunk or branch resumes
    from its newest checkpoint, on any mesh and number of processes. A training run with ``vmap`` axes expands to
    several runs, each in ``folder/runs/NAME``.

    Args:
      beside: further training runs, each with its folder, to train in the same vmapped program.
      data_folder: folder of the prepared tokens, which several training runs can share; ``folder/data`` by default.
      programs_folder: folder of the compilation cache, which several training runs can share; ``folder/programs`` by
        default.
      accept_changes: resume even if changed settings affect the numbers.
      wait_seconds: timeout for processes that wait for each other.
      stop: stop request, set by signals.
      began: Unix time at which the process was started; time accounting begins then.
      profile: first and last step to record with JAX's profiler, counted over trunk and branches.
      log: callback for messages to the user, in the main process.
      on_accepted: callback in the main process after settings, folders and data have been checked.

    Raises:
      UserError: the settings or the mesh are invalid, the folder belongs to another training run, the disk is full, or
        some vmapped runs diverged. Diverged runs are reported after the other runs have finished.
      Stopped: a stop was requested, and everything is saved.
    """
    fix_threads()
    group = ProcessGroup(wait_seconds)
    stop, log = stop or Stop(group.count), log if group.is_main else lambda text: None
    data_folder, programs = data_folder or folder / DATA, programs_folder or folder / "programs"
    opened = open_runs(
        [(training, folder), *beside],
        data_folder,
        group=group,
        accept_changes=accept_changes,
        began=began,
        stop=stop,
        log=log,
    )
    with opened as (runs, mesh, corpus):
        if group.is_main:
            on_accepted()
        group.run_on_main(lambda: remove_damaged(programs))
        if text := without_mfu():
            log(text)
        for run in runs:
            # A run that diverged under vmap is tried again when it is trained alone.
            run.set_divergence(None) if len(runs) == 1 else run.recall_divergence()
        unfinished = [run for run in runs if None in run.rows]
        if all(run.diverged for run in unfinished):
            # All unfinished runs diverged, so nothing remains to train.
            progress(training.recipe.total_steps, {})
        else:
            with (
                keep_programs(programs, writes=group.is_main, beside=decides_programs()),
                jax.set_mesh(mesh),
                report_disk_errors(runs[0].folder),
                contextlib.closing(Profile(profile, runs[0].folder, log)) as profiler,
            ):
                program = make_program(runs[0].training, mesh)
                if len(unfinished) > 1:
                    program = vmap_program(program, len(unfinished))
                with report_memory(runs[0].training, program):
                    Trainer(unfinished, program, corpus, group, stop, profiler, progress, log).train()
    diverged = [run.diverged for run in runs if run.diverged]
    if diverged:
        raise UserError(f"{len(diverged)} of {len(runs)} runs diverged; all other runs are done. {' '.join(diverged)}")
    return [row for run in runs for row in run.rows if row is not None]


@dataclass(frozen=True)
class Trainer:
    """A trainer of one run or several vmapped runs. With several runs, arrays in ``program`` have a leading run axis.
    Diverged runs keep their index on that axis, but nothing more is written for them.
    """

    runs: list[TrainingRun]
    program: Program
    corpus: Corpus
    group: ProcessGroup
    stop: Stop
    profiler: Profile
    progress: OnLog
    log: Callable[[str], None]

    @property
    def recipe(self) -> Recipe:
        """Recipe that all runs share except for learning rate and weight decay."""
        return self.runs[0].training.recipe

    def train(self) -> None:
        """Train the trunk as far as the branches need it, then each branch without a row; write the rows."""
        trunk, *branches = _phases_of(self.runs)
        starts = {branch.start for branch in branches}
        needed = max((branch.start for number, branch in enumerate(branches) if self.lacks_row(number)), default=0)
        with RunCheckpoints(self.runs, self.program, trunk, keep=starts) as of_trunk:
            if max(of_trunk.steps(), default=0) < needed:
                self.train_phase(trunk, of_trunk, self.initial_state, save_at=starts)
            for number, branch in enumerate(branches):
                if self.lacks_row(number):
                    at_start = functools.partial(
                        self.train_phase, trunk, of_trunk, self.initial_state, until=branch.start
                    )
                    with RunCheckpoints(self.runs, self.program, branch) as of_branch:
                        state = self.train_phase(branch, of_branch, at_start)
                    self.write_rows(number, branch, state)
                self.progress(branch.steps_done(branch.end), {})

    def train_phase(
        self,
        phase: Phase,
        checkpoints: RunCheckpoints,
        initial_state: Callable[[], TrainState],
        save_at: Collection[int] = (),
        until: int | None = None,
    ) -> TrainState:
        """Run the steps of a phase from its newest checkpoint, or from ``initial_state``, to its end.

        The state is saved at the steps in ``save_at``, at the end, and at the recipe's interval. With ``until``, return
        the state at that step. If that step has no checkpoint, the steps before it are repeated from an earlier
        checkpoint. Repeated steps are saved, but neither logged nor evaluated again.

        Raises:
          Stopped: a stop was requested, and the state is saved.
          UserError: the training run diverged, or a checkpoint cannot be written.
        """
        self.enter("starting")
        self.begin(INITIALIZING)
        again, end, recipe = until is not None, phase.end if until is None else until, self.recipe
        start, state, seconds = checkpoints.restore_newest(until) or (phase.start, initial_state(), 0.0)
        if not again:
            for run in self.active():
                run.rewind(phase, start)
        if start >= end:
            return state
        if again:
            self.log(f"The {phase.name} has no checkpoint at step {end}; its steps from step {start} on are repeated.")
        elif start > phase.start:
            self.log(f"The {phase.name} resumes from step {start}.")
        if not self.stop.steps:
            self.log(f"Compiling the step of {self.runs[0].training.name}; training begins once compilation is done.")
        self.begin(COMPILING)
        steps, mesh = self.compile(start, end), self.program.mesh
        batches = read_batches([run.training for run in self.runs], self.corpus, mesh, phase, start)
        self.group.barrier(wait_seconds=COMPILING_SECONDS)
        # Seconds count as training from here on: every process has finished compiling.
        self.begin(STEPPING)
        began, spacing, watch, metrics = time.monotonic(), 0, Stopwatch(start, seconds), None
        hooks: list[StepHook] = [RecordTime(self.runs)]
        if not again:
            guard = DivergenceGuard(self.runs, lambda at: _save_now(checkpoints, at.step, at.state, watch))
            hooks += [Evaluate(self.evaluate, recipe.evaluate_steps, watch), WriteLog(self.runs, self.progress), guard]
        hang = HangWatch(recipe.hang_seconds, self.runs[0].training.name)
        in_flight = StepsInFlight(steps.values(), hang.waiting)
        with self.stop.stepping(), hang:
            for step in range(start + 1, end + 1):
                batch = self.next_batch(phase, step, batches, metrics)
                with self.profiler.step(phase.steps_done(step)), hang.waiting():
                    state, metrics = steps[self.sequences(step)](state, batch, phase.schedule)
                in_flight.add(metrics["loss"])
                self.profiler.after(phase.steps_done(step), metrics)
                saves = step == end or step in save_at or is_due(step, recipe.checkpoint_steps)
                logs = saves or is_due(step, recipe.log_every_steps) or is_due(step, recipe.evaluate_steps)
                saves_by_time = is_due(step - start, spacing)
                if logs or saves_by_time:
                    # Launched steps must end before the clock is read, and before a save pauses the stopwatch.
                    in_flight.drain()
                validation = None
                if logs:
                    logged = LoggedStep(phase, step, state, metrics, batch, watch.lap(step))
                    for hook in hooks:
                        hook.after_step(logged)
                    validation = logged.validation
                if saves or saves_by_time:
                    with watch.paused():
                        checkpoints.save(step, state, watch.now(), validation)
                if step == start + TIMED_STEPS and not recipe.checkpoint_steps:
                    in_flight.drain()
                    spacing = self.steps_unsaved(time.monotonic() - began)
                if self.stop.after_step() and step < end:
                    _save_now(checkpoints, step, state, watch)
                    raise Stopped(self.stop.number)
            # The checkpoint must be complete before anything else starts.
            self.enter("checkpointing")
            checkpoints.wait()
        return state

    def steps_unsaved(self, seconds: float) -> int:
        """Return the number of steps that take ``UNSAVED_SECONDS``, if ``TIMED_STEPS`` steps took ``seconds`` in the
        main process.
        """
        return self.group.broadcast(max(1, round(UNSAVED_SECONDS / seconds * TIMED_STEPS)))

    def initial_state(self) -> TrainState:
        """Return the state before the first step: random weights, or the recipe's initial weights."""
        if not self.recipe.initial_weights.source:
            return self.program.stack([self.program.init(run.training.seed) for run in self.runs])

        def begin() -> None:
            for run in self.runs:
                run.begin_with(initial_weights_sha256(run.training))

        def states() -> list[TrainState]:
            return [state_from_weights(run.training, self.program, self.log) for run in self.runs]

        self.group.run_on_main(begin, wait_seconds=PREPARING_SECONDS)
        return self.program.stack(self.group.run_or_abort(states, wait_seconds=PREPARING_SECONDS))

    def compile(self, start: int, end: int) -> dict[int, jax.stages.Compiled]:
        """Compile the training step for each batch size that occurs in steps ``start + 1`` to ``end``. Keys are batch
        sizes in sequences.
        """
        recipe = self.recipe
        sizes = {tokens // recipe.data.sequence_length for tokens in recipe.batch_schedule.sizes(start, end)}
        compiled = {size: self.program.compiled_step(size) for size in sizes}
        if recipe.evaluate_steps:
            # The first evaluation would compile this program between two steps.
            self.program.compiled_evaluation()
        release_memory()
        return compiled

    def sequences(self, step: int) -> int:
        """Return the number of sequences in a step's batch; steps are counted from 1."""
        return self.recipe.batch_schedule.at(step - 1).batch_tokens // self.recipe.data.sequence_length

    def next_batch(self, phase: Phase, step: int, batches: Iterator[Batch], last: dict[str, Any] | None) -> Batch:
        """Return the batch of a step. Time counts as waiting for data only if the devices have finished the previous
        step, whose metrics are ``last``.
        """
        for run in self.runs:
            run.attempts.step(phase.name, step)
        began = time.perf_counter()
        batch = next(batches)
        if last is None or last["loss"].is_ready():
            for run in self.runs:
                run.attempts.waited(time.perf_counter() - began)
        return batch

    def evaluate(self, state: TrainState) -> list[Evaluated | None]:
        """Evaluate each run's model on the validation set; None for diverged runs."""
        self.enter("evaluation")
        rows = self.corpus.validation()
        return [
            None if run.diverged else evaluate(self.program, own.params, own.expert_bias, rows)
            for run, own in zip(self.runs, self.program.unstack(state), strict=True)
        ]

    def write_rows(self, number: int, branch: Phase, state: TrainState) -> None:
        """Evaluate the model at the end of a branch, and write missing rows."""
        text, length = self.corpus.summary(), self.recipe.data.sequence_length
        rows, decay_from = (self.recipe.tokens(step) // length for step in (branch.end, branch.start))
        read = self.corpus.read(rows, decay_from)
        for run, evaluated in zip(self.runs, self.evaluate(state), strict=True):
            if evaluated is not None and run.rows[number] is None:
                write = functools.partial(run.write_row, number, evaluated, text, read)
                run.rows[number] = self.group.run_on_main(write)

    def active(self) -> list[TrainingRun]:
        """Return the runs that have not diverged."""
        return [run for run in self.runs if not run.diverged]

    def lacks_row(self, number: int) -> bool:
        """Return whether the branch of a budget still needs training."""
        return any(run.rows[number] is None for run in self.active())

    def enter(self, bucket: str) -> None:
        """Attribute time to a time bucket from now on."""
        for run in self.runs:
            run.attempts.enter(bucket)

    def begin(self, activity: str) -> None:
        """Record the activity that begins now."""
        for run in self.active():
            run.attempts.begin(activity)


def _save_now(checkpoints: RunCheckpoints, step: int, state: TrainState, watch: Stopwatch) -> None:
    checkpoints.save(step, state, watch.now())
    checkpoints.wait()


def _phases_of(runs: Sequence[TrainingRun]) -> list[Phase]:
    # The schedules of several runs are stacked.
    every = [[trunk, *branches] for trunk, branches in (phases(run.training) for run in runs)]
    if len(runs) == 1:
        return every[0]
    return [
        replace(
            same[0],
            schedule=jax.tree.map(lambda *leaves: np.array(leaves, np.float32), *(phase.schedule for phase in same)),
        )
        for same in zip(*every, strict=True)
    ]
