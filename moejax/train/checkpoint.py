"""Checkpoints through Orbax: the state, the position in the data and what they belong to, atomically."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from moejax.train.manifest import VALIDATION_LOSS, damage, is_finished, validation_losses, write_manifest
from moejax.train.processes import Together
from moejax.train.program import Program
from moejax.train.step import TrainState

policies = ocp.checkpoint_managers.preservation_policy

DAMAGED = "damaged"
"""Folder beside those of the legs, to which checkpoints that cannot be read are moved."""


class Checkpoints:
    """Checkpoints of one trunk or branch, by optimiser step, whatever mesh or number of processes writes or reads them.

    The ``newest`` ones are kept, every step in ``keep``, every multiple of ``every``, and of those that were saved with
    a ``validation_loss`` the ``best``.
    """

    def __init__(
        self,
        folder: Path,
        together: Together | None = None,
        *,
        newest: int = 2,
        keep: Sequence[int] = (),
        every: int = 0,
        best: int = 0,
        say: Callable[[str], None] = lambda text: None,
    ):
        self._folder, self._together, self._say = folder.resolve(), together or Together(), say
        if self._together.first:
            _remove_unfinished(self._folder)
        self._together.told(None)
        kept = [policies.LatestN(newest), policies.CustomSteps(keep)]
        kept += [policies.EveryNSteps(every)] if every else []
        self._losses = validation_losses(self._folder) if best else {}
        kept += [_Best(best, self._losses)] if best else []
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(kept), cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(self._folder, options=options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def newest(self, at_most: int | None = None) -> int | None:
        """The newest step whose checkpoint is whole, or None if there never was one.

        Damaged ones are moved away, with a message.

        Raises:
          ValueError: there are checkpoints, and all of them are damaged.
        """
        self.wait()
        found = self._together.do(lambda: self._sound(at_most) if self._together.first else None)
        step = self._together.told(found)
        self._manager.reload()
        return step

    def save(self, step: int, state: TrainState, about: Mapping[str, Any]) -> None:
        """Write a checkpoint in the background; one that is not finished when the process dies never counts.

        Raises:
          ValueError: this one, or the one before, cannot be written.
        """
        self.wait()
        if step in self._manager.all_steps():
            return
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(dict(about)))
        if VALIDATION_LOSS in about:
            self._losses[step] = about[VALIDATION_LOSS]
        with self._failing():
            self._manager.save(step, args=items, force=True)
        self._writing = self._thread.submit(self._finish, step)

    def restore(self, step: int, program: Program) -> tuple[TrainState, dict[str, Any]]:
        """The state at ``step``, laid out on this program's mesh whatever mesh wrote it, and what was saved with it."""
        self.wait()
        abstract = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            program.abstract,
            program.shardings,
        )
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), about=ocp.args.JsonRestore())
        found = self._manager.restore(step, args=items)
        return found["state"], found["about"]

    def wait(self) -> None:
        """Until nothing is being written.

        Raises:
          ValueError: what was being written could not be.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            with self._failing():
                writing.result()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *raised: object) -> None:
        """Wait for what is being written, also when the training failed."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            with contextlib.suppress(Exception):
                self._manager.close()

    def _finish(self, step: int) -> None:
        self._manager.wait_until_finished()
        if self._together.first:
            write_manifest(self._folder / str(step))

    def _sound(self, at_most: int | None) -> int | None:
        steps = [step for step in reversed(_steps(self._folder)) if at_most is None or step <= at_most]
        told: list[str] = []
        for step in steps:
            wrong = damage(self._folder / str(step))
            if wrong is None:
                if told:
                    self._say(f"{' '.join(told)} Going on from step {step}.")
                return step
            place = self._set_aside(step)
            told.append(f"The checkpoint of step {step} in {self._folder} is damaged: {wrong}; it is now {place}.")
        if told:
            raise ValueError(
                f"{' '.join(told)} There is none before it; bring back a copy, or train anew in another --out."
            )
        return None

    def _set_aside(self, step: int) -> Path:
        place = self._folder.parent / DAMAGED / f"{self._folder.name}-{step}"
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        return (self._folder / str(step)).rename(place)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        # What a full disk raises in Orbax depends on which of its writers meets it.
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
            # The operating system's own words come last.
            why = why if len(why) < 200 else f"…{why[-200:]}"
            raise ValueError(
                f"A checkpoint cannot be written to {self._folder} ({why}). What was saved before it is whole: make "
                f"room, or mend the disk, and the same command goes on from there."
            ) from error


@dataclass(frozen=True)
class _Best:
    """A policy of Orbax': those with the lowest losses, the first of equal ones."""

    number: int
    losses: Mapping[int, float]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [info.step for info in checkpoints]
        known = [step for step in steps if math.isfinite(self.losses.get(step, math.nan))]
        known.sort(key=self.losses.__getitem__)
        return [step in known[: self.number] for step in steps]


def _steps(folder: Path) -> list[int]:
    found = folder.iterdir() if folder.is_dir() else []
    return sorted(int(path.name) for path in found if path.name.isdigit())


def _remove_unfinished(folder: Path) -> None:
    """What a process left that died between Orbax' last word and ours."""
    for step in _steps(folder):
        place = folder / str(step)
        if not is_finished(place) and (place / "about").is_dir():
            shutil.rmtree(place)
