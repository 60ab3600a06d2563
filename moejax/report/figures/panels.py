"""Define panels as data. The drawing and the CSV table are made from the same series, so that they agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, Formatter, Locator, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import ArrayLike

from moejax.report.figures.figure import Figure, column, ordered
from moejax.report.figures.style import (
    BLUE,
    END_LABEL,
    INK,
    MUTED,
    PAPER,
    RC,
    SEQUENTIAL,
    colored,
    grid,
    labels_at,
    legend_columns,
    lines_of,
    markers_of,
)
from moejax.result import size
from moejax.run_table import DataFrame

T = TypeVar("T")


@dataclass(frozen=True)
class Axis:
    """A variable of a panel."""

    column: str
    """Name of its column in the table, with the unit if any."""
    words: str
    """Label of the axis, with the unit."""
    scale: str = "linear"
    """``linear``; or logarithmic: ``log``, ``quantity`` with suffixed ticks (2B), ``percent``, and
    ``share`` for 1-S written as S.
    """


LOSS = Axis("loss_nats_per_token", "loss, nats/token")
TOTAL = Axis("params_total", "total parameters", "quantity")
ACTIVE = Axis("params_active", "active parameters", "quantity")
EXPANSION = Axis("expansion", "expansion, total / active", "log")
TOKENS = Axis("tokens", "training tokens", "quantity")
FLOPS = Axis("flops", "training FLOPs", "log")
SPARSITY = Axis("sparsity", "sparsity, idle share of experts")

MARKS: dict[str, dict[str, Any]] = {
    "line": {"linestyle": "-"},
    "interval": {"linestyle": "-"},
    "band": {"linestyle": "-"},
    "dashed": {"linestyle": (0, (4, 2))},
    "dotted": {"linestyle": (0, (1, 1.6))},
    "points": {"linestyle": "", "marker": "o", "markeredgecolor": PAPER, "markeredgewidth": 0.5},
    "squares": {"linestyle": "", "marker": "s", "markersize": 4.5, "markeredgecolor": PAPER, "markeredgewidth": 0.5},
    "open": {"linestyle": "", "marker": "o", "markerfacecolor": "none"},
    "stars": {"linestyle": "", "marker": "*", "markersize": 10, "markeredgecolor": PAPER, "markeredgewidth": 0.6},
    "joined": {"linestyle": "-", "marker": "o", "markersize": 4},
}
"""Styles of a series' points."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of a panel with a common style."""

    label: str
    """Name of the series in the legend and in the table."""
    x: ArrayLike
    y: ArrayLike
    mark: str = "line"
    color: str = BLUE
    tokens: ArrayLike | None = None
    """Tokens of every point, which determine its area."""
    in_legend: bool = True
    width: float = 1.6
    low: ArrayLike | None = None
    """Lower end of a band around the line, or of each point's error bar; ``high`` is the upper end; NaN for none."""
    high: ArrayLike | None = None
    words: str = ""
    """Text at the right edge of the panel, connected to the last point."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One set of axes."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    level: float | None = None
    """Height of a horizontal reference line."""
    level_label: str = ""
    """Label of the reference line, printed at its right end."""
    diagonal: bool = False
    """True to draw the line of equal values; both axes then have the same limits."""
    ylim: tuple[float, float] | None = None
    note: str = ""
    """Text in the upper right corner."""
    corner: str = ""
    """Text in the lower right corner."""
    legend: Sequence[Series] = ()
    """Legend entries without points, such as one entry for several lines."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Values over two axes, as colors with contours."""

    x: Axis
    y: Axis
    z: Axis
    xs: ArrayLike
    ys: ArrayLike
    zs: ArrayLike
    """Values, with a row per ``ys`` and a column per ``xs``; NaN is left blank."""
    title: str = ""
    marks: Sequence[Series] = ()
    middle: float | None = None
    """Center of a diverging color scale; None for a sequential scale."""
    high_is_good: bool = False
    contours: ArrayLike = 8
    """Number of contours, or their levels."""


MOST_TICKS = {1: 9, 2: 6, 3: 4}
"""Maximum number of ticks on a horizontal axis, by the number of panels in a row."""

MARGIN = 0.05
"""Share of an axis beyond its data, on each side."""

BAND_ALPHA = 0.32
"""Opacity of bands."""

LARGEST_AREA = 60.0
"""Area of the largest point, in square points."""


