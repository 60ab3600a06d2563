"""Trainings that are interrupted in this process, and what of a training may not depend on it."""

import dataclasses

from moejax.train.directory import metrics
from moejax.train.directory.row import OF_THE_CLOCK
from moejax.train.loop import train
from moejax.train.mesh import MeshShape


class Killed(BaseException):
    """An interruption from outside; killing.py kills whole processes."""


def train_killed_at_every_log(training, folder):
    """Train, interrupted at every new line of the log and gone on with; returns the rows."""
    seen = set()

    def kill(steps, values):
        if steps not in seen and values:
            seen.add(steps)
            raise Killed

    while True:
        try:
            rows = train(training, folder, progress=kill)
        except Killed:
            assert len(seen) < 100
            continue
        assert len(seen) > 4
        return rows


def lasting(rows):
    """What a row says, apart from how long it took."""
    return [{k: v for k, v in row.items() if k not in OF_THE_CLOCK} for row in rows]


def logged(folder):
    """What the log says, apart from how long it took and the order of writing."""
    lines = [
        {k: v for k, v in line.items() if k not in metrics.OF_THE_CLOCK}
        for line in metrics.read(folder / "metrics.jsonl")
    ]
    return sorted(lines, key=lambda line: (line["phase"], line["step"]))


def on_one_device(training):
    """The mesh of the tests has 8 devices; one batch of 8 sequences fits them."""
    return dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, mesh=MeshShape(data=8)))
