"""A figure as files of its own: PNG, SVG or PDF to look at, CSV with the data behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from moejax.folder import atomic_write, one_set
from moejax.report.figures.figure import Figure
from moejax.report.figures.style import PAPER, RC

DOTS_PER_INCH = 200
FORMATS: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""What a figure can be written as, with the metadata that would make its bytes depend on the day."""


def write_figure(
    folder: Path, name: str, draw: Callable[[], Figure], formats: Sequence[str] = ("png", "svg")
) -> tuple[str, ...]:
    """Draw in the report's style and write ``name.png`` and so on, and ``name.csv``; returns the names.

    All of them are the old files or the new ones; the same figure gives the same bytes.
    """
    written = []
    with one_set(), rc_context(RC):
        figure = draw()
        for suffix in formats:
            written.append(f"{name}.{suffix}")
            with atomic_write(folder / written[-1]) as partial:
                figure.drawing.savefig(
                    partial, format=suffix, dpi=DOTS_PER_INCH, facecolor=PAPER, metadata=FORMATS[suffix]
                )
        written.append(f"{name}.csv")
        with atomic_write(folder / written[-1]) as partial:
            partial.write_text(figure.csv(), encoding="utf-8")
    return tuple(written)
