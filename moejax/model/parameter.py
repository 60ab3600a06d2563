"""Parameters: float32 arrays with a logical name per axis, described with the model, initialised from a key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Key

from moejax.config import check_fields
from moejax.ranges import NumberRange


@dataclass(frozen=True, kw_only=True)
class Initialisation:
    """How matrices start: normal values, cut at two standard deviations."""

    std: Annotated[float, NumberRange(0, 100)] = 0.0
    """Standard deviation of every matrix (Zhao et al. and DeepSeek: .006); 0 means 1/sqrt(fan-in) of each."""
    scale_outputs: bool = True
    """Whether matrices that write to the residual stream are divided by sqrt(2 · num_layers) (GPT-2)."""

    def check(self) -> None:
        """Raise ``UserError`` if the deviation is outside its range."""
        check_fields(self, "initialisation")


class ParamFactory:
    """Makes the parameters of a model, each a dict of sizes by logical name, as ``{"embed": 256, "hidden": 512}``.

    A parameter is described here and initialised later, by ``init_params``: its metadata says how it starts.
    """

    def __init__(self, initialisation: Initialisation, num_layers: int):
        self._initialisation = initialisation
        self._output_scale = 1 / math.sqrt(2 * num_layers) if initialisation.scale_outputs else 1.0

    def matrix(self, shape: dict[str, int], fan_in: int) -> nnx.Param:
        """A matrix that sums over ``fan_in`` inputs."""
        return self._normal(shape, fan_in, 1.0)

    def output(self, shape: dict[str, int], fan_in: int) -> nnx.Param:
        """A matrix that writes to the residual stream."""
        return self._normal(shape, fan_in, self._output_scale)

    def ones(self, shape: dict[str, int]) -> nnx.Param:
        """The weight of a norm."""
        return _param(shape, (), start=1.0)

    def zeros(self, shape: dict[str, int]) -> nnx.Param:
        """A bias."""
        return _param(shape, (), start=0.0)

    def _normal(self, shape: dict[str, int], fan_in: int, scale: float) -> nnx.Param:
        deviation = (self._initialisation.std or 1 / math.sqrt(fan_in)) * scale
        return _param(shape, _inputs(shape, fan_in), start=0.0, deviation=deviation)


def _param(shape: dict[str, int], inputs: tuple[str, ...], *, start: float, deviation: float = 0.0) -> nnx.Param:
    values = jnp.full(tuple(shape.values()), start, jnp.float32)
    return nnx.Param(
        values, axes=tuple(shape), inputs=inputs, is_matrix=deviation > 0, start=start, deviation=deviation
    )


def init_params(state: nnx.State, key: Key[Array, ""]) -> Any:
    """Values of all parameters of an abstract state, as a nested dict: a pure function of their description and key.

    One stream of normal values serves all matrices, as every draw of its own takes a second to compile; models too
    large to hold the stream beside its parts draw matrix by matrix, each in its own shape: XLA splits a draw over the
    mesh as its result is split, and cannot see through a reshape.
    """
    described = jax.tree.leaves(state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    shapes = [variable.get_value().shape for variable in described]
    starts = [variable.get_metadata()["start"] for variable in described]
    deviations = [variable.get_metadata()["deviation"] for variable in described]
    # Parameters that start at one value draw nothing.
    shapes_drawn = [shape if deviation else (0,) for shape, deviation in zip(shapes, deviations, strict=True)]
    sizes = [math.prod(shape) for shape in shapes_drawn]
    if sum(sizes) <= _ONE_STREAM:
        stream = jnp.split(_normal_values(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
        drawn = [part.reshape(shape) for part, shape in zip(stream, shapes_drawn, strict=True)]
    else:
        keys = jax.random.split(key, len(sizes))
        drawn = [_normal_values(one, shape) for one, shape in zip(keys, shapes_drawn, strict=True)]
    values = [
        part * deviation if deviation else jnp.full(shape, start, jnp.float32)
        for part, shape, start, deviation in zip(drawn, shapes, starts, deviations, strict=True)
    ]
    structure = jax.tree.structure(state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    return nnx.to_pure_dict(jax.tree.unflatten(structure, values))


def _normal_values(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    return jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)


_ONE_STREAM = 2**28
"""Values that are drawn at once, whole on every device: a GiB."""


def metadata(state: nnx.State, name: str) -> Any:
    """``axes`` (logical names), ``inputs`` (those summed over) or ``is_matrix`` of all parameters, as a nested dict."""
    named = jax.tree.map(
        lambda variable: variable.get_metadata()[name], state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    return nnx.to_pure_dict(named)


def _inputs(shape: dict[str, int], fan_in: int) -> tuple[str, ...]:
    """The axes a matrix sums over: behind those that count matrices, the first whose sizes multiply to ``fan_in``."""
    found, size = [], 1
    for name, length in shape.items():
        if name not in ("layers", "expert") and size < fan_in:
            found.append(name)
            size *= length
    return tuple(found) if size == fan_in else ()