def draw(
    panels: Sequence[Panel | Field], *, columns: int = 3, height: float = 2.6, sharey: bool = False
) -> tuple[Drawing, list[dict[str, Any]]]:
    """Draw panels with a common legend below them; return the drawing and the plotted values as table rows, keyed by
    column."""
    drawing, every = grid(len(panels), columns, height_inches=height, sharey=sharey)
    style, known = _styles(panels), dict[str, Artist]()
    most = max((float(np.max(s.tokens)) for panel in panels for s in _all(panel) if s.tokens is not None), default=1.0)
    rows: list[dict[str, Any]] = []
    for number, (panel, axes) in enumerate(zip(panels, every, strict=True)):
        axes.set_title(panel.title)
        most_ticks = MOST_TICKS[min(columns, len(panels))] - (panel.x.scale == "quantity")
        scale_axis(axes, "x", panel.x, _values(panel, "x"), most_ticks)
        limits = panel.ylim if isinstance(panel, Panel) else None
        scale_axis(axes, "y", panel.y, _values(panel, "y"), 6, margin=0.0 if limits else MARGIN)
        axes.set_xlabel(panel.x.words)
        if not (sharey and number % columns):
            axes.set_ylabel(panel.y.words)
        if isinstance(panel, Field):
            rows += _field(drawing, axes, panel, known, style)
        else:
            rows += _panel(axes, panel, known, most, style)
    if len(known) > 1:
        # The legend lists markers after the curves.
        names = sorted(known, key=lambda name: getattr(known[name], "get_marker", str)() == "*")
        drawing.legend(
            handles=[known[name] for name in names],
            loc="outside lower center",
            ncols=legend_columns(names),
            columnspacing=1.4,
        )
    return drawing, rows


def figure(
    title: str,
    caption: str,
    panels: Sequence[Panel | Field],
    *,
    columns: int = 3,
    height: float = 2.6,
    sharey: bool = False,
) -> Figure:
    """Return a ``Figure`` of panels."""
    return Figure(title, caption, *draw(panels, columns=columns, height=height, sharey=sharey))


def curves(
    values: Iterable[T], label: Callable[[T], str], x: ArrayLike, y: Callable[[T], ArrayLike], mark: str = "line"
) -> list[Series]:
    """Return a series of y over x for each value, colored along a ramp."""
    return [
        Series(label=label(value), x=x, y=y(value), mark=mark, color=color) for value, color in colored(list(values))
    ]


def curves_of(table: DataFrame, by: str, x: str, y: str, label: Callable[[float], str]) -> list[Series]:
    """Return one series per value of the column ``by``, with the lowest y at each x."""
    series = []
    for value, color in colored(ordered(table[by])):
        own = table[table[by] == value].groupby(x, as_index=False)[y].min()
        series.append(Series(label=label(value), x=column(own, x), y=column(own, y), mark="joined", color=color))
    return series


def _all(panel: Panel | Field) -> Sequence[Series]:
    return panel.series if isinstance(panel, Panel) else panel.marks


Style = Callable[[Series], dict[str, Any]]
"""A function that returns the Matplotlib style of a series, except its color."""


def _styles(panels: Sequence[Panel | Field]) -> Style:
    """Return the styles of a figure. Each color also has its own marker and, if no line is dashed for another reason,
    its own line style, so that the figure can be read without colors.
    """
    every = [series for panel in panels for series in _all(panel) if np.size(series.x)]
    markers = markers_of(one.color for one in every if MARKS[one.mark].get("marker") == "o")
    is_free = all(one.mark != "dashed" for one in every)
    lines = lines_of(one.color for one in every if one.mark == "line") if is_free else {}

    def style(series: Series) -> dict[str, Any]:
        found = dict(MARKS[series.mark])
        if found.get("marker") == "o":
            found["marker"] = markers.get(series.color, "o")
        if series.mark in ("line", "joined"):
            found["linestyle"] = lines.get(series.color, "-")
        return found

    return style


def _panel(axes: Axes, panel: Panel, known: dict[str, Artist], most: float, style: Style) -> list[dict[str, Any]]:
    if panel.level is not None:
        axes.axhline(panel.level, color=MUTED, linewidth=0.9)
        axes.annotate(
            panel.level_label,
            xy=(1.0, panel.level),
            xytext=(-2, 2),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=7.5,
            color=MUTED,
        )
    for series in panel.series:
        _series(axes, series, most, style(series))
        _name(series, known, style(series))
    for entry in panel.legend:
        _name(entry, known, style(entry), drawn=False)
    if panel.diagonal:
        _same_axes(axes, panel)
    if panel.ylim:
        axes.set_ylim(panel.ylim)
    if named := [one for one in panel.series if one.words]:
        ends = [(float(np.ravel(one.x)[-1]), float(np.ravel(one.y)[-1])) for one in named]
        for label in labels_at(axes, [(end, one.words, one.color) for end, one in zip(ends, named, strict=True)]):
            label.set_label(END_LABEL)
    for words, height, side in ((panel.note, 0.97, "top"), (panel.corner, 0.03, "bottom")):
        if words:
            axes.text(0.98, height, words, transform=axes.transAxes, ha="right", va=side, fontsize=7.5, color=MUTED)
    return [row for series in panel.series for row in _rows(panel, series)]


