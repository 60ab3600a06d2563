"""Define a figure: its inputs, drawing, caption, data and files."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.text import Text
from numpy.typing import ArrayLike

from moejax.errors import UserError
from moejax.fit.search.objective import compiled_outputs
from moejax.float64 import float64
from moejax.folder import atomic_write, one_set, write_text
from moejax.laws.active_params import ACTIVE_PARAMS, DEFAULT, sentence
from moejax.laws.design import design_from
from moejax.laws.law import Law
from moejax.ranges import FIGURE_WIDTHS
from moejax.report.figures.style import END_LABEL, NARROW_INCHES, PAPER, RC, legend_columns, restack
from moejax.report.render import latex_text
from moejax.run_table import DataFrame
from moejax.table_file import inert
from moejax.wording import argument


@dataclass(frozen=True)
class Figure:
    """One figure of a report."""

    title: str
    caption: str
    """One or two sentences that explain the figure."""
    drawing: Drawing
    rows: Sequence[dict[str, Any]]
    """The figure's data; column names include units."""

    def csv(self) -> str:
        """Return the rows as CSV. Cells of missing columns are empty."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writerow({name: inert(name) for name in names})
        writer.writerows({name: inert(value) for name, value in row.items()} for row in self.rows)
        return text.getvalue()

    def save(self, path: str | Path, *, width: float | None = None) -> Path:
        """Write the drawing as PNG, SVG or PDF, depending on the suffix of the path; an existing file is replaced.

        Args:
          width: width in inches, by default 7.2, the width of a page. A figure of one panel fits a column of a
            two-column paper with 3.3. Panels that would be too narrow are stacked, so that the figure is higher. Below
            4.5 inches, labels at curve ends move into the legend, and more than three panels have two columns and
            smaller fonts; otherwise fonts keep their size.

        Raises:
          UserError: the suffix is not supported, or the width is not in ``FIGURE_WIDTHS``.

        Example:
          >>> figure.save("loss.pdf", width=3.3)
        """
        path = Path(path)
        if (suffix := path.suffix[1:]) not in FORMATS:
            raise UserError(
                f"{path} is not a figure file name; end it with one of {', '.join(f'.{f}' for f in FORMATS)}."
            )
        if width is not None and width not in FIGURE_WIDTHS:
            raise UserError(f"{argument('width')} is {width:g} inches; give {FIGURE_WIDTHS}.")
        with atomic_write(path) as partial, self._of_width(width):
            self._write(partial, suffix)
        return path

    @contextlib.contextmanager
    def _of_width(self, width: float | None) -> Iterator[None]:
        """Change the drawing's width while it is written. A narrow drawing has fewer columns of panels and of legend
        entries, and is higher."""
        with contextlib.ExitStack() as undo:
            if width is not None:
                self._narrow(width, undo)
            yield

    def _narrow(self, width: float, undo: contextlib.ExitStack) -> None:
        usual, legends = self.drawing.get_size_inches().copy(), list(self.drawing.legends)
        undo.callback(self.drawing.set_size_inches, *usual)
        labels = self._end_labels() if legends and width < NARROW_INCHES else []
        for label in labels:
            undo.callback(label.set_visible, True)
            label.set_visible(False)
        usual_lines = lines = 0
        for legend in legends:
            legend.set_visible(False)
            legend.set_in_layout(False)
            undo.callback(legend.set_visible, True)
            undo.callback(legend.set_in_layout, True)
            names = [text.get_text() for text in legend.get_texts()]
            usual_lines += -(-len(names) // legend._ncols)  # type: ignore[attr-defined]
            handles, names = with_labels(list(legend.legend_handles), names, labels)
            labels, columns = [], legend_columns(names, width)
            with rc_context(RC):
                narrow = self.drawing.legend(handles, names, loc="outside lower center", ncols=columns)  # type: ignore[arg-type]
            undo.callback(narrow.remove)
            lines += -(-len(names) // columns)
        below = LEGEND_LINE_INCHES * lines
        panels = restack(self.drawing, width, usual[1] - LEGEND_LINE_INCHES * usual_lines, below, undo)
        self.drawing.set_size_inches(width, panels + below)

    def _end_labels(self) -> list[Text]:
        return [text for axes in self.drawing.axes for text in axes.texts if text.get_label() == END_LABEL]

    def to_latex(self, path: str | Path) -> str:
        """Return a LaTeX figure environment that includes the file at ``path`` with the title and the caption.

        Example:
          >>> path = figure.save("loss.pdf")
          >>> print(figure.to_latex(path))
        """
        path = Path(path)
        return "\n".join(
            [
                r"\begin{figure}",
                r"  \centering",
                rf"  \includegraphics[width=\linewidth]{{{path.as_posix()}}}",
                rf"  \caption{{{latex_text(f'{self.title}. {self.caption}')}}}",
                rf"  \label{{fig:{path.stem}}}",
                r"\end{figure}",
            ]
        )

    def __repr__(self) -> str:
        # A notebook keeps this text next to the image.
        return f"{self.title}: {self.caption}"

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self._write(png, "png", 110)
        return png.getvalue()

    def _write(self, into: Any, suffix: str, dots_per_inch: int | None = None) -> None:
        with rc_context(RC):
            words = {CAPTIONS[suffix]: self.caption, "Title": self.title}
            self.drawing.savefig(
                into,
                format=suffix,
                dpi=dots_per_inch or DOTS_PER_INCH,
                facecolor=PAPER,
                metadata=FORMATS[suffix] | words,
            )


DOTS_PER_INCH = 200
LEGEND_LINE_INCHES = 1.5 * RC["legend.fontsize"] / 72
"""Height of a line of a legend, with matplotlib's spacing of half a font size."""
FORMATS: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""File formats, each with the metadata keys to remove because they contain the date."""
CAPTIONS = {"png": "Description", "svg": "Description", "pdf": "Subject"}
"""Metadata keys of the caption, by file format."""


def with_labels(handles: list[Any], names: list[str], labels: Sequence[Text]) -> tuple[list[Any], list[str]]:
    """Return the entries of a legend with the labels of curve ends: after the name of the curve, or as own entries."""
    for label in labels:
        words = label.get_text()
        name, separator, _ = words.partition(": ")
        if name in names:
            names = [words if one == name else one for one in names]
            continue
        # A design's entry, which has its sizes, precedes its loss.
        place = next((i + 1 for i, one in enumerate(names) if separator and one.startswith(f"{name}:")), len(names))
        handles = [*handles[:place], Line2D([], [], linestyle=""), *handles[place:]]
        names = [*names[:place], words if separator else f"predicted: {words}", *names[place:]]
    return handles, names


def styled(draw: Callable[[], Figure]) -> Figure:
    """Return a figure drawn in the style of all figures."""
    with rc_context(RC):
        return draw()


def write_figure(
    folder: Path,
    name: str,
    draw: Callable[[], Figure],
    formats: Sequence[str] = ("png", "svg"),
    width: float | None = None,
) -> tuple[str, ...]:
    """Draw in the report's style, write ``name.csv`` and a file per format, and return the names of the files.

    ``width`` is that of ``Figure.save``. The files are replaced all together or not at all; the same figure gives the
    same bytes.
    """
    written = []
    with one_set(), rc_context(RC):
        figure = draw()
        for suffix in formats:
            written.append(f"{name}.{suffix}")
            figure.save(folder / written[-1], width=width)
        written.append(f"{name}.csv")
        write_text(folder / written[-1], figure.csv())
    return tuple(written)


@dataclass(frozen=True, kw_only=True)
class FigureInputs:
    """A law, a table, or both, depending on the figure."""

    law: Any = None
    """The law to draw."""
    name: str = ""
    """Source of the coefficients, in words."""
    table: DataFrame = None
    """Runs, or the data of a figure without a law."""
    active_params: Any = ACTIVE_PARAMS[DEFAULT]
    """The active-parameter convention of figures that have only sizes and sparsity."""
    synthetic: bool = False
    """True if the table is a synthetic example."""

    @property
    def whose(self) -> str:
        """Return the caption sentence about the source of the points."""
        return " The points are synthetic examples." if self.synthetic else ""

    @property
    def assumes(self) -> str:
        """Return the caption sentence about the active-parameter convention."""
        return sentence(self.active_params)

    def has(self, *columns: str) -> bool:
        """Return whether there is a table with these columns."""
        return self.table is not None and all(column in self.table for column in columns)


def evaluate(law: Law, output: str = "loss", /, **fields: ArrayLike) -> np.ndarray:
    """Return a law's float64 predictions for a design whose fields are numbers or broadcastable arrays."""
    shape = np.broadcast_shapes(*(np.shape(value) for value in fields.values()))
    flat = {name: np.ravel(np.broadcast_to(np.asarray(value, np.float64), shape)) for name, value in fields.items()}
    with float64():
        return np.asarray(compiled_outputs(law, design_from(flat), output), np.float64).reshape(shape)


def structured(active_experts: ArrayLike, shared_share: ArrayLike, **sizes: ArrayLike) -> dict[str, Any]:
    """Return design fields, keyed by name, for ``evaluate``: active experts G, the share S of them that is shared, and
    sizes."""
    active = np.asarray(active_experts, float)
    shared = active * shared_share
    return {"top_k": active - shared, "num_shared_experts": shared, **sizes}


def column(table: DataFrame, name: str) -> np.ndarray:
    """Return a column as floats."""
    return table[name].to_numpy(dtype=np.float64)


def ordered(values: Iterable[float]) -> list[float]:
    """Return the distinct values in ascending order."""
    return sorted({float(value) for value in values})
