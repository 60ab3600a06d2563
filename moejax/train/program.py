"""The compiled functions of a training, and where on the mesh its state lies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from moejax.data.rows import ARRAYS
from moejax.model import transformer
from moejax.train.mesh import batch_sharding, param_shardings
from moejax.train.phases import phases
from moejax.train.schedule import Schedule
from moejax.train.step import Functions, TrainState, make_functions
from moejax.train.training import Recipe, Training
from moejax.train.vmapped_runs import shared_settings


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
    evaluate: Any
    """``Functions.evaluate``, jitted."""
    shardings: TrainState
    """Where each array of the state lies."""
    abstract: TrainState
    """Shapes and types of the state."""

    def lowered_evaluation(self) -> Any:
        """``evaluate`` of a batch, lowered and not compiled."""
        tokens = self.batch["tokens"]
        real = jax.ShapeDtypeStruct(tokens.shape[:1], np.bool_)
        return self.evaluate.lower(self.abstract.params, self.abstract.expert_bias, self.batch, real)

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
    could be vmapped together."""
    return _make_program(shared_settings(training), mesh)


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
            in_shardings=(shardings.params, shardings.expert_bias, batch, batch),
            out_shardings=NamedSharding(mesh, PartitionSpec()),
        ),
        batch=_batch_shapes(training.recipe),
        schedule=_schedule_shapes(training),
        shardings=shardings,
        abstract=abstract,
    )


@functools.lru_cache(maxsize=8)
def vmap_program(program: Program, runs: int) -> Program:
    """A program whose step is that of many trainings, side by side on one device.

    Its states, batches, schedules and metrics have an axis of runs before all others; each run's are its own.
    ``init`` and ``evaluate`` are still those of one.
    """
    stack = functools.partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct((runs, *leaf.shape), leaf.dtype))
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

    return jax.tree.map(shape, phases(training)[0].schedule)


def _state_shardings(training: Training, abstract: TrainState, mesh: Mesh) -> TrainState:
    """Optimiser moments lie where their parameters do, everything else everywhere."""
    replicated = NamedSharding(mesh, PartitionSpec())
    params = param_shardings(transformer.param_axes(training.architecture), abstract.params, mesh)
    everywhere = jax.tree.map(lambda _: replicated, abstract)
    optimizer = _beside_params(abstract.optimizer, abstract.params, params, replicated)
    ema = None if abstract.ema is None else params
    return replace(everywhere, params=params, optimizer=optimizer, ema=ema)


def _beside_params(optimizer: Any, params: Any, shardings: Any, otherwise: NamedSharding) -> Any:
    """Shardings of an optimiser's state. An array at the end of whose path is a parameter's, and that has the
    parameter's shape, lies where the parameter does, so that it does not matter how an optimiser holds its moments:
    Muon's are two trees, each with a part of the parameters."""
    placed = {
        path: (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(shardings), strict=True
        )
    }

    def of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        ends = (placed.get(path[start:]) for start in range(len(path)))
        return next((sharding for shape, sharding in filter(None, ends) if shape == leaf.shape), otherwise)

    return jax.tree_util.tree_map_with_path(of, optimizer)
