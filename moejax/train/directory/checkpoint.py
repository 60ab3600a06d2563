"""Save and restore a phase's checkpoints through Orbax, and resume from the newest checkpoint that can be restored."""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from jax.errors import JaxRuntimeError

from moejax.errors import UserError, out_of_memory
from moejax.stored import Missing, Unreadable
from moejax.train.directory.manifest import (
    DAMAGED,
    finished_steps,
    is_committed,
    read_metadata,
    validation_losses,
    write_hashes,
)
from moejax.train.directory.metrics import VALIDATION_LOSS
from moejax.train.processes import ProcessGroup
from moejax.train.program import Program
from moejax.train.step import TrainState
from moejax.wording import says, some

WRITING_SECONDS = 6 * 3600
"""Timeout for writing one checkpoint. Orbax's default of 20 minutes is too short for terabytes on a slow disk. If a
process dies, the others stop much earlier."""

_LEAST_PART_BYTES = 2**20
"""Minimum part size for replica-parallel writes of replicated arrays. Without a minimum, the first save compiles a
program for each part of each shape: 80 programs for a small model on 8 devices.
"""

_verbosity = logging.get_verbosity()
# Orbax warns about every replaced handler; this replacement is intended.
logging.set_verbosity(logging.ERROR)
ocp.type_handlers.register_type_handler(
    jax.Array,
    ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=_LEAST_PART_BYTES),
    override=True,
)
logging.set_verbosity(_verbosity)


class NotRestored(UserError):
    """Error for a checkpoint that some process could not restore."""


