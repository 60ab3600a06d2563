"""The gallery: every named figure on one page of the documentation, drawn from published laws and data in the repo.

A figure that needs a table is drawn from ``gallery/NAME.csv`` beside the page where there is one, from synthetic data
where there is none, and says which.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable
from pathlib import Path

from matplotlib import rc_context
from PIL import Image

from moejax import run_table
from moejax.folder import atomic_write, write_text
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.style import PAPER, RC
from moejax.report.plots import Plot, draw, example_of, inputs_of
from moejax.say import ProgressCallback

FOLDER, PAGE = "gallery", "gallery.md"
QUALITIES = ((130, 256), (130, 64), (110, 64), (95, 48), (80, 32))
"""Dots per inch and colours of the palette; the first at which an image is small enough."""
LARGEST_BYTES = 60_000


def write_gallery(docs: Path, plots: Iterable[Plot], update: ProgressCallback = lambda share, text: None) -> Path:
    """Draw figures into ``docs/gallery`` and write ``docs/gallery.md``, by section; returns the page's path."""
    plots = list(plots)
    folder = docs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, list[str]] = {plot.section: [] for plot in plots}
    for number, plot in enumerate(plots):
        update(number / len(plots), f"drawing {plot.name}")
        inputs, data = _inputs(plot, folder)
        figure = draw(plot, inputs)
        with atomic_write(folder / f"{plot.name}.png") as partial:
            partial.write_bytes(small_png(figure))
        entries[plot.section].append(_entry(plot, figure, data))
    text = [_INTRODUCTION, *(f"## {heading}\n\n" + "\n".join(own) for heading, own in entries.items())]
    write_text(docs / PAGE, "\n".join(text))
    update(1.0, "drawn")
    return docs / PAGE


def small_png(figure: Figure) -> bytes:
    """Return the figure as a PNG with few colours, smaller than ``LARGEST_BYTES``."""
    content = b""
    for dots, colours in QUALITIES:
        with rc_context(RC):
            drawn = io.BytesIO()
            figure.drawing.savefig(drawn, format="png", dpi=dots, facecolor=PAPER, metadata={"Software": None})
        image = Image.open(drawn).convert("RGB").quantize(colours, dither=Image.Dither.NONE)
        out = io.BytesIO()
        image.save(out, format="png", optimize=True)
        content = out.getvalue()
        if len(content) < LARGEST_BYTES:
            break
    return content


def _inputs(plot: Plot, folder: Path) -> tuple[FigureInputs, str]:
    """Return the inputs of a figure, and a sentence on its data."""
    data = folder / f"{plot.name}.csv"
    if data.exists():
        inputs = inputs_of(plot, table=run_table.read_as_it_is(data))
        return dataclasses.replace(inputs, synthetic=False), f" Data: [{FOLDER}/{data.name}]({FOLDER}/{data.name})."
    inputs = example_of(plot)
    return inputs, " Data synthetic, to show the form." if inputs.synthetic else ""


def _entry(plot: Plot, figure: Figure, data: str) -> str:
    data = "" if "synthetic" in figure.caption else data
    table = f" --runs {'RUNS' if 'loss' in plot.columns else 'TABLE'}" if plot.needs_table else ""
    return (
        f"### {plot.name}\n\n![{figure.title}]({FOLDER}/{plot.name}.png)\n\n**{figure.title}** ({plot.source}). "
        f"{figure.caption}{data}\n\n`moejax plot {plot.name}{table}`\n"
    )


_INTRODUCTION = """\
# Gallery

Every figure that `moejax plot NAME` draws, written by `make gallery`. Curves are the laws with their published
coefficients; `--fit fit.json` draws them with yours, `--runs runs.csv` adds or replaces the points. Each figure comes
with its data as CSV; `--format png,svg,pdf` chooses the files, `--list` names the figures and the columns they read.

No document published its runs' losses. Where a figure is of runs, it is drawn from the 27 runs of the quickstart (the
tables in `gallery/`), or from synthetic data that show its form, and says which.
"""
