"""Implement ``moejax status``: report the state of a training or a study from its files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from moejax.cli.progress import clock, goodput_text, memory_text, routing_tables, speed_text
from moejax.config import dump
from moejax.errors import UserError
from moejax.quantities import format, format_bytes
from moejax.report import render
from moejax.result import Column, Result, Table, Written, percent
from moejax.say import say
from moejax.storage import is_remote
from moejax.train.directory.attempts import RUNNING
from moejax.train.directory.manifest import verify
from moejax.train.directory.status import Status, is_study_folder, read_statuses
from moejax.wording import counted, some


def run(arguments: argparse.Namespace) -> int:
    """Print the status."""
    if is_remote(arguments.folder):
        raise UserError(
            f"{arguments.folder} is in a store; moejax status reads a folder: mount the bucket (docs/launch.md), or "
            f"for a study run moejax study status {arguments.folder}."
        )
    folder = Path(arguments.folder)
    statuses, is_study = read_statuses(folder), is_study_folder(folder)
    layers = [
        table
        for status in statuses
        if arguments.layers
        for table in routing_tables(status.layers, f"{status.name}: the last logged batch")
    ]
    shown = _study(statuses) if is_study else _training(statuses[0])
    render.show(replace(shown, tables=[*shown.tables, *layers]), as_json=arguments.json)
    if arguments.verify:
        _verify(folder, [Path(status.folder) for status in statuses])
    return 0


def _verify(folder: Path, folders: list[Path]) -> None:
    every = [verify(one) for one in folders]
    damaged = [place_and_error for one in every for place_and_error in one.damaged]
    if damaged:
        raise UserError(
            f"{counted(len(damaged), 'checkpoint')} not as written: "
            f"{some([f'{place}: {wrong}' for place, wrong in damaged], most=3, between='; ')}. Move "
            f"{some([str(place) for place, _ in damaged], most=3)} away; the same command then continues from the "
            f"checkpoint before {'it' if len(damaged) == 1 else 'them'}."
        )
    unreadable = [text for one in every for text in one.unreadable]
    if unreadable:
        raise UserError(
            f"{len(unreadable)} checkpoints cannot be read now: {some(unreadable, most=3, between='; ')}. Whether they "
            f"are whole is not known; ask again once the disk or file system answers."
        )
    if not any(one.checkpoints for one in every):
        raise UserError(
            f"There is nothing to verify: {some([str(one) for one in folders], most=3) or folder} "
            f"{'hold' if len(folders) > 1 else 'holds'} no checkpoint."
        )
    count, without = sum(one.checkpoints for one in every), sum(one.without_hash for one in every)
    size = format_bytes(sum(one.bytes for one in every))
    missing = f"; {without:,} files have no hash on record: their content was not compared" if without else ""
    say(f"{count:,} checkpoints: {size} are as they were written, by their hashes{missing}")


def _training(status: Status) -> Result:
    table = Table(f"{status.name} in {status.folder}", (Column(""), Column("", words=True)), list(_lines(status)))
    return Result(tables=[table], data=dump(status))


def _lines(status: Status) -> Iterator[tuple[str, str]]:
    """Yield names and values of a training's status, in words."""
    yield "state", status.state + (f": {status.why}" if status.why else "")
    if status.phase is not None and status.step is not None and status.tokens is not None:
        yield (
            "phase",
            f"{status.phase}, step {status.step:,}: {format(status.tokens)} tokens of {format(status.budget_tokens)}",
        )
    if status.total_steps is not None:
        yield "steps", f"{status.steps_done:,} of {status.total_steps:,}"
    if status.loss is not None:
        yield "loss", f"{status.loss:.4f} nats/token"
    if status.validation_loss is not None:
        yield "validation loss", f"{status.validation_loss:.4f} nats/token"
    if status.tokens_per_second is not None:
        yield "recent speed", speed_text(status.tokens_per_second, status.mfu)
    if status.eta_seconds is not None:
        yield "left", f"about {clock(status.eta_seconds)}"
    if status.state == RUNNING and status.silent_seconds is not None:
        yield "last sign of life", f"{clock(status.silent_seconds)} ago"
    if status.last_checkpoint is not None:
        place, step, age = (status.last_checkpoint[name] for name in ("phase", "step", "age_seconds"))
        yield "last checkpoint", f"{place}, step {step:,}, {clock(age)} ago"
    if status.best_checkpoint is not None:
        place, step, loss = (status.best_checkpoint[name] for name in ("phase", "step", "validation_loss"))
        yield "best checkpoint", f"{place}, step {step:,}, validation loss {loss:.4f} nats/token"
    if status.skipped_steps:
        yield "skipped steps", f"{status.skipped_steps:,}"
    if status.memory_peak_bytes is not None:
        yield "memory", memory_text(status.memory_bytes, status.memory_peak_bytes)
    if status.attempts > 1:
        yield "started", f"{status.attempts} times"
    if status.goodput is not None:
        yield "goodput", goodput_text(status.seconds)
    for row in status.rows:
        yield f"at {format(row['tokens'])} tokens", f"validation loss {row['loss']:.4f} nats/token"


def _study(found: list[Status]) -> Result:
    columns = (
        Column("model"),
        Column("state", words=True),
        Column("steps"),
        # A non-finite loss is a known value and is shown.
        Column("loss"),
        Column("validation", ".4f"),
        Column("tokens/s", ",.0f"),
        Column("left", clock),
        Column("goodput", percent()),
    )
    rows = [
        [
            status.name,
            status.state,
            f"{status.steps_done:,}" + (f" of {status.total_steps:,}" if status.total_steps is not None else ""),
            None if status.loss is None else Written(status.loss, f"{status.loss:.4f}"),
            status.rows[-1]["loss"] if status.rows else None,
            status.tokens_per_second,
            status.eta_seconds,
            status.goodput,
        ]
        for status in found
    ]
    why = [f"{status.name} {status.state}: {status.why}" for status in found if status.why]
    return Result(tables=[Table("Trainings", columns, rows)], notes=why, data=[dump(status) for status in found])
