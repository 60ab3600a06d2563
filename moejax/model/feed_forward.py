"""The dense SwiGLU feed-forward (Shazeer, 2020), also the form of the shared experts."""

from __future__ import annotations

import math

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from moejax.architecture import Architecture
from moejax.model.parameter import parameter
from moejax.model.runtime import Runtime
from moejax.routing.experts import swiglu


class FeedForward(nnx.Module):
    """Weights of ``layers`` stacked feed-forward layers of width ``hidden``."""

    def __init__(self, architecture: Architecture, layers: int, hidden: int, *, rngs: nnx.Rngs):
        width, stack = architecture.model_dim, {"layers": layers}
        self.gate = parameter(rngs, stack | {"embed": width, "hidden": hidden}, fan_in=width)
        self.up = parameter(rngs, stack | {"embed": width, "hidden": hidden}, fan_in=width)
        self.down = parameter(
            rngs,
            stack | {"hidden": hidden, "embed": width},
            fan_in=hidden,
            scale=1 / math.sqrt(2 * architecture.num_layers),
        )

    def __call__(
        self,
        x: Float[Array, "*batch embed"],
        bias: Array | None,
        real: Array | None,
        architecture: Architecture,
        runtime: Runtime,
    ) -> tuple[Float[Array, "*batch embed"], None]:
        """(silu(x·gate) * x·up)·down of one layer, its parameters already taken from the stack; nothing is routed."""
        gate, up, down = (w[...].astype(x.dtype) for w in (self.gate, self.up, self.down))
        return jnp.dot(swiglu(jnp.dot(x, gate), jnp.dot(x, up)), down), None