def _series(axes: Axes, series: Series, most: float, style: dict[str, Any], *, clip_off: bool = False) -> None:
    if series.low is not None and series.high is not None:
        if style.get("linestyle"):
            axes.fill_between(series.x, series.low, series.high, color=series.color, alpha=BAND_ALPHA, linewidth=0)
        else:
            # An interval from resamples may exclude its point, so the bar is drawn around the interval's own middle.
            middle, half = np.add(series.low, series.high) / 2, np.subtract(series.high, series.low) / 2
            # Caps are wider than the point, which may hide a short bar.
            axes.errorbar(series.x, middle, half, fmt="none", color=series.color, lw=1.2, capsize=7, zorder=5)
    if series.tokens is None:
        axes.plot(series.x, series.y, color=series.color, linewidth=series.width, clip_on=not clip_off, **style)
        return
    area = LARGEST_AREA * np.asarray(series.tokens, float) / most * (2.0 if series.mark == "stars" else 1.0)
    hollow = series.mark == "open"
    axes.scatter(
        series.x,
        series.y,
        s=np.maximum(area, 4.0),
        marker=style["marker"],
        facecolors="none" if hollow else series.color,
        edgecolors=series.color if hollow else PAPER,
        linewidths=0.9 if hollow else 0.3,
        zorder=6 if series.mark == "stars" else 3,
    )


def _name(series: Series, known: dict[str, Artist], style: dict[str, Any], *, drawn: bool = True) -> None:
    if drawn and not np.size(series.x):
        return
    if not series.in_legend or not series.label or series.label in known:
        return
    if series.mark == "band":
        known[series.label] = Patch(facecolor=series.color, alpha=BAND_ALPHA, label=series.label)
    else:
        known[series.label] = Line2D([], [], color=series.color, label=series.label, **style)


def _rows(panel: Panel | Field, series: Series) -> list[dict[str, Any]]:
    head = {"panel": panel.title, "series": series.label} if panel.title else {"series": series.label}
    tokens = np.full(np.size(series.x), np.nan) if series.tokens is None else np.asarray(series.tokens, float)
    sized = series.tokens is not None and "tokens" not in (panel.x.column, panel.y.column)
    ends = {} if series.low is None or series.high is None else {"low": series.low, "high": series.high}
    return [
        {**head, panel.x.column: float(x), panel.y.column: float(y), **({"tokens": float(d)} if sized else {})}
        | {f"{panel.y.column}_{name}": float(np.ravel(values)[i]) for name, values in ends.items()}
        for i, (x, y, d) in enumerate(zip(np.ravel(series.x), np.ravel(series.y), np.ravel(tokens), strict=True))
    ]


def _field(drawing: Drawing, axes: Axes, field: Field, known: dict[str, Artist], style: Style) -> list[dict[str, Any]]:
    xs, ys, zs = (np.asarray(v, float) for v in (field.xs, field.ys, field.zs))
    norm: TwoSlopeNorm | None = None
    if field.middle is not None:
        far = max(float(np.nanmax(np.abs(zs - field.middle))), 1e-12)
        norm = TwoSlopeNorm(field.middle, field.middle - far, field.middle + far)
    colors = "PuOr" if field.middle is not None else SEQUENTIAL if field.high_is_good else SEQUENTIAL.reversed()
    mesh = axes.pcolormesh(xs, ys, zs, cmap=colors, norm=norm, shading="nearest", rasterized=True)
    if np.isfinite(zs).sum() > 8 and min(zs.shape) > 2 and np.nanmin(zs) < np.nanmax(zs):
        lines = axes.contour(xs, ys, zs, levels=field.contours, colors=INK, linewidths=0.5, alpha=0.55)
        axes.clabel(lines, fontsize=6, fmt=lambda value: f"{value:.4g}")
    for series in field.marks:
        _series(axes, series, 1.0, style(series), clip_off=not MARKS[series.mark].get("linestyle"))
        _name(series, known, style(series))
    axes.set_xlim(_ends(xs, field.x))
    axes.set_ylim(_ends(ys, field.y))
    axes.grid(False)
    bar = drawing.colorbar(mesh, ax=axes, pad=0.02, aspect=22)
    bar.set_label(field.z.words)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)  # type: ignore[union-attr]
    head = {"panel": field.title} if field.title else {}
    cells = [
        {**head, field.x.column: float(x), field.y.column: float(y), field.z.column: float(zs[i, j])}
        for i, y in enumerate(ys)
        for j, x in enumerate(xs)
        if np.isfinite(zs[i, j])
    ]
    return cells + [row for series in field.marks for row in _rows(field, series)]


