"""Optimisers with gradient clipping and decoupled weight decay, through Optax, as directions of unit learning rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array

from moejax.config import check_fields
from moejax.errors import UserError
from moejax.model.parameter import COUNTING_AXES
from moejax.ranges import BelowOne, Epsilon, NumberRange, Scale, Share, Tokens
from moejax.train.schedule import DECAYS


class ParameterParts(NamedTuple):
    """What an optimiser must know of each parameter: trees in the shape of the parameters."""

    axes: Any
    """Logical axis names."""
    inputs: Any
    """Those that the parameter sums over, if it is a matrix."""
    is_matrix: Any
    """Whether it is a matrix, which decays, rather than a norm or a bias."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Choices of the optimiser and its schedule."""

    name: str = "adamw"
    """A key of ``OPTIMIZERS``."""
    learning_rate: Scale = field(default=3e-3, metadata={"auto": 0.0})
    """Peak of the schedule; 0, in a config also "auto", leaves it to ``Recipe.hyperparameters``."""
    warmup_tokens: Tokens = 0
    decay_share: Annotated[float, NumberRange(0, 1, without_low=True)] = 0.2
    """Last part of a budget over which the learning rate falls; 1 begins where the warm-up ends."""
    decay_shape: str = "linear"
    """A key of ``moejax.train.schedule.DECAYS``."""
    final_share: Share = 0.1
    """Learning rate at the end, as a share of the peak."""
    batch_exponent: Scale = 0.0
    """In a batch ramp, the rate of a smaller batch is multiplied by its share of the last one to this power: 0 leaves
    it, .5 is the square-root rule."""
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.95
    epsilon: Epsilon = 1e-8
    weight_decay: Scale = 0.1
    muon_beta: BelowOne = 0.95
    """Momentum of Muon's matrices."""
    clip_norm: Scale = 1.0
    """Largest global norm of the gradients; 0 leaves them as they are."""

    def check(self) -> None:
        """Raise ``UserError`` with value, rule and remedy if a choice makes no sense."""
        check_fields(self, "optimizer")
        if not self.learning_rate > 0:
            raise UserError(f"learning_rate is {self.learning_rate}; give a positive number.")
        for choice, known in (("name", OPTIMIZERS), ("decay_shape", DECAYS)):
            if getattr(self, choice) not in known:
                raise UserError(f"optimizer.{choice} is {getattr(self, choice)!r}; known are {', '.join(known)}.")


def make_optimizer(
    config: OptimizerConfig, parts: ParameterParts, weight_decay: float | Array | None = None
) -> optax.GradientTransformation:
    """The chain of an optimiser. Updates point uphill at unit size: a step subtracts them times the learning rate.

    ``weight_decay``, which may be traced, stands for the config's.
    """
    clip = _clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()
    decay = optax.add_decayed_weights(config.weight_decay if weight_decay is None else weight_decay, parts.is_matrix)
    return optax.chain(clip, optax.chain(OPTIMIZERS[config.name](config, parts), decay))


def _clip_by_global_norm(most: float) -> optax.GradientTransformation:
    """Optax's with one factor for all: XLA multiplies where a gradient is read, but writes down what was divided."""

    def clipped(gradients: Any) -> Any:
        factor = jnp.minimum(1.0, most / optax.tree.norm(gradients))
        return jax.tree.map(lambda gradient: gradient * factor, gradients)

    return optax.stateless(lambda gradients, _: clipped(gradients))


def adamw(config: OptimizerConfig, parts: ParameterParts) -> optax.GradientTransformation:
    """Adam (Kingma and Ba, 2015), which with decoupled decay is AdamW (Loshchilov and Hutter, 2019)."""
    return optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)


def muon(config: OptimizerConfig, parts: ParameterParts) -> optax.GradientTransformation:
    """Orthogonalised momentum for the matrices between hidden vectors (Jordan, 2024).

    Each layer, expert and projection is a matrix of its own. Updates have the root mean square of Adam's, .2, so that
    one learning rate serves both (Liu et al., 2025, Moonlight). Vocabulary, routers and norms follow Adam, with
    Nesterov's momentum like the rest.
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
"""``optimizer(config, parts)`` without its weight decay, by ``OptimizerConfig.name``."""


def _matrix_axes(axes: tuple[str, ...], inputs: tuple[str, ...]) -> optax.contrib.MuonDimensionNumbers | None:
    """Which dimensions of a parameter are summed over and which result; None for what is no hidden matrix."""
    outputs = [name for name in axes if name not in (*inputs, *COUNTING_AXES)]
    if not inputs or not outputs or {"vocab", "router"} & set(axes):
        return None
    return optax.contrib.MuonDimensionNumbers(
        reduction_axis=tuple(axes.index(name) for name in inputs), output_axis=tuple(axes.index(n) for n in outputs)
    )
