"""A figure as SVG inside a page: text stays text, colours follow the page, names are its own."""

from __future__ import annotations

import html
import io
import re
from typing import Any

from matplotlib import rc_context

from moejax.report.figures.figure import Figure
from moejax.report.figures.style import COLOURS, RC, WIDTH_INCHES, dark, ramp

POINTS_PER_INCH = 72
_DARK = sorted({colour for count in range(2, 11) for colour in ramp(count) if dark(colour)})


def inline(name: str, figure: Figure) -> str:
    """An ``<svg>`` element. Colours are CSS variables of the page with the light page's as their defaults."""
    text = io.StringIO()
    with rc_context(RC):
        drawing: Any = {"bbox_inches": "tight", "pad_inches": 0.02}
        figure.drawing.savefig(
            text, format="svg", **drawing, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Several figures share a page: what matplotlib names must not meet its namesake.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'xlink:href="#', f'xlink:href="#{name}-', svg)
    svg = re.sub(r"'DejaVu Sans'", "var(--font, system-ui), 'DejaVu Sans'", svg)
    for variable, colour in COLOURS.items():
        svg = re.sub(colour, f"var(--{variable}, {colour})", svg, flags=re.IGNORECASE)
    # Colours of a ramp are lighter on the dark side of a page.
    svg = re.sub("|".join(_DARK), r"color-mix(in oklab, \g<0>, white var(--lift, 0%))", svg, flags=re.IGNORECASE)
    # The page sets the width, alike in scale for narrow figures and wide ones; the view box keeps the shape.
    (width,) = re.findall(r'^<svg[^>]*? width="([\d.]+)pt"', svg)
    share = min(1.0, float(width) / (POINTS_PER_INCH * WIDTH_INCHES))
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', rf'\1 style="--share: {share:.3f}"', svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    label = html.escape(f"{figure.title}. {figure.caption}", quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
