"""Compute grouped experts on CPU cores: multiply each block of an expert's rows by all three of the expert's matrices.

The result equals that of ``experts_blocks``, with fewer copies. A block's rows are gathered from their tokens when they
are needed, and stay in a core's cache with their hidden rows. Matmuls accumulate into gradients in place, and
nothing is padded. While one matrix is used, the next matrix is prefetched, because experts with few rows use each
matrix only briefly. Experts are distributed over XLA's threads.

Shapes: N tokens, R rows, E experts, D model, F hidden.
"""

from __future__ import annotations

from typing import no_type_check

import jax
import numpy as np
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float
from numba import njit

from moejax.kernels.cpu.arithmetic import ONE, ZERO, fill_vectors, sigmoid
from moejax.kernels.cpu.custom_call import (
    argument,
    custom_call,
    floats1,
    floats2,
    floats3,
    integers1,
    kernel,
    result,
)
from moejax.kernels.cpu.product import APART, fetch_row, multiply_before
from moejax.kernels.experts import Experts, LayoutWith, swiglu
from moejax.kernels.permutation import Layout, permute_weights, token_of_rows, unpermute
from moejax.kernels.saved_names import MOE_GATE_UP

F32 = np.float32
FORWARD, BACKWARD, SUMS = "moejax_experts_forward", "moejax_experts_backward", "moejax_sums_of_rows"
BLOCK = 256
"""Maximum number of rows per block."""
TOKENS = 256
"""Number of tokens per part of the kernel that sums rows."""
AHEAD = 4
"""Number of rows to prefetch ahead of the current row."""


@njit(inline="always")
@no_type_check
def _copy_tokens(tokens, numbers, start, rows, into) -> None:
    """Copy the tokens of rows ``start`` to ``start + rows``."""
    for r in range(rows):
        if r + AHEAD < rows:
            fetch_row(tokens[numbers[start + r + AHEAD]].ctypes.data, tokens.shape[1])
        into[r, : tokens.shape[1]] = tokens[numbers[start + r]]


