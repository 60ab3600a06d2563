"""Grouped experts by a kernel for CPU cores: blocks of an expert's rows, each through all three of its matrices.

What ``grouped_blocks`` computes, without its copies: products read rows where they lie and add to gradients where those
lie, nothing is padded, and a block's hidden rows stay in a core's cache. Experts are shared out among XLA's threads.

Shapes: R rows (a full block more than there are assignments), E experts, D model, F hidden.
"""

from __future__ import annotations

from typing import no_type_check

import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from moejax.native.arithmetic import ONE, ZERO, multiply, rows_at_once, sigmoid
from moejax.native.custom_call import (
    argument,
    custom_call,
    floats1,
    floats2,
    floats3,
    integers1,
    kernel,
    result,
)
from moejax.routing.experts import Experts

F32 = np.float32
FORWARD, BACKWARD = "moejax_experts_forward", "moejax_experts_backward"
BLOCK = 512
"""Most rows of a block."""


@kernel(FORWARD)
@no_type_check
def _forward_part(frame: int, e: int) -> int:
    """Expert e's outputs, gate and up projections; after the last expert, zeros in the rows that are nobody's."""
    x, weight, offsets = floats2(argument(frame, 0)), floats1(argument(frame, 1)), integers1(argument(frame, 2))
    gates, ups, downs = floats3(argument(frame, 3)), floats3(argument(frame, 4)), floats3(argument(frame, 5))
    y, gate, up = floats2(result(frame, 0)), floats2(result(frame, 1)), floats2(result(frame, 2))
    experts, wide, deep = gates.shape
    if e == experts:
        y[offsets[e] :] = ZERO
        gate[offsets[e] :] = ZERO
        up[offsets[e] :] = ZERO
        return 0
    block = min(rows_at_once(wide, deep, BLOCK), offsets[e + 1] - offsets[e])
    hidden = np.empty((block, deep), F32)
    for start in range(offsets[e], offsets[e + 1], max(block, 1)):
        rows = min(block, offsets[e + 1] - start)
        in_, out, as_is = (rows, deep, wide), (wide, deep, deep), (False, False)
        multiply(x[start:], gates[e], gate[start:], in_, out, as_is, False)
        multiply(x[start:], ups[e], up[start:], in_, out, as_is, False)
        for r in range(rows):
            g, u, h, w = gate[start + r], up[start + r], hidden[r], weight[start + r]
            for f in range(deep):
                h[f] = w * g[f] * sigmoid(g[f]) * u[f]
        multiply(hidden, downs[e], y[start:], (rows, wide, deep), (deep, wide, wide), as_is, False)
    return 0


@kernel(BACKWARD)
@no_type_check
def _backward_part(frame: int, e: int) -> int:
    """Gradients of expert e's rows, of their weights and of its matrices."""
    x, weight, offsets = floats2(argument(frame, 0)), floats1(argument(frame, 1)), integers1(argument(frame, 2))
    gates, ups, downs = floats3(argument(frame, 3)), floats3(argument(frame, 4)), floats3(argument(frame, 5))
    gate, up, dy = floats2(argument(frame, 6)), floats2(argument(frame, 7)), floats2(argument(frame, 8))
    dx, dweight = floats2(result(frame, 0)), floats1(result(frame, 1))
    dgates, dups, ddowns = floats3(result(frame, 2)), floats3(result(frame, 3)), floats3(result(frame, 4))
    experts, wide, deep = gates.shape
    if e == experts:
        dx[offsets[e] :] = ZERO
        dweight[offsets[e] :] = ZERO
        return 0
    if offsets[e] == offsets[e + 1]:
        dgates[e] = ZERO
        dups[e] = ZERO
        ddowns[e] = ZERO
    block = min(rows_at_once(wide, deep, BLOCK), offsets[e + 1] - offsets[e])
    hidden, dgate, dup = np.empty((block, deep), F32), np.empty((block, deep), F32), np.empty((block, deep), F32)
    for start in range(offsets[e], offsets[e + 1], max(block, 1)):
        rows, goes_on = min(block, offsets[e + 1] - start), start > offsets[e]
        multiply(dy[start:], downs[e], dup, (rows, deep, wide), (wide, wide, deep), (False, True), False)
        for r in range(rows):
            g, u, h, w = gate[start + r], up[start + r], hidden[r], weight[start + r]
            dg, du, total = dgate[r], dup[r], ZERO
            for f in range(deep):
                # silu(g) = g·s has the slope s + silu(g)·(1 - s), where s is the sigmoid.
                s = sigmoid(g[f])
                silu, dh = g[f] * s, du[f]
                total += dh * silu * u[f]
                h[f] = w * silu * u[f]
                dg[f] = w * dh * u[f] * (s + silu * (ONE - s))
                du[f] = w * dh * silu
            dweight[start + r] = total
        multiply(hidden, dy[start:], ddowns[e], (deep, wide, rows), (deep, wide, wide), (True, False), goes_on)
        across, lying = (wide, deep, rows), (wide, deep, deep)
        multiply(x[start:], dgate, dgates[e], across, lying, (True, False), goes_on)
        multiply(x[start:], dup, dups[e], across, lying, (True, False), goes_on)
        back, lying = (rows, wide, deep), (deep, deep, wide)
        multiply(dgate, gates[e], dx[start:], back, lying, (False, True), False)
        multiply(dup, ups[e], dx[start:], back, lying, (False, True), True)
    return 0


def forward(
    keep: bool,
    x: Float[Array, "R D"],
    weight: Float[Array, " R"],
    offsets: Int[Array, " experts_and_one"],
    experts: Experts,
) -> tuple[Array, ...]:
    """Weighted outputs [R, D] and, for the backward pass if ``keep``, the gate and up projections [R, F]."""
    hidden = jax.ShapeDtypeStruct((x.shape[0], experts.gate.shape[2]), x.dtype)
    results = jax.ShapeDtypeStruct(x.shape, x.dtype), hidden, hidden
    parts = experts.num_experts + 1
    found = custom_call(FORWARD, parts, results, x, weight, offsets, experts.gate, experts.up, experts.down)
    return found if keep else found[:1]


def backward(
    x: Float[Array, "R D"],
    weight: Float[Array, " R"],
    offsets: Int[Array, " experts_and_one"],
    experts: Experts,
    gate: Float[Array, "R F"],
    up: Float[Array, "R F"],
    dy: Float[Array, "R D"],
) -> tuple[Float[Array, "R D"], Float[Array, " R"], Experts]:
    """Gradients of the rows, of their weights and of the experts."""
    of_experts = experts.gate, experts.up, experts.down
    results = tuple(jax.ShapeDtypeStruct(like.shape, like.dtype) for like in (x, weight, *of_experts))
    dx, dweight, *dexperts = custom_call(
        BACKWARD, experts.num_experts + 1, results, x, weight, offsets, *of_experts, gate, up, dy
    )
    return dx, dweight, Experts(*dexperts, activation=experts.activation)
