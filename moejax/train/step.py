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
from jaxtyping import Array, Bool, Float, Int

from moejax.model import transformer
from moejax.model.loss import auxiliary, token_costs
from moejax.routing.sigmoid import update_bias
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
    balance_bias: Any
    """Float32[mixture layers, experts], or None; the counts of each step move it, not the gradient."""
    seed: Any
    """UInt32: with the step, what the noise of routers is drawn from."""


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
    evaluate: Callable[[Any, Array | None, Array, Array], tuple[Array, RoutingSums | None]]
    """Nats of each position of a batch, under parameters and balance bias, and what the routers did with the sequences
    marked as real."""
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
        params = transformer.init(architecture, jax.random.key(seed), training.recipe.initialisation)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            optimizer=optimizer.init(params),
            balance_bias=transformer.init_balance_bias(architecture),
            seed=jnp.asarray(seed, jnp.uint32),
        )

    def loss(
        params: Any, state: TrainState, batch: Int[Array, "sequences length_plus_1"]
    ) -> tuple[Array, tuple[dict[str, Array], RoutingSums | None]]:
        noise = jax.random.fold_in(jax.random.key(state.seed), state.step)
        output = transformer.apply(
            architecture, runtime, params, batch[:, :-1], balance_bias=state.balance_bias, key=noise
        )
        nats = token_costs(architecture, params, output.hidden, batch[:, 1:]).mean()
        weighted, raw = auxiliary(output.routing, training.recipe.loss)
        return nats + weighted, ({"loss": nats, **raw, **health(output.routing)}, output.routing)

    def step(state: TrainState, batch: Array, schedule: WarmupStableDecay) -> tuple[TrainState, dict[str, Array]]:
        gradients, (metrics, routing) = jax.grad(loss, has_aux=True)(state.params, state, batch)
        learning_rate = schedule(state.step)
        # Optax promotes types by itself, also where the caller has forbidden it.
        with jax.numpy_dtype_promotion("standard"):
            directions, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        params = jax.tree.map(lambda p, d: p - learning_rate * d, state.params, directions)
        metrics |= {"learning_rate": learning_rate, "gradient_norm": optax.tree.norm(gradients)}
        balance_bias = state.balance_bias
        if balance_bias is not None and routing is not None:
            balance_bias = update_bias(balance_bias, routing.counts, training.recipe.loss.balance_bias_rate)
            metrics |= {"balance_bias_range": jnp.ptp(balance_bias, axis=1).max()}
        after = TrainState(
            step=state.step + 1,
            params=params,
            optimizer=optimizer_state,
            balance_bias=balance_bias,
            seed=state.seed,
        )
        return after, metrics

    def evaluate(
        params: Any, balance_bias: Array | None, batch: Array, real: Bool[Array, " sequences"]
    ) -> tuple[Float[Array, "sequences length"], RoutingSums | None]:
        inputs = batch[:, :-1]
        tokens = jnp.broadcast_to(real[:, None], inputs.shape)
        output = transformer.apply(architecture, runtime, params, inputs, real=tokens, balance_bias=balance_bias)
        return token_costs(architecture, params, output.hidden, batch[:, 1:]), output.routing

    abstract = jax.eval_shape(lambda: init(0))
    shardings = _state_shardings(training, abstract, mesh)
    batch = batch_sharding(mesh)
    return Program(
        mesh=mesh,
        init=jax.jit(init, static_argnums=0, out_shardings=shardings),
        step=jax.jit(step, in_shardings=(shardings, batch, None), out_shardings=(shardings, None), donate_argnums=0),
        evaluate=jax.jit(evaluate, in_shardings=(shardings.params, shardings.balance_bias, batch, batch)),
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
    return TrainState(
        step=replicated,
        params=params,
        optimizer=optimizer,
        balance_bias=None if abstract.balance_bias is None else replicated,
        seed=replicated,
    )
