"""Compute grouped experts in a loop over experts and blocks of rows, with no dropped tokens and little padding.

This kernel is for processors that run one operation at a time, such as a CPU core. Rows are sorted by expert. An
expert's rows are split into one head, possibly shorter than a block, followed by full blocks. The head is computed in
the smallest of a few fixed sizes that fits it. The next block or the next expert overwrites results beyond the head's
end.

Shapes: R rows (a full block more than there are assignments), E experts, D model, F hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Float, Int

from moejax.kernels.experts import Experts, LayoutWith, project_down, project_up, with_backward
from moejax.kernels.permutation import permute, permute_weights, unpermute

F32 = jnp.float32


class RowBlock(NamedTuple):
    """``size`` rows from ``start``, of which the first ``rows`` belong to the expert."""

    expert: Array | int
    start: Array | int
    rows: Array | int
    size: int
    is_head: bool

    def of(self, array: Array) -> Array:
        return lax.dynamic_slice_in_dim(array, self.start, self.size)

    def put(self, array: Array, rows: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(array, rows.astype(array.dtype), self.start, 0)

    def weights(self, experts: Experts) -> Experts:
        return jax.tree.map(lambda leaf: lax.dynamic_index_in_dim(leaf, self.expert, keepdims=False), experts)


def block_sizes(rows_per_expert: int, model: int, hidden: int) -> tuple[int, ...]:
    """Return the possible sizes of a head in ascending order; the last is the size of a full block.

    The sizes were timed on one core, with balanced and Zipf loads (``benchmarks/dispatch.py``). With a balanced load,
    an expert is one block of about the mean size. An expert with many rows has full blocks and a short head. Each size
    adds one loop body to compile and one loop to skip, which pays off only for larger matrices.
    """
    is_small = model * hidden <= 128 * 128
    if rows_per_expert >= 384:
        return (128, 512) if is_small else (64, 128, 256, 512)
    eighth = 2 * max(round(rows_per_expert / 16), 4)
    return tuple(eighth * eighths for eighths in ((4, 10) if is_small else (2, 4, 6, 8, 9, 10)))


def _each_block(
    offsets: Int[Array, " experts_and_one"], sizes: tuple[int, ...], body: Callable[[RowBlock, Any], Any], carry: Any
) -> Any:
    """Fold ``body(block, carry)`` over the blocks of all experts."""
    full = sizes[-1]

    def one_expert(expert, carry):
        start, stop = offsets[expert], offsets[expert + 1]
        head = jnp.where(stop > start, (stop - start - 1) % full + 1, 0)
        for shorter, size in zip((0, *sizes), sizes, strict=False):
            # Unlike a conditional, a loop with zero or one iterations copies nothing.
            runs = ((head > shorter) & (head <= size)).astype(jnp.int32)
            carry = lax.fori_loop(
                0, runs, lambda i, c, size=size: body(RowBlock(expert, start + i * size, head, size, True), c), carry
            )
        start = start + head
        return lax.fori_loop(
            0,
            (stop - start) // full,
            lambda i, c: body(RowBlock(expert, start + i * full, full, full, False), c),
            carry,
        )

    return lax.fori_loop(0, offsets.shape[0] - 1, one_expert, carry)


def experts_blocks(
    x: Float[Array, "tokens model"],
    combine_weight: Float[Array, " assignments"],
    layout_with: LayoutWith,
    experts: Experts,
    *,
    tokens_per_expert: int,
) -> Float[Array, "tokens model"]:
    """Return each token's weighted sum of its experts' outputs, block by block."""
    sizes = block_sizes(tokens_per_expert, *experts.gate_up.shape[2:])
    layout = layout_with(sizes[-1])
    rows, weight = permute(x, layout), permute_weights(combine_weight, layout)
    return unpermute(_outputs(sizes, rows, weight, layout.offsets, experts), layout)


# Vmapped loops of different lengths would copy all carried values at each iteration, so vmapped runs execute
# sequentially.


def _forward(sizes: tuple[int, ...], is_saving: bool, *arguments: Any) -> tuple[Array, ...]:
    return sequential_vmap(partial(forward, sizes, is_saving))(*arguments)


def _backward(sizes: tuple[int, ...], *arguments: Any) -> tuple[Any, ...]:
    return sequential_vmap(partial(backward, sizes))(*arguments)


_outputs = with_backward(_forward, _backward)


def forward(
    sizes: tuple[int, ...],
    is_saving: bool,
    x: Float[Array, "R D"],
    weight: Float[Array, " R"],
    offsets: Int[Array, " experts_and_one"],
    experts: Experts,
) -> tuple[Array, ...]:
    """Return weighted outputs [R, D] and, if ``is_saving``, the gate and up projections [R, twice_F] for the backward
    pass."""

    def body(block: RowBlock, carry):
        own = block.weights(experts)
        gate_up = project_up(block.of(x), own)
        y = project_down(gate_up, block.of(weight), own)
        return tuple(block.put(array, rows) for array, rows in zip(carry, (y, gate_up), strict=False))

    y, gate_up = jnp.zeros_like(x), jnp.zeros((x.shape[0], 2 * experts.down.shape[1]), x.dtype)
    return _each_block(offsets, sizes, body, (y, gate_up) if is_saving else (y,))


def backward(
    sizes: tuple[int, ...],
    x: Float[Array, "R D"],
    weight: Float[Array, " R"],
    offsets: Int[Array, " experts_and_one"],
    experts: Experts,
    gate_up: Float[Array, "R twice_F"],
    dy: Float[Array, "R D"],
) -> tuple[Float[Array, "R D"], Float[Array, " R"], Experts]:
    """Return the gradients of rows, weights and experts; experts' gradients are summed in float32."""

    def body(block: RowBlock, carry):
        dx, dweight, dexperts = carry
        own = block.weights(experts)
        block_dy = block.of(dy).astype(F32)
        if block.is_head:
            block_dy = jnp.where((jnp.arange(block.size) < block.rows)[:, None], block_dy, 0.0)
        kept = block.of(gate_up).astype(F32), block.of(weight), own
        dgate_up, block_dweight, from_down = jax.vjp(project_down, *kept)[1](block_dy)
        block_dx, from_up = jax.vjp(project_up, block.of(x), own)[1](dgate_up)

        def add(total, a, b):
            new = a.astype(F32) + b.astype(F32)
            if not block.is_head:
                new = new + lax.dynamic_index_in_dim(total, block.expert, keepdims=False)
            return lax.dynamic_update_index_in_dim(total, new, block.expert, 0)

        return (
            block.put(dx, block_dx),
            block.put(dweight, block_dweight),
            jax.tree.map(add, dexperts, from_down, from_up),
        )

    totals = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, F32), experts)
    dx, dweight, dexperts = _each_block(offsets, sizes, body, (jnp.zeros_like(x), jnp.zeros_like(weight), totals))
    return dx, dweight, jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), dexperts, experts)
