"""Define the training step: a pure function of an explicit state, a batch and a schedule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from moejax.architecture import Architecture
from moejax.model import transformer
from moejax.model.loss import Whole, auxiliary, token_loss, weighted_losses
from moejax.model.mtp import ahead, has_token_ahead
from moejax.model.transformer import Params
from moejax.pytree import pytree
from moejax.routing.routers import update_bias
from moejax.routing.sums import RoutingSums, load_shares, statistics
from moejax.sharding import constrain
from moejax.train.directory.metrics import module_name
from moejax.train.optimizer import Guard, OptimizerConfig, ParameterParts, make_optimizer, new_guard
from moejax.train.schedule import Schedule
from moejax.train.training import Training

Batch = dict[str, Array]
"""A batch: ``tokens``, Int32[sequences, length + 1]. A batch of packed documents also has ``segments``, an array of the
same shape. It numbers the documents of a row from 1; 0 marks padding.
"""

LAYERS = "layers/"
"""Prefix of metrics with one value per MoE layer."""


@pytree
@dataclass(frozen=True, kw_only=True)
class TrainState:
    """State that a step changes. The data position is not part of it; checkpoints store the position separately."""

    step: Any
    """Int32: number of batches seen, including batches whose steps were skipped."""
    params: Any
    """Nested dict of float32 arrays."""
    optimizer: Any
    """State of the Optax chain."""
    expert_bias: Any
    """Float32[routed layers, experts], or None; updated from each step's expert counts, not by the gradient."""
    balance_loads: Any
    """Float32[routed layers, experts]: each expert's share of the assignments in the last accepted step, uniform before
    the first. None unless ``loss.balance_loads`` is "previous_step"."""
    ema: Any
    """Exponential moving average (EMA) of the parameters, or None."""
    guard: Guard
    seed: Any
    """UInt32: seed of the router noise, combined with the step."""


def init(training: Training, seed: ArrayLike) -> TrainState:
    """Return a fresh state from a seed, 0 to 2^32 - 1."""
    architecture, recipe = training.architecture, training.recipe
    params = transformer.init(architecture, jax.random.key(seed), recipe.initialisation)
    keeps_loads = architecture.is_moe and recipe.loss.balance_loads == "previous_step"
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        optimizer=make_optimizer(recipe.optimizer, parameter_parts(training.architecture)).init(params),
        expert_bias=transformer.init_expert_bias(architecture),
        balance_loads=_uniform_loads(architecture) if keeps_loads else None,
        ema=jax.tree.map(jnp.copy, params) if recipe.ema_decay else None,
        guard=new_guard(),
        seed=jnp.asarray(seed, jnp.uint32),
    )


def step(
    training: Training, state: TrainState, batch: Batch, schedule: Schedule
) -> tuple[TrainState, dict[str, Array]]:
    """Return the state after a batch, and the metrics of the step."""
    recipe, mtp_layers = training.recipe, training.architecture.num_mtp_layers
    gradients, metrics, routing = _batch_gradient(training, state, batch)
    learning_rate, norm = schedule.learning_rate(state.step), optax.tree.norm(gradients)
    # Optax relies on type promotion, which the caller may have disabled.
    with jax.numpy_dtype_promotion("standard"):
        optimizer = make_optimizer(recipe.optimizer, parameter_parts(training.architecture), schedule.weight_decay)
        directions, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
    params = jax.tree.map(lambda p, d: p - learning_rate * d, state.params, directions)
    accepted = state.guard.accepts(recipe.guard, metrics.pop("weighted_loss"), norm)
    guard = state.guard.after(accepted, norm)
    taken = replace(
        state,
        params=params,
        optimizer=optimizer_state,
        expert_bias=_moved(state.expert_bias, routing, recipe.loss.expert_bias_rate),
        balance_loads=None if state.balance_loads is None or routing is None else load_shares(routing.counts),
        ema=_update_ema(state.ema, params, recipe.ema_decay),
    )
    after = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), taken, state)
    metrics |= auxiliary(routing, recipe.loss, mtp_layers=mtp_layers)[1]
    metrics |= health(routing, state.expert_bias, mtp_layers=mtp_layers)
    metrics |= {"learning_rate": learning_rate, "gradient_norm": norm}
    metrics |= {"skipped_steps": guard.skipped, "skipped_in_a_row": guard.in_a_row}
    return replace(after, step=state.step + 1, guard=guard), metrics


