"""A mixture-of-experts layer: router, dispatch and experts as siblings, shared experts beside them.

Shapes: B batch, T length, D model_dim, E experts, F expert_hidden, L stacked layers.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from moejax.architecture import Architecture
from moejax.model.feed_forward import FeedForward
from moejax.model.parameter import parameter
from moejax.model.runtime import Runtime
from moejax.model.sharding import on_many_devices
from moejax.routing import DISPATCHERS, ROUTERS, Experts
from moejax.routing.capacity import limit_capacity
from moejax.routing.expert_parallel import expert_parallel
from moejax.routing.sums import RoutingSums, routing_sums


class Mixture(nnx.Module):
    """Weights of ``layers`` stacked mixture layers."""

    def __init__(self, architecture: Architecture, layers: int, *, rngs: nnx.Rngs):
        a = architecture
        into = {"layers": layers, "expert": a.num_experts, "embed": a.model_dim, "hidden": a.expert_hidden}
        out = {"layers": layers, "expert": a.num_experts, "hidden": a.expert_hidden, "embed": a.model_dim}
        self.router = parameter(
            rngs, {"layers": layers, "embed": a.model_dim, "router": a.num_experts}, fan_in=a.model_dim
        )
        self.gate = parameter(rngs, into, fan_in=a.model_dim)
        self.up = parameter(rngs, into, fan_in=a.model_dim)
        self.down = parameter(rngs, out, fan_in=a.expert_hidden, scale=1 / math.sqrt(2 * a.num_layers))
        if a.num_shared_experts:
            self.shared = FeedForward(a, layers, a.num_shared_experts * a.shared_width, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        bias: Float[Array, " E"] | None,
        real: Bool[Array, " B"] | None,
        architecture: Architecture,
        runtime: Runtime,
    ) -> tuple[Float[Array, "B T D"], RoutingSums]:
        """Output of one layer, its parameters already taken from the stack, and what its router did."""
        flat = x.reshape(-1, x.shape[-1])
        # The router decides in float32: rounding must not choose the experts.
        logits = jnp.dot(flat.astype(jnp.float32), self.router[...], precision=jax.lax.Precision.HIGHEST)
        chosen = ROUTERS[architecture.router](logits, top_k=architecture.top_k, bias=bias)
        served = limit_capacity(chosen, architecture.capacity_factor)
        experts = Experts(*(w[...].astype(x.dtype) for w in (self.gate, self.up, self.down)))
        dispatch = DISPATCHERS[runtime.dispatcher]
        if on_many_devices():
            dispatch = expert_parallel(dispatch)
        y = dispatch(flat, served, experts).reshape(x.shape)
        if architecture.num_shared_experts:
            y = y + self.shared(x, None, None, architecture, runtime)[0]
        counted = None if real is None else jnp.repeat(real, x.shape[1])
        return y, routing_sums(chosen, served, sequences=x.shape[0], real=counted)
