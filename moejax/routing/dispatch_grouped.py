"""Dropless dispatch: assignments sorted by expert, and every expert's rows through its own matrices alone."""

from __future__ import annotations

import jax
from jax import Array
from jaxtyping import Float

from moejax.routing import grouped_blocks
from moejax.routing.experts import Experts
from moejax.routing.layout import arrange, by_expert, collect, spread
from moejax.routing.routing import Routing


def grouped(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """The gated sum over experts, computed for the assignments there are."""
    sizes = grouped_blocks.block_sizes(routing.expert.shape[0] // experts.num_experts)
    layout = by_expert(routing, padding=sizes[-1])
    rows, weight = spread(x, routing, layout), arrange(routing.gate, layout)
    return collect(_experts(sizes, rows, weight, layout.offsets, experts), routing, layout)


def _outputs(sizes, x, weight, offsets, experts) -> Array:
    return grouped_blocks.forward(x, weight, offsets, experts, sizes, keep=False)[0]


def _experts_forward(sizes, x, weight, offsets, experts):
    y, gate, up = grouped_blocks.forward(x, weight, offsets, experts, sizes, keep=True)
    return y, (x, weight, offsets, experts, gate, up)


def _experts_backward(sizes, saved, dy):
    x, weight, offsets, experts, gate, up = saved
    dx, dweight, dexperts = grouped_blocks.backward(x, weight, offsets, experts, gate, up, dy, sizes)
    return dx, dweight, None, dexperts


_experts = jax.custom_vjp(_outputs, nondiff_argnums=(0,))
_experts.defvjp(_experts_forward, _experts_backward)
