"""Progress of long work on stderr: a bar on a terminal, a line now and then elsewhere; stdout carries results alone."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from moejax.cli.training_text import clock, training_text
from moejax.progress import ProgressCallback
from moejax.say import say

SECONDS_BETWEEN_LINES = 15.0


@contextlib.contextmanager
def progress_display(begin: str = "") -> Iterator[ProgressCallback]:
    """Yields ``update(share, text)`` for one piece of work; until then, a terminal shows ``begin``.

    A share that falls begins another stage, whose time left is reckoned from there on.
    """
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(
        *columns,
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        speed_estimate_period=120,
        transient=True,
    ) as bar:
        task, last = bar.add_task(begin, total=1.0), 0.0

        def update(share: float, text: str) -> None:
            nonlocal last
            if share < last:
                # Another stage has begun: its pace is its own, and so is the time it still takes.
                bar.reset(task)
            last = share
            bar.update(task, completed=share, description=text)

        yield update


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields ``show(stage, done, total)`` for work in stages, such as a fit."""
    with progress_display() as update:
        yield lambda stage, done, total: update(done / max(total, 1), stage)


@contextlib.contextmanager
def training_progress(training: Any, *, quiet: bool) -> Iterator[Callable[[int, dict[str, Any]], None]]:
    """Yields the ``progress`` of ``moejax.train.loop.train``."""
    if quiet:
        yield lambda steps, values: None
        return
    with progress_display(f"{training.name}: compiling") as update:

        def report(steps: int, values: dict[str, Any]) -> None:
            total, told = training.recipe.total_steps, training_text(values)
            update(steps / total, f"{training.name}: step {steps:,} of {total:,}{told and f', {told}'}")

        yield report


def _lines() -> ProgressCallback:
    began = stage_began = printed = time.monotonic()
    first: float | None = None
    last = 0.0

    def update(share: float, text: str) -> None:
        nonlocal printed, first, last, stage_began
        now = time.monotonic()
        if share < last:
            first, stage_began = share, now
        first = share if first is None else first
        last = share
        if now - printed < SECONDS_BETWEEN_LINES:
            return
        printed = now
        pace = (share - first) / max(now - stage_began, 1e-9)
        rest = f", about {clock((1 - share) / pace)} left" if pace > 0 and share < 1 else ""
        say(f"{share:4.0%}  {text}  ({clock(now - began)} elapsed{rest})")

    return update
