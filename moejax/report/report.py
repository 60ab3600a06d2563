"""``report.html``, ``report.md`` and ``report.json`` in a folder: one page, its text, and the same numbers as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moejax.folder import atomic_write, write_json
from moejax.json_text import finite
from moejax.report import render
from moejax.report.conclusions import conclusions
from moejax.report.findings import read, summary
from moejax.report.page import page
from moejax.report.study_figures import draw_all
from moejax.study.run import Concluded, as_json

PAGE, TEXT, DATA = "report.html", "report.md", "report.json"


def write_report(concluded: Concluded) -> Path:
    """Write the files, each so that it is either the old one or the new one; returns the page's path."""
    found = read(concluded)
    write_json(concluded.folder / DATA, as_data(concluded))
    for name, text in ((TEXT, render.markdown(conclusions(found))), (PAGE, page(found, draw_all(found)))):
        with atomic_write(concluded.folder / name) as partial:
            partial.write_text(text, encoding="utf-8")
    return concluded.folder / PAGE


def as_data(concluded: Concluded) -> dict[str, Any]:
    """All conclusions, and the few sums that the page states beside them; what is not finite is None."""
    found = read(concluded)
    return {"summary": summary(found), **finite(as_json(concluded)), "next": found.next_runs}
