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

MATRICES = {"gate_up": ("gate", "up")}
"""Logical names of axes along which different matrices lie, and the names of these."""

COUNTING_AXES = ("layers", "expert", *MATRICES)
"""Logical names of axes that count matrices: each is drawn, orthogonalised and decayed as if it were alone."""


@dataclass(frozen=True, kw_only=True)
class Initialisation:
    """How matrices start: normal values, cut at two standard deviations."""

    std: Annotated[float, NumberRange(0, 100)] = 0.0
    """Standard deviation of every matrix (Tian et al. and DeepSeek: .006); 0 means 1/sqrt(fan-in) of each."""
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
    mesh as its result is split, and cannot see through a reshape. What is drawn is in the order of its names, gate and
    up under their own, so that storing them as one array does not decide where a training starts.
    """
    described, structure = jax.tree_util.tree_flatten_with_path(
        state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    draws = sorted(
        ((*path[:-1], name), place, shape)
        for place, (keys, variable) in enumerate(described)
        for path in [tuple(entry.key for entry in keys)]
        for name, shape in _drawn(path[-1], variable)
    )
    sizes = [math.prod(shape) for _, _, shape in draws]
    if sum(sizes) <= _ONE_STREAM:
        stream = jnp.split(_normal_values(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
        drawn = [part.reshape(shape) for part, (_, _, shape) in zip(stream, draws, strict=True)]
    else:
        keys = jax.random.split(key, len(draws))
        drawn = [_normal_values(one, shape) for one, (_, _, shape) in zip(keys, draws, strict=True)]
    parts = [[part for part, (_, of, _) in zip(drawn, draws, strict=True) if of == i] for i in range(len(described))]
    values = [_value(variable, of) for (_, variable), of in zip(described, parts, strict=True)]
    return nnx.to_pure_dict(jax.tree.unflatten(structure, values))


def _drawn(name: str, variable: nnx.Variable) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the matrices that are drawn for a parameter; one that starts at one value draws nothing."""
    described, shape = variable.get_metadata(), variable.get_value().shape
    if not described["deviation"]:
        return [(name, (0,))]
    if (of := _matrices(described["axes"])) is None:
        return [(name, shape)]
    axis, names = of
    return [(one, (*shape[:axis], *shape[axis + 1 :])) for one in names]


def _value(variable: nnx.Variable, drawn: list[Array]) -> Array:
    described = variable.get_metadata()
    if not described["deviation"]:
        return jnp.full(variable.get_value().shape, described["start"], jnp.float32)
    of = _matrices(described["axes"])
    return (drawn[0] if of is None else jnp.stack(drawn, axis=of[0])) * described["deviation"]


def _matrices(axes: tuple[str, ...]) -> tuple[int, tuple[str, ...]] | None:
    """The axis of a parameter along which lie matrices of different names, and these; None if there is none."""
    return next(((axes.index(axis), names) for axis, names in MATRICES.items() if axis in axes), None)


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
        if name not in COUNTING_AXES and size < fan_in:
            found.append(name)
            size *= length
    return tuple(found) if size == fan_in else ()
