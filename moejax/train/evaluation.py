"""Evaluate the loss on the fixed validation rows, in total and by source."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import numpy as np

from moejax.data.rows import Validation
from moejax.model.transformer import Params
from moejax.routing.sums import RoutingSums
from moejax.train.mesh import batch_sharding, local_rows, place_rows
from moejax.train.program import Program


@dataclass(frozen=True, eq=False)
class Evaluated:
    """Results of an evaluation on the validation set."""

    validation: Validation
    nats: np.ndarray
    """Float64[sources]: loss summed over each source's targets, in nats."""
    routing: RoutingSums | None
    """Routing sums over the whole set, per MoE layer; None for a dense model."""

    def losses(self) -> dict[str, float | None]:
        """Return ``loss`` in nats per token and ``bits_per_byte``. With several sources, also return the values of each
        source, such as ``loss_NAME``.

        The loss is the mean over all targets, so each source is weighted by its tokens. Sources that are only measured
        separately are excluded from the mean.
        """
        parts = self.validation.parts
        nats = float(self.nats[self.validation.in_loss].sum())
        found = _losses(nats, self.validation.targets, self.validation.bytes)
        if len(parts) > 1:
            for part, own in zip(parts, self.losses_by_source(), strict=True):
                found |= {f"{name}_{part.name}": value for name, value in own.items()}
        return found

    def losses_by_source(self) -> list[dict[str, float | None]]:
        """Return ``loss`` and ``bits_per_byte`` of each source, in order."""
        return [
            _losses(nats, part.targets, part.bytes)
            for part, nats in zip(self.validation.parts, self.nats.tolist(), strict=True)
        ]

    def shares(self) -> dict[str, float]:
        """Return each source's share of the targets as ``share_NAME``. The shares are the sources' weights in the mean
        loss. With one source, return an empty dict.
        """
        parts = [part for part in self.validation.parts if part.in_loss]
        every = self.validation.targets
        return {f"share_{part.name}": part.targets / every for part in parts} if len(parts) > 1 and every else {}

    def for_log(self) -> dict[str, float]:
        """Return the losses that are not None. Keys such as ``validation_loss`` distinguish them from batch losses."""
        return {f"validation_{name}": value for name, value in self.losses().items() if value is not None}


def evaluate(program: Program, params: Params, expert_bias: jax.Array | None, validation: Validation) -> Evaluated:
    """Evaluate a model on all rows; every process takes part.

    Losses do not depend on the training batch, its microbatches or the mesh. With a ``capacity_factor`` or
    expert-choice routing, tokens compete for the experts' capacity. Such models are evaluated in groups of
    ``SHARED_EVALUATION_TOKENS`` tokens that share it. Padding uses no capacity.
    """
    nats, in_loss = np.zeros(len(validation.parts)), validation.in_loss[validation.source]
    routing = _measure(program, params, expert_bias, validation, np.flatnonzero(in_loss), nats)
    if not in_loss.all():
        _measure(program, params, expert_bias, validation, np.flatnonzero(~in_loss), nats)
    return Evaluated(validation, nats, routing)


def _measure(
    program: Program,
    params: Params,
    expert_bias: jax.Array | None,
    validation: Validation,
    rows: np.ndarray,
    nats: np.ndarray,
) -> RoutingSums | None:
    """Add the losses of the rows with indices ``rows`` to ``nats``; return their routing sums."""
    sharding = batch_sharding(program.mesh)
    size, together = program.evaluation_batch["tokens"].shape[0], program.evaluation_sequences
    mine, sums = local_rows(sharding, size), []
    for start in range(0, len(rows), together):
        # Pad the last batch with copies of its first row, which are masked.
        places = np.arange(start, start + size)
        real = places < min(start + together, len(rows))
        numbers = rows[np.where(real, places, start)]
        here = numbers[mine]
        batch = {name: place_rows(array[here], mine, size, sharding) for name, array in validation.rows.items()}
        marks = place_rows(real[mine], mine, size, sharding)
        costs, routing = program.compiled_evaluation()(params, expert_bias, batch, marks)
        np.add.at(nats, validation.source[numbers[real]], np.asarray(costs, np.float64)[real])
        sums.append(jax.tree.map(np.asarray, routing))
    return None if sums[0] is None else jax.tree.map(_sum, *sums)


def _sum(*parts: np.ndarray) -> np.ndarray:
    """Sum arrays; sum counts as int64, because int32 overflows at 268M tokens with eight experts each."""
    return np.sum(parts, axis=0, dtype=np.int64 if parts[0].dtype.kind == "i" else None)


def _losses(nats: float, targets: int, text_bytes: float | None) -> dict[str, float | None]:
    bits_per_byte = nats / text_bytes / math.log(2) if text_bytes else None
    return {"loss": nats / targets if targets else math.nan, "bits_per_byte": bits_per_byte}