def evaluate(
    training: Training, params: Params, expert_bias: Array | None, batch: Batch, real: Bool[Array, " sequences"]
) -> tuple[Float[Array, " sequences"], RoutingSums | None]:
    """Return each sequence's loss, in nats, and the routing sums over the sequences marked as real. Positions that are
    not predicted contribute 0.
    """
    architecture, microbatches = training.architecture, training.recipe.microbatches

    def of(part: Batch, real: Array) -> tuple[RoutingSums | None, Array]:
        tokens = jnp.broadcast_to(real[:, None], part["tokens"][:, 1:].shape)
        output = _forward(training, params, expert_bias, part, real=tokens)
        costs = token_loss(architecture, params, output.hidden, part["tokens"][:, 1:])
        return output.routing, jnp.where(_predicted(part), costs, 0.0).sum(axis=1)

    # The evaluated loss must not depend on the step's microbatches.
    if microbatches == 1 or transformer.is_batch_dependent(architecture):
        routing, nats = of(batch, real)
        return nats, routing
    routing, nats = _summed(lambda _, part, real: of(part, real), _microbatches((batch, real), microbatches))
    return nats.swapaxes(0, 1).reshape(-1), routing


Gradient = tuple[Any, dict[str, Array], RoutingSums | None]
"""Gradients, losses and routing sums, summed over microbatches."""


def _batch_gradient(training: Training, state: TrainState, batch: Batch) -> Gradient:
    """Return the gradient of a whole batch, computed one microbatch at a time.

    The balance loss weights a microbatch's probabilities by the loads of the whole batch. When a microbatch's loss is
    computed, its own loads and the loads of earlier microbatches are known. The loads of later microbatches are counted
    beforehand, in an extra forward pass. The extra pass makes the gradient of the balance loss exact. This gradient is
    Jᵀ·f. The vector f has the load of every expert e in every layer l, and row (l, e) of the matrix J is the gradient
    of that expert's summed probability. Until the last microbatch has been routed, f is unknown. Without the extra
    pass, one would store one gradient per independent row of J, layers × (experts - 1) in total, or the activations of
    all microbatches.
    """
    count = training.recipe.microbatches
    noise = jax.random.fold_in(jax.random.key(state.seed), state.step)
    gradient = _gradient(training, state, batch)
    whole = Whole(*_seen(batch, training.architecture), state.balance_loads)
    if count == 1:
        return gradient(batch, noise, None if state.balance_loads is None else whole)
    parts = _microbatches(batch, count), jax.random.split(noise, count)
    if not training.counted_share:
        return _summed(lambda _, part, key: (gradient(part, key, whole), None), parts)[0]

    def after(before: Gradient | None, part: Batch, key: Array, behind: Array) -> tuple[Gradient, None]:
        loads = behind if before is None or before[2] is None else behind + before[2].counts
        return gradient(part, key, whole._replace(loads=loads)), None

    return _summed(after, (*parts, _loads_behind(training, state, parts)))[0]


