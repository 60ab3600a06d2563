"""Build the compiled functions of a training run and the shardings of its state, and limit how many steps the host
launches ahead of the devices.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from moejax.data.rows import ARRAYS
from moejax.kernels.platform import platform
from moejax.model import transformer
from moejax.sharding import token_shards
from moejax.train.devices import CHIP_OF_DEVICE, check_quantization, compiler_options
from moejax.train.mesh import batch_sharding, param_shardings
from moejax.train.optimizer import of_parameters
from moejax.train.schedule import Schedule
from moejax.train.step import Batch, TrainState, evaluate, init, step
from moejax.train.training import Recipe, Training, phases, shared_settings

MAX_STEPS_IN_FLIGHT = 8
"""Maximum number of launched but unfinished steps. With 32 or more, XLA's CPU client waits for a step before it
launches the next one. This can deadlock if devices wait for each other within a step and each has one thread.
"""
MUCH_MEMORY_BYTES = 2**28
"""Working memory of a step on a CPU above which the next step is launched only after this one has freed its memory. The
client reports a step as done before it frees the memory, so the next step would allocate the same amount again.
"""
GIVING_BACK_SECONDS = 0.005
SHARED_EVALUATION_TOKENS = 65_536
"""Number of tokens evaluated together if they share the experts' capacity and thus affect each other's losses. It is
independent of the batch and the mesh.
"""


@dataclass(frozen=True, eq=False)
class Program:
    """The compiled functions of one training run, or of several that are vmapped.

    Shapes and shardings describe one training run. With ``vmapped_runs``, the arrays of ``step`` have a leading run
    axis.
    """

    mesh: Mesh
    unjitted_step: Callable[[TrainState, Batch, Schedule], tuple[TrainState, dict[str, Array]]]
    """The function that ``step`` jits. Seed, learning rate and weight decay are arguments."""
    init: Callable[[int], TrainState]
    """Function that returns a fresh state from a seed."""
    step: jax.stages.Wrapped
    """Jitted ``(state, batch, schedule) -> (state, metrics)``; the state argument is donated."""
    batch: dict[str, jax.ShapeDtypeStruct]
    """Shapes of a global batch. With a batch ramp, this is the last batch size."""
    schedule: Schedule
    """Shapes of a schedule."""
    evaluate: jax.stages.Wrapped
    """Jitted ``moejax.train.step.evaluate``."""
    evaluation_batch: dict[str, jax.ShapeDtypeStruct]
    """Shapes of an ``evaluate`` batch."""
    evaluation_sequences: int
    """Number of validation sequences in an ``evaluate`` batch. The other sequences are padding for the mesh."""
    shardings: TrainState
    """Sharding of each array of the state."""
    abstract: TrainState
    """Shapes and types of the state."""
    vmapped_runs: int = 0
    """Number of vmapped runs; 0 for a program of one run."""

    def lowered_evaluation(self) -> jax.stages.Lowered:
        """Return ``evaluate`` lowered for one batch, but not compiled."""
        batch = self.evaluation_batch
        real = jax.ShapeDtypeStruct(batch["tokens"].shape[:1], np.bool_)
        return self.evaluate.lower(self.abstract.params, self.abstract.expert_bias, batch, real)

    @functools.cache  # noqa: B019 -- programs are few, and compiling one takes seconds
    def compiled_evaluation(self) -> jax.stages.Compiled:
        """Return ``evaluate``, compiled without running it."""
        return self.lowered_evaluation().compile()

    @functools.cache  # noqa: B019 -- programs are few, and compiling one takes seconds
    def compiled_step(self, sequences: int | None = None) -> jax.stages.Compiled:
        """Return ``step``, compiled without running it, for batches of this number of sequences. The default is the
        number in ``batch``.
        """
        if sequences == self.batch["tokens"].shape[0]:
            return self.compiled_step()
        return self.step.lower(*self.step_shapes(sequences)).compile()

    def step_shapes(self, sequences: int | None = None) -> tuple[TrainState, dict[str, Any], Schedule]:
        """Return the shapes of the arguments of ``step``."""

        def of_batch(rows: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return rows if sequences is None else jax.ShapeDtypeStruct((sequences, rows.shape[1]), rows.dtype)

        def of_all_runs(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((self.vmapped_runs, *leaf.shape), leaf.dtype)

        shapes = (self.abstract, {name: of_batch(rows) for name, rows in self.batch.items()}, self.schedule)
        return jax.tree.map(of_all_runs, shapes) if self.vmapped_runs else shapes

    def stack(self, states: list[TrainState]) -> TrainState:
        """Return the runs' states, stacked for the function ``step``."""
        return _stack(states) if self.vmapped_runs else states[0]

    def unstack(self, state: TrainState) -> list[TrainState]:
        """Return the state of each run."""
        return _unstack(state, self.vmapped_runs) if self.vmapped_runs else [state]


def make_program(training: Training, mesh: Mesh) -> Program:
    """Return the functions of a training run on a mesh. They are compiled at the first call, once per process for all
    training runs that can be vmapped together.

    Raises:
      UserError: the devices do not support matmuls in the runtime's type.
    """
    kind = mesh.devices.flat[0].device_kind
    check_quantization(training.architecture, training.recipe.runtime, CHIP_OF_DEVICE.get(kind, ""))
    return _make_program(shared_settings(training), mesh)


