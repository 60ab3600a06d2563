"""``moejax report``: the conclusions of a trained study, drawn and written again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

NAME = "report"
HELP = "Conclude again from the folder of a trained study, and write its report.html and report.json there."
EXAMPLE = """\
  moejax report runs/quickstart
  moejax report runs/quickstart --json > conclusions.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("folder", metavar="DIR", help="output folder of moejax study")
    parser.add_argument("--json", action="store_true", help="print the report's numbers on stdout as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Conclude, write, and print the answer."""
    from moejax.cli.progress import progress_display
    from moejax.report.answer import answer
    from moejax.report.report import as_data, write_report
    from moejax.study.run import conclude

    with progress_display() as update:
        concluded = conclude(Path(arguments.folder), update)
    path = write_report(concluded)
    if arguments.json:
        print(json.dumps(as_data(concluded), indent=2))
    else:
        print(answer(concluded))
        print(f"report: {path.resolve()}")
    return 0
