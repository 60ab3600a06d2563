"""The compiled functions of a training, and where on the mesh its state lies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from moejax.data.rows import ARRAYS
from moejax.model import transformer
from moejax.routing.sums import RoutingSums
from moejax.train.legs import legs
from moejax.train.mesh import batch_sharding, param_shardings
from moejax.train.optimizer import make_optimizer
from moejax.train.population import shared
from moejax.train.schedule import Schedule
from moejax.train.step import Batch, Functions, TrainState, make_functions, parameter_parts
from moejax.train.training import Recipe, Training


@dataclass(frozen=True, eq=False)
class Program:
    """The compiled functions of one training."""

    mesh: Mesh
    functions: Functions
    init: Callable[[int], TrainState]
    """A fresh state from a seed."""
    step: Any
    """Jitted ``(state, batch, schedule) -> (state, metrics)``; the state given is used up."""
    batch: dict[str, jax.ShapeDtypeStruct]
    """Shapes of a global batch, the last of a ramp."""
    schedule: Schedule
    """Shapes of a schedule."""
    evaluate: Callable[[Any, Array | None, Batch, Array], tuple[Array, RoutingSums | None]]
    """``Functions.evaluate``, jitted."""
    shardings: TrainState
    """Where each array of the state lies."""
    abstract: TrainState
    """Shapes and types of the state."""

    @functools.cache  # noqa: B019 -- programs are few, and compiling one takes seconds
    def compiled_step(self, sequences: int | None = None) -> Any:
        """``step``, compiled without being run; for ``batch``, or one of so many sequences."""
        batch = self.batch
        if sequences is not None:
            batch = {
                name: jax.ShapeDtypeStruct((*rows.shape[:-2], sequences, rows.shape[-1]), rows.dtype)
                for name, rows in batch.items()
            }
            if batch == self.batch:
                return self.compiled_step()
        return self.step.lower(self.abstract, batch, self.schedule).compile()


def make_program(training: Training, mesh: Mesh) -> Program:
    """The functions of a training on a mesh. Compilation happens at their first call, once in a process for all that
    could be members of one population."""
    return _make_program(shared(training), mesh)


@functools.lru_cache(maxsize=8)
def _make_program(training: Training, mesh: Mesh) -> Program:
    functions = make_functions(training)
    abstract = jax.eval_shape(functions.init, jax.ShapeDtypeStruct((), np.uint32))
    shardings = _state_shardings(training, abstract, mesh)
    batch = batch_sharding(mesh)
    init = jax.jit(functions.init, out_shardings=shardings)
    return Program(
        mesh=mesh,
        functions=functions,
        init=lambda seed: init(np.uint32(seed)),
        step=jax.jit(
            functions.step,
            in_shardings=(shardings, batch, None),
            out_shardings=(shardings, None),
            donate_argnums=0,
        ),
        evaluate=jax.jit(
            functions.evaluate,
            in_shardings=(shardings.params, shardings.balance_bias, batch, batch),
            out_shardings=NamedSharding(mesh, PartitionSpec()),
        ),
        batch=_batch_shapes(training.recipe),
        schedule=_schedule_shapes(training),
        shardings=shardings,
        abstract=abstract,
    )


@functools.lru_cache(maxsize=8)
def lanes(program: Program, members: int) -> Program:
    """A program whose step is that of many trainings, side by side on one device.

    Its states, batches, schedules and metrics have an axis of members before all others; each member's are its own.
    ``init`` and ``evaluate`` are still those of one.
    """
    stack = functools.partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct((members, *leaf.shape), leaf.dtype))
    return replace(
        program,
        step=jax.jit(jax.vmap(program.functions.step), donate_argnums=0),
        batch=stack(program.batch),
        schedule=stack(program.schedule),
        abstract=stack(program.abstract),
    )


def _batch_shapes(recipe: Recipe) -> dict[str, jax.ShapeDtypeStruct]:
    shape = jax.ShapeDtypeStruct((recipe.batch_sequences, recipe.data.sequence_length + 1), np.int32)
    return dict.fromkeys(ARRAYS[recipe.data.packing], shape)


def _schedule_shapes(training: Training) -> Schedule:
    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(np.shape(leaf), np.float32, weak_type=isinstance(leaf, float))

    return jax.tree.map(shape, legs(training)[0].schedule)


def _state_shardings(training: Training, abstract: TrainState, mesh: Mesh) -> TrainState:
    """Optimiser moments lie where their parameters do, everything else everywhere."""
    replicated = NamedSharding(mesh, PartitionSpec())
    params = param_shardings(transformer.param_axes(training.architecture), abstract.params, mesh)
    everywhere = jax.tree.map(lambda _: replicated, abstract)
    optimizer = optax.tree.map_params(
        make_optimizer(training.recipe.optimizer, parameter_parts(training)),
        lambda _, sharding: sharding,
        abstract.optimizer,
        params,
        transform_non_params=lambda _: replicated,
    )
    average = None if abstract.average is None else params
    return replace(everywhere, params=params, optimizer=optimizer, average=average)
