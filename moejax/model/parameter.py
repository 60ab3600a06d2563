"""Parameters: float32 arrays with a logical name per axis, initialised in the order in which the model makes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


@dataclass(frozen=True, kw_only=True)
class Initialisation:
    """How matrices start: normal values, cut at two standard deviations."""

    std: float = 0.0
    """Standard deviation of every matrix (Zhao et al. and DeepSeek: .006); 0 means 1/sqrt(fan-in) of each."""
    scale_outputs: bool = True
    """Whether matrices that write to the residual stream are divided by sqrt(2 · num_layers) (GPT-2)."""

    def check(self) -> None:
        """Raise ``ValueError`` if the deviation is negative."""
        if self.std < 0:
            raise ValueError(f"initialisation.std is {self.std}; give a positive number, or 0 for 1/sqrt(fan-in).")


class Maker:
    """Makes the parameters of a model, each a dict of sizes by logical name, as ``{"embed": 256, "hidden": 512}``."""

    def __init__(self, rngs: nnx.Rngs, initialisation: Initialisation, num_layers: int):
        self._rngs = rngs
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
        return nnx.Param(jnp.ones(tuple(shape.values()), jnp.float32), axes=tuple(shape), inputs=(), is_matrix=False)

    def zeros(self, shape: dict[str, int]) -> nnx.Param:
        """A bias."""
        return nnx.Param(jnp.zeros(tuple(shape.values()), jnp.float32), axes=tuple(shape), inputs=(), is_matrix=False)

    def _normal(self, shape: dict[str, int], fan_in: int, scale: float) -> nnx.Param:
        deviation = (self._initialisation.std or 1 / math.sqrt(fan_in)) * scale
        values = jax.random.truncated_normal(self._rngs.params(), -2.0, 2.0, tuple(shape.values()), jnp.float32)
        return nnx.Param(values * deviation, axes=tuple(shape), inputs=_inputs(shape, fan_in), is_matrix=True)


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
