"""Define the options of ``moejax data``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from moejax.cli.number import WORKERS, count, number, whole_number
from moejax.cli.out_folder import local
from moejax.errors import UserError

HELP = """\
Prepare text for training. `prepare` tokenises it once, in parallel, and goes on where it was stopped; `tokenizer`
learns a vocabulary from it; `show` says what a prepared set holds."""
EXAMPLE = """\
  moejax data tokenizer texts/ --vocab-size 32768 --out tokenizer.json
  moejax data prepare texts/ --tokenizer tokenizer.json --out sets/texts
  moejax data prepare web.jsonl.zst --text-field content --out sets/web --workers 8
  moejax data prepare train.bin --tokenizer ids:50257:50256 --out sets/gpt2     # tokens of nanoGPT or Megatron
  moejax data prepare hf:roneneldan/TinyStories --out sets/stories              # pip install 'moejax[hf]'
  moejax data show sets/texts --verify
  moejax train --config=configs/tiny.py --config.recipe.data.source=sets/web --out runs/web"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the three actions."""
    parser.add_argument("--json", action="store_true", help="print the result on stdout as JSON (before or after)")
    actions = parser.add_subparsers(dest="action", required=True, metavar="prepare | tokenizer | show")
    source = argparse.ArgumentParser(add_help=False)
    source.add_argument(
        "source", metavar="SOURCE", help="a file, a folder, hf:NAME[:CONFIG], or python_stdlib; formats: docs/data.md"
    )
    source.add_argument("--text-field", default="text", metavar="NAME", help="of a record (%(default)s)")
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    prepare = actions.add_parser("prepare", parents=[source, both], help="tokenise once", allow_abbrev=False)
    prepare.add_argument("--out", type=local, required=True, metavar="DIR", help="folder of the set")
    prepare.add_argument(
        "--tokenizer", default="bytes", metavar="NAME", help="bytes, a tokenizer.json[#TOKEN], or ids:VOCAB:END"
    )
    prepare.add_argument(
        "--validation-share", type=number, default=0.05, metavar="SHARE", help="of documents held out (%(default)s)"
    )
    prepare.add_argument(
        "--corrupt-share", type=number, default=0.01, metavar="SHARE", help="that may be unreadable (%(default)s)"
    )
    prepare.add_argument("--workers", type=WORKERS, metavar="N", help="processes (default: one per core)")

    tokenizer = actions.add_parser(
        "tokenizer", parents=[source, both], help="train a byte-level BPE", allow_abbrev=False
    )
    tokenizer.set_defaults(out_is_file=True)
    tokenizer.add_argument("--out", type=local, required=True, metavar="FILE", help="tokenizer.json to write")
    tokenizer.add_argument("--vocab-size", type=count(1, 10_000_000), default=32_768, metavar="N", help="(%(default)s)")
    tokenizer.add_argument(
        "--max-bytes", type=whole_number, default=10**9, metavar="N", help="of text to learn from (%(default)s)"
    )

    show = actions.add_parser("show", parents=[both], help="what a prepared set holds", allow_abbrev=False)
    show.add_argument("folder", metavar="DIR", help="of the set")
    show.add_argument("--verify", action="store_true", help="also compare every file of tokens with its hash")
    show.add_argument("--sample", type=count(0), default=64, metavar="N", help="tokens to decode (%(default)s)")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for an invalid share, or an output folder inside the source."""
    if arguments.action == "prepare" and arguments.source.strip() and Path(arguments.source).is_dir():
        source, out = os.path.realpath(arguments.source), os.path.realpath(arguments.out)
        if Path(out).is_relative_to(source):
            raise UserError(f"--out {arguments.out} lies in the source, {arguments.source}; name a folder outside it.")
    for name in ("validation_share", "corrupt_share"):
        if not 0 <= getattr(arguments, name, 0) < 1:
            raise UserError(
                f"--{name.replace('_', '-')} is {getattr(arguments, name)}; it must be at least 0 and less than 1."
            )
