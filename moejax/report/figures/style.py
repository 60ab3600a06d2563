"""Define the style of all figures, with colors that suit color-blind readers and light and dark pages.

Figures are drawn in the light colors; ``moejax.report.page`` replaces each color with its CSS variable, so that
figures follow the page's light or dark mode.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure as Drawing
from matplotlib.gridspec import GridSpec, SubplotSpec
from matplotlib.text import Annotation
from matplotlib.ticker import FixedFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import offset_copy

from moejax.result import size

T = TypeVar("T")

INK, MUTED, FAINT, PAPER = "#1d232b", "#5f6975", "#d3d8de", "#fefefe"
BLUE, ORANGE, GREEN, PINK, SKY, RED = "#0072b2", "#d55e00", "#009e73", "#b0558f", "#3f95cc", "#a4232f"
SERIES = (BLUE, ORANGE, GREEN, PINK, SKY, RED)
"""Colors of categories, in order of use (after Okabe and Ito)."""

SEQUENTIAL = LinearSegmentedColormap.from_list("moejax", colormaps["viridis"](np.linspace(0.0, 0.93, 256)))
"""Colors of a quantity, dark for small values; the order is also visible to color-blind readers and in grey."""


MARKERS = ("o", "^", "D", "v", "P", "X", "<", ">")
"""Markers of categories, in order of use, so that a black-and-white print distinguishes them. Squares and stars are not
among them, because they have their own meanings.
"""
LINES: tuple[Any, ...] = ("-", (0, (8, 2)), (0, (6, 1.5, 1, 1.5)), (0, (10, 1.5, 1, 1.5, 1, 1.5)), (0, (3, 1)))
"""Line styles of categories, in order of use."""


def markers_of(categories: Iterable[T]) -> dict[T, str]:
    """Return a marker per category."""
    return dict(zip(dict.fromkeys(categories), itertools.cycle(MARKERS), strict=False))


def lines_of(categories: Iterable[T]) -> dict[T, Any]:
    """Return a line style per category."""
    return dict(zip(dict.fromkeys(categories), itertools.cycle(LINES), strict=False))


LOST = 0.15
"""Luminance below which a line has a contrast of less than 3 on a dark page."""


def ramp(count: int) -> list[str]:
    """Return colors of ``count`` ordered series, from dark to light."""
    return [to_hex(SEQUENTIAL(place)) for place in np.linspace(0.08, 0.9, max(count, 2))[:count]]


def colored(values: Collection[T]) -> list[tuple[T, str]]:
    """Return ordered values with their colors along a ramp."""
    return list(zip(values, ramp(len(values)), strict=True))


def dark(color: str) -> bool:
    """Return whether a line of this color is hard to see on a dark page."""
    linear = (np.asarray(to_rgb(color)) + 0.055) ** 2.4 / 1.055**2.4
    return float(linear @ (0.2126, 0.7152, 0.0722)) < LOST


def classes(count: int) -> list[str]:
    """Return colors of ``count`` classes: the page's colors, which suit its dark mode, if there are enough; else a
    ramp.
    """
    return list(SERIES[:count]) if count <= len(SERIES) else ramp(count)


COLORS = {
    "ink": INK,
    "muted": MUTED,
    "faint": FAINT,
    "paper": PAPER,
    "blue": BLUE,
    "orange": ORANGE,
    "green": GREEN,
    "pink": PINK,
    "sky": SKY,
    "red": RED,
}
"""Colors by CSS variable name."""

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlecolor": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "text.color": INK,
    # Names of runs and columns may contain dollar signs, which would start math text.
    "text.parse_math": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    # A whole period of every line style.
    "legend.handlelength": 3.4,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "figure.facecolor": "none",
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",
    # Embed TrueType instead of Type 3 fonts, as journals require.
    "pdf.fonttype": 42,
    "svg.hashsalt": "moejax",
}
"""matplotlib settings, applied to each drawing instead of globally."""

WIDTH_INCHES = 7.2


CHARACTERS = 105
"""Approximate number of characters per legend row of a figure of ``WIDTH_INCHES``."""


def legend_columns(names: Sequence[str], width_inches: float = WIDTH_INCHES) -> int:
    """Return the number of columns of a legend that fit a figure's width."""
    fits = int(CHARACTERS * width_inches / WIDTH_INCHES // (max(map(len, names)) + 9))
    columns = max(1, min(len(names), fits))
    lines = -(-len(names) // columns)
    return -(-len(names) // lines)


def grid(count: int, columns: int, *, height_inches: float, **options: Any) -> tuple[Drawing, list[Axes]]:
    """Return a matplotlib figure of ``count`` panels in rows of at most ``columns``."""
    columns = min(count, columns)
    rows = -(-count // columns)
    drawing = Drawing(figsize=(WIDTH_INCHES, rows * height_inches))
    axes = list(np.ravel(drawing.subplots(rows, columns, squeeze=False, **options)))
    for spare in axes[count:]:
        spare.set_visible(False)
    return drawing, axes[:count]


LEAST_PANEL_INCHES = WIDTH_INCHES / 3
"""Width per panel below which a figure gets fewer columns, because axis labels and titles would be cut off."""
NARROW_INCHES = 4.5
"""Width below which a figure is one column of a paper: labels move into the legend, and panels are less high."""
LEAST_PAIR_INCHES = 3.0
"""Width below which two panels do not fit side by side even with small fonts."""
STACKED = 3
"""Largest number of panels of a narrow figure that are stacked in one column."""
PAGE_INCHES = 8.0
"""Largest height of a narrow figure, unless its panels would be less high than ``LEAST_ROW_INCHES``."""
LEAST_ROW_INCHES, ROW_INCHES, ONE_ROW_INCHES = 1.3, 2.1, 2.6
"""Smallest and largest height of a row of a narrow figure with labels and title, and largest height of a single row."""
SMALL = 0.8
"""Font size of two panels side by side in a narrow figure, relative to the usual size."""
WRAP_LABEL, WRAP_TITLE, WRAP_TEXT = 22, 17, 12
"""Number of characters after which labels, titles and texts of such panels continue on the next line."""


def restack(
    drawing: Drawing, width_inches: float, height_inches: float, legend_inches: float, undo: ExitStack
) -> float:
    """Move the panels into as many columns as fit a width, and return the height of all rows.

    Args:
      height_inches: height of all rows at the usual width, without legends.
      legend_inches: height of the legends at the new width.
      undo: moves the panels back when it closes.
    """
    cells = {axes: cell for axes in drawing.axes if (cell := axes.get_subplotspec()) is not None}
    if not cells:
        return height_inches
    columns, rows = next((cell.get_gridspec().ncols, cell.get_gridspec().nrows) for cell in cells.values())
    count = 1 + max(cell.num1 for axes, cell in cells.items() if axes.get_visible())
    fit = max(1, int(width_inches / min(LEAST_PANEL_INCHES, WIDTH_INCHES / columns)))
    # Bars need their height, and colorbars need their width.
    narrow = width_inches < NARROW_INCHES and not any(_has_names(axes) for axes in cells)
    paired = narrow and count > STACKED and width_inches >= LEAST_PAIR_INCHES and len(cells) == len(drawing.axes)
    if paired:
        fit = 2
    if fit < columns:
        _move(drawing, cells, columns, fit, count, undo)
        height_inches *= -(-count // fit) / rows
        rows = -(-count // fit)
    if paired:
        left = {axes.get_subplotspec().num1: axes.get_ylabel() for axes in cells if axes.get_visible()}  # type: ignore[union-attr]
        for axes in cells:
            number = axes.get_subplotspec().num1  # type: ignore[union-attr]
            if number % fit and axes.get_ylabel() == left[number - 1]:
                undo.callback(axes.set_ylabel, axes.get_ylabel())
                axes.set_ylabel("")
            _shrink(axes, undo)
    if not narrow:
        return height_inches
    most = ROW_INCHES if rows > 1 else ONE_ROW_INCHES
    return min(height_inches, rows * max(LEAST_ROW_INCHES, min(most, (PAGE_INCHES - legend_inches) / rows)))


def _has_names(axes: Axes) -> bool:
    """Return whether the vertical axis has names, such as those of bars, instead of numbers."""
    return isinstance(axes.yaxis.get_major_formatter(), FixedFormatter)


def _move(
    drawing: Drawing, cells: dict[Axes, SubplotSpec], columns: int, fit: int, count: int, undo: ExitStack
) -> None:
    """Move the panels from ``columns`` into ``fit`` columns."""
    labels = {cell.num1 // columns: axes.get_ylabel() for axes, cell in cells.items() if cell.num1 % columns == 0}
    stacked = GridSpec(-(-count // fit), fit, figure=drawing)
    for axes, cell in cells.items():
        # Unused panels are invisible, so their new cell does not matter.
        number = min(cell.num1, count - 1)
        undo.callback(axes.set_subplotspec, cell)
        axes.set_subplotspec(stacked[divmod(number, fit)])
        # Panels that share an axis have labels only at the left and at the bottom.
        if number % fit == 0 and not axes.yaxis.get_tick_params().get("labelleft", True):
            undo.callback(axes.tick_params, labelleft=False)
            axes.tick_params(labelleft=True)
        if number >= count - fit and not axes.xaxis.get_tick_params().get("labelbottom", True):
            undo.callback(axes.tick_params, labelbottom=False)
            axes.tick_params(labelbottom=True)
        if number % fit == 0 and not axes.get_ylabel():
            undo.callback(axes.set_ylabel, "")
            axes.set_ylabel(labels[cell.num1 // columns])


def _shrink(axes: Axes, undo: ExitStack) -> None:
    """Reduce the fonts and the number of ticks of a panel, and wrap its labels."""
    wrapped = {axes.xaxis.label: WRAP_LABEL, axes.yaxis.label: WRAP_LABEL, axes._left_title: WRAP_TITLE}  # type: ignore[attr-defined]
    for text, most in (wrapped | dict.fromkeys(axes.texts, WRAP_TEXT)).items():
        undo.callback(text.set_fontsize, text.get_fontsize())
        undo.callback(text.set_text, text.get_text())
        text.set_fontsize(SMALL * float(text.get_fontsize()))
        text.set_text(textwrap.fill(text.get_text(), most, break_long_words=False))
    for line in axes.lines:
        undo.callback(line.set_markersize, line.get_markersize())
        line.set_markersize(SMALL * line.get_markersize())
    for axis in (axes.xaxis, axes.yaxis):
        usual = axis.get_tick_params().get("labelsize", RC["xtick.labelsize"])
        undo.callback(axis.set_tick_params, labelsize=usual)
        axis.set_tick_params(labelsize=SMALL * usual)
        locator = axis.get_major_locator()
        if isinstance(locator, MaxNLocator):
            undo.callback(axis.set_major_locator, locator)
            axis.set_major_locator(MaxNLocator(3 if axis is axes.xaxis else 4))


def quantity_axis(axis: Axis, values: Collection[float], *, most: int = 6) -> None:
    """Set about ``most`` ticks with suffixes on a logarithmic axis: 100K, 2M."""
    low, high = min(values), max(values)
    subs = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
    powers = np.arange(np.floor(np.log10(low)), np.log10(high) + 1)
    seen = [tick for tick in np.outer(10.0**powers, subs).ravel() if low <= tick <= high]
    # A short range gets evenly spaced ticks: between 57K and 172K, 100K is the only power of 10.
    axis.set_major_locator(
        LogLocator(subs=subs, numticks=most) if len(seen) > 1 else MaxNLocator(most, steps=[1, 2, 2.5, 5, 10])
    )
    axis.set_major_formatter(FuncFormatter(lambda value, _: size(value, 3)))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(which="minor", length=0)


GAP_POINTS = 12.0
"""Distance of labels from the axes, in points."""
END_LABEL = "end of a curve"
"""Matplotlib label of the texts that a narrow figure has in its legend instead."""
LABEL = 1 / 22
"""Smallest distance between two labels, as a share of the height of the axes."""


def labels_at(axes: Axes, labels: Sequence[tuple[tuple[float, float], str, str]]) -> list[Annotation]:
    """Print labels, given by point, text and color, at the right edge, moved apart to avoid overlaps, and return them.
    The limits of the axes must be final."""
    # The distance in points does not change with the width, so that the layout is the same after every drawing.
    right = offset_copy(axes.transAxes, axes.get_figure(root=True), x=GAP_POINTS, units="points")
    points = [point for point, *_ in labels]
    heights = axes.transAxes.inverted().transform(axes.transData.transform(points))[:, 1].tolist()
    return [
        axes.annotate(
            text,
            xy=point,
            xytext=(1.0, place),
            textcoords=right,
            color=color,
            va="center",
            fontsize=7.5,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
        )
        for (point, text, color), place in zip(labels, spread(heights, LABEL), strict=True)
    ]


def spread(heights: Sequence[float], least: float) -> list[float]:
    """Return the heights, moved as little as possible so that neighbors are at least ``least`` apart."""
    order = np.argsort(heights)
    blocks: list[list[float]] = []
    for height in np.asarray(heights, float)[order]:
        blocks.append([height, 1])
        # A block is a center and a size; blocks that touch merge around their common center.
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < least * (blocks[-1][1] + blocks[-2][1]) / 2:
            (one, few), (other, more) = blocks[-2:]
            blocks[-2:] = [[(one * few + other * more) / (few + more), few + more]]
    places = [middle + least * (i - (size - 1) / 2) for middle, size in blocks for i in range(int(size))]
    moved = np.empty(len(places))
    moved[order] = places
    return moved.tolist()


Draw = Callable[[Any], Any]
"""A function from ``moejax.report.findings.Findings`` to a ``Figure``, or None if the study lacks the data."""
