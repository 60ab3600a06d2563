"""``moejax compare``: which law to trust for a table of runs."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

NAME = "compare"
HELP = "fit every law that a table of runs allows, and test all on the same held-out runs"
EXAMPLE = """\
moejax compare runs.parquet --hold-out tokens
moejax compare runs.csv --laws chinchilla,effective_params,zhao --folds 5 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    from moejax.cli.fit import add_split_arguments, add_table_arguments

    parser.add_argument("runs", type=Path, metavar="RUNS", help="CSV, Parquet or JSON-lines file, one row per run")
    parser.add_argument("--laws", default="all", metavar="NAMES", help="separated by commas (%(default)s)")
    add_table_arguments(parser)
    add_split_arguments(parser.add_argument_group("trusting (the largest in tokens, if none is given)"))
    parser.add_argument("--seed", type=int, default=0, metavar="NUMBER", help="of starts and folds (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write compare.json and compare.md")


def run(arguments: argparse.Namespace) -> int:
    """Read, fit, hold out, print."""
    from moejax.cli.fit import read_table, splits_of
    from moejax.cli.progress import progress
    from moejax.fit.compare import compare, of_the_loss
    from moejax.laws import LAWS
    from moejax.laws.door import law_name

    named = [] if arguments.laws == "all" else [law_name(name) for name in arguments.laws.split(",")]
    laws = of_the_loss(LAWS, named)
    read = read_table(arguments, ())
    if not (arguments.hold_out or arguments.each or arguments.folds):
        arguments.hold_out = ["tokens"]
    with progress() as show:
        found = compare(laws, read.runs, splits_of(read, arguments), seed=arguments.seed, progress=show)
    if arguments.out:
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / "compare.json").write_text(json.dumps(found.to_json(), indent=2) + "\n")
            (arguments.out / "compare.md").write_text(f"{found.table()}\n\n{found.verdict}\n")
        except OSError as error:
            raise ValueError(f"The results cannot be written to {arguments.out} ({error}).") from error
        print(f"Wrote compare.json and compare.md to {arguments.out}.", file=sys.stderr)
    print(json.dumps(found.to_json(), indent=2) if arguments.json else f"{found.table()}\n\n{found.verdict}")
    return 0
