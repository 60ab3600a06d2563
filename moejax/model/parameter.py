"""Describe parameters (float32 arrays with a logical name per axis), and initialise them from a key."""

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
"""Logical names of axes that stack different matrices, and the names of these matrices."""

COUNTING_AXES = ("layers", "expert", *MATRICES)
"""Logical names of axes that index matrices. Each matrix is initialised, orthogonalised and decayed separately."""


@dataclass(frozen=True, kw_only=True)
class Initialisation:
    """Initialisation of matrices from a normal distribution truncated at two standard deviations."""

    std: Annotated[float, NumberRange(0, 100)] = 0.0
    """Standard deviation of every matrix (Tian et al. and DeepSeek: 0.006); 0 means 1/sqrt(fan-in) for each matrix."""
    scale_outputs: bool = True
    """True to divide matrices that write to the residual stream by sqrt(2 · num_layers) (GPT-2)."""

    def check(self) -> None:
        """Raise ``UserError`` if the standard deviation is outside its range."""
        check_fields(self, "initialisation")


class ParamFactory:
    """A factory of model parameters. Shapes are dicts of axis sizes by name, such as ``{"embed": 256, "hidden": 512}``.

    It describes parameters, including their initial distribution; ``init_params`` computes their values later.
    """

    def __init__(self, initialisation: Initialisation, num_layers: int):
        self._initialisation = initialisation
        self._output_scale = 1 / math.sqrt(2 * num_layers) if initialisation.scale_outputs else 1.0

    def matrix(self, shape: dict[str, int], fan_in: int) -> nnx.Param:
        """Return a matrix that sums over ``fan_in`` inputs."""
        return self._normal(shape, fan_in, 1.0)

    def output(self, shape: dict[str, int], fan_in: int) -> nnx.Param:
        """Return a matrix that writes to the residual stream."""
        return self._normal(shape, fan_in, self._output_scale)

    def ones(self, shape: dict[str, int]) -> nnx.Param:
        """Return the weight of a norm."""
        return _param(shape, (), start=1.0)

    def zeros(self, shape: dict[str, int]) -> nnx.Param:
        """Return a bias."""
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
    """Return initial values for an abstract state as a nested dict, as a pure function of the description and ``key``.

    All matrices are slices of one array of normal values, because each separate random draw takes a second to compile.
    Models too large for this array draw each matrix in its own shape: XLA shards a draw over the mesh like its result,
    but not through a reshape. Draws are sorted by parameter name, with separate names for gate and up, so that storing
    these in one array does not change the initial values.
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
    """Return names and shapes of the random matrices of a parameter; a constant parameter has an empty matrix."""
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
    """Return the axis of a parameter that stacks named matrices, and their names; None without such an axis."""
    return next(((axes.index(axis), names) for axis, names in MATRICES.items() if axis in axes), None)


def _normal_values(key: Key[Array, ""], shape: tuple[int, ...]) -> Array:
    return jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)


_ONE_STREAM = 2**28
"""Maximum number of values to draw at once, unsharded on every device (1 GiB)."""


def metadata(state: nnx.State, name: str) -> Any:
    """Return ``axes`` (logical names), ``inputs`` (contracted axes) or ``is_matrix`` of all parameters as a nested
    dict."""
    named = jax.tree.map(
        lambda variable: variable.get_metadata()[name], state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    return nnx.to_pure_dict(named)


def _inputs(shape: dict[str, int], fan_in: int) -> tuple[str, ...]:
    """Return a matrix's contracted axes: the first axes outside ``COUNTING_AXES`` whose sizes multiply to
    ``fan_in``."""
    axes, size = [], 1
    for name, length in shape.items():
        if name not in COUNTING_AXES and size < fan_in:
            axes.append(name)
            size *= length
    return tuple(axes) if size == fan_in else ()
