"""Build optimizers with gradient clipping and decoupled weight decay through Optax, with updates of unit learning
rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array

from moejax.config import Rule
from moejax.model.parameter import COUNTING_AXES
from moejax.ranges import BelowOne, Epsilon, NumberRange, Scale, Share, Tokens, one_of
from moejax.train.schedule import DECAYS


class ParameterParts(NamedTuple):
    """Properties of each parameter that optimizers need: trees with the structure of the parameters."""

    axes: Any
    """Logical axis names."""
    inputs: Any
    """Axes that the parameter sums over, if it is a matrix."""
    is_matrix: Any
    """True for matrices, which decay; False for norms and biases."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Settings of the optimizer and its schedule."""

    name: Annotated[str, one_of(("adamw", "muon"))] = "adamw"
    """AdamW, or Muon for the matrices between hidden vectors."""
    learning_rate: Scale = field(default=3e-3, metadata={"auto": 0.0})
    """Peak of the schedule; 0, or "auto" in a config, means that ``Recipe.hyperparameters`` chooses it."""
    warmup_tokens: Tokens = 0
    decay_share: Annotated[float, NumberRange(0, 1, without_low=True)] = 0.2
    """Share of a budget, at its end, over which the learning rate decays; with 1, decay starts at the end of the
    warm-up."""
    decay_shape: Annotated[str, one_of(DECAYS)] = "linear"
    """Shape of the decay, in ``moejax.train.schedule``."""
    final_share: Share = 0.1
    """Final learning rate, as a share of the peak."""
    batch_exponent: Scale = 0.0
    """Exponent of the batch size in a ramp: the learning rate is multiplied by (batch / last batch)^exponent. 0 leaves
    it constant; 0.5 is the square-root rule."""
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.95
    epsilon: Epsilon = 1e-8
    weight_decay: Scale = 0.1
    muon_beta: BelowOne = 0.95
    """Momentum of Muon's matrices."""
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
    """Return the chain of an optimizer. Updates point uphill at unit size; a step subtracts them times the learning
    rate.

    ``weight_decay``, which may be traced, replaces the config's value.
    """
    clip = _clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    decay = optax.add_decayed_weights(config.weight_decay if weight_decay is None else weight_decay, parts.is_matrix)
    return optax.chain(clip, optax.chain(OPTIMIZERS[config.name](config, parts), decay))


def _clip_by_global_norm(most: float) -> optax.GradientTransformation:
    """Clip like Optax, but multiply by one factor for all: XLA fuses the multiplication but materializes Optax's
    division."""

    def clipped(gradients: Any) -> Any:
        factor = jnp.minimum(1.0, most / optax.tree.norm(gradients))
        return jax.tree.map(lambda gradient: gradient * factor, gradients)

    return optax.stateless(lambda gradients, _: clipped(gradients))


def adamw(config: OptimizerConfig, parts: ParameterParts) -> optax.GradientTransformation:
    """Return Adam (Kingma and Ba, 2015); with decoupled decay it is AdamW (Loshchilov and Hutter, 2019)."""
    return optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)


def muon(config: OptimizerConfig, parts: ParameterParts) -> optax.GradientTransformation:
    """Return Muon: orthogonalized momentum for the matrices between hidden vectors (Jordan, 2024).

    Each layer, expert and projection is a separate matrix. Updates have the root mean square of Adam's, 0.2, so that
    one learning rate suits both (Liu et al., 2025, Moonlight). Vocabulary, routers and norms use Adam, with Nesterov
    momentum like the rest.
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
"""Functions ``optimizer(config, parts)`` without weight decay, by ``OptimizerConfig.name``."""


def _matrix_axes(axes: tuple[str, ...], inputs: tuple[str, ...]) -> optax.contrib.MuonDimensionNumbers | None:
    """Return a parameter's summed and output dimensions; None unless it is a hidden matrix."""
    outputs = [name for name in axes if name not in (*inputs, *COUNTING_AXES)]
    if not inputs or not outputs or {"vocab", "router"} & set(axes):
        return None
    return optax.contrib.MuonDimensionNumbers(
        reduction_axis=tuple(axes.index(name) for name in inputs), output_axis=tuple(axes.index(n) for n in outputs)
    )
