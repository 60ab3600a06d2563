"""A panel as SVG within milliseconds, for a page that moves; the figures of a report are drawn by matplotlib.

The same ``Panel`` and ``Field`` as in ``moejax.report.figures.panels``, with its ticks and colours; colours are the CSS
variables of the page.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Iterable

import numpy as np
from contourpy import contour_generator
from matplotlib.ticker import MaxNLocator
from PIL import Image

from moejax.report.figures.panels import WRITTEN, Axis, Field, Panel, Series, log_ticks
from moejax.report.figures.style import COLOURS, FAINT, INK, SEQUENTIAL

WIDTH, HEIGHT = 400.0, 270.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 20.0, 26.0, 40.0
BAR = 56.0
"""Width of the colour bar, with its numbers."""
DASHES = {"dashed": "6 4", "dotted": "1.5 3"}
RADIUS = 4.2
_VARIABLES = {colour: f"var(--{name}, {colour})" for name, colour in COLOURS.items()}


def svg(panel: Panel | Field) -> str:
    """An ``<svg>`` element, which a reader of screens hears as its title and axes."""
    field = isinstance(panel, Field)
    right = WIDTH - (BAR if field else RIGHT)
    xs, ys = ([panel.xs], [panel.ys]) if field else _extent(panel)
    x, x_ticks = _scale(panel.x, xs, LEFT, right, 6)
    y, y_ticks = _scale(panel.y, ys, HEIGHT - BOTTOM, TOP, 5)
    parts = [f'<text class="title" x="0" y="13">{html.escape(panel.title)}</text>']
    for value, text in x_ticks:
        parts.append(_tick_line(x(value), TOP, x(value), HEIGHT - BOTTOM))
        parts.append(f'<text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 15:g}" text-anchor="middle">{text}</text>')
    for value, text in y_ticks:
        parts.append(_tick_line(LEFT, y(value), right, y(value)))
        parts.append(f'<text x="{LEFT - 6:g}" y="{y(value) + 3.5:.1f}" text-anchor="end">{text}</text>')
    across = f"translate(11 {(TOP + HEIGHT - BOTTOM) / 2:g}) rotate(-90)"
    parts.append(f'<text class="axis" text-anchor="middle" transform="{across}">{html.escape(panel.y.words)}</text>')
    middle = (LEFT + right) / 2
    parts.append(
        f'<text class="axis" text-anchor="middle" x="{middle:g}" y="{HEIGHT - 6:g}">{html.escape(panel.x.words)}</text>'
    )
    box = f"{LEFT:g} {TOP:g} {right - LEFT:g} {HEIGHT - BOTTOM - TOP:g}"
    place = dict(zip(("x", "y", "width", "height"), box.split(), strict=True))
    frame = " ".join(f'{name}="{value}"' for name, value in place.items())
    clip = f'<svg {frame} viewBox="{box}">'
    drawn = _field(panel, x, y, right) if field else "".join(_lines(s, x, y) for s in panel.series)
    points = "".join(_points(s, x, y) for s in (panel.marks if field else panel.series))
    words = html.escape(
        f"{panel.title}: {panel.z.words if field else panel.y.words} against {panel.x.words}", quote=True
    )
    return (
        f'<svg role="img" aria-label="{words}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}">'
        f"{''.join(parts)}{clip}{drawn}{points}</svg>"
        f"{_bar(panel, right) if field else ''}</svg>"
    )


def legend(panel: Panel | Field) -> str:
    """The names of what is drawn, as HTML."""
    every = {s.label: s for s in (panel.marks if isinstance(panel, Field) else panel.series) if s.in_legend and s.label}
    items = "".join(
        f'<li><svg viewBox="0 0 22 10" aria-hidden="true">{_sample(s)}</svg>{html.escape(label)}</li>'
        for label, s in every.items()
    )
    return f'<ul class="legend">{items}</ul>'


def _sample(series: Series) -> str:
    def at(shift: float) -> Callable[[float], float]:
        return lambda value: value + shift

    if series.mark in ("line", "dashed", "dotted"):
        return _lines(
            Series(label="", x=[0, 22], y=[5, 5], mark=series.mark, colour=series.colour, width=series.width),
            at(0),
            at(0),
        )
    return _points(Series(label="", x=[11], y=[5], mark=series.mark, colour=series.colour), at(0), at(0))


def _extent(panel: Panel) -> tuple[list[np.ndarray], list[np.ndarray]]:
    curves = [s for s in panel.series if s.mark in ("line", "dashed", "dotted")] or list(panel.series)
    xs = [np.asarray(s.x, float) for s in panel.series if s.mark == "open"] + [np.asarray(s.x, float) for s in curves]
    return xs, [np.asarray(panel.ylim)] if panel.ylim else [np.asarray(s.y, float) for s in panel.series]


def _scale(
    axis: Axis, values: Iterable[np.ndarray], start: float, end: float, most: int
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """From data to the drawing, and ticks with their texts."""
    found = np.concatenate([np.ravel(np.asarray(v, float)) for v in values])
    found = found[np.isfinite(found)]
    low, high = (float(found.min()), float(found.max())) if len(found) else (0.0, 1.0)
    if axis.scale == "linear":
        if high - low < 1e-9:
            low, high = low - 0.01, high + 0.01
        ticks = [float(t) for t in MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= t <= high]
        digits = max(0, int(np.ceil(-np.log10(max(ticks[1] - ticks[0], 1e-12))))) if len(ticks) > 1 else 2
        return lambda v: start + (v - low) / (high - low) * (end - start), [(t, f"{t:.{digits}f}") for t in ticks]
    high = max(high, low * 1.01)
    ticks = [tick for tick in log_ticks(low, high, most) if low * 0.999 <= tick <= high * 1.001]
    span = np.log(high / low)

    def place(value: float) -> float:
        return start + float(np.log(max(value, 1e-300) / low) / span) * (end - start)

    return place, [(tick, WRITTEN[axis.scale](tick)) for tick in ticks]


def _tick_line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{_VARIABLES[FAINT]}" stroke-width=".7"/>'


def _lines(series: Series, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    if series.mark not in ("line", "dashed", "dotted"):
        return ""
    path, gap = [], True
    for a, b in zip(np.ravel(series.x), np.ravel(series.y), strict=True):
        if not np.isfinite(b):
            gap = True
            continue
        path.append(f"{'M' if gap else 'L'}{x(a):.1f} {y(b):.1f}")
        gap = False
    dash = f' stroke-dasharray="{DASHES[series.mark]}"' if series.mark in DASHES else ""
    wide = ' stroke-opacity=".35" stroke-linecap="round"' if series.width > 4 else ""
    colour = _VARIABLES.get(series.colour, series.colour)
    return f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="{series.width:g}"{dash}{wide}/>'


def _points(series: Series, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    if series.mark in ("line", "dashed", "dotted"):
        return ""
    colour = _VARIABLES.get(series.colour, series.colour)
    found = []
    for a, b in zip(np.ravel(series.x), np.ravel(series.y), strict=True):
        if not np.isfinite(a) or not np.isfinite(b):
            continue
        place = f"{x(a):.1f} {y(b):.1f}"
        if series.mark == "stars":
            found.append(
                f'<path d="{_STAR}" transform="translate({place})" fill="{colour}" stroke="var(--paper, #fff)"/>'
            )
        else:
            paint = (
                f'fill="none" stroke="{colour}"'
                if series.mark == "open"
                else f'fill="{colour}" stroke="var(--paper, #fff)"'
            )
            found.append(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="{RADIUS:g}" {paint}/>')
    return "".join(found)


def _star() -> str:
    angles = np.pi / 2 + np.arange(10) * np.pi / 5
    radii = np.where(np.arange(10) % 2, 3.0, 7.0)
    return "M" + "L".join(f"{r * np.cos(a):.1f} {-r * np.sin(a):.1f}" for a, r in zip(angles, radii, strict=True)) + "Z"


_STAR = _star()


def _field(field: Field, x: Callable[[float], float], y: Callable[[float], float], right: float) -> str:
    zs = np.asarray(field.zs, float)
    low, high = float(np.nanmin(zs)), float(np.nanmax(zs))
    known = np.isfinite(zs)
    steps = np.where(known, (zs - low) / max(high - low, 1e-12), 0.0) * (len(_COLOURS) - 1)
    pixels = np.where(known[..., None], _COLOURS[:: 1 if field.high_is_good else -1][steps.round().astype(int)], 0)
    size = f'x="{LEFT:g}" y="{TOP:g}" width="{right - LEFT:g}" height="{HEIGHT - BOTTOM - TOP:g}"'
    image = f'<image href="{_png(pixels[::-1])}" {size} preserveAspectRatio="none"/>'
    levels = [v for v in np.ravel(field.contours) if low < v < high]
    generator = contour_generator(np.log(field.xs), np.log(field.ys), np.ma.masked_invalid(zs))
    parts = [image]
    for number, level in enumerate(levels):
        for line in generator.lines(float(level)):
            points = [(x(float(np.exp(a))), y(float(np.exp(b)))) for a, b in np.asarray(line)]
            path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
            parts.append(f'<path d="{path}" fill="none" stroke="{INK}" stroke-opacity=".5" stroke-width=".6"/>')
            if len(points) > 12:
                # Side by side, where lines lie close.
                a, b = points[round(len(points) * (0.25 + 0.5 * number / len(levels)))]
                parts.append(f'<text class="level" x="{a:.1f}" y="{b:.1f}" text-anchor="middle">{level:.4g}</text>')
    return "".join(parts) + "".join(_lines(s, x, y) for s in field.marks)


def _bar(field: Field, right: float) -> str:
    """The scale of colours, with its ends."""
    zs = np.asarray(field.zs, float)
    low, high = float(np.nanmin(zs)), float(np.nanmax(zs))
    left, height = right + 8, HEIGHT - BOTTOM - TOP
    size = f'x="{left:g}" y="{TOP:g}" width="8" height="{height:g}"'
    image = f'<image href="{_SCALES[field.high_is_good]}" {size} preserveAspectRatio="none"/>'
    ends = ((high, TOP + 8), (low, TOP + height))
    return image + "".join(f'<text x="{left + 11:g}" y="{at:g}">{value:.3g}</text>' for value, at in ends)


def _png(pixels: np.ndarray) -> str:
    data = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels), "RGBA").save(data, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


_COLOURS = (np.asarray(SEQUENTIAL(np.linspace(0, 1, 256))) * 255).astype(np.uint8)
_SCALES = {good: _png(_COLOURS[:: -4 if good else 4, None]) for good in (True, False)}
"""Colour bars, the highest value above."""