def _ends(values: np.ndarray, axis: Axis) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return (high, low) if axis.scale == "share" else (low, high)


def _values(panel: Panel | Field, which: str) -> np.ndarray:
    if isinstance(panel, Field):
        return np.ravel(np.asarray(panel.xs if which == "x" else panel.ys, float))
    parts = [np.ravel(np.asarray(getattr(series, which), float)) for series in panel.series]
    if which == "y" and panel.ylim:
        parts = [np.asarray(panel.ylim)]
    values = np.concatenate(parts) if parts else np.array([1.0])
    values = values[np.isfinite(values)]
    return values if len(values) else np.array([1.0])


def scale_axis(axes: Axes, which: str, axis: Axis, values: np.ndarray, most: int, *, margin: float = MARGIN) -> None:
    """Set the scale and ticks of an axis; a logarithmic axis has about ``most`` ticks at round numbers.

    Args:
      margin: share of the axis beyond the values, on each side.
    """
    own = axes.xaxis if which == "x" else axes.yaxis
    if axis.scale == "linear":
        own.set_major_locator(MaxNLocator(min(most, 5) if which == "x" else 6))
        return
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    own.set_major_formatter(_TickFormatter(axis.scale))
    own.set_minor_locator(NullLocator())
    if axis.scale == "share":
        ticks = [tick for tick in IDLE_TICKS if values.min() <= tick * 1.001 and tick <= values.max() * 1.001]
        (axes.invert_xaxis if which == "x" else axes.invert_yaxis)()
        own.set_major_locator(FixedLocator(ticks))
        return
    low, high = float(values.min()), float(values.max())
    powers = powers_of_ten(low, high, margin) if axis.scale == "log" else []
    counts = range(most, 1, -1)
    candidates = [powers[:: -(-len(powers) // n)] if powers else log_ticks(low, high, n, margin) for n in counts]
    own.set_major_locator(_LogLocator(axes, which, candidates))
    if powers:
        own.set_minor_locator(LogLocator(subs=tuple(range(2, 10)), numticks=99))
        own.set_minor_formatter(NullFormatter())


GAP_POINTS = 5.0
"""Minimum distance between the labels of two ticks, in points."""
DIGIT_WIDTH = 0.64
"""Width of a digit, as a share of the font size."""


class _LogLocator(Locator):
    """The most round ticks of a logarithmic axis whose labels do not overlap at the axis's length."""

    def __init__(self, axes: Axes, which: str, candidates: Sequence[list[float]]):
        self._axes, self._which = axes, which
        self._candidates = candidates

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        thinned = (self._candidates[-1][::step] for step in range(2, len(self._candidates[-1]) + 1))
        every = (*self._candidates, *thinned)
        return next((ticks for ticks in every if self._fit(ticks, vmin, vmax)), every[-1])

    def __call__(self) -> list[float]:
        return self.tick_values(*(self._axes.get_xlim() if self._which == "x" else self._axes.get_ylim()))

    def _fit(self, ticks: list[float], vmin: float, vmax: float) -> bool:
        if len(ticks) < 2 or min(vmin, vmax) <= 0 or vmin == vmax:
            return True
        axes = self._axes
        own = axes.xaxis if self._which == "x" else axes.yaxis
        font = own.get_tick_params().get("labelsize", RC["xtick.labelsize"])
        length = (axes.bbox.width if self._which == "x" else axes.bbox.height) * 72 / axes.figure.dpi
        places = np.log(ticks) * length / abs(np.log(vmax / vmin))
        sizes = np.full(len(ticks), font)
        if self._which == "x":
            texts = axes.xaxis.get_major_formatter().format_ticks(ticks)
            sizes = DIGIT_WIDTH * font * np.array([len(text) for text in texts])
        return bool((np.diff(places) >= (sizes[1:] + sizes[:-1]) / 2 + GAP_POINTS).all())


class _TickFormatter(Formatter):
    """Texts of the ticks of a logarithmic axis. Evenly spaced ticks have equally many decimals: 2.0, 2.5, 3.0."""

    def __init__(self, scale: str):
        self._scale = scale

    def __call__(self, x: float, pos: int | None = None) -> str:
        return WRITTEN[self._scale](x)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        plain = self._scale == "log" and len(values) and PLAIN[0] <= min(values)
        if plain and max(values) < min(PLAIN[1], 10 * min(values)):
            decimals = max(len(f"{tick:.12g}".partition(".")[2]) for tick in values)
            return [f"{tick:.{decimals}f}" for tick in values]
        return [self(tick) for tick in values]


IDLE_TICKS = (1.0, 0.5, 0.2, 0.05, 0.02)
"""Active shares of experts at the sparsity ticks 0, 50, 80, 95 and 98 %."""


def log_ticks(low: float, high: float, most: int, margin: float = MARGIN) -> list[float]:
    """Return about ``most`` round ticks between two numbers, or more if the range has no round number."""
    beyond = (high / low) ** margin
    low, high = low / beyond, high * beyond
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    tried = []
    for subs in ((1.0, 2.0, 5.0), (1.0, 3.0), (1.0,), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        ticks = [float(f"{sub}e{power}") for power in decades for sub in subs]
        tried.append([tick for tick in ticks if low <= tick <= high])
    best = max((ticks for ticks in tried if len(ticks) <= most), key=len, default=[])
    if len(tried[2]) > most:
        return tried[2][:: -(-len(tried[2]) // most)]
    if len(best) > (1 if high > 8 * low else 3):
        return best
    # Over less than a decade, evenly spaced ticks are closer to each other and easier to read than 2, 3, 5.
    return max([*_even_ticks(low, high, most), best], key=len) if high > low else best


def _even_ticks(low: float, high: float, most: int) -> Iterator[list[float]]:
    """Yield evenly spaced round ticks between two numbers, for every spacing that has at most ``most`` ticks."""
    largest = int(np.floor(np.log10(high - low)))
    for power in (largest - 1, largest):
        for sub in (1.0, 2.0, 2.5, 5.0):
            spacing = sub * 10.0**power
            first, last = int(np.ceil(low / spacing)), int(np.floor(high / spacing))
            if first > 0 and last - first < most:
                yield [float(f"{number * spacing:.12g}") for number in range(first, last + 1)]


def powers_of_ten(low: float, high: float, margin: float = MARGIN) -> list[float]:
    """Return the powers of ten between two numbers if they suffice as ticks: at least two, of numbers that are written
    with exponents."""
    beyond = (high / low) ** margin
    first, last = np.ceil(np.log10(low / beyond)), np.floor(np.log10(high * beyond))
    powers = [float(f"1e{power}") for power in range(int(first), int(last) + 1)]
    return powers if len(powers) > 1 and (high >= PLAIN[1] or low < PLAIN[0]) else []


PLAIN = (1e-2, 1e4)
"""Range of the numbers that are written without exponents."""
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _number(value: float) -> str:
    if PLAIN[0] <= value < PLAIN[1]:
        return f"{value:.4g}"
    digits, power = f"{value:.2e}".split("e")
    ten = f"10{str(int(power)).translate(SUPERSCRIPTS)}"
    return ten if float(digits) == 1 else f"{float(digits):g}×{ten}"


WRITTEN: dict[str, Callable[[float], str]] = {
    "log": _number,
    "quantity": lambda value: size(value, 3),
    "percent": lambda value: f"{100 * value:.3g} %",
    "share": lambda value: f"{100 * (1 - value):.3g} %",
}
"""Tick formats of logarithmic scales."""


def _same_axes(axes: Axes, panel: Panel) -> None:
    values = np.concatenate([np.ravel(v) for s in panel.series for v in (s.x, s.y)] or [np.array([0.0, 1.0])])
    values = values[np.isfinite(values)]
    if axes.get_xscale() == "log":
        low, high = values.min() / 1.1, values.max() * 1.1
    else:
        margin = 0.06 * np.ptp(values) or 0.1
        low, high = values.min() - margin, values.max() + margin
        for own in (axes.xaxis, axes.yaxis):
            own.set_major_locator(MaxNLocator(4))
    axes.axline((low, low), (high, high), color=MUTED, linewidth=0.9, zorder=1)
    axes.set(xlim=(low, high), ylim=(low, high))
    axes.set_aspect("equal", adjustable="box")
