"""Build Optax optimizers with gradient clipping and decoupled weight decay. The training step multiplies their updates
by the learning rate. The guard skips and counts steps that would harm a training run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Bool, Float, Int, Key

from moejax.config import Rule
from moejax.model.parameter import COUNTING_AXES
from moejax.pytree import pytree
from moejax.ranges import BelowOne, Epsilon, NumberRange, Scale, Share, Steps, Tokens, one_of
from moejax.train.schedule import DECAYS


class ParameterParts(NamedTuple):
    """Properties of each parameter that optimizers need: trees with the structure of the parameters."""

    axes: Any
    """Logical axis names."""
    inputs: Any
    """Axes of a matrix that its matmul sums over."""
    is_matrix: Any
    """True for matrices, to which weight decay applies; False for norms and biases."""


MOMENT_TYPES = ("float32", "bfloat16")
"""Values of ``OptimizerConfig.moments_dtype``."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Settings of the optimizer and its schedule."""

    name: Annotated[str, one_of(("adamw", "muon"))] = "adamw"
    """AdamW for all parameters, or Muon for the matrices between hidden vectors and AdamW for all others."""
    learning_rate: Scale = field(default=3e-3, metadata={"auto": 0.0})
    """Peak of the schedule; 0, or "auto" in a config, means that ``Recipe.hyperparameters`` chooses it."""
    warmup_tokens: Tokens = 0
    decay_share: Annotated[float, NumberRange(0, 1, without_low=True)] = 0.2
    """Share of a budget, at its end, in which the learning rate decays; 1 starts the decay after the warm-up."""
    decay_shape: Annotated[str, one_of(DECAYS)] = "linear"
    """Shape of the decay: a key of ``moejax.train.schedule.DECAYS``."""
    final_share: Share = 0.1
    """Final learning rate, as a share of the peak."""
    batch_exponent: Scale = 0.0
    """Exponent of the batch size in a batch ramp: the learning rate is multiplied by (batch / last batch)^exponent. 0
    leaves it unchanged; 0.5 is the square-root rule.
    """
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.95
    epsilon: Epsilon = 1e-8
    weight_decay: Scale = 0.1
    muon_beta: BelowOne = 0.95
    """Momentum of Muon's matrices."""
    moments_dtype: Annotated[str, one_of(MOMENT_TYPES)] = "float32"
    """Type in which moments are stored between steps. AdamW stores two per parameter, Muon one per entry of a hidden
    matrix. Steps compute in float32 and round to bfloat16 stochastically; rounding to nearest would keep a moment from
    decaying with a ``beta2`` near 1.
    """
    clip_norm: Scale = 1.0
    """Largest global norm of the gradients; 0 disables clipping."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda optimizer: optimizer.learning_rate > 0,
            "learning_rate is {self.learning_rate}; give a positive number.",
        ),
    )


def make_optimizer(
    config: OptimizerConfig, parts: ParameterParts, weight_decay: float | Array | None = None
) -> optax.GradientTransformation:
    """Return an optimizer as an Optax chain. Its updates point uphill; a step subtracts learning rate × update.

    ``weight_decay``, which may be traced, replaces the config's value.
    """
    clip = _clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    decay = optax.add_decayed_weights(config.weight_decay if weight_decay is None else weight_decay, parts.is_matrix)
    moments = OPTIMIZERS[config.name](config, parts)
    if config.moments_dtype == "bfloat16":
        moments = in_bfloat16(moments)
    return optax.chain(clip, optax.chain(moments, decay))


def _clip_by_global_norm(most: float) -> optax.GradientTransformation:
    """Clip like Optax, but multiply all gradients by one factor: XLA fuses this multiplication but materializes Optax's
    division.
    """

    def clipped(gradients: Any) -> Any:
        factor = jnp.minimum(1.0, most / optax.tree.norm(gradients))
        return jax.tree.map(lambda gradient: gradient * factor, gradients)

    return optax.stateless(lambda gradients, _: clipped(gradients))


class StoredMoments(NamedTuple):
    """State of an optimizer whose moments are stored in bfloat16."""

    steps: Int[Array, ""]
    """Number of updates, which seeds the rounding."""
    inner: Any
    """State of the optimizer, with float32 arrays that belong to a parameter stored as bfloat16."""


def in_bfloat16(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Store the moments of an optimizer in bfloat16; updates are computed in float32.

    Stochastic rounding makes the stored moments unbiased (Zamirai et al., "Revisiting BFloat16 Training", 2020).
    """

    def stored(state: Any, params: Any, steps: Int[Array, ""]) -> StoredMoments:
        key = jax.random.fold_in(jax.random.key(0), steps)
        leaves, structure = jax.tree.flatten(state)
        moment = jax.tree.leaves(of_parameters(state, params, jax.tree.map(lambda _: True, params), False))
        rounded = [
            round_stochastically(leaf, jax.random.fold_in(key, number)) if is_moment else leaf
            for number, (leaf, is_moment) in enumerate(zip(leaves, moment, strict=True))
        ]
        return StoredMoments(steps, jax.tree.unflatten(structure, rounded))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, StoredMoments]:
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf, state.inner)
        updates, new = inner.update(updates, wide, params)
        return updates, stored(new, params, state.steps + 1)

    return optax.GradientTransformation(
        lambda params: stored(inner.init(params), params, jnp.zeros((), jnp.int32)), update
    )


