"""Implement ``moejax explore``: write the page and open it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import webbrowser
from pathlib import Path

from moejax.errors import UserError
from moejax.explorer.available import find_available
from moejax.explorer.page import page
from moejax.folder import write_text
from moejax.say import say


def run(arguments: argparse.Namespace) -> int:
    """Write the page to ``--export``, or to a temporary file that the browser opens."""
    path: Path | None = arguments.export
    if path is not None and path.exists() and not _is_page(path):
        raise UserError(f"{path} exists and is not a page of moejax explore; give another name to --export.")
    text = page(find_available(arguments.source))
    if path is None:
        path = Path(tempfile.mkdtemp(prefix="moejax-explore-")) / "explorer.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    say(f"Wrote {path} ({len(text) / 1e6:.1f} MB); open it in a browser.", file=sys.stdout)
    if arguments.export is None and not arguments.no_browser and has_display():
        webbrowser.open(path.resolve().as_uri())
    return 0


def has_display() -> bool:
    """Return whether a graphical browser can open here."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return b"<title>moejax: laws" in file.read(400)
