"""Write the explorer page and open it in a browser."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from dataclasses import dataclass
from pathlib import Path

from moejax import input_file
from moejax.cli.options import Command, argument, option
from moejax.cli.shared import LAW, law_or_fit
from moejax.errors import UserError
from moejax.folder import write_text
from moejax.json_text import json_text
from moejax.say import say

EXAMPLE = """\
moejax explore
moejax explore fit/fit.json
moejax explore runs.csv --law fit
moejax explore runs/quickstart --export explorer.html"""
TITLE = b"<title>moejax: laws"
"""Start of a page's title, in its first bytes."""


@dataclass(frozen=True, kw_only=True)
class ExploreCommand(Command, name="explore"):
    """Open a page with sliders for published laws or your own fit; loss, frontier, optimum and practical range update
    together. The page is one HTML file that needs no server and no network. It shows your fit first if there is one.
    """

    source: str = argument(
        "fit.json, a run table, or a folder (default: fit.json or fit/fit.json here, if there is one)",
        metavar="RUNS|FIT",
        default="",
    )
    law: str | None = option(None, f"law that the page shows first: {LAW}", metavar="NAME|FIT", read=law_or_fit)
    export: Path | None = option(
        None, "write the page to this file, and open no browser", metavar="PAGE.html", output=True
    )
    no_browser: bool = option(False, "write a temporary file, and open no browser")

    def run(self) -> None:
        from moejax.explorer.available import default_fit, find_available
        from moejax.explorer.page import opens_on, page

        path = self.export
        if path is not None and os.path.lexists(path) and not _is_page(path):
            raise UserError(f"{path} exists and is not a page of moejax explore; give another name to --export.")
        source = self.source or ("" if self.law else default_fit())
        available = find_available(source, self.law or "")
        text = page(available)
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="moejax-explore-")) / "explorer.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
        if self.json:
            print(json_text({"page": str(path), "bytes": path.stat().st_size, "law": opens_on(available)}))
        else:
            law = available.laws[opens_on(available)]
            say(f"Opens on {f'your fit {law.file}' if law.file else opens_on(available)}.", file=sys.stdout)
            say(f"Wrote {path} ({len(text) / 1e6:.1f} MB); open it in a browser.", file=sys.stdout)
        if self.export is None and not self.no_browser and has_display():
            webbrowser.open(path.resolve().as_uri())


def _is_page(path: Path) -> bool:
    try:
        input_file.check(path)
        with path.open("rb") as file:
            return TITLE in file.read(400)
    except (OSError, UserError):
        return False


def has_display() -> bool:
    """Return whether a graphical browser can open here."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
