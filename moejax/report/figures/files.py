"""A picture as files of its own: PNG and SVG to look at, CSV with the data behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib import rc_context

from moejax.folder import whole
from moejax.report.figures.picture import Picture
from moejax.report.figures.style import PAPER, RC

DOTS_PER_INCH = 200


def write_picture(folder: Path, name: str, draw: Callable[[], Picture]) -> tuple[str, ...]:
    """Draw in the report's style and write ``name.png``, ``name.svg`` and ``name.csv``; returns the names.

    Each is either the old file or the new one; the same picture gives the same bytes.
    """
    written = []
    with rc_context(RC):
        picture = draw()
        for suffix in ("png", "svg"):
            written.append(f"{name}.{suffix}")
            with whole(folder / written[-1]) as partial:
                picture.figure.savefig(
                    partial,
                    format=suffix,
                    dpi=DOTS_PER_INCH,
                    facecolor=PAPER,
                    metadata={"Date": None} if suffix == "svg" else {"Software": None},
                )
    written.append(f"{name}.csv")
    with whole(folder / written[-1]) as partial:
        partial.write_text(picture.csv())
    return tuple(written)