def _gradient(training: Training, state: TrainState, batch: Batch) -> Callable[..., Gradient]:
    """Return the function ``gradient(part, key, whole)`` for a part of a batch. ``whole`` holds statistics of the whole
    batch for the balance loss; it is None if the statistics of the part suffice.
    """
    architecture, weights = training.architecture, training.recipe.loss
    modules, predictions = architecture.num_mtp_layers, range(architecture.num_mtp_layers + 1)
    targets = [jnp.maximum(_predicted(batch, depth).sum(), 1).astype(jnp.float32) for depth in predictions]
    mtp_weight = _mtp_weight(training, state.step)

    def loss(params: Params, part: Batch, key: Array, whole: Whole | None) -> tuple[Array, Any]:
        output = _forward(training, params, state.expert_bias, part, key=key, mtp=True)
        hidden = (output.hidden, *output.mtp_hidden)
        aims = tuple(ahead(part["tokens"][:, 1:], depth) for depth in predictions)
        counted = tuple(_predicted(part, depth).astype(jnp.float32) / targets[depth] for depth in predictions)
        shares = (1.0, *(mtp_weight / modules for _ in range(modules)))
        total, (nats, *further) = weighted_losses(architecture, params, hidden, aims, counted, shares)
        if training.counted_share and whole is not None and output.routing is not None:
            whole = whole._replace(loads=whole.loads + output.routing.counts)
        weighted, _ = auxiliary(output.routing, weights, whole, mtp_layers=modules, mtp_weight=mtp_weight)
        metrics = {"loss": nats, "weighted_loss": total + weighted}
        metrics |= {f"{module_name(depth)}_loss": loss for depth, loss in enumerate(further, start=1)}
        return total + weighted, (metrics, output.routing)

    def gradient(part: Batch, key: Array, whole: Whole | None) -> Gradient:
        found, (metrics, routing) = jax.grad(loss, has_aux=True)(state.params, part, key, whole)
        return found, metrics, routing

    return gradient


def _loads_behind(
    training: Training, state: TrainState, parts: tuple[Batch, Array]
) -> Int[Array, "microbatches routed_layers experts"]:
    """Return the sum of the expert loads of all later microbatches, for each microbatch. Extra forward passes count the
    loads.
    """

    def counts(part: Batch, key: Array) -> Array:
        routing = _forward(training, state.params, state.expert_bias, part, key=key, mtp=True).routing
        assert routing is not None
        return routing.counts

    behind_first = jax.tree.map(lambda leaf: leaf[1:], parts)
    counted = jax.lax.map(lambda part: counts(*part), behind_first)
    behind = jnp.cumsum(counted[::-1], axis=0)[::-1]
    return jnp.concatenate([behind, jnp.zeros_like(behind[:1])])


def _forward(
    training: Training,
    params: Params,
    expert_bias: Array | None,
    batch: Batch,
    *,
    key: Array | None = None,
    real: Bool[Array, "sequences length"] | None = None,
    mtp: bool = False,
) -> transformer.Output:
    """Apply ``transformer.apply`` to a batch's inputs; inputs outside of ``real`` are padding."""
    inputs, segments = _inputs(batch)
    if segments is not None:
        real = segments > 0 if real is None else real & (segments > 0)
    return transformer.apply(
        training.architecture,
        training.recipe.runtime,
        params,
        inputs,
        segments=segments,
        padding_mask=real,
        expert_bias=expert_bias,
        key=key,
        mtp=mtp,
    )


def _mtp_weight(training: Training, step: Array) -> float | Array:
    recipe = training.recipe
    if not recipe.loss.mtp_later_tokens:
        return recipe.loss.mtp
    first = recipe.steps(recipe.loss.mtp_later_tokens)
    return jnp.where(step < first, recipe.loss.mtp, recipe.loss.mtp_later)


def parameter_parts(architecture: Architecture) -> ParameterParts:
    """Return the properties of each parameter that the optimizer needs."""
    return ParameterParts(
        axes=transformer.param_axes(architecture),
        inputs=transformer.param_inputs(architecture),
        is_matrix=transformer.matrices(architecture),
    )


@functools.cache
def moment_bytes(optimizer: OptimizerConfig, architecture: Architecture) -> float:
    """Return the mean number of bytes per parameter in the optimizer's moments."""
    params = transformer.abstract_params(architecture)
    state = jax.eval_shape(make_optimizer(optimizer, parameter_parts(architecture)).init, params)
    moments = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state) if leaf.ndim)
    return moments / sum(leaf.size for leaf in jax.tree.leaves(params))


