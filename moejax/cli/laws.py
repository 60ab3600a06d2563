"""``moejax laws``: the laws, their papers, what they read, and their published constants."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.json_text import json_text

NAME = "laws"
HELP = "List the laws with what they read and their published constants, show one law whole, or write their pages."
EXAMPLE = """\
  moejax laws show five_factor
  moejax laws --pages docs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("words", nargs="*", metavar="show NAME", help="show one law, by its name or its paper's")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="write DIR/laws/NAME.md for every law, and stop")
    parser.add_argument("--json", action="store_true", help="print machine-readable")


def run(arguments: argparse.Namespace) -> int:
    """List all laws, show one, or write the pages of all."""
    words = arguments.words
    if arguments.pages:
        return _write_pages(arguments.pages)
    if not words:
        return _list(arguments.json)
    if len(words) != 2 or words[0] != "show":
        raise UserError(f"`moejax laws {' '.join(words)}` is not understood; write `moejax laws show NAME`.")
    return _show(words[1], arguments.json)


def _write_pages(docs: Path) -> int:
    from moejax.cli.law_pages import write_pages
    from moejax.cli.out_folder import out_folder
    from moejax.cli.progress import progress_display

    with out_folder(docs), progress_display() as update:
        print(write_pages(docs, update))
    return 0


def describe(name: str) -> dict[str, Any]:
    """Everything that is known of one law, as plain values.

    Raises:
      UserError: an unknown law, with the nearest names.
    """
    from moejax.laws import ALIASES, LAWS, PUBLISHED
    from moejax.laws.door import law_name
    from moejax.laws.law import coefficients

    law = law_name(name)
    cls: Any = LAWS[law]
    return {
        "law": law,
        "aliases": [alias for alias, known in ALIASES.items() if known == law],
        "statement": inspect.cleandoc(cls.__doc__).replace("``", ""),
        "inputs": list(cls.inputs),
        "outputs": dict(cls.outputs),
        "coefficients": {
            f.name: {"symbol": f.metadata["symbol"], "meaning": f.metadata["meaning"]} for f in dataclasses.fields(cls)
        },
        "constants": {
            key: {
                "values": {name: _plain(value) for name, value in coefficients(p.law).items()},
                "source": p.source,
                "mark": p.mark,
                "data": p.data,
                "fitted": {variable: list(bounds) for variable, bounds in p.fitted.items()},
                "remark": p.remark,
            }
            for key, p in PUBLISHED[law].items()
        },
    }


def _plain(value: Any) -> Any:
    """A coefficient that is an array, or a sequence of coefficients, as lists of numbers."""
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else float(value)


def _list(as_json: bool) -> int:
    from moejax.cli.table import show
    from moejax.laws import LAWS

    every = [describe(name) for name in LAWS]
    if as_json:
        print(json_text(every))
        return 0
    rows = [
        [
            law["law"],
            ", ".join(law["aliases"]),
            ", ".join(law["inputs"]),
            ", ".join(law["outputs"]),
            ", ".join(law["constants"]) or "none published",
        ]
        for law in every
    ]
    columns = ["law", "also called", "reads", "predicts", "constants"]
    show("Laws", columns, rows, words=columns)
    print("`moejax laws show NAME` prints the form, its source and its constants.")
    return 0


def _show(name: str, as_json: bool) -> int:
    from moejax.cli.table import show
    from moejax.laws.published import MARKS
    from moejax.quantities import format

    law = describe(name)
    if as_json:
        print(json_text(law))
        return 0
    print(f"{law['law']}\n\n{law['statement']}\n")
    print(f"reads     {', '.join(law['inputs'])}")
    print("predicts  " + "; ".join(f"{output} ({unit})" for output, unit in law["outputs"].items()) + "\n")
    sets = law["constants"]
    rows = [
        [c["symbol"], key, *(_text(s["values"].get(key)) for s in sets.values()), c["meaning"]]
        for key, c in law["coefficients"].items()
    ]
    show("Coefficients", ["symbol", "name", *sets, "meaning"], rows, words=("name", "meaning"))
    for key, s in sets.items():
        print(f"{key}: {s['source']} ({s['mark']}: {MARKS[s['mark']]}).")
        if s["data"]:
            print(f"  data: {s['data']}")
        for variable, (low, high) in s["fitted"].items():
            print(f"  fitted for {variable} between {format(low)} and {format(high)}")
        if s["remark"]:
            print(f"  {s['remark']}")
    if not sets:
        print("No constants are published; fit the law to runs with `moejax fit`.")
    return 0


def _text(value: Any) -> str:
    if value is None:
        return "chosen"
    return f"{value:.6g}" if isinstance(value, float) else " ".join(_text(v) for v in value)
