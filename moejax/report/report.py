"""``report.html`` and ``report.json`` in a study's folder: one page, and the same numbers as data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from moejax.folder import write_json
from moejax.report.figures import draw_all
from moejax.report.findings import plain, read, summary
from moejax.report.page import page
from moejax.study.run import Concluded, as_json

PAGE, DATA = "report.html", "report.json"


def write_report(concluded: Concluded) -> Path:
    """Write both files, each so that it is either the old one or the new one; returns the page's path."""
    found = read(concluded)
    write_json(concluded.folder / DATA, as_data(concluded))
    path = concluded.folder / PAGE
    partial = path.with_name(f".{os.getpid()}.{PAGE}")
    partial.write_text(page(found, draw_all(found)), encoding="utf-8")
    partial.replace(path)
    return path


def as_data(concluded: Concluded) -> dict[str, Any]:
    """All conclusions, and the few sums that the page states beside them; what is not finite is None."""
    return {"summary": summary(read(concluded)), **plain(as_json(concluded))}
