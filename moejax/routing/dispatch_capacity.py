"""Dispatch into a fixed number of rows for each expert: one batched product, all shapes known before the run."""

from __future__ import annotations

from jax import Array
from jaxtyping import Float

from moejax.routing.experts import Experts, project_down, project_up
from moejax.routing.layout import arrange, by_slot, collect, spread
from moejax.routing.routing import Routing


def capacity(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """The gated sum over experts, each computing ``routing.capacity`` rows, empty or not.

    It drops nothing that ``limit_capacity`` has not. A routing without a limit needs room for every token at every
    expert, which is right, and slow.
    """
    limit = routing.capacity or routing.num_tokens
    layout = by_slot(routing, limit)
    rows = spread(x, routing, layout).reshape(experts.num_experts, limit, -1)
    weight = arrange(routing.gate, layout).reshape(experts.num_experts, limit)
    y = project_down(*project_up(rows, experts), weight, experts)
    return collect(y.astype(x.dtype).reshape(-1, x.shape[1]), routing, layout)
