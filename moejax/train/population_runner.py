"""The phases of a population: one program takes the steps of all members; what is read, logged and saved is each one's.

A member's folder is what it would be had it been trained by itself, and it can be gone on with by itself.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.stored import read_json, write_json
from moejax.train.attempts import RUNNING, Attempt, AttemptRecorder
from moejax.train.phases import Phase
from moejax.train.program import Program, vmap_program
from moejax.train.runner import Elapsed, Lost, Runner, Saves, batch_digest
from moejax.train.step import Batch, TrainState

DIVERGED = "diverged.json"
"""In the folder of a member that was given up, and why. Without it, the member is tried again."""


EVERY = "every"
"""What was saved beside every member's state."""


@dataclass(frozen=True)
class PopulationRunner(Runner):
    """A runner of several trainings at once. What they have in common is the first one's."""

    members: tuple[Runner, ...]

    def phases(self) -> tuple[Phase, list[Phase]]:
        """Each with the schedules of all members."""
        trunks, branches = zip(*(member.phases() for member in self.members), strict=True)
        return _side_by_side(trunks), [_side_by_side(of_one) for of_one in zip(*branches, strict=True)]

    def saves(self, phase: Phase, keep: Sequence[int] = ()) -> PopulationCheckpoints:
        """The checkpoints of a phase, in every member's folder."""
        return PopulationCheckpoints([(member, member.saves(phase, keep)) for member in self.members])

    def running(self) -> list[Runner]:
        """The members but those that were given up."""
        return [member for member in self.members if given_up(member.folder) is None]

    def apart(self, state: TrainState) -> list[tuple[Runner, TrainState]]:
        """The same, each with its state."""
        states = _unstacked(state, len(self.members))
        return [(m, own) for m, own in zip(self.members, states, strict=True) if given_up(m.folder) is None]

    def first(self) -> TrainState:
        return _stacked([member.first() for member in self.members])

    def rewind(self, phase: Phase, step: int) -> None:
        for member in self.running():
            member.rewind(phase, step)

    def batches(self, start: int) -> Iterator[Batch]:
        """Every member's batch; members that read in the same order share a reader."""
        orders = [member.order for member in self.members]
        readers = {order: member.read(start) for order, member in zip(orders, self.members, strict=True)}
        while True:
            rows = {order: next(reader)[2] for order, reader in readers.items()}
            yield {name: jnp.asarray(np.stack([rows[order][name] for order in orders])) for name in rows[orders[0]]}

    def evaluate(self, state: TrainState) -> list[dict[str, float]]:
        """Of each member."""
        self.attempts.enter("evaluation")
        states = _unstacked(state, len(self.members))
        return [member.evaluate(own) for member, own in zip(self.members, states, strict=True)]

    def write(
        self, phase: Phase, position: int, elapsed: Elapsed, metrics: dict[str, Any], measured: Any, batch: Batch
    ) -> list[Lost]:
        """Log each member's step, with its share of the time."""
        values, digests = jax.device_get((metrics, _digests(batch)))
        share = Elapsed(elapsed.since, *(seconds / len(self.members) for seconds in elapsed[1:]))
        lines, lost = [], []
        for number, member in enumerate(self.members):
            if given_up(member.folder) is None:
                own = member.plain(jax.tree.map(lambda of_all, number=number: of_all[number], values))
                found = {} if measured is None else measured[number]
                lines.append(member.log_step(phase, position, share, {**own, **found}, int(digests[number])))
                lost += member.lost(phase, position, own)
        best = min(lines, key=lambda line: line["loss"] if math.isfinite(line["loss"]) else math.inf)
        self.progress(best["steps_done"], best)
        return lost

    def check_trained(self, metadata: Mapping[str, Any], what: str) -> None:
        """Each member's, which were restored together."""
        for member, own in zip(self.members, metadata.get(EVERY, []), strict=False):
            member.check_trained(own, what)

    def metadata(self, position: int, seconds: float, measured: Any = None) -> list[Any]:
        """Of each member, with its share of the time."""
        found = [None] * len(self.members) if measured is None else measured
        share = seconds / len(self.members)
        return [member.metadata(position, share, own) for member, own in zip(self.members, found, strict=True)]

    def give_up(self, lost: Sequence[Lost]) -> None:
        """Leave members out from here on; refuse if none is left."""
        for member, sentence in lost:
            write_json(member.folder / DIVERGED, {"why": sentence})
        every = [given_up(member.folder) for member in self.members]
        if None not in every:
            self.group.abort(" ".join(why for why in every if why))


