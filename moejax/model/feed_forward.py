"""Define dense feed-forward layers, and MoE layers with a router, a dispatcher, routed and shared experts.

Shapes: B batch, T length, N = B·T tokens, D model_dim, E experts, F expert_hidden, L stacked layers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Key

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.kernels.experts import swiglu
from moejax.kernels.linear import project
from moejax.kernels.saved_names import FFN_GATE_UP
from moejax.model.parameter import ParamFactory
from moejax.model.runtime import Runtime
from moejax.routing import ACTIVATIONS, DISPATCHERS, INPUT_NOISE, ROUTERS, Experts, Routing, is_causal, router_options
from moejax.routing.layout import limit_capacity
from moejax.routing.moe_block import moe_block
from moejax.routing.sums import RoutingSums, routing_sums
from moejax.sharding import constrain, on_many_devices


class FeedForward(nnx.Module):
    """Weights of ``layers`` stacked SwiGLU layers (Shazeer, 2020) of width ``hidden``; also used for shared experts."""

    def __init__(self, architecture: Architecture, layers: int, hidden: int, params: ParamFactory):
        width, stack = architecture.model_dim, {"layers": layers}
        self.gate = params.matrix(stack | {"embed": width, "hidden": hidden}, width)
        self.up = params.matrix(stack | {"embed": width, "hidden": hidden}, width)
        self.down = params.output(stack | {"hidden": hidden, "embed": width}, hidden)

    def __call__(self, x: Float[Array, "B T embed"], runtime: Runtime) -> Float[Array, "B T embed"]:
        """Return (silu(x·gate) * x·up)·down of one layer; its parameters are already sliced from the stack."""
        gate, up = (project("btd,df->btf", x, w[...], types=runtime.product_types) for w in (self.gate, self.up))
        gate, up = (checkpoint_name(rows, FFN_GATE_UP) for rows in (gate, up))
        return project("btf,fd->btd", swiglu(gate, up), self.down[...], types=runtime.product_types)


class MoE(nnx.Module):
    """Weights of ``layers`` stacked MoE layers."""

    def __init__(self, architecture: Architecture, layers: int, params: ParamFactory):
        a = architecture
        stack, embed, hidden = {"layers": layers}, {"embed": a.model_dim}, {"hidden": a.expert_hidden}
        expert, gate_up = {"expert": a.num_experts}, {"gate_up": 2}
        self.router = params.matrix(stack | embed | {"router": a.num_experts}, a.model_dim)
        self.gate_up = params.matrix(stack | expert | gate_up | embed | hidden, a.model_dim)
        self.down = params.output(stack | expert | hidden | embed, a.expert_hidden)
        if a.router_bias:
            self.router_bias = params.zeros(stack | {"router": a.num_experts})
        if a.expert_mlp_bias:
            self.gate_up_bias = params.zeros(stack | expert | gate_up | hidden)
            self.down_bias = params.zeros(stack | expert | embed)
        if a.num_shared_experts:
            self.shared = FeedForward(a, layers, a.num_shared_experts * a.shared_width, params)
        if a.shared_expert_gate:
            self.shared_gate = params.matrix(stack | embed, a.model_dim)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        expert_bias: Float[Array, " E"] | None,
        key: Key[Array, ""] | None,
        padding_mask: Bool[Array, "B T"] | None,
        architecture: Architecture,
        runtime: Runtime,
    ) -> tuple[Float[Array, "B T D"], RoutingSums]:
        """Return the output of one layer and its routing sums; the module's parameters are already sliced from the
        stack.

        ``key`` seeds the noise of noisy routers. ``padding_mask`` is False for padding, which is not sent to experts
        and uses no capacity.
        """
        flat = x.reshape(-1, x.shape[-1])
        tokens = None if padding_mask is None else padding_mask.reshape(-1)
        chosen = self._route(flat, expert_bias, key, tokens, architecture)
        served = chosen if tokens is None else chosen.masked(tokens[chosen.token])
        served = limit_capacity(served, architecture.capacity_factor, padding_mask=tokens)
        y = moe_block(
            flat,
            served,
            self._experts(x.dtype, architecture, runtime),
            dispatch=DISPATCHERS[runtime.dispatcher],
            communication=runtime.expert_communication,
            buffer_factor=runtime.buffer_factor,
        ).reshape(x.shape)
        if architecture.num_shared_experts:
            shared = self.shared(x, runtime)
            if architecture.shared_expert_gate:
                # Use float32, because a gate's gradient is a sum over the channels that it scales.
                types = runtime.product_types._replace(quantization="none")
                gate = project("btd,d->bt", x, self.shared_gate[...], types=types)
                share = jax.nn.sigmoid(gate.astype(jnp.float32))
                shared = (shared.astype(jnp.float32) * share[..., None]).astype(x.dtype)
            y = y + shared
        return y, routing_sums(chosen, served, sequences=x.shape[0], padding_mask=tokens)

    def _route(
        self,
        x: Float[Array, "N D"],
        expert_bias: Array | None,
        key: Array | None,
        padding_mask: Bool[Array, " N"] | None,
        architecture: Architecture,
    ) -> Routing:
        """Route in float32, so that rounding does not affect the choice of experts."""
        wide = x.astype(jnp.float32)
        if key is not None and architecture.router in INPUT_NOISE:
            wide = INPUT_NOISE[architecture.router](wide, key)
        # Gather the small router matrix, because every token needs all of it.
        router = constrain(self.router[...], (None, None))
        logits = project("nd,de->ne", wide, router, jax.lax.Precision.HIGHEST)
        if architecture.router_bias:
            logits = logits + self.router_bias[...]
        logits = constrain(logits, ("batch", None))
        router, options = ROUTERS[architecture.router], router_arguments(architecture)
        if not is_causal(architecture.router):
            options["padding_mask"] = padding_mask
        return router(logits, top_k=architecture.top_k, bias=expert_bias, key=key, **options)

    def _experts(self, dtype: jnp.dtype, architecture: Architecture, runtime: Runtime) -> Experts:
        """Return matrices in ``dtype``, or in float32 if devices reduce their gradients in float32. Biases stay in
        float32, because their gradients are sums over rows."""
        matrices = [w[...] for w in (self.gate_up, self.down)]
        if runtime.reduce_dtype != "float32" or not on_many_devices():
            matrices = [w.astype(dtype) for w in matrices]
        biases = [self.gate_up_bias, self.down_bias] if architecture.expert_mlp_bias else []
        return Experts(
            *matrices,
            *(b[...] for b in biases),
            activation=ACTIVATIONS[architecture.activation],
            quantization=runtime.matmul_quantization,
        )


def router_arguments(architecture: Architecture) -> dict[str, Any]:
    """Return the options of an architecture's router, keyed by name.

    Raises:
      UserError: an option is not a field of Architecture, so no config can set it.
    """
    router = architecture.router
    for option in router_options(router):
        if not hasattr(architecture, option):
            raise UserError(
                f"Router {router!r} has the option {option}, which is not a field of Architecture; add the field to "
                "moejax/architecture.py, with the same default, and run `make settings`."
            )
    return {option: getattr(architecture, option) for option in router_options(router)}
