"""Define the dense SwiGLU feed-forward (Shazeer, 2020), which shared experts also use."""

from __future__ import annotations

from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from moejax.architecture import Architecture
from moejax.kernels.experts import swiglu
from moejax.kernels.linear import project
from moejax.kernels.saved_names import FFN_GATE_UP
from moejax.model.parameter import ParamFactory
from moejax.model.runtime import Runtime


class FeedForward(nnx.Module):
    """Weights of ``layers`` stacked feed-forward layers of width ``hidden``."""

    def __init__(self, architecture: Architecture, layers: int, hidden: int, params: ParamFactory):
        width, stack = architecture.model_dim, {"layers": layers}
        self.gate = params.matrix(stack | {"embed": width, "hidden": hidden}, width)
        self.up = params.matrix(stack | {"embed": width, "hidden": hidden}, width)
        self.down = params.output(stack | {"hidden": hidden, "embed": width}, hidden)

    def __call__(self, x: Float[Array, "B T embed"], runtime: Runtime) -> Float[Array, "B T embed"]:
        """Return (silu(x·gate) * x·up)·down of one layer, whose parameters are already taken from the stack."""
        gate, up = (project("btd,df->btf", x, w[...], types=runtime.product_types) for w in (self.gate, self.up))
        gate, up = (checkpoint_name(rows, FFN_GATE_UP) for rows in (gate, up))
        return project("btf,fd->btd", swiglu(gate, up), self.down[...], types=runtime.product_types)
