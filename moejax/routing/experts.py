"""The experts of one layer: SwiGLU feed-forwards, all of one shape, as stacked arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

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


@jax.tree_util.register_dataclass
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


def project_up(
    rows: Float[Array, "... rows model"], experts: Experts
) -> tuple[Float[Array, "... rows hidden"], Float[Array, "... rows hidden"]]:
    """Gate and up projections in float32. Rows and experts broadcast: all experts' rows, one's, or the same for all."""
    gate = _product(rows, experts.gate, experts.gate_bias)
    up = _product(rows, experts.up, experts.up_bias)
    return gate, up


def project_down(
    gate: Float[Array, "... rows hidden"],
    up: Float[Array, "... rows hidden"],
    weight: Float[Array, "... rows"],
    experts: Experts,
) -> Float[Array, "... rows model"]:
    """Weighted outputs in float32; as the hidden rows carry the weight, its gradient needs no outputs."""
    hidden = (weight[..., None] * experts.activation(gate, up)).astype(experts.down.dtype)
    y = _product(hidden, experts.down, None)
    if experts.down_bias is None:
        return y
    return y + weight[..., None] * experts.down_bias[..., None, :].astype(jnp.float32)


def _product(rows, matrix, bias):
    y = jnp.matmul(rows, matrix, preferred_element_type=jnp.float32)
    return y if bias is None else y + bias[..., None, :].astype(jnp.float32)
