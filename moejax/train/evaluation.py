"""The loss on the fixed validation rows, whole and by source."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from moejax.data.validation import Validation
from moejax.routing.sums import RoutingSums
from moejax.train.mesh import batch_sharding, local_rows, place_rows
from moejax.train.program import Program


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What was measured on the validation set."""

    validation: Validation
    nats: np.ndarray
    """Float64 (sources): sums over each source's targets."""
    routing: RoutingSums | None
    """Over all of it, per mixture layer."""

    def losses(self) -> dict[str, float | None]:
        """``loss``, nats per token, and ``bits_per_byte``; of a mixture also of each source, as ``loss_NAME``.

        The loss is the mean over all targets, so each source's by its tokens.
        """
        parts = self.validation.parts
        found = _losses("", float(self.nats.sum()), self.validation.targets, self.validation.bytes)
        if len(parts) > 1:
            for part, nats in zip(parts, self.nats.tolist(), strict=True):
                found |= _losses(f"_{part.name}", nats, part.targets, part.bytes)
        return found

    def for_log(self) -> dict[str, float]:
        """The losses that are known, as ``validation_loss`` and so on, beside those of a batch."""
        return {f"validation_{name}": value for name, value in self.losses().items() if value is not None}


def evaluate(program: Program, params: Any, expert_bias: Any, validation: Validation, size: int) -> Evaluated:
    """Measure a model in batches of ``size`` sequences; every process takes part."""
    count, sharding = len(validation.rows["tokens"]), batch_sharding(program.mesh)
    mine, nats, sums = local_rows(sharding, size), np.zeros(len(validation.parts)), []
    for start in range(0, count, size):
        # The last batch is filled up with its first row, which then counts for nothing.
        numbers = np.arange(start, start + size)
        real = numbers < count
        here = np.where(real, numbers, start)[mine]
        batch = {name: place_rows(array[here], mine, size, sharding) for name, array in validation.rows.items()}
        costs, routing = program.evaluate(params, expert_bias, batch, place_rows(real[mine], mine, size, sharding))
        np.add.at(nats, validation.source[numbers[real]], np.asarray(costs, np.float64)[real])
        sums.append(routing)
    return Evaluated(validation, nats, None if sums[0] is None else jax.tree.map(lambda *parts: sum(parts), *sums))


def _losses(suffix: str, nats: float, targets: int, text_bytes: float | None) -> dict[str, float | None]:
    bits_per_byte = nats / text_bytes / math.log(2) if text_bytes else None
    return {f"loss{suffix}": nats / targets if targets else math.nan, f"bits_per_byte{suffix}": bits_per_byte}