@njit(inline="always")
@no_type_check
def _block(rows: int) -> int:
    """Return the block size for an expert with this number of rows, so that its blocks are nearly equal."""
    blocks = max((rows + BLOCK - 1) // BLOCK, 1)
    return max((rows + blocks - 1) // blocks, 1)


@kernel(FORWARD)
@no_type_check
def _forward_part(frame: int, e: int) -> int:
    """Compute the outputs and the gate and up projections of expert ``e``; the part after the last expert zeroes unused
    rows."""
    fill_vectors()
    x, token, weight = floats2(argument(frame, 0)), integers1(argument(frame, 1)), floats1(argument(frame, 2))
    offsets = integers1(argument(frame, 3))
    gates_ups, downs = floats3(argument(frame, 4)), floats3(argument(frame, 5))
    y, gate, up = floats2(result(frame, 0)), floats2(result(frame, 1)), floats2(result(frame, 2))
    experts, deep, wide = downs.shape
    after = min(e + 1, experts - 1)
    if e == experts:
        y[offsets[e] :] = ZERO
        gate[offsets[e] :] = ZERO
        up[offsets[e] :] = ZERO
        return 0
    block = _block(offsets[e + 1] - offsets[e])
    own, hidden = np.empty((block, wide + APART), F32), np.empty((block, deep + APART), F32)
    for start in range(offsets[e], offsets[e + 1], block):
        rows = min(block, offsets[e + 1] - start)
        in_, out, as_is = (rows, deep, wide), (wide + APART, deep, deep), (False, False)
        _copy_tokens(x, token, start, rows, own)
        multiply_before(gates_ups[2 * e + 1], own, gates_ups[2 * e], gate[start:], in_, out, as_is, False)
        multiply_before(downs[e], own, gates_ups[2 * e + 1], up[start:], in_, out, as_is, False)
        for r in range(rows):
            g, u, h, w = gate[start + r], up[start + r], hidden[r], weight[start + r]
            for f in range(deep):
                h[f] = w * g[f] * sigmoid(g[f]) * u[f]
        back, lying = (rows, wide, deep), (deep + APART, wide, wide)
        multiply_before(gates_ups[2 * after], hidden, downs[e], y[start:], back, lying, as_is, False)
    return 0


@kernel(BACKWARD)
@no_type_check
def _backward_part(frame: int, e: int) -> int:
    """Compute the gradients of expert e's rows, their weights and its matrices."""
    fill_vectors()
    x, token, weight = floats2(argument(frame, 0)), integers1(argument(frame, 1)), floats1(argument(frame, 2))
    offsets = integers1(argument(frame, 3))
    gates_ups, downs = floats3(argument(frame, 4)), floats3(argument(frame, 5))
    gate, up, dy = floats2(argument(frame, 6)), floats2(argument(frame, 7)), floats2(argument(frame, 8))
    dx, dweight = floats2(result(frame, 0)), floats1(result(frame, 1))
    dgates_ups, ddowns = floats3(result(frame, 2)), floats3(result(frame, 3))
    experts, deep, wide = downs.shape
    after = min(e + 1, experts - 1)
    if e == experts:
        dx[offsets[e] :] = ZERO
        dweight[offsets[e] :] = ZERO
        return 0
    if offsets[e] == offsets[e + 1]:
        dgates_ups[2 * e] = ZERO
        dgates_ups[2 * e + 1] = ZERO
        ddowns[e] = ZERO
    block = _block(offsets[e + 1] - offsets[e])
    shape = block, deep + APART
    hidden, dgate, dup = np.empty(shape, F32), np.empty(shape, F32), np.empty(shape, F32)
    own, down = np.empty((block, wide + APART), F32), np.empty((block, wide + APART), F32)
    for start in range(offsets[e], offsets[e + 1], block):
        rows, goes_on = min(block, offsets[e + 1] - start), start > offsets[e]
        _copy_tokens(x, token, start, rows, own)
        _copy_tokens(dy, token, start, rows, down)
        in_ = wide + APART, wide, deep + APART
        multiply_before(ddowns[e], down, downs[e], dup, (rows, deep, wide), in_, (False, True), False)
        for r in range(rows):
            g, u, h, w = gate[start + r], up[start + r], hidden[r], weight[start + r]
            dg, du, total = dgate[r], dup[r], ZERO
            for f in range(deep):
                # The derivative of silu(g) = g·s is s + silu(g)·(1 - s), with s = sigmoid(g).
                s = sigmoid(g[f])
                silu, dh = g[f] * s, du[f]
                total += dh * silu * u[f]
                h[f] = w * silu * u[f]
                dg[f] = w * dh * u[f] * (s + silu * (ONE - s))
                du[f] = w * dh * silu
            dweight[start + r] = total
        across, lying = (deep, wide, rows), (deep + APART, wide + APART, wide)
        multiply_before(dgates_ups[2 * e], hidden, down, ddowns[e], across, lying, (True, False), goes_on)
        across, lying = (wide, deep, rows), (wide + APART, deep + APART, deep)
        multiply_before(dgates_ups[2 * e + 1], own, dgate, dgates_ups[2 * e], across, lying, (True, False), goes_on)
        multiply_before(gates_ups[2 * e], own, dup, dgates_ups[2 * e + 1], across, lying, (True, False), goes_on)
        back, lying = (rows, wide, deep), (deep + APART, deep, wide)
        multiply_before(gates_ups[2 * e + 1], dgate, gates_ups[2 * e], dx[start:], back, lying, (False, True), False)
        multiply_before(downs[after], dup, gates_ups[2 * e + 1], dx[start:], back, lying, (False, True), True)
    return 0


@kernel(SUMS)
@no_type_check
def _sum_part(frame: int, part: int) -> int:
    """Compute each token's sum over its rows; rows of dropped assignments are absent."""
    fill_vectors()
    rows, row, sums = floats2(argument(frame, 0)), integers1(argument(frame, 1)), floats2(result(frame, 0))
    tokens = sums.shape[0]
    entries, present = row.shape[0] // tokens, rows.shape[0]
    for token in range(part * TOKENS, min(part * TOKENS + TOKENS, tokens)):
        total = sums[token]
        for entry in range(token * entries, (token + 1) * entries):
            if entry + AHEAD < row.shape[0] and row[entry + AHEAD] < present:
                fetch_row(rows[row[entry + AHEAD]].ctypes.data, rows.shape[1])
            is_first, is_there = entry == token * entries, row[entry] < present
            if is_first and is_there:
                total[:] = rows[row[entry]]
            elif is_first:
                total[:] = ZERO
            elif is_there:
                total += rows[row[entry]]
    return 0


def supports(x: Array, combine_weight: Array, layout_with: LayoutWith | None, experts: Experts) -> bool:
    """Return whether the experts are unquantized SwiGLU without biases."""
    is_plain = experts.activation is swiglu and experts.gate_up_bias is experts.down_bias is None
    return is_plain and experts.quantization == "none"


def swiglu_experts(
    x: Float[Array, "N D"],
    combine_weight: Float[Array, " assignments"],
    layout_with: LayoutWith,
    experts: Experts,
    *,
    tokens_per_expert: int,
) -> Float[Array, "N D"]:
    """Return each token's weighted sum of its experts' outputs."""
    layout = layout_with(0)
    return _outputs(x, permute_weights(combine_weight, layout), layout, experts)


def _unpermute(rows: Float[Array, "R D"], layout: Layout) -> Float[Array, "N D"]:
    """Compute ``unpermute``, without materializing gathered rows if tokens have equal numbers of rows."""
    if layout.top_k is None:
        return unpermute(rows, layout)
    sums = jax.ShapeDtypeStruct((layout.num_tokens, rows.shape[1]), rows.dtype)
    return custom_call(SUMS, -(-layout.num_tokens // TOKENS), sums, rows, layout.row)


@jax.custom_vjp
def _outputs(
    x: Float[Array, "N D"], weight: Float[Array, " R"], layout: Layout, experts: Experts
) -> Float[Array, "N D"]:
    return _outputs_and_save(x, weight, layout, experts)[0]


def _outputs_and_save(x: Array, weight: Array, layout: Layout, experts: Experts):
    # Gate and up matrices alternate, expert by expert.
    matrices = experts.gate_up.reshape(-1, *experts.gate_up.shape[2:]), experts.down
    hidden = jax.ShapeDtypeStruct((*weight.shape, experts.down.shape[1]), x.dtype)
    results = jax.ShapeDtypeStruct((*weight.shape, x.shape[1]), x.dtype), hidden, hidden
    arguments = x, token_of_rows(layout), weight, layout.offsets, *matrices
    y, gate, up = custom_call(FORWARD, experts.num_experts + 1, results, *arguments)
    gate, up = (checkpoint_name(rows, MOE_GATE_UP) for rows in (gate, up))
    return _unpermute(y, layout), (arguments, gate, up, layout)


def _gradients(saved, dy: Float[Array, "N D"]):
    arguments, gate, up, layout = saved
    x, _, weight, _, *matrices = arguments
    rows = jax.ShapeDtypeStruct((*weight.shape, x.shape[1]), x.dtype)
    results = rows, *(jax.ShapeDtypeStruct(like.shape, like.dtype) for like in (weight, *matrices))
    dx, dweight, dgate_up, ddown = custom_call(BACKWARD, matrices[1].shape[0] + 1, results, *arguments, gate, up, dy)
    return _unpermute(dx, layout), dweight, None, Experts(dgate_up.reshape(-1, 2, *dgate_up.shape[1:]), ddown)


_outputs.defvjp(_outputs_and_save, _gradients)
