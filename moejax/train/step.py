"""The training step: a pure function of an explicit state, jitted with shardings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from moejax.model import transformer
from moejax.model.loss import auxiliary, cross_entropy
from moejax.routing.statistics import statistics
from moejax.routing.sums import RoutingSums
from moejax.train.mesh import batch_sharding, param_shardings
from moejax.train.optimizer import adamw
from moejax.train.schedule import WarmupStableDecay
from moejax.train.training import Training


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """All that a step changes, but the position in the data, which the batches carry and checkpoints hold beside it."""

    step: Any
    """Int32: optimiser steps taken."""
    params: Any
    """Nested dict of float32 arrays."""
    optimizer: Any
    """State of the Optax chain."""


@dataclass(frozen=True, eq=False)
class Program:
    """The compiled functions of one training."""

    mesh: Mesh
    init: Callable[[int], TrainState]
    """A fresh state from a seed."""
    step: Any
    """Jitted ``(state, batch, schedule) -> (state, metrics)``; the state given is used up."""
    batch: jax.ShapeDtypeStruct
    """Shape of a global batch."""
    evaluate: Callable[[Any, Array, Array], tuple[Array, RoutingSums | None]]
    """Nats of each position of a batch, and what the routers did with the sequences marked as real."""
    shardings: TrainState
    """Where each array of the state lies."""
    abstract: TrainState
    """Shapes and types of the state."""

    @functools.cache  # noqa: B019 -- programs are few, and compiling one takes seconds
    def compiled_step(self) -> Any:
        """``step``, compiled without being run."""
        number = jax.ShapeDtypeStruct((), jnp.float32, weak_type=True)
        schedule = WarmupStableDecay(
            peak=number, warmup_steps=number, decay_start=number, decay_steps=number, final_share=number
        )
        return self.step.lower(self.abstract, self.batch, schedule).compile()


@functools.lru_cache(maxsize=8)
def make_program(training: Training, mesh: Mesh) -> Program:
    """The functions of a training on a mesh. Compilation happens at their first call, once in a process."""
    architecture, runtime = training.architecture, training.recipe.runtime
    optimizer = adamw(training.recipe.optimizer, transformer.matrices(architecture))

    def init(seed: int) -> TrainState:
        params = transformer.init(architecture, jax.random.key(seed))
        return TrainState(step=jnp.zeros((), jnp.int32), params=params, optimizer=optimizer.init(params))

    def loss(params: Any, batch: Int[Array, "sequences length_plus_1"]) -> tuple[Array, dict[str, Array]]:
        output = transformer.forward(architecture, runtime, params, batch[:, :-1])
        nats = cross_entropy(output.logits, batch[:, 1:]).mean()
        weighted, raw = auxiliary(output.routing, training.recipe.loss)
        return nats + weighted, {"loss": nats, **raw, **health(output.routing)}

    def step(state: TrainState, batch: Array, schedule: WarmupStableDecay) -> tuple[TrainState, dict[str, Array]]:
        gradients, metrics = jax.grad(loss, has_aux=True)(state.params, batch)
        learning_rate = schedule(state.step)
        # Optax promotes types by itself, also where the caller has forbidden it.
        with jax.numpy_dtype_promotion("standard"):
            directions, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, state.params, directions)
        metrics |= {"learning_rate": learning_rate, "gradient_norm": optax.tree.norm(gradients)}
        return TrainState(step=state.step + 1, params=params, optimizer=optimizer_state), metrics

    def evaluate(params: Any, batch: Array, real: Array) -> tuple[Float[Array, "sequences length"], RoutingSums | None]:
        output = transformer.forward(architecture, runtime, params, batch[:, :-1], real=real)
        return cross_entropy(output.logits, batch[:, 1:]), output.routing

    abstract = jax.eval_shape(lambda: init(0))
    shardings = _state_shardings(training, abstract, mesh)
    batch = batch_sharding(mesh)
    return Program(
        mesh=mesh,
        init=jax.jit(init, static_argnums=0, out_shardings=shardings),
        step=jax.jit(step, in_shardings=(shardings, batch, None), out_shardings=(shardings, None), donate_argnums=0),
        evaluate=jax.jit(evaluate, in_shardings=(shardings.params, batch, batch)),
        batch=jax.ShapeDtypeStruct(
            (training.recipe.batch_sequences, training.recipe.data.sequence_length + 1), jnp.int32
        ),
        shardings=shardings,
        abstract=abstract,
    )


def health(sums: RoutingSums | None) -> dict[str, Array]:
    """Routing statistics over all mixture layers: the mean, and the worst of the largest violations."""
    if sums is None:
        return {}
    layers = statistics(sums)
    worst = {"max_violation": layers.pop("max_violation").max()}
    return {name: value.mean() for name, value in layers.items()} | worst


def _state_shardings(training: Training, abstract: TrainState, mesh: Mesh) -> TrainState:
    """Optimiser moments lie where their parameters do, everything else everywhere."""
    axes = transformer.param_axes(training.architecture)
    params = param_shardings(axes, abstract.params, mesh)
    replicated = NamedSharding(mesh, PartitionSpec())
    optimizer = optax.tree.map_params(
        adamw(training.recipe.optimizer, transformer.matrices(training.architecture)),
        lambda _, sharding: sharding,
        abstract.optimizer,
        params,
        transform_non_params=lambda _: replicated,
    )
    return TrainState(step=replicated, params=params, optimizer=optimizer)
