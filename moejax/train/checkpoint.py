"""Checkpoints through Orbax: the state, the position in the data and what they belong to, atomically."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import grain
import jax
import orbax.checkpoint as ocp

from moejax.train.step import Program, TrainState

policies = ocp.checkpoint_managers.preservation_policy


class Checkpoints:
    """Checkpoints of one trunk or branch, by optimiser step. The two newest are kept, and every step in ``keep``."""

    def __init__(self, folder: Path, *, keep: Sequence[int] = ()):
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(2), policies.CustomSteps(keep)]),
            cleanup_tmp_directories=True,
        )
        self._manager = ocp.CheckpointManager(folder.resolve(), options=options)

    def latest(self) -> int | None:
        """The newest complete step, or None."""
        return self._manager.latest_step()

    def save(self, state: TrainState, batches: grain.DatasetIterator) -> None:
        """Write a checkpoint in the background; one that is not finished when the process dies never counts."""
        step = int(state.step)
        if step != self._manager.latest_step():
            items = ocp.args.Composite(
                state=ocp.args.StandardSave(state), data=grain.checkpoint.CheckpointSave(batches)
            )
            self._manager.save(step, args=items, force=True)

    def restore(self, step: int, program: Program, batches: grain.DatasetIterator) -> TrainState:
        """The state at ``step``, laid out on this program's mesh whatever mesh wrote it; moves ``batches`` there."""
        self._manager.wait_until_finished()
        abstract = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            program.abstract,
            program.shardings,
        )
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract), data=grain.checkpoint.CheckpointRestore(batches)
        )
        return self._manager.restore(step, args=items)["state"]

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *raised: object) -> None:
        """Wait for what is being written, also when the training failed."""
        self._manager.wait_until_finished()
        self._manager.close()
