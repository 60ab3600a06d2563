"""The steps of a phase: from its newest checkpoint to its end, logged, saved, and stopped when asked."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from moejax.data.corpus import Corpus
from moejax.train.allocator import release_memory
from moejax.train.attempts import AttemptRecorder, goodput
from moejax.train.checkpoint import CheckpointManager
from moejax.train.evaluation import Evaluated, evaluate
from moejax.train.identity import TRAINED, check_trained, read_history
from moejax.train.manifest import Hashing
from moejax.train.memory import memory
from moejax.train.mesh import batch_sharding, local_rows, place_rows
from moejax.train.metrics import MetricsLog
from moejax.train.pace import Pace
from moejax.train.phases import Phase, phases
from moejax.train.processes import ProcessGroup
from moejax.train.profile import Profile
from moejax.train.program import Program
from moejax.train.row import Measured
from moejax.train.speed import Speed
from moejax.train.start import first_state
from moejax.train.step import LAYERS, Batch, TrainState
from moejax.train.stopping import Stop, Stopped
from moejax.train.training import Training

Progress = Callable[[int, dict[str, Any]], None]
"""Called at every log with the steps taken so far, over trunk and branches, and the metrics logged."""


class Elapsed(NamedTuple):
    """Time of training up to a line of the log."""

    since: int
    """Step of the line before, or where this process began."""
    seconds_since: float
    seconds: float
    """Of the phase."""


@runtime_checkable
class Saves(Protocol):
    """The checkpoints of a phase."""

    def newest(self, at_most: int | None = None) -> int | None: ...
    def last_step(self) -> int | None: ...
    def save(self, step: int, state: TrainState, metadata: Any) -> None: ...
    def restore(self, step: int, program: Program) -> tuple[TrainState, dict[str, Any]]: ...
    def wait(self) -> None: ...
    def __enter__(self) -> Saves: ...
    def __exit__(self, *raised: object) -> None: ...


@dataclass(frozen=True)
class Runner:
    """What the phases of one training share."""

    training: Training
    folder: Path
    corpus: Corpus
    program: Program
    metrics_log: MetricsLog
    attempts: AttemptRecorder
    speed: Speed
    profile: Profile
    group: ProcessGroup
    stop: Stop
    progress: Progress
    log: Callable[[str], None]
    hashing: Hashing

    @property
    def order(self) -> int:
        """Seed of the order of the data."""
        seed = self.training.recipe.data.order_seed
        return self.training.seed if seed is None else seed

    def phases(self) -> tuple[Phase, list[Phase]]:
        """The trunk, and a branch per budget."""
        return phases(self.training)

    def saves(self, phase: Phase, keep: Sequence[int] = ()) -> Saves:
        """The checkpoints of a phase, of which those at the steps in ``keep`` are kept whatever the recipe says."""
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

    def running(self) -> list[Runner]:
        """The trainings that are run."""
        return [self]

    def apart(self, state: TrainState) -> list[tuple[Runner, TrainState]]:
        """The same, each with its state."""
        return [(self, state)]

    def phase(self, phase: Phase, saves: Saves, first: Callable[[], TrainState], stops: set[int]) -> TrainState:
        """Take the steps of a phase from its newest checkpoint, or from ``first``, to its end.

        It is saved at ``stops``, at its end, and as often as the recipe says.

        Raises:
          Stopped: it was asked to stop, and is saved.
          UserError: too many steps in a row were none, or a checkpoint cannot be written.
        """
        self.attempts.enter("starting")
        recipe, newest = self.training.recipe, saves.newest()
        state, metadata = (first(), {"seconds": 0.0}) if newest is None else saves.restore(newest, self.program)
        self.group.run_or_abort(
            lambda: self.check_trained(metadata, f"The checkpoint of step {newest} of {phase.name}")
        )
        first_step = phase.start if newest is None else newest
        self.rewind(phase, first_step)
        if first_step >= phase.end:
            return state
        if not self.stop.steps:
            self.log(f"Compiling the step of {self.training.name}; training begins when that is done.")
        # Compiled ahead, so that the seconds that are logged are seconds of training.
        step = {size: self.program.compiled_step(size) for size in self.sizes(first_step, phase.end)}
        release_memory()
        batches = self.batches(first_step)
        self.group.broadcast(None)
        seconds, started = metadata["seconds"], time.perf_counter()
        logged, metrics, measured, pace = first_step, None, None, Pace(step.values())
        with self.stop.stepping():
            for position in range(first_step + 1, phase.end + 1):
                self.attempts.step(phase.name, position)
                batch = self._next(batches, metrics)
                number = phase.steps_before + position - phase.start
                with self.profile.step(number):
                    state, metrics = step[self.sequences(position - 1)](state, batch, phase.schedule)
                pace.after(metrics["loss"])
                self.profile.after(number, metrics)
                saves_here = position == phase.end or position in stops or _is_due(position, recipe.checkpoint_steps)
                evaluates_here = _is_due(position, recipe.evaluate_steps)
                if position % recipe.log_every_steps == 0 or saves_here or evaluates_here:
                    jax.block_until_ready(metrics)
                    took = time.perf_counter() - started
                    seconds += took
                    elapsed, logged = Elapsed(logged, took, seconds), position
                    measured = self.evaluate(state) if evaluates_here else None
                    # Seconds are those of training; what evaluation takes, the attempts tell.
                    started = time.perf_counter()
                    lost = self.write(phase, position, elapsed, metrics, measured, batch)
                    if lost:
                        self._save(saves, position, state, seconds)
                        saves.wait()
                        self.give_up(lost)
                if saves_here:
                    self._save(saves, position, state, seconds, measured)
                if self.stop.after_step() and position < phase.end:
                    self._save(saves, position, state, seconds + time.perf_counter() - started)
                    saves.wait()
                    raise Stopped(self.stop.number)
            # What is being written is waited for before anything else is done.
            self.attempts.enter("checkpointing")
            saves.wait()
        return state

    def trunk_at(self, step: int, trunk: Phase, saves: Saves) -> TrainState:
        """The trunk's state after a step: its checkpoint, or the one before and the steps from there once more."""
        newest = saves.newest(at_most=step)
        state = self.first() if newest is None else saves.restore(newest, self.program)[0]
        begin = newest or 0
        if begin < step:
            self.log(f"The trunk has no checkpoint at step {step}, so its steps from {begin} on are taken once more.")
            batches, take = self.batches(begin), {n: self.program.compiled_step(n) for n in self.sizes(begin, step)}
            pace = Pace(take.values())
            self.attempts.enter("redone")
            for position in range(begin, step):
                state, metrics = take[self.sequences(position)](state, next(batches), trunk.schedule)
                pace.after(metrics["loss"])
        return state

    def first(self) -> TrainState:
        """The state before the first step."""
        log = self.log if self.group.is_main else lambda text: None
        return self.group.run_or_abort(lambda: first_state(self.training, self.program, log))

    def measure(self, state: TrainState, branch: Phase) -> Measured:
        """Loss and routing on the fixed validation rows, and what the log tells of the training."""
        evaluated = self._evaluate(state)
        return Measured(
            evaluated,
            self.metrics_log.lines(),
            branch.name,
            goodput(self.attempts.all()),
            memory()["memory_peak_bytes"],
            self.attempts.versions,
        )

    def evaluate(self, state: TrainState) -> Any:
        """Losses on the validation rows, as they are logged."""
        return _named(self._evaluate(state).losses())

    def _evaluate(self, state: TrainState) -> Evaluated:
        self.attempts.enter("evaluation")
        size = self.training.recipe.batch_sequences
        return evaluate(self.program, state.params, state.expert_bias, self.corpus.validation(), size)

    def sequences(self, step: int) -> int:
        """In the batch of a step."""
        recipe = self.training.recipe
        return recipe.batch_schedule.at(step).batch_tokens // recipe.data.sequence_length

    def sizes(self, start: int, end: int) -> set[int]:
        """Sequences of the batches of the steps from ``start`` to before ``end``."""
        stages = [s for s in self.training.recipe.batch_schedule.stages() if s.first_step < end and s.end > start]
        return {stage.batch_tokens // self.training.recipe.data.sequence_length for stage in stages}

    def batches(self, start: int) -> Iterator[Batch]:
        """Global batches from step ``start`` on, of which this process reads what its devices hold."""
        sharding = batch_sharding(self.program.mesh)
        for size, mine, rows in self.read(start):
            yield {name: place_rows(array, mine, size, sharding) for name, array in rows.items()}

    def read(self, start: int) -> Iterator[tuple[int, np.ndarray, dict[str, np.ndarray]]]:
        """Of each batch, how many sequences it has, which of them this process reads, and these."""
        length, sharding = self.training.recipe.data.sequence_length, batch_sharding(self.program.mesh)
        for stage in self.training.recipe.batch_schedule.stages():
            begin, size = max(start, stage.first_step), stage.batch_tokens // length
            if begin < stage.end:
                mine = local_rows(sharding, size)
                reader = self.corpus.batches(
                    batch=size,
                    seed=self.training.seed,
                    first_row=stage.tokens_before // length,
                    start=begin - stage.first_step,
                    mine=mine.tolist(),
                )
                for _ in itertools.count() if math.isinf(stage.end) else range(begin, int(stage.end)):
                    yield size, mine, next(reader)

    def _next(self, batches: Iterator[Batch], last: dict[str, Any] | None) -> Batch:
        """The next batch. Time in which the devices were not done with the ``last`` step is not counted as waiting."""
        began = time.perf_counter()
        batch = next(batches)
        if last is None or last["loss"].is_ready():
            self.attempts.waited(time.perf_counter() - began)
        return batch

    def plain(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Metrics of a step as numbers; those of layers together, as lists, with the layers' numbers from the input."""
        values: dict[str, Any] = {}
        layers = {"layer": [number for number, has in enumerate(self.training.architecture.has_experts) if has]}
        for name, value in jax.device_get(metrics).items():
            if name.startswith(LAYERS):
                layers[name.removeprefix(LAYERS)] = np.asarray(value).tolist()
            else:
                values[name] = float(value)
        return values if len(layers) == 1 else {**values, "layers": layers}

    def _save(self, saves: Saves, position: int, state: TrainState, seconds: float, measured: Any = None) -> None:
        self.attempts.enter("checkpointing")
        saves.save(position, state, self.metadata(position, seconds, measured))

    def metadata(self, position: int, seconds: float, measured: Any = None) -> Any:
        """What is saved beside the state: where the data goes on, the time it took, with which software, what of it was
        measured."""
        known = {"next_batch": position, "seconds": seconds, "versions": self.attempts.versions}
        return {**known, TRAINED: self.training.as_json(), **(measured or {})}

    def check_trained(self, metadata: Mapping[str, Any], what: str) -> None:
        """Refuse a checkpoint of another training than the folder's.

        Raises:
          UserError: it is one.
        """
        check_trained(self.folder, read_history(self.folder), self.training, metadata.get(TRAINED), what)

    def rewind(self, phase: Phase, step: int) -> None:
        """Forget what was logged of a phase after a step."""
        self.attempts.reach(phase.name, self.metrics_log.rewind(phase.name, step))

    def write(
        self, phase: Phase, position: int, elapsed: Elapsed, metrics: dict[str, Any], measured: Any, batch: Batch
    ) -> list[Lost]:
        """Log a step. Returns the trainings of which too many steps were not taken, each with a sentence."""
        values = self.plain(metrics)
        line = self.log_step(phase, position, elapsed, {**values, **(measured or {})}, int(batch_digest(batch)))
        self.progress(line["steps_done"], line)
        return self.lost(phase, position, values)

    def log_step(
        self, phase: Phase, position: int, elapsed: Elapsed, values: Mapping[str, Any], digest: int
    ) -> dict[str, Any]:
        """Add a line to the log, and return it."""
        recipe = self.training.recipe
        tokens = recipe.tokens(position)
        line = {
            "tokens": tokens,
            "steps_done": phase.steps_before + position - phase.start,
            "seconds": elapsed.seconds,
            **self.speed.of(tokens - recipe.tokens(elapsed.since), elapsed.seconds_since),
            **memory(),
            **values,
            "batch_digest": digest,
        }
        self.metrics_log.write(phase.name, position, line)
        self.metrics_log.flush()
        self.attempts.reach(phase.name, position)
        self.attempts.write(at_once=False)
        return line

    def lost(self, phase: Phase, position: int, values: Mapping[str, Any]) -> list[Lost]:
        """This training and a sentence, if too many steps in a row were not taken."""
        is_lost = values["skipped_in_a_row"] >= self.training.recipe.guard.patience
        return [(self, self._given_up(values, phase, position))] if is_lost else []

    def give_up(self, lost: Sequence[Lost]) -> None:
        """End what is lost."""
        self.group.abort(lost[0][1])

    def _given_up(self, values: Mapping[str, Any], phase: Phase, step: int) -> str:
        first = step - int(values["skipped_in_a_row"])
        return (
            f"{self.training.name} diverged: no step of its {phase.name} could be taken from step {first} to {step}, "
            f"where the loss is {values['loss']} and the gradient norm {values['gradient_norm']}. Those were the "
            f"batches {first} to {step - 1} of the data order of seed {self.order}. The state before them is "
            f"saved; lower optimizer.learning_rate or lengthen the warm-up, in a new --out."
        )


Lost = tuple[Runner, str]
"""A training that is given up, and a sentence that says why."""


@jax.jit
def batch_digest(batch: Batch) -> UInt32[Array, ""]:
    """A number that tells batches apart, the same on any mesh: which rows a step saw, and in which order."""
    total = jnp.zeros((), jnp.uint32)
    for salt, name in enumerate(sorted(batch), start=1):
        rows, columns = (jax.lax.broadcasted_iota(jnp.uint32, batch[name].shape, axis) for axis in (0, 1))
        # Odd weights lose nothing modulo 2^32; two of Knuth's multipliers keep places apart.
        place = (rows * jnp.uint32(2654435761) + columns * jnp.uint32(2246822519) + jnp.uint32(salt)) | jnp.uint32(1)
        total = total + ((batch[name].astype(jnp.uint32) + jnp.uint32(1)) * place).sum(dtype=jnp.uint32)
    return total


def _is_due(position: int, every: int) -> bool:
    """Whether something done ``every`` so many steps, 0 for never, is done after this one."""
    return bool(every) and position % every == 0


def _named(losses: Mapping[str, float | None]) -> dict[str, float]:
    """As they are logged, beside those of the batch."""
    return {f"validation_{name}": value for name, value in losses.items() if value is not None}
