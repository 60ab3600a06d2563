"""The dense SwiGLU feed-forward (Shazeer, 2020), also the form of the shared experts."""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array, Float

from moejax.architecture import Architecture
from moejax.model.parameter import Maker
from moejax.model.project import project
from moejax.model.runtime import Runtime
from moejax.routing.experts import swiglu


class FeedForward(nnx.Module):
    """Weights of ``layers`` stacked feed-forward layers of width ``hidden``."""

    def __init__(self, architecture: Architecture, layers: int, hidden: int, make: Maker):
        width, stack = architecture.model_dim, {"layers": layers}
        self.gate = make.matrix(stack | {"embed": width, "hidden": hidden}, width)
        self.up = make.matrix(stack | {"embed": width, "hidden": hidden}, width)
        self.down = make.output(stack | {"hidden": hidden, "embed": width}, hidden)

    def __call__(self, x: Float[Array, "B T embed"], runtime: Runtime) -> Float[Array, "B T embed"]:
        """(silu(x·gate) * x·up)·down of one layer, its parameters already taken from the stack."""
        gate, up = (project("btd,df->btf", x, w[...], sums=runtime.reduce_dtype) for w in (self.gate, self.up))
        return project("btf,fd->btd", swiglu(gate, up), self.down[...], sums=runtime.reduce_dtype)
