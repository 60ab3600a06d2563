"""Compute cross-entropy and its gradients on CPU cores, with the logits of a few tokens in the core's cache.

Shapes: N tokens, D model_dim, V vocabulary, P parts.
"""

from __future__ import annotations

from typing import no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from moejax.kernels.cpu.arithmetic import MASK_VALUE, ONE, ZERO, exp, fill_vectors, larger
from moejax.kernels.cpu.custom_call import argument, custom_call, floats1, floats2, floats3, integers1, kernel, result
from moejax.kernels.cpu.product import multiply
from moejax.sharding import on_many_devices

KERNEL = "moejax_cross_entropy"
PARTS = 8
"""Number of parts. Each part sums its own gradient of the matrix."""
ROWS = 256
"""Number of tokens per part whose logits are in memory at the same time."""
MOST_NUMBERS = 2**20
"""Maximum size of a matrix. Larger matrices do not fit into a cache, and ``PARTS`` copies of their gradients take too
much memory."""

NOT_A_NUMBER = np.float32(np.nan)
"""Loss of an out-of-vocabulary id."""


@kernel(KERNEL)
@no_type_check
def _part(frame: int, part: int) -> int:
    """Compute losses and gradients of a part's tokens, and the part's contribution to the matrix's gradient."""
    fill_vectors()
    hidden, matrix = floats2(argument(frame, 0)), floats2(argument(frame, 1))
    targets, weights = integers1(argument(frame, 2)), floats1(argument(frame, 3))
    loss, dhidden = floats1(result(frame, 0)), floats2(result(frame, 1))
    dmatrix = floats3(result(frame, 2))[part]
    tokens, wide = hidden.shape
    vocab = matrix.shape[1]
    share = (tokens + PARTS - 1) // PARTS
    logits, dmatrix[:] = np.empty((ROWS, vocab), np.float32), ZERO
    for start in range(part * share, min(part * share + share, tokens), ROWS):
        rows = min(ROWS, min(part * share + share, tokens) - start)
        multiply(hidden[start:], matrix, logits, (rows, vocab, wide), (wide, vocab, vocab), (False, False), False)
        for r in range(rows):
            row, target, highest, total = logits[r], targets[start + r], MASK_VALUE, ZERO
            is_known = 0 <= target < vocab
            of_target = row[target] if is_known else NOT_A_NUMBER
            for v in range(vocab):
                highest = larger(highest, row[v])
            for v in range(vocab):
                row[v] = exp(row[v] - highest)
                total += row[v]
            loss[start + r] = highest + np.log(total) - of_target
            # The gradient of a loss with respect to its logits is softmax minus one-hot target.
            weight = weights[start + r]
            scale = weight * ONE / total
            for v in range(vocab):
                row[v] *= scale
            if is_known:
                row[target] -= weight
        back, lying = (rows, wide, vocab), (vocab, vocab, wide)
        multiply(logits, matrix, dhidden[start:], back, lying, (False, True), False)
        across, lying = (wide, vocab, rows), (wide, vocab, vocab)
        multiply(hidden[start:], logits, dmatrix, across, lying, (True, False), True)
    return 0


def supports(hidden: Array, matrix: Array, targets: Array, weights: Array) -> bool:
    """Return whether every device holds a whole matrix of moderate size."""
    whole = not on_many_devices() or jax.sharding.get_abstract_mesh().shape["tensor"] == 1
    return whole and matrix.size <= MOST_NUMBERS


def loss_and_gradients(
    hidden: Float[Array, "N D"], matrix: Float[Array, "D V"], targets: Int[Array, " N"], weights: Float[Array, " N"]
) -> tuple[Float[Array, " N"], Float[Array, "N D"], Float[Array, "D V"]]:
    """Return the loss of each target, and the gradients of the weighted sum of losses."""
    shapes = targets.shape, hidden.shape, (PARTS, *matrix.shape)
    results = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    loss, dhidden, dmatrix = custom_call(KERNEL, PARTS, results, hidden, matrix, targets, weights)
    return loss, dhidden, dmatrix.sum(0)
