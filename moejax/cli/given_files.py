"""Files that are named on the command line and are not there: said at once, before what reads them is imported."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from moejax import run_table
from moejax.cli import config_file
from moejax.errors import UserError


def check_files(options: argparse.Namespace) -> None:
    """Raise ``UserError`` if a config, a table or a fit that a command is to read is not there."""
    if (config := getattr(options, "config", None)) and not is_one_of_many(options):
        file = config_file.file_of(config)
        if not Path(config.partition(":")[0]).exists():
            print(f"moejax: {config} is not here, so moejax's own is read: {file}", file=sys.stderr)
    for name in ("runs", "pilot", "candidates"):
        if (table := getattr(options, name, None)) is not None and not table.exists():
            run_table.check_file(table)
    for name in ("fit", "law"):
        if str(fit := getattr(options, name, None)).endswith(".json"):
            check_fit(Path(str(fit)))


def is_one_of_many(options: argparse.Namespace) -> bool:
    """Whether this is one of several processes, which tells the others first what is wrong with it."""
    return getattr(options, "distributed", False) or getattr(options, "processes", None) is not None


def check_fit(path: Path) -> None:
    """Raise ``UserError`` if there is no such file."""
    if not path.is_file():
        raise UserError(f"There is no fit at {path}; moejax fit --out DIR writes DIR/fit.json.")
