"""``report.html``, ``report.md`` and ``report.json`` in a folder: one page, its text, and the same numbers as data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moejax.folder import atomic_write, one_set, write_json
from moejax.json_text import finite
from moejax.report import render
from moejax.report.conclusions import conclusions
from moejax.report.findings import read, summary
from moejax.report.page import page
from moejax.report.study_figures import draw_all
from moejax.study.run import Concluded, as_json

PAGE, TEXT, DATA = "report.html", "report.md", "report.json"


def write_report(concluded: Concluded) -> Path:
    """Write the files, all of them the old ones or the new ones; returns the page's path."""
    found = read(concluded)
    text = {TEXT: render.markdown(conclusions(found)), PAGE: page(found, draw_all(found))}
    write_pages(concluded.folder, text, as_data(concluded))
    return concluded.folder / PAGE


def write_pages(folder: Path, text: Mapping[str, str], data: Any) -> None:
    """Write a report's files by name, and its data last."""
    with one_set():
        for name, content in text.items():
            with atomic_write(folder / name) as partial:
                partial.write_text(content, encoding="utf-8")
        write_json(folder / DATA, data)


def as_data(concluded: Concluded) -> dict[str, Any]:
    """All conclusions, and the few sums that the page states beside them; what is not finite is None."""
    found = read(concluded)
    return {"summary": summary(found), **finite(as_json(concluded)), "next": found.next_runs}