@functools.lru_cache(maxsize=8)
def _make_program(training: Training, mesh: Mesh) -> Program:
    of_seed, of_batch = functools.partial(init, training), functools.partial(step, training)
    abstract = jax.eval_shape(of_seed, jax.ShapeDtypeStruct((), np.uint32))
    shardings = _state_shardings(training, abstract, mesh)
    batch, evaluation_sequences = batch_sharding(mesh), _evaluation_sequences(training)
    options = compiler_options(mesh, training.recipe.runtime)
    shards = token_shards(mesh)
    compiled_init = jax.jit(of_seed, out_shardings=shardings)
    return Program(
        mesh=mesh,
        unjitted_step=of_batch,
        init=lambda seed: compiled_init(np.uint32(seed)),
        step=jax.jit(
            of_batch,
            in_shardings=(shardings, batch, None),
            out_shardings=(shardings, None),
            donate_argnums=0,
            compiler_options=options,
        ),
        evaluate=jax.jit(
            functools.partial(evaluate, training),
            in_shardings=(shardings.params, shardings.expert_bias, batch, batch),
            out_shardings=NamedSharding(mesh, PartitionSpec()),
            compiler_options=options,
        ),
        evaluation_batch=_batch_shapes(training.recipe, math.ceil(evaluation_sequences / shards) * shards),
        evaluation_sequences=evaluation_sequences,
        batch=_batch_shapes(training.recipe, training.recipe.batch_sequences),
        schedule=_schedule_shapes(training),
        shardings=shardings,
        abstract=abstract,
    )


@functools.lru_cache(maxsize=8)
def vmap_program(program: Program, runs: int) -> Program:
    """Return a program with a step for many training runs at once on one device.

    States, batches, schedules and metrics of ``step`` have a leading axis of runs. ``init`` and ``evaluate`` still work
    on one run.
    """
    return replace(program, step=jax.jit(jax.vmap(program.unjitted_step), donate_argnums=0), vmapped_runs=runs)


class StepsInFlight:
    """A limit on the number of launched but unfinished steps; ``steps`` are the compiled programs.

    Each wait for a step runs inside a context that ``watch`` returns.
    """

    def __init__(
        self,
        steps: Iterable[jax.stages.Compiled] = (),
        watch: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._launched: deque[Array] = deque()
        self._one_by_one = platform() == "cpu" and max(map(working_bytes, steps), default=0) > MUCH_MEMORY_BYTES
        self._watch = watch

    def add(self, loss: Array) -> None:
        """Add the ``loss`` of a launched step, and wait if too many steps are unfinished."""
        self._launched.append(loss)
        if self._one_by_one:
            self.drain()
            time.sleep(GIVING_BACK_SECONDS)
        elif len(self._launched) > MAX_STEPS_IN_FLIGHT:
            self._wait()

    def drain(self) -> None:
        """Wait for all launched steps."""
        while self._launched:
            self._wait()

    def _wait(self) -> None:
        with self._watch():
            jax.block_until_ready(self._launched.popleft())


def working_bytes(step: jax.stages.Compiled) -> int:
    """Return the working memory of a compiled program, in bytes."""
    memory = step.memory_analysis()
    return 0 if memory is None else memory.temp_size_in_bytes


@jax.jit
def _stack(states: list[TrainState]) -> TrainState:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


@functools.partial(jax.jit, static_argnums=1)
def _unstack(state: TrainState, runs: int) -> list[TrainState]:
    return [jax.tree.map(lambda leaf, number=number: leaf[number], state) for number in range(runs)]


def _evaluation_sequences(training: Training) -> int:
    recipe = training.recipe
    if not transformer.is_batch_dependent(training.architecture):
        return recipe.batch_sequences
    return max(1, min(SHARED_EVALUATION_TOKENS, recipe.data.validation_tokens) // recipe.data.sequence_length)


def _batch_shapes(recipe: Recipe, sequences: int) -> dict[str, jax.ShapeDtypeStruct]:
    shape = jax.ShapeDtypeStruct((sequences, recipe.data.sequence_length + 1), np.int32)
    return dict.fromkeys(ARRAYS[recipe.data.packing], shape)


def _schedule_shapes(training: Training) -> Schedule:
    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(np.shape(leaf), np.float32, weak_type=isinstance(leaf, float))

    return jax.tree.map(shape, phases(training)[0].schedule)


def _state_shardings(training: Training, abstract: TrainState, mesh: Mesh) -> TrainState:
    replicated = NamedSharding(mesh, PartitionSpec())
    params = param_shardings(transformer.param_axes(training.architecture), abstract.params, mesh)
    everywhere = jax.tree.map(lambda _: replicated, abstract)
    optimizer = of_parameters(abstract.optimizer, abstract.params, params, replicated)
    ema = None if abstract.ema is None else params
    return replace(everywhere, params=params, optimizer=optimizer, ema=ema)
