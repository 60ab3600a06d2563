"""Save and restore checkpoints atomically through Orbax: the state, the data position and the training they belong
to."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from jax.errors import JaxRuntimeError

from moejax.errors import StartAgain, UserError, out_of_memory
from moejax.stored import Unreadable
from moejax.train.directory.manifest import (
    VALIDATION_LOSS,
    Hashing,
    damage,
    finished_steps,
    has_all_hashes,
    in_words,
    is_committed,
    is_part,
    validation_losses,
    write_sizes,
    wrong_size,
)
from moejax.train.processes import ProcessGroup
from moejax.train.program import Program
from moejax.train.step import TrainState
from moejax.wording import says, some

DAMAGED = "damaged"
"""Folder for unreadable checkpoints, next to the folders of the phases."""

WRITING_SECONDS = 6 * 3600.0
"""Timeout for writing one checkpoint. Orbax's default of 20 minutes is too short for terabytes on a slow store. If a
process dies, the others stop much earlier."""

_VERDICT_SECONDS = 10.0
"""Time in which processes that met a damaged checkpoint read the verdict about it before they end."""

_LEAST_PART_BYTES = 2**20
"""Minimum part size for replica-parallel writes of an array that many devices hold whole. Every part of every shape is
a program, compiled at the first save: 80 for a small model on 8 devices."""

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
    """A checkpoint is damaged and was moved away."""


class CheckpointManager:
    """Checkpoints of one trunk or branch by optimizer step, independent of the mesh and the number of processes.

    It keeps the ``newest`` checkpoints, every step in ``keep``, every multiple of ``every``, and the ``best`` of those
    saved with a ``validation_loss``. The phases of a training share ``hashing``; without it, checkpoints are hashed
    when the manager is closed.
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
        hashing: Hashing | None = None,
        log: Callable[[str], None] = lambda text: None,
    ):
        self._folder, self._group, self._log = folder.resolve(), group or ProcessGroup(), log
        self._group.run_on_main(self._check_folder)
        self._group.run_on_main(self._remove_unfinished)
        losses = self._group.run_or_abort(self._validation_losses) if best else {}
        self._kept = _Kept(newest, frozenset(keep), every, best, losses)
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self._kept,
            cleanup_tmp_directories=True,
            async_options=ocp.AsyncOptions(timeout_secs=int(WRITING_SECONDS)),
        )
        with self._reading():
            self._manager = ocp.CheckpointManager(self._folder, options=options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._closing = contextlib.ExitStack()
        count = self._group.count
        self._hashing = hashing or self._closing.enter_context(Hashing(self._group.index, count))
        self._moved: list[str] = []
        """Messages about damaged checkpoints that were moved away since ``newest`` returned."""

    def newest(self, at_most: int | None = None) -> int | None:
        """Return the newest step with a complete checkpoint, or None if there never was one.

        One process checks the presence and sizes of the files without reading them. It moves damaged checkpoints away,
        with a message. If the system cannot read something, it moves nothing: the error may be transient.

        Raises:
          UserError: there are checkpoints, and all of them are damaged; or they cannot be read.
        """
        self.wait()
        while True:
            step, wrong = self._group.run_on_main(lambda: self._look(at_most)) or (None, None)
            if step is None or wrong is None:
                break
            self._moved.append(self._group.run_on_main(functools.partial(self._without, step, wrong)))
        moved, self._moved = self._moved, []
        if moved and step is None:
            self._group.abort(
                f"{' '.join(moved)} There is none before it; bring back a copy, or train anew in another --out."
            )
        if moved and self._group.is_main:
            self._log(f"{' '.join(moved)} Going on from step {step}.")
        self._manager.reload()
        return step

    def last_step(self) -> int | None:
        """Return the newest committed step, or None. No file is read; only a restored checkpoint is verified.

        Raises:
          UserError: the checkpoints cannot be read.
        """
        self.wait()
        return max(self._group.run_on_main(self._finished_steps), default=None)

    def save(self, step: int, state: TrainState, metadata: Mapping[str, Any]) -> None:
        """Write a checkpoint in the background; it counts only once Orbax has committed it.

        Raises:
          UserError: this checkpoint, or the previous one, cannot be written.
        """
        self.wait()
        if step in self._manager.all_steps():
            return
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), metadata=ocp.args.JsonSave(dict(metadata)))
        if VALIDATION_LOSS in metadata:
            self._kept.losses[step] = metadata[VALIDATION_LOSS]
        self._kept.saved = step
        # Committing this checkpoint removes others, so nothing may be written into those any more.
        left = self._kept.of([*self._manager.all_steps(), step])
        here = [path for path in self._hashing.under_way() if path.parent == self._folder]
        self._hashing.drop([path for path in here if int(path.name) not in left])
        with self._failing():
            self._manager.save(step, args=items, force=True)
        self._writing = self._thread.submit(self._finish, step)

    def restore(self, step: int, program: Program) -> tuple[TrainState, dict[str, Any]]:
        """Return the state at ``step`` and its metadata. The state is laid out on this program's mesh, whatever mesh
        wrote it.

        If restoring fails or the state has non-finite values, the files are read again and compared with their hashes.

        Raises:
          NotRestored: the checkpoint is damaged and was moved away; ``newest`` returns the one before.
          UserError: the checkpoint holds other arrays than a state of this program, or cannot be read.
        """
        self.wait()
        abstract = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            program.abstract,
            program.shardings,
        )
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), metadata=ocp.args.JsonRestore())
        place = self._folder / str(step)
        try:
            different = _differences(place / "state", program.abstract)
            # Orbax returns None where None was saved, whatever is requested.
            found = {} if different else self._manager.restore(step, args=items)
        except Exception as error:
            if out_of_memory(error):
                raise
            self._explain(step, f"was not restored ({says('Orbax', error)})", error)
            raise
        if different:
            raise UserError(
                f"The checkpoint of step {step} in {self._folder} holds another state than this training has: "
                f"{some(different, most=4, between='; ')}. It was written by another version of moejax, or with other "
                f"settings: go on with those, or train anew in another --out."
            )
        if not _is_finite(found["state"]):
            self._explain(step, "holds what is no number", None)
        # Compute the hashes that the writers did not finish. Only a restored checkpoint qualifies: the hashes must not
        # describe unverified content.
        self._hashing.begin(place, again=True)
        return found["state"], found["metadata"]

    def _explain(self, step: int, what: str, error: Exception | None) -> None:
        """Raise unless the recorded hashes of a checkpoint match its files. One process reads them for all.

        Raises:
          NotRestored: a file differs from what was written.
          StartAgain: the same, with several processes.
          UserError: not all files have a hash.
        """
        place = self._folder / str(step)
        sentence, is_known = self._group.run_on_first(lambda: self._verdict(step))
        if sentence is not None:
            if self._group.count == 1:
                self._moved.append(sentence)
                raise NotRestored(sentence) from error
            # Processes that restored their part wait for this one inside Orbax, and end with it. The others need the
            # first one, which keeps the verdict, until they have read it.
            with contextlib.suppress(UserError, JaxRuntimeError):
                self._group.barrier(wait_seconds=_VERDICT_SECONDS)
            raise StartAgain(f"{sentence} The same command goes on from the one before.") from error
        if not is_known:
            raise UserError(
                f"The checkpoint of step {step} in {self._folder} {what}. Whether it is whole is not known: not all of "
                f"its files have a hash to compare with. Give the same command again; if it says this again, move "
                f"{place} away, and it goes on from the one before."
            ) from error

    def _verdict(self, step: int) -> tuple[str | None, bool]:
        """Compare a checkpoint with its hashes, and move it away if it is damaged.

        Returns:
          A message about damage, if there is any, and whether all files have a hash.
        """
        place = self._folder / str(step)
        with self._reading():
            wrong = damage(place)
            if wrong is None:
                return None, has_all_hashes(place)
        return self._without(step, wrong), True

    def wait(self) -> None:
        """Wait until no checkpoint is being written; do not wait for hashes.

        Raises:
          UserError: a checkpoint could not be written.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            with self._failing():
                writing.result()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *raised: object) -> None:
        """Wait for writes in progress, also if the training failed; then cancel hashing."""
        try:
            self.wait()
        finally:
            if raised[0] is not None:
                self._hashing.drop(self._hashing.under_way())
            self._closing.__exit__(*raised)  # type: ignore[arg-type]
            self._thread.shutdown()
            with contextlib.suppress(Exception):
                self._manager.close()

    def _finish(self, step: int) -> None:
        self._manager.wait_until_finished()
        place = self._folder / str(step)
        if is_committed(place):
            write_sizes(place, self._group.index, self._group.count)
            self._hashing.begin(place)

    def _look(self, at_most: int | None) -> tuple[int, str | None] | None:
        """Return the newest step and an error found in its files' sizes, if any."""
        with self._reading():
            steps = [step for step in self._finished_steps() if at_most is None or step <= at_most]
            return (steps[-1], wrong_size(self._folder / str(steps[-1]))) if steps else None

    def _without(self, step: int, wrong: str) -> str:
        """Move a damaged checkpoint away and return a message about it."""
        place = self._set_aside(self._folder / str(step))
        return f"The checkpoint of step {step} in {self._folder} is damaged: {wrong}; it is now {place}."

    def _set_aside(self, there: Path) -> str:
        """Move a damaged checkpoint to an unused path and return the path."""
        name, aside = f"{self._folder.name}-{there.name}", self._folder.parent / DAMAGED
        free = (aside / (f"{name}-{number}" if number > 1 else name) for number in itertools.count(1))
        with self._reading():
            aside.mkdir(exist_ok=True)
            place = next(place for place in free if not os.path.lexists(place))
            return str(there.rename(place))

    def _check_folder(self) -> None:
        for place in (self._folder.parent, self._folder):
            if os.path.lexists(place) and not place.is_dir():
                raise UserError(f"{place} is no folder, and checkpoints are kept in one of that name; move it away.")

    def _remove_unfinished(self) -> None:
        """Remove partial checkpoints: their process died before Orbax committed them or while removing them. Folders
        with foreign files are moved aside."""
        with self._reading():
            for place in self._folder.iterdir() if self._folder.is_dir() else []:
                if not place.name.isdecimal() or not place.is_dir() or is_committed(place):
                    continue
                names = [path.name for path in place.iterdir()]
                if names and not any(map(is_part, names)):
                    self._log(
                        f"{place} was no checkpoint, it had {some(names, most=3)}; it is now {self._set_aside(place)}."
                    )
                else:
                    shutil.rmtree(place)

    def _validation_losses(self) -> dict[int, float]:
        with self._reading():
            return validation_losses(self._folder)

    def _finished_steps(self) -> list[int]:
        with self._reading():
            return finished_steps(self._folder)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Convert read and rename errors to ``UserError``."""
        try:
            yield
        except (OSError, Unreadable) as error:
            raise UserError(
                f"The checkpoints in {self._folder} cannot be read now ({in_words(error)}), so whether they are "
                f"whole is not known, and none was moved or removed. Once the disk or file system answers again, the "
                f"same command goes on."
            ) from error

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        # The exception that Orbax raises for a full disk depends on which of its writers meets it.
        except Exception as error:
            # Orbax also raises a timeout if it loses the other processes.
            lost = error.__cause__
            if lost is not None and isinstance(lost, JaxRuntimeError) and "DEADLINE" not in str(lost):
                raise lost from error
            # The operating system's message comes last.
            why = says("Orbax", error, end=True)
            # Only a file system's timeout has an errno.
            if isinstance(error, TimeoutError) and error.errno is None:
                raise UserError(
                    f"A checkpoint was not written to {self._folder} within {WRITING_SECONDS / 3600:g} hours ({why}). "
                    f"What was saved before it is whole: the disk or file system is too slow for it, or hangs; the "
                    f"same command goes on from there."
                ) from error
            raise UserError(
                f"A checkpoint cannot be written to {self._folder} ({why}). What was saved before it is whole: make "
                f"room, or mend the disk, and the same command goes on from there."
            ) from error


@dataclass
class _Kept:
    """Retention policy for Orbax: the checkpoints to keep at each save."""

    newest: int
    """Number kept up to the ``saved`` step, and up to the last one: steps may be taken again."""
    steps: frozenset[int]
    every: int
    best: int
    """Number with the lowest losses; ties go to the earliest."""
    losses: dict[int, float]
    saved: int = 0

    def of(self, steps: Sequence[int]) -> set[int]:
        """Return the subset of ``steps`` to keep."""
        before = sorted(step for step in steps if step <= self.saved)
        found = {*sorted(steps)[-self.newest :], *before[-self.newest :], *self.steps.intersection(steps)}
        found |= {step for step in steps if self.every and step % self.every == 0}
        known = [step for step in sorted(steps) if math.isfinite(self.losses.get(step, math.nan))]
        return found | {*sorted(known, key=self.losses.__getitem__)[: self.best]}

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        kept = self.of([info.step for info in checkpoints])
        return [info.step in kept for info in checkpoints]


@jax.jit
def _is_finite(state: TrainState) -> jax.Array:
    leaves = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.all(jnp.asarray([jnp.isfinite(leaf).all() for leaf in leaves]))


def _differences(saved: Path, state: TrainState) -> list[str]:
    """List the differences between a saved state and a state with these shapes."""
    there = _shapes(ocp.StandardCheckpointHandler().metadata(saved).tree)  # type: ignore[arg-type]
    here = _shapes(state)
    found = [f"{name} is missing in it" for name in here if name not in there]
    found += [f"{name} is in it, and is not used" for name in there if name not in here]
    return found + [
        f"{name} has {_shown(there[name])} in it and {_shown(shape)} here"
        for name, shape in here.items()
        if name in there and there[name] != shape
    ]


def _shapes(state: Any) -> dict[str, tuple[int, ...] | None]:
    """Return the shapes of a state's or its metadata's arrays by dotted name; None for a part without arrays. Such a
    part is None or an empty tuple in a state and None in metadata."""
    leaves = jax.tree_util.tree_leaves_with_path(state, is_leaf=lambda part: not jax.tree.leaves(part))
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): tuple(leaf.shape) if jax.tree.leaves(leaf) else None
        for path, leaf in leaves
    }


def _shown(shape: tuple[int, ...] | None) -> str:
    return "no array" if shape is None else f"shape {shape}"
