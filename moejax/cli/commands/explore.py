"""``moejax explore``: laws, sliders and published models in a browser."""

from __future__ import annotations

import argparse

from moejax.report.explorer import serve
from moejax.report.explorer.available import find_available
from moejax.report.explorer.view import view
from moejax.say import say


def run(arguments: argparse.Namespace) -> int:
    """Read what was given, compile what the first page needs, and serve."""
    serve.check_marimo()
    listening = serve.listen(arguments.port)
    with listening:
        found = find_available(arguments.source)
        view(found.start, found)
        serve.serve(arguments.source, listening, browser=not arguments.no_browser, say=say)
