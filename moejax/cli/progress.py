"""Show progress on stderr: a bar on a terminal, otherwise occasional lines. stdout is reserved for results."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from moejax.quantities import clock
from moejax.say import ProgressCallback, say

if TYPE_CHECKING:
    from moejax.train.training import Training

SECONDS_BETWEEN_LINES = 15.0
LEAST_SHARE = 0.01
"""Share of a stage below which no remaining time is shown, since compilation distorts the first estimates."""


@contextlib.contextmanager
def progress_display(begin: str = "") -> Iterator[ProgressCallback]:
    """Yield ``update(share, text)``, which shows the progress of one task; until its first call, a terminal shows
    ``begin``.

    A decreasing share starts a new stage with its own estimate of the remaining time.
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
                # A new stage has its own pace and remaining time.
                bar.reset(task)
            last = share
            bar.update(task, completed=share, description=text)

        yield update


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield ``show(stage, done, total)``, which shows the progress of a task in stages, such as a fit."""
    with progress_display() as update:
        yield lambda stage, done, total: update(done / max(total, 1), stage)


@contextlib.contextmanager
def waiting(text: str, *, every: float = 60.0) -> Iterator[None]:
    """Show that a task of unknown length is running. Without a terminal, print a line now and then every minute."""
    with progress_display() as update:
        if not sys.stderr.isatty():
            say(text)
        update(0.0, text)
        over = threading.Event()

        def repeat() -> None:
            while not over.wait(every):
                update(0.0, text)

        threading.Thread(target=repeat, name="waiting", daemon=True).start()
        try:
            yield
        finally:
            over.set()


@contextlib.contextmanager
def training_progress(training: Training, *, quiet: bool) -> Iterator[Callable[[int, dict[str, Any]], None]]:
    """Yield the ``progress`` callback of ``moejax.train.loop.train``."""
    if quiet:
        yield lambda steps, values: None
        return
    # The import is local, because other progress does not need the report.
    from moejax.report.trainings import training_text
    from moejax.train.training import phase_text

    with progress_display(f"{training.name}: starting") as update:

        def report(steps: int, values: dict[str, Any]) -> None:
            total, phase = training.recipe.total_steps, phase_text(training.recipe, values.get("phase", ""))
            told = ", ".join(filter(None, (f"step {steps:,} of {total:,}", phase, training_text(values))))
            update(steps / total, f"{training.name}: {told}")

        yield report


def _lines() -> ProgressCallback:
    began = printed = time.monotonic()
    start: float | None = None
    first: tuple[float, float] | None = None
    """Share and time of the first progress of a stage. The time before it, such as compilation, has another pace."""
    last = 0.0

    def update(share: float, text: str) -> None:
        nonlocal printed, start, first, last
        now = time.monotonic()
        if start is None or share < last:
            start, first = share, None
        if first is None and share > start:
            first = share, now
        last = share
        if now - printed < SECONDS_BETWEEN_LINES:
            return
        printed = now
        rest = ""
        if first is not None and share - first[0] >= LEAST_SHARE and share < 1:
            pace = (share - first[0]) / max(now - first[1], 1e-9)
            rest = f", about {clock((1 - share) / pace)} left"
        done = f"{share:4.0%}  " if share else ""
        say(f"{done}{text}  ({clock(now - began)} elapsed{rest})")

    return update
