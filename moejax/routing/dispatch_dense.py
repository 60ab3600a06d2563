"""The reference: every expert computes every token, and the gates pick. Slow, and plainly right."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from moejax.routing.experts import Experts, project_down, project_up
from moejax.routing.routing import Routing


def dense(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """Sum over experts of gate · expert(x), with the gates as a matrix tokens x experts."""
    gates = jnp.zeros((experts.num_experts, x.shape[0]), jnp.float32)
    gates = gates.at[routing.expert, routing.token].add(routing.gate, mode="drop")
    y = project_down(*project_up(x, experts), gates, experts)
    return y.sum(0).astype(x.dtype)
