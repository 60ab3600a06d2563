"""Read batches: each process reads the rows of its own devices and places them on the mesh."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, UInt32

from moejax.data.corpus import Corpus
from moejax.train.mesh import batch_sharding, local_rows, place_rows
from moejax.train.step import Batch
from moejax.train.training import Phase, Training


def read_batches(
    trainings: Sequence[Training], corpus: Corpus, mesh: Mesh, phase: Phase, start: int
) -> Iterator[Batch]:
    """Yield the global batches of a phase after step ``start``, indefinitely. With several training runs, their batches
    are stacked along a leading run axis, on one device.

    A batch depends only on the data order, the phase and the step. Training runs with the same order share a reader.
    """
    sharding = batch_sharding(mesh)
    if len(trainings) == 1:
        for size, mine, rows in _local_batches(trainings[0], corpus, mesh, phase, start):
            yield {name: place_rows(array, mine, size, sharding) for name, array in rows.items()}
    orders = [training.order_seed for training in trainings]
    readers = {
        order: _local_batches(training, corpus, mesh, phase, start)
        for order, training in zip(orders, trainings, strict=True)
    }
    while True:
        rows = {order: next(reader)[2] for order, reader in readers.items()}
        yield {name: jnp.asarray(np.stack([rows[order][name] for order in orders])) for name in rows[orders[0]]}


def _local_batches(
    training: Training, corpus: Corpus, mesh: Mesh, phase: Phase, start: int
) -> Iterator[tuple[int, np.ndarray, dict[str, np.ndarray]]]:
    """Yield each batch's number of sequences, the indices of the sequences that this process reads, and their rows."""
    length, sharding = training.recipe.data.sequence_length, batch_sharding(mesh)
    for stage in training.recipe.batch_schedule.stages():
        begin, size = max(start, stage.first_step), stage.batch_tokens // length
        if begin < stage.end:
            mine = local_rows(sharding, size)
            reader = corpus.batches(
                batch=size,
                seed=training.seed,
                first_row=stage.tokens_before // length,
                start=begin - stage.first_step,
                mine=mine.tolist(),
                decay_from=phase.decay_start and training.recipe.tokens(phase.decay_start) // length,
            )
            for _ in itertools.count() if math.isinf(stage.end) else range(begin, int(stage.end)):
                yield size, mine, next(reader)


@jax.jit
def batch_digest(batch: Batch) -> UInt32[Array, ""]:
    """Return a checksum of a batch's rows and their order; it is the same on every mesh."""
    total = jnp.zeros((), jnp.uint32)
    for salt, name in enumerate(sorted(batch), start=1):
        rows, columns = (jax.lax.broadcasted_iota(jnp.uint32, batch[name].shape, axis) for axis in (0, 1))
        # Odd weights are invertible modulo 2^32. Two of Knuth's multipliers distinguish positions.
        place = (rows * jnp.uint32(2654435761) + columns * jnp.uint32(2246822519) + jnp.uint32(salt)) | jnp.uint32(1)
        total = total + ((batch[name].astype(jnp.uint32) + jnp.uint32(1)) * place).sum(dtype=jnp.uint32)
    return total
