"""The reference: every expert computes every token, and the gates pick. Slow, and plainly right."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from moejax.routing.experts import Experts
from moejax.routing.routing import Routing


def dense(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """Sum over experts of gate · expert(x), with the gates as a matrix tokens x experts."""
    f32 = jnp.float32
    gates = jnp.zeros((x.shape[0], experts.num_experts), f32)
    gates = gates.at[routing.token, routing.expert].add(routing.gate, mode="drop")
    gate = jnp.einsum("td,edf->etf", x, experts.gate, preferred_element_type=f32)
    up = jnp.einsum("td,edf->etf", x, experts.up, preferred_element_type=f32)
    if experts.gate_bias is not None:
        gate = gate + experts.gate_bias[:, None].astype(f32)
    if experts.up_bias is not None:
        up = up + experts.up_bias[:, None].astype(f32)
    hidden = (gates.T[:, :, None] * experts.activation(gate, up)).astype(x.dtype)
    y = jnp.einsum("etf,efd->td", hidden, experts.down, preferred_element_type=f32)
    if experts.down_bias is not None:
        y = y + gates @ experts.down_bias.astype(f32)
    return y.astype(x.dtype)