class CheckpointManager:
    """Checkpoints of one trunk or branch, numbered by optimizer step. They do not depend on the mesh or the number of
    processes.

    Four kinds of checkpoints are kept: the last ``newest`` checkpoints, the steps in ``keep``, the multiples of
    ``every``, and the ``best`` checkpoints with the lowest ``validation_loss``.
    """

    def __init__(
        self,
        folder: Path,
        group: ProcessGroup | None = None,
        *,
        newest: int = 2,
        keep: Sequence[int] = (),
        every: int = 0,
        best: int = 0,
    ):
        self._folder, self._group = folder.resolve(), group or ProcessGroup()
        # Another process may still hash its part of the previous phase's last checkpoint.
        self._group.run_on_main(self._remove_unfinished, wait_seconds=WRITING_SECONDS)
        losses = validation_losses(self._folder) if best else {}
        self._kept = _Kept(newest, frozenset(keep), every, best, losses)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._kept,
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(timeout_secs=WRITING_SECONDS),
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="hashing")
        self._writing: Future[None] | None = None
        self._hashing: list[tuple[threading.Event, Future[None]]] = []
        """Pairs of a stop event and a hashing job, oldest first."""

    def steps(self, at_most: int | None = None) -> list[int]:
        """Return the committed steps in order, as seen by the main process."""
        self.wait()
        steps = self._group.run_on_main(lambda: finished_steps(self._folder))
        return [step for step in steps if at_most is None or step <= at_most]

    def save(self, step: int, state: TrainState, metadata: Mapping[str, Any]) -> None:
        """Write a checkpoint in the background; it exists only once Orbax has committed it.

        Raises:
          UserError: this checkpoint, or the previous one, cannot be written.
        """
        self.wait()
        # Other machines may see an outdated list of a shared folder. The main process may still be removing old
        # checkpoints.
        if self._group.broadcast(step in self._manager.all_steps(), wait_seconds=WRITING_SECONDS):
            return
        # Committing this checkpoint removes old checkpoints, so hashes must no longer be written into them.
        self._stop_hashing(all_but=self._kept.newest - 1)
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), metadata=ocp.args.JsonSave(dict(metadata)))
        if VALIDATION_LOSS in metadata:
            self._kept.losses[step] = metadata[VALIDATION_LOSS]
        self._kept.saved = step
        with self._writing_errors():
            self._manager.save(step, args=items, force=True)
        self._writing = writing = self._writer.submit(self._manager.wait_until_finished)
        stop, place, group = threading.Event(), self._folder / str(step), self._group

        def hash_when_written() -> None:
            writing.result()
            write_hashes(place, group.index, group.count, stop)

        self._hashing.append((stop, self._hasher.submit(hash_when_written)))

    def restore(self, step: int, program: Program) -> tuple[TrainState, dict[str, Any]]:
        """Return the state at ``step`` and its metadata. The state is sharded over this program's mesh; it may have
        been saved on another mesh.

        Raises:
          NotRestored: in every process if one of them could not restore its part, or the state is not finite.
          UserError: the checkpoint's arrays differ from this program's state, or the system cannot read them now.
        """
        self.wait()
        place, metadata, restored = self._folder / str(step), {}, None
        failure, difference, cause = None, "", None
        try:
            metadata = read_metadata(place)
            difference = some(_differences(place / "state", program.abstract), most=4, between="; ")
            if not difference:
                # Orbax's managers wait for all processes at the end of a restore, also for those that failed.
                restored = ocp.StandardCheckpointHandler().restore(
                    epath.Path(place / "state"), args=ocp.args.StandardRestore(_abstract(program))
                )
        except Exception as error:
            if out_of_memory(error):
                raise
            failure, cause = str(error) if isinstance(error, UserError) else says("Orbax", error), error
        # Processes may need very different times to read their parts.
        told = self._group.all_gather([failure, difference, _kind(cause)], wait_seconds=WRITING_SECONDS)
        failures = [str(text) for text, *_ in told if text]
        # A new file in a shared folder may be visible to another machine but not yet to this one.
        unknown = ("unreadable", "missing") if not all(text for text, *_ in told) else ("unreadable",)
        if unreadable := [str(text) for text, _, kind in told if kind in unknown]:
            self._group.abort(
                f"The checkpoint of step {step} in {self._folder} cannot be read now ({unreadable[0].rstrip('.')}), "
                f"so it may or may not be damaged; nothing was moved. Once the file system can be read, the same "
                f"command resumes from this checkpoint. To resume from the previous one instead, move {place} away."
            )
        different = [text for _, text, _ in told if text]
        if different and not failures:
            self._group.abort(
                f"The checkpoint of step {step} in {self._folder} does not match this training run's state: "
                f"{different[0]}. It was written by another version of moejax, or with other settings. Resume with "
                "that version and those settings, or start a new run in another --out."
            )
        if not failures and not _is_finite(restored):
            failures = ["its state has non-finite values"]
        if failures:
            raise NotRestored(
                f"The checkpoint of step {step} in {self._folder} cannot be restored ({failures[0].rstrip('.')})."
            ) from cause
        return cast(TrainState, restored), metadata

    def set_aside(self, step: int) -> str:
        """Move a checkpoint that cannot be restored to ``checkpoints/damaged``, and return its new path. Checkpoints of
        this phase that were moved there before are removed, up to the same step.
        """

        def move() -> str:
            phase, aside = self._folder.name, self._folder.parent / DAMAGED
            aside.mkdir(exist_ok=True)
            for copy in aside.glob(f"{phase}-*"):
                if (number := copy.name.rpartition("-")[2]).isdecimal() and int(number) <= step:
                    shutil.rmtree(copy)
            return str((self._folder / str(step)).rename(aside / f"{phase}-{step}"))

        place = self._group.run_on_main(move)
        self._manager.reload()
        return place

    def wait(self) -> None:
        """Wait until no checkpoint is being written; do not wait for hashes.

        Raises:
          UserError: a checkpoint could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            with self._writing_errors():
                writing.result()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        """Wait for writes and hashing in progress; after an error or a stop request, only for writes."""
        try:
            self.wait()
            if kind is not None:
                self._stop_hashing()
        finally:
            self._hasher.shutdown()
            self._writer.shutdown()
            with contextlib.suppress(Exception):
                self._manager.close()

    def _stop_hashing(self, all_but: int = 0) -> None:
        count = max(0, len(self._hashing) - all_but)
        stopped, self._hashing = self._hashing[:count], self._hashing[count:]
        for stop, _ in stopped:
            stop.set()
        for _, job in stopped:
            job.exception()

    def _remove_unfinished(self) -> None:
        # A process died before Orbax had committed these checkpoints, or while it was removing them.
        for place in self._folder.iterdir() if self._folder.exists() else ():
            if place.name.isdecimal() and not is_committed(place):
                shutil.rmtree(place)

    @contextlib.contextmanager
    def _writing_errors(self) -> Iterator[None]:
        try:
            yield
        # The exception that Orbax raises for a full disk depends on the writer in which it occurs.
        except Exception as error:
            # Orbax also raises a timeout if it loses the other processes.
            lost = error.__cause__
            if lost is not None and isinstance(lost, JaxRuntimeError) and "DEADLINE" not in str(lost):
                raise lost from error
            raise UserError(
                f"A checkpoint cannot be written to {self._folder} ({says('Orbax', error, end=True)}). Earlier "
                f"checkpoints are complete. Free disk space, or repair the disk, and run the same command again."
            ) from error


@dataclass
class _Kept:
    """Retention policy for Orbax, which selects the checkpoints to keep at each save."""

    newest: int
    """Number of newest checkpoints to keep. They are selected among all steps, and again among steps up to ``saved``,
    because a phase may repeat earlier steps.
    """
    steps: frozenset[int]
    every: int
    best: int
    """Number of checkpoints kept for their lowest losses; ties go to the earliest."""
    losses: dict[int, float] = field(default_factory=dict)
    saved: int = 0

    def of(self, steps: Sequence[int]) -> set[int]:
        """Return the subset of ``steps`` to keep."""
        before = sorted(step for step in steps if step <= self.saved)
        newest = {*sorted(steps)[-self.newest :], *before[-self.newest :]}
        every = {step for step in steps if self.every and step % self.every == 0}
        known = [step for step in sorted(steps) if math.isfinite(self.losses.get(step, math.nan))]
        return (
            newest | every | self.steps.intersection(steps) | {*sorted(known, key=self.losses.__getitem__)[: self.best]}
        )

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        kept = self.of([info.step for info in checkpoints])
        return [info.step in kept for info in checkpoints]


def _abstract(program: Program) -> TrainState:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        program.abstract,
        program.shardings,
    )


def _kind(error: BaseException | None) -> str:
    """Return ``unreadable`` if the system could not read an existing file, whose content may be intact; ``missing`` if
    a file does not exist; otherwise ``damaged``.
    """
    if error is None:
        return "damaged"
    # TensorStore's message contains the operating system's error number.
    number = re.search(r"os_error_code='(\d+)'", str(error))
    code = error.errno if isinstance(error, OSError) else int(number[1]) if number else None
    if isinstance(error, Unreadable) or code not in (None, errno.ENOENT, errno.ENOTDIR):
        return "unreadable"
    if isinstance(error, Missing) or code is not None or "NOT_FOUND" in str(error):
        return "missing"
    return _kind(error.__cause__)


@jax.jit
def _is_finite(state: TrainState) -> jax.Array:
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return functools.reduce(jnp.logical_and, [jnp.isfinite(leaf).all() for leaf in leaves])


def _differences(saved: Path, state: TrainState) -> list[str]:
    there, here = _shapes(ocp.StandardCheckpointHandler().metadata(saved).tree), _shapes(state)  # type: ignore[arg-type]
    return [
        f"{name} has {there.get(name, 'no array')} in the checkpoint and {here.get(name, 'no array')} in this run"
        for name in dict.fromkeys([*here, *there])
        if there.get(name) != here.get(name)
    ]


def _shapes(state: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): f"shape {tuple(leaf.shape)}" for path, leaf in leaves
    }
