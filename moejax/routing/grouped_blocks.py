"""Grouped SwiGLU experts as a loop over experts and blocks of rows: nothing dropped, hardly anything padded.

For a processor that runs one thing at a time (a CPU core). Rows lie in the order of their experts. An expert's rows
are cut into full blocks and one shorter tail. The tail comes first and is computed in the smallest of a few fixed
sizes that holds it; what it computes beyond its end, the next block or the next expert overwrites.

Shapes: R rows (room for one block more than there are assignments), E experts, D model, F hidden.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int

from moejax.routing.experts import Experts, project_down, project_up

F32 = jnp.float32


def block_sizes(rows_per_expert: int) -> tuple[int, ...]:
    """Sizes of a tail, ascending; the last is that of a full block."""
    if rows_per_expert >= 256:
        return (32, 64, 128, 256)
    if rows_per_expert >= 64:
        return (16, 32, 64, 128)
    return (16, 32, 64)


def _each_block(offsets: Int[Array, " experts_and_one"], sizes: tuple[int, ...], body, carry):
    """Fold ``body(expert, start, rows, size, carry)`` over the blocks, of which the first ``rows`` rows are real."""
    full = sizes[-1]

    def one_expert(expert, carry):
        start, stop = offsets[expert], offsets[expert + 1]
        tail = (stop - start) % full
        shorter = 0
        for size in sizes:
            chosen = ((tail > shorter) & (tail <= size)).astype(jnp.int32)
            carry = lax.fori_loop(
                0, chosen, lambda i, c, size=size: body(expert, start + i * size, tail, size, c), carry
            )
            shorter = size
        start = start + tail
        return lax.fori_loop(
            0, (stop - start) // full, lambda i, c: body(expert, start + i * full, full, full, c), carry
        )

    return lax.fori_loop(0, offsets.shape[0] - 1, one_expert, carry)


def _rows(array, start, size):
    return lax.dynamic_slice_in_dim(array, start, size)


def _set_rows(array, rows, start):
    return lax.dynamic_update_slice_in_dim(array, rows.astype(array.dtype), start, 0)


def forward(x, weight, offsets, experts: Experts, sizes):
    """Outputs [R, D] of the rows, and their gate and up projections [R, F], which the backward pass reads."""

    def body(expert, start, rows, size, carry):
        y, gate, up = carry
        one = jax.tree.map(lambda leaf: leaf[expert], experts)
        block_gate, block_up = project_up(_rows(x, start, size), one)
        block = project_down(block_gate, block_up, _rows(weight, start, size), one)
        return _set_rows(y, block, start), _set_rows(gate, block_gate, start), _set_rows(up, block_up, start)

    hidden = jnp.zeros((x.shape[0], experts.gate.shape[2]), x.dtype)
    return _each_block(offsets, sizes, body, (jnp.zeros_like(x), hidden, hidden))


def backward(x, weight, offsets, experts: Experts, gate, up, dy, sizes):
    """Gradients of the rows, their weights and the experts."""

    def body(expert, start, rows, size, carry):
        dx, dweight, dexperts = carry
        one = jax.tree.map(lambda leaf: leaf[expert], experts)
        real = jnp.arange(size) < rows
        block_dy = jnp.where(real[:, None], _rows(dy, start, size).astype(F32), 0.0)
        block_gate, block_up = _rows(gate, start, size).astype(F32), _rows(up, start, size).astype(F32)
        down = jax.vjp(project_down, block_gate, block_up, _rows(weight, start, size), one)[1]
        block_dgate, block_dup, block_dweight, done_down = down(block_dy)
        block_dx, done_up = jax.vjp(project_up, _rows(x, start, size), one)[1]((block_dgate, block_dup))
        dexperts = jax.tree.map(
            lambda total, a, b: total.at[expert].add(a.astype(F32) + b.astype(F32)), dexperts, done_down, done_up
        )
        return _set_rows(dx, block_dx, start), _set_rows(dweight, block_dweight, start), dexperts

    totals = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, F32), experts)
    dx, dweight, dexperts = _each_block(offsets, sizes, body, (jnp.zeros_like(x), jnp.zeros_like(weight), totals))
    return dx, dweight, jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), dexperts, experts)
