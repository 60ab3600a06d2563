"""A row's file: ``branch-TOKENS.json`` in its training's folder, one per run, written whole when it is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moejax.train.metrics import branch_name


class CutShort(ValueError):
    """A row's file does not hold a row: whoever wrote or copied it did not come to the end."""


def row_file(budget_tokens: int) -> str:
    """Name of the file of a budget's row."""
    return f"{branch_name(budget_tokens)}.json"


def parse_row(text: str, path: object) -> dict[str, Any]:
    """The row that a file holds.

    Raises:
      CutShort: it holds none.
    """
    try:
        row = json.loads(text)
    except json.JSONDecodeError:
        row = None
    if not isinstance(row, dict) or not {"model", "tokens", "loss", "fingerprint"} <= set(row):
        raise CutShort(f"{path} was cut short; its run is done again.")
    return row


def read_row(folder: Path, budget_tokens: int) -> dict[str, Any] | None:
    """A budget's row, or None if its run is not done.

    Raises:
      CutShort: the file holds no row.
    """
    path = folder / row_file(budget_tokens)
    return parse_row(path.read_text(errors="replace"), path) if path.exists() else None