def round_stochastically(x: Float[Array, ...], key: Key[Array, ""]) -> Float[Array, ...]:
    """Round float32 to one of the two nearest bfloat16 numbers at random, so that the mean is ``x``.

    Infinity and NaN are kept, because the noise would turn a NaN with all bits set into a finite number.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    # bfloat16 is the upper half of float32.
    noise = jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    upper = (bits + noise) & jnp.uint32(0xFFFF0000)
    rounded = jax.lax.bitcast_convert_type(upper, jnp.float32)
    return jnp.where(jnp.isfinite(x), rounded, x).astype(jnp.bfloat16)


def of_parameters(state: Any, params: Any, values: Any, otherwise: Any) -> Any:
    """Return a tree with the structure of an optimizer's state. Arrays that belong to a parameter are replaced by the
    parameter's entry in ``values``, all others by ``otherwise``.

    An array belongs to a parameter if its path ends with the parameter's path and the shapes match. This works for any
    optimizer state, including that of Muon, which has one tree for matrices and one for other parameters.
    """
    placed = {
        path: (leaf.shape, value)
        for (path, leaf), value in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(values), strict=True
        )
    }

    def of(path: tuple[object, ...], leaf: jax.Array | jax.ShapeDtypeStruct) -> object:
        ends = (placed.get(path[start:]) for start in range(len(path)))
        return next((value for shape, value in filter(None, ends) if shape == leaf.shape), otherwise)

    return jax.tree_util.tree_map_with_path(of, state)


def adamw(config: OptimizerConfig, parts: ParameterParts) -> optax.GradientTransformation:
    """Return Adam (Kingma and Ba, 2015). With decoupled weight decay it is AdamW (Loshchilov and Hutter, 2019)."""
    return optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)


def muon(config: OptimizerConfig, parts: ParameterParts) -> optax.GradientTransformation:
    """Return Muon: orthogonalized momentum for the matrices between hidden vectors (Jordan, 2024).

    Each layer, expert and projection is a separate matrix. Updates have the same root mean square as Adam's, 0.2, so
    that one learning rate suits both (Liu et al., 2025, Moonlight). Embeddings, output head, routers and norms use
    Adam, also with Nesterov momentum.
    """
    dimensions = jax.tree.map(_matrix_axes, parts.axes, parts.inputs, is_leaf=lambda leaf: isinstance(leaf, tuple))
    return optax.contrib.muon(
        learning_rate=-1.0,
        beta=config.muon_beta,
        eps=config.epsilon,
        adam_b1=config.beta1,
        adam_b2=config.beta2,
        muon_weight_dimension_numbers=dimensions,
        consistent_rms=0.2,
    )


OPTIMIZERS = {"adamw": adamw, "muon": muon}
"""Functions ``optimizer(config, parts)``, keyed by ``OptimizerConfig.name``. They do not include weight decay."""


def _matrix_axes(axes: tuple[str, ...], inputs: tuple[str, ...]) -> optax.contrib.MuonDimensionNumbers | None:
    """Return a parameter's summed and output dimensions; None if the parameter is not a hidden matrix."""
    outputs = [name for name in axes if name not in (*inputs, *COUNTING_AXES)]
    if not inputs or not outputs or {"vocab", "router"} & set(axes):
        return None
    return optax.contrib.MuonDimensionNumbers(
        reduction_axis=tuple(axes.index(name) for name in inputs), output_axis=tuple(axes.index(n) for n in outputs)
    )


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Settings of the divergence guard: which steps it skips, and after how many skipped steps a run stops."""

    spike: Scale = 0.0
    """Skip steps with a gradient norm above this multiple of its running mean; 0 skips only steps with a non-finite
    norm.
    """
    patience: Steps = 5
    """Number of skipped steps in a row after which a training run stops, with the state before the first skipped step.
    The guard checks this at every logged step.
    """

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda guard: not 0 < guard.spike <= 1,
            "guard.spike is {self.spike}; it must be above 1, or 0 to accept every finite gradient norm.",
        ),
    )


@pytree
@dataclass(frozen=True, kw_only=True)
class Guard:
    """State of the divergence guard."""

    skipped: Any
    """Int32: number of steps skipped so far."""
    in_a_row: Any
    """Int32: number of consecutive steps skipped most recently."""
    taken: Any
    """Int32: number of accepted steps."""
    mean_norm: Any
    """Float32: running mean of the gradient norm over accepted steps."""

    def accepts(self, config: GuardConfig, loss: Float[Array, ""], norm: Float[Array, ""]) -> Bool[Array, ""]:
        """Return whether to accept a step."""
        fine = jnp.isfinite(loss) & jnp.isfinite(norm)
        if config.spike:
            fine = fine & ((self.taken < _WARM) | (norm <= config.spike * self.mean_norm))
        return fine

    def after(self, accepted: Bool[Array, ""], norm: Float[Array, ""]) -> Guard:
        """Return the guard's state after a step."""
        weight = 1 / jnp.minimum(self.taken + 1, _MEMORY).astype(jnp.float32)
        mean = self.mean_norm + weight * (norm - self.mean_norm)
        took = accepted.astype(jnp.int32)
        return Guard(
            skipped=self.skipped + 1 - took,
            in_a_row=jnp.where(accepted, 0, self.in_a_row + 1),
            taken=self.taken + took,
            mean_norm=jnp.where(accepted, mean, self.mean_norm),
        )


def new_guard() -> Guard:
    """Return the state before the first step."""
    zero = jnp.zeros((), jnp.int32)
    return Guard(skipped=zero, in_a_row=zero, taken=zero, mean_norm=jnp.zeros((), jnp.float32))


_WARM = 20
"""Number of accepted steps before spikes are detected."""
_MEMORY = 100
"""Averaging window of the mean norm, in steps."""
