"""A figure as SVG inside a page: text stays text, colours follow the page, names are its own."""

from __future__ import annotations

import html
import io
import re

from matplotlib import rc_context

from moejax.report.figures.picture import Picture
from moejax.report.figures.style import COLOURS, RC


def inline(name: str, picture: Picture) -> str:
    """An ``<svg>`` element. Colours are CSS variables of the page with the light page's as their defaults."""
    text = io.StringIO()
    with rc_context(RC):
        picture.figure.savefig(text, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
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
    # The page sets the width; the view box keeps the shape.
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    label = html.escape(f"{picture.title}. {picture.caption}", quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