class EveryAttempt(AttemptRecorder):
    """The clocks of all members, as one: what it is told, each of them is told."""

    def __init__(self, attempts: Sequence[AttemptRecorder]):
        self._every = attempts

    @property
    def versions(self) -> dict[str, str]:
        return self._every[0].versions

    def enter(self, bucket: str) -> None:
        for attempts in self._every:
            attempts.enter(bucket)

    def step(self, phase: str, step: int) -> None:
        for attempts in self._every:
            attempts.step(phase, step)

    def waited(self, seconds: float) -> None:
        for attempts in self._every:
            attempts.waited(seconds)

    def reach(self, phase: str, step: int) -> None:
        for attempts in self._every:
            attempts.reach(phase, step)

    def all(self, state: str = RUNNING, why: str = "") -> list[Attempt]:
        """The attempts of all members, one member after another; each has its share of the devices' time."""
        return [attempt for attempts in self._every for attempt in attempts.all(state, why)]

    def write(self, state: str = RUNNING, why: str = "", *, at_once: bool = True) -> None:
        """Put each member's attempts into its own folder."""
        for attempts in self._every:
            attempts.write(state, why, at_once=at_once)


class PopulationCheckpoints:
    """Checkpoints of one phase of all members, each in its own folder: as one member's, of a state of all."""

    def __init__(self, members: Sequence[tuple[Runner, Saves]]):
        self._members = members

    def newest(self, at_most: int | None = None) -> int | None:
        """The newest step of which every member has a whole checkpoint; the moment of a kill lies between saves."""
        while True:
            found = {saves.newest(at_most) for _, saves in self._active()}
            if len(found) == 1:
                return found.pop()
            if None in found:
                return None
            at_most = min(step for step in found if step is not None)

    def last_step(self) -> int | None:
        """The step that every member has committed, or one after it; nothing is read of them."""
        found = [saves.last_step() for _, saves in self._active()]
        return None if None in found else min(step for step in found if step is not None)

    def save(self, step: int, state: TrainState, metadata: Sequence[Any]) -> None:
        """Save each member's part."""
        states = _unstacked(state, len(self._members))
        for (runner, saves), own, its_metadata in zip(self._members, states, metadata, strict=True):
            if given_up(runner.folder) is None:
                saves.save(step, own, its_metadata)

    def restore(self, step: int, program: Program) -> tuple[TrainState, dict[str, Any]]:
        """The members' states at ``step``. In the place of one that was given up stands another, of no consequence."""
        found = {id(runner): saves.restore(step, runner.program) for runner, saves in self._active()}
        anyone = next(iter(found.values()))
        every = [found.get(id(runner), anyone) for runner, _ in self._members]
        seconds = sum(metadata["seconds"] for _, metadata in every)
        return _stacked([state for state, _ in every]), {
            "seconds": seconds,
            EVERY: [found.get(id(runner), ({}, {}))[1] for runner, _ in self._members],
        }

    def wait(self) -> None:
        """Until nothing is being written."""
        for _, saves in self._members:
            saves.wait()

    def __enter__(self) -> PopulationCheckpoints:
        return self

    def __exit__(self, *raised: object) -> None:
        with contextlib.ExitStack() as closing:
            for _, saves in self._members:
                closing.push(saves)

    def _active(self) -> list[tuple[Runner, Saves]]:
        return [(runner, saves) for runner, saves in self._members if given_up(runner.folder) is None]


def run_population(members: Sequence[Runner]) -> PopulationRunner:
    """The runner of several trainings that differ in what a population's members may differ in."""
    first = members[0]
    own = {
        "program": vmap_program(first.program, len(members)),
        "attempts": EveryAttempt([member.attempts for member in members]),
        "members": tuple(members),
    }
    return PopulationRunner(**{**vars(first), **own})


def given_up(folder: Path) -> str | None:
    """Why a member was given up, or None if it was not."""
    path = folder / DIVERGED
    remedy = "remove it, and the member is tried again"
    return read_json(path, {"why": str}, remedy=remedy)["why"] if path.exists() else None


def _side_by_side(phases: Sequence[Phase]) -> Phase:
    schedule = jax.tree.map(lambda *of_members: np.array(of_members, np.float32), *(phase.schedule for phase in phases))
    return replace(phases[0], schedule=schedule)


@jax.jit
def _stacked(states: list[TrainState]) -> TrainState:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


@functools.partial(jax.jit, static_argnums=1)
def _unstacked(state: TrainState, members: int) -> list[TrainState]:
    return [jax.tree.map(lambda leaf, number=number: leaf[number], state) for number in range(members)]


_digests = jax.jit(jax.vmap(batch_digest))
