"""The experts of one layer: SwiGLU feed-forwards, all of one shape, as stacked arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from moejax.pytree import pytree

Activation = Callable[[Array, Array], Array]
"""From the rows of the gate and up projections to the hidden rows."""


def swiglu(gate: Float[Array, "*rows hidden"], up: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
    """silu(gate) · up (Shazeer 2020)."""
    return jax.nn.silu(gate) * up


def clamped_swiglu(
    gate: Float[Array, "*rows hidden"], up: Float[Array, "*rows hidden"]
) -> Float[Array, "*rows hidden"]:
    """The activation of gpt-oss: clamped at 7, a sigmoid of slope 1.702, and one added to ``up``."""
    gate, up = jnp.minimum(gate, 7.0), jnp.clip(up, -7.0, 7.0)
    return gate * jax.nn.sigmoid(1.702 * gate) * (up + 1.0)


@pytree
@dataclass(frozen=True)
class Experts:
    """Expert e maps a row x to activation(x·gate[e] + gate_bias[e], x·up[e] + up_bias[e])·down[e] + down_bias[e]."""

    gate: Any
    """Float[experts, model, hidden]"""
    up: Any
    """Float[experts, model, hidden]"""
    down: Any
    """Float[experts, hidden, model]"""
    gate_bias: Any = None
    """Float[experts, hidden] or None"""
    up_bias: Any = None
    """Float[experts, hidden] or None"""
    down_bias: Any = None
    """Float[experts, model] or None"""
    activation: Activation = field(default=swiglu, metadata={"static": True})

    @property
    def num_experts(self) -> int:
        return self.gate.shape[0]


class Meeting(NamedTuple):
    """How rows meet the arrays of their experts."""

    product: Callable[[Array, Array], Array]
    """Rows times matrices, in float32."""
    of_rows: Callable[[Array], Array]
    """Vectors of the experts as vectors of the rows, or broadcasting to them."""


ALIGNED = Meeting(
    product=lambda rows, matrix: jnp.matmul(rows, matrix, preferred_element_type=jnp.float32),
    of_rows=lambda vector: vector[..., None, :],
)
"""Rows [..., rows, D] and arrays [..., D, F] whose leading axes match or broadcast, as in a batched product."""


def project_up(
    rows: Float[Array, "... rows model"], experts: Experts, meeting: Meeting = ALIGNED
) -> tuple[Float[Array, "... rows hidden"], Float[Array, "... rows hidden"]]:
    """Gate and up projections in float32."""
    gate, up = meeting.product(rows, experts.gate), meeting.product(rows, experts.up)
    if experts.gate_bias is not None:
        gate = gate + meeting.of_rows(experts.gate_bias).astype(jnp.float32)
    if experts.up_bias is not None:
        up = up + meeting.of_rows(experts.up_bias).astype(jnp.float32)
    return gate, up


def project_down(
    gate: Float[Array, "... rows hidden"],
    up: Float[Array, "... rows hidden"],
    weight: Float[Array, "... rows"],
    experts: Experts,
    meeting: Meeting = ALIGNED,
) -> Float[Array, "... rows model"]:
    """Weighted outputs in float32; as the hidden rows carry the weight, its gradient needs no outputs."""
    hidden = (weight[..., None] * experts.activation(gate, up)).astype(experts.down.dtype)
    y = meeting.product(hidden, experts.down)
    if experts.down_bias is None:
        return y
    return y + weight[..., None] * meeting.of_rows(experts.down_bias).astype(jnp.float32)
