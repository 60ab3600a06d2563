"""The steps of a leg: from its newest checkpoint to its end, logged, saved, and stopped when asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from moejax.data.corpus import Corpus
from moejax.train.checkpoint import Checkpoints
from moejax.train.legs import Leg
from moejax.train.mesh import batch_sharding, local_rows, place_rows
from moejax.train.metrics import MetricsLog
from moejax.train.processes import Together
from moejax.train.row import Measured, versions
from moejax.train.start import first_state
from moejax.train.step import Batch, Program, TrainState
from moejax.train.stopping import Stop, Stopped
from moejax.train.training import Training

Progress = Callable[[int, dict[str, Any]], None]
"""Called at every log with the steps taken so far, over trunk and branches, and the metrics logged."""


@dataclass(frozen=True)
class Runner:
    """What the legs of one training share."""

    training: Training
    corpus: Corpus
    program: Program
    log: MetricsLog
    together: Together
    stop: Stop
    progress: Progress
    say: Callable[[str], None]

    def leg(self, leg: Leg, saves: Checkpoints, first: Callable[[], TrainState], stops: set[int]) -> TrainState:
        """Take the steps of a leg from its newest checkpoint, or from ``first``, to its end.

        It is saved at ``stops``, at its end, and as often as the recipe says.

        Raises:
          Stopped: it was asked to stop, and is saved.
          ValueError: too many steps in a row were none, or a checkpoint cannot be written.
        """
        recipe, newest = self.training.recipe, saves.newest()
        state, about = (first(), {"seconds": 0.0}) if newest is None else saves.restore(newest, self.program)
        first_step = leg.start if newest is None else newest
        self.log.rewind(leg.name, first_step)
        if first_step >= leg.end:
            return state
        # Compiled ahead, so that the seconds that are logged are seconds of training.
        step = self.program.compiled_step()
        batches = self._batches(first_step)
        self.together.told(None)
        seconds, started = about["seconds"], time.perf_counter()
        every = recipe.checkpoint_steps
        with self.stop.stepping():
            for position in range(first_step + 1, leg.end + 1):
                batch = next(batches)
                state, metrics = step(state, batch, leg.schedule)
                saves_here = position == leg.end or position in stops or bool(every and position % every == 0)
                if position % recipe.log_every_steps == 0 or saves_here:
                    values = {name: float(value) for name, value in metrics.items()}
                    now = time.perf_counter()
                    seconds, started = seconds + now - started, now
                    self._write(leg, position, seconds, batch, values)
                    if values["skipped_in_a_row"] >= recipe.guard.patience:
                        saves.save(position, state, _about(position, seconds))
                        saves.wait()
                        self.together.refuse(self._given_up(values, leg, position))
                if saves_here:
                    saves.save(position, state, _about(position, seconds))
                if self.stop.after_step() and position < leg.end:
                    saves.save(position, state, _about(position, seconds + time.perf_counter() - started))
                    saves.wait()
                    raise Stopped(self.stop.number)
        return state

    def trunk_at(self, step: int, trunk: Leg, saves: Checkpoints) -> TrainState:
        """The trunk's state after a step: its checkpoint, or the one before and the steps from there once more."""
        newest = saves.newest(at_most=step)
        state = self.first() if newest is None else saves.restore(newest, self.program)[0]
        begin = newest or 0
        if begin < step:
            self.say(f"The trunk has no checkpoint at step {step}, so its steps from {begin} on are taken once more.")
            batches = self._batches(begin)
            for _ in range(begin, step):
                state, _ = self.program.compiled_step()(state, next(batches), trunk.schedule)
        return state

    def first(self) -> TrainState:
        """The state before the first step."""
        return first_state(self.training, self.program, self.say if self.together.first else lambda text: None)

    def measure(self, state: TrainState, branch: Leg) -> Measured:
        """Loss and routing on the fixed validation rows, and what the log tells of the training."""
        validation, size = self.corpus.validation(), self.training.recipe.batch_sequences
        count, nats, sums = len(validation.rows["tokens"]), 0.0, []
        sharding = batch_sharding(self.program.mesh)
        mine = local_rows(sharding, size)
        for start in range(0, count, size):
            # The last batch is filled up with its first row, which then counts for nothing.
            numbers = np.arange(start, start + size)
            real = numbers < count
            numbers = np.where(real, numbers, start)[mine]
            batch = {name: place_rows(array[numbers], mine, size, sharding) for name, array in validation.rows.items()}
            placed = place_rows(real[mine], mine, size, sharding)
            costs, routing = self.program.evaluate(state.params, state.balance_bias, batch, placed)
            nats += float(np.asarray(costs, np.float64)[real].sum())
            sums.append(routing)
        routing = None if sums[0] is None else jax.tree.map(lambda *parts: sum(parts), *sums)
        return Measured(nats, validation.targets, validation.bytes, routing, self.log.lines(), branch.name)

    def _batches(self, start: int) -> Iterator[Batch]:
        """Global batches from step ``start`` on, of which this process reads what its devices hold."""
        size, sharding = self.training.recipe.batch_sequences, batch_sharding(self.program.mesh)
        mine = local_rows(sharding, size)
        for rows in self.corpus.batches(batch=size, seed=self.training.seed, start=start, mine=mine.tolist()):
            yield {name: place_rows(array, mine, size, sharding) for name, array in rows.items()}

    def _write(self, leg: Leg, position: int, seconds: float, batch: Batch, values: dict[str, float]) -> None:
        done = leg.steps_before + position - leg.start
        tokens = position * self.training.recipe.batch_tokens
        read = {"batch_digest": int(batch_digest(batch))}
        self.log.write(leg.name, position, {"tokens": tokens, "steps_done": done, "seconds": seconds, **values, **read})
        self.log.flush()
        self.progress(done, values)

    def _given_up(self, values: dict[str, float], leg: Leg, step: int) -> str:
        first = step - int(values["skipped_in_a_row"])
        order = self.training.recipe.data.order_seed
        seed = self.training.seed if order is None else order
        return (
            f"{self.training.name} diverged: no step of its {leg.name} could be taken from step {first} to {step}, "
            f"where the loss is {values['loss']} and the gradient norm {values['gradient_norm']}. Those were the "
            f"batches {first} to {step - 1} of the data order of seed {seed}. The state before them is saved; lower "
            f"optimizer.learning_rate or lengthen the warm-up, in a new --out."
        )


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


def _about(step: int, seconds: float) -> dict[str, Any]:
    """What is saved beside the state: where the data goes on, the time it took, and with which software."""
    return {"next_batch": step, "seconds": seconds, "versions": versions()}
