"""Show progress on stderr: a bar on a terminal, else occasional lines. Also format a training's values as text.

stdout has only results. The values of a training are speed, memory, goodput and routing statistics.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from moejax.progress import ProgressCallback
from moejax.quantities import format_bytes
from moejax.result import Column, Table
from moejax.say import say

ROUTING = {
    "load_cv": "load CV",
    "max_violation": "max vio",
    "load_min": "least",
    "load_max": "largest",
    "load_entropy": "entropy",
    "dead_experts": "dead",
    "dropped_share": "dropped",
    "logit_rms": "logit RMS",
    "bias_range": "bias range",
}
"""Headings of ``moejax.routing.statistics``, short enough for 80 columns."""


def speed_text(tokens_per_second: float, mfu: float | None) -> str:
    """Return speed as ``41,200 tokens/s, MFU 38.1 %``."""
    return f"{tokens_per_second:,.0f} tokens/s" + (f", MFU {mfu:.1%}" if mfu is not None else "")


def training_text(values: Mapping[str, Any]) -> str:
    """Return the logged values of a step on one line: loss, speed, balance, memory, skipped steps."""
    told = [f"loss {values['loss']:.3f}"] if "loss" in values else []
    if "validation_loss" in values:
        told.append(f"validation {values['validation_loss']:.3f}")
    if "tokens_per_second" in values:
        told.append(speed_text(values["tokens_per_second"], values.get("mfu")))
    if "load_cv" in values:
        told.append(f"load CV {values['load_cv']:.2f}")
    if values.get("dropped_share"):
        told.append(f"dropped {values['dropped_share']:.1%}")
    if values.get("skipped_steps"):
        told.append(f"skipped {values['skipped_steps']:.0f}")
    if "memory_bytes" in values:
        told.append(format_bytes(values["memory_bytes"], 3))
    return ", ".join(told)


def memory_text(in_use: int | None, peak: int) -> str:
    """Return memory as ``1.2 GB, at most 3.4 GB``."""
    return (f"{format_bytes(in_use, 3)}, " if in_use is not None else "") + f"at most {format_bytes(peak, 3)}"


def goodput_text(seconds: Mapping[str, float]) -> str:
    """Return goodput as ``87.3% of 12:07 (starting 9.1%, checkpointing 3.6%)``, from seconds by cause."""
    whole = sum(seconds.values()) or 1.0
    lost = sorted(((s / whole, cause) for cause, s in seconds.items() if cause != "training"), reverse=True)
    told = ", ".join(f"{cause} {part:.1%}" for part, cause in lost if part >= 0.0005)
    return f"{seconds['training'] / whole:.1%} of {clock(whole)}" + (f" ({told})" if told else "")


def routing_tables(layers: Mapping[str, Sequence[Any]] | None, title: str) -> list[Table]:
    """Return a table with a row per mixture layer; none for a dense model."""
    if not layers:
        return []
    named = [name for name in ROUTING if name in layers]
    columns = [Column(ROUTING[name], ".0f" if name == "dead_experts" else ".3f") for name in named]
    rows = [
        [layer if isinstance(layer, str) else int(layer), *map(float, values)]
        for layer, *values in zip(layers["layer"], *(layers[name] for name in named), strict=True)
    ]
    return [Table(title, [Column("layer"), *columns], rows)]


def clock(seconds: float) -> str:
    """Return seconds as a clock time: ``12:07``, ``3:12:07``, ``2 d 3:12:07``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{seconds:02d}"
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours}:{minutes:02d}:{seconds:02d}"


SECONDS_BETWEEN_LINES = 15.0
LEAST_SHARE = 0.01
"""Share of a stage below which no remaining time is shown, since compilation distorts the first estimates."""


@contextlib.contextmanager
def progress_display(begin: str = "") -> Iterator[ProgressCallback]:
    """Yield ``update(share, text)`` for one piece of work; until its first call, a terminal shows ``begin``.

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
    """Yield ``show(stage, done, total)`` for work in stages, such as a fit."""
    with progress_display() as update:
        yield lambda stage, done, total: update(done / max(total, 1), stage)


@contextlib.contextmanager
def waiting(text: str, *, every: float = 60.0) -> Iterator[None]:
    """Show that work of unknown length continues; without a terminal, by a line now and every minute."""
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
def training_progress(training: Any, *, quiet: bool) -> Iterator[Callable[[int, dict[str, Any]], None]]:
    """Yield the ``progress`` callback of ``moejax.train.loop.train``."""
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
        rest = f", about {clock((1 - share) / pace)} left" if share - first >= LEAST_SHARE and share < 1 else ""
        done = f"{share:4.0%}  " if share else ""
        say(f"{done}{text}  ({clock(now - began)} elapsed{rest})")

    return update