def health(sums: RoutingSums | None, bias: Array | None = None, *, mtp_layers: int = 0) -> dict[str, Array]:
    """Return routing statistics. ``layers/NAME`` is Float[layers], with one value per layer. ``NAME`` is the mean over
    all layers except the last ``mtp_layers``, which are multi-token-prediction modules. ``max_violation`` is a maximum.
    """
    if sums is None:
        return {}
    layers = statistics(sums, bias)
    own = {name: value[: len(value) - mtp_layers] for name, value in layers.items()}
    over_all = {name: value.mean() for name, value in own.items()}
    worst = {"max_violation": own["max_violation"].max()}
    return over_all | worst | {f"{LAYERS}{name}": value for name, value in layers.items()}


def _moved(bias: Array | None, routing: RoutingSums | None, rate: float) -> Array | None:
    return bias if bias is None or routing is None else update_bias(bias, routing.counts, rate)


def _uniform_loads(architecture: Architecture) -> Float[Array, "routed_layers experts"]:
    return jnp.full((len(architecture.routed_layers), architecture.num_experts), 1 / architecture.num_experts)


def _update_ema(ema: Params | None, params: Params, decay: float) -> Params | None:
    if ema is None:
        return None
    return jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, ema, params)


def _predicted(batch: Batch, further: int = 0) -> Bool[Array, "sequences length"]:
    """Return a mask of the input tokens whose target is in the same document. The target is ``further`` tokens after
    the next token.
    """
    tokens, segments = batch["tokens"], batch.get("segments")
    there = has_token_ahead(tokens.shape, further + 1, segments, None if segments is None else segments > 0)
    return there[:, :-1]


def _inputs(batch: Batch) -> tuple[Int[Array, "sequences length"], Int[Array, "sequences length"] | None]:
    segments = batch.get("segments")
    return batch["tokens"][:, :-1], None if segments is None else segments[:, :-1]


def _seen(batch: Batch, architecture: Architecture) -> tuple[Array, Array]:
    """Return the number of input tokens that experts process, and the number of sequences with such tokens. With
    multi-token-prediction modules, each is an array with one entry per routed layer. Padding does not count. In the
    module of depth d, a token counts only if its document continues for at least d more tokens.
    """
    inputs, segments = _inputs(batch)
    real = None if segments is None else segments > 0
    depths = range(architecture.num_mtp_layers + 1)
    seen = [has_token_ahead(inputs.shape, depth, segments, real) for depth in depths]

    def of_layers(counts: list[Array]) -> Array:
        if not architecture.is_moe or len(counts) == 1:
            return counts[0]
        return jnp.stack([counts[0]] * sum(architecture.has_experts) + counts[1:])

    return of_layers([here.sum() for here in seen]), of_layers([here.any(1).sum() for here in seen])


def _microbatches(batch: Any, parts: int) -> Any:
    """Split arrays of sequences into stacked microbatches. Each has every ``parts``-th sequence, so that it is spread
    over the mesh like the whole batch."""

    def cut(rows: Array) -> Array:
        cut = rows.reshape(rows.shape[0] // parts, parts, *rows.shape[1:]).swapaxes(0, 1)
        return constrain(cut, (None, "batch", *(None for _ in rows.shape[1:])))

    return jax.tree.map(cut, batch)


def _summed(run: Callable[..., tuple[Any, Any]], parts: tuple[Any, ...]) -> tuple[Any, Any]:
    """Scan ``run(before, *part)``, which returns two values per part. Return the sum of the first values, accumulated
    part by part, and the stack of the second values. ``before`` is the sum over the previous parts; it is None during
    shape evaluation.
    """
    first, _ = jax.eval_shape(run, None, *jax.tree.map(lambda leaf: leaf[0], parts))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)

    def add(total: Any, part: tuple[Any, ...]) -> tuple[Any, Any]:
        more, other = run(total, *part)
        return jax.tree.map(jnp.add, total, more), other

    return jax.lax.scan(add, zeros, parts)
