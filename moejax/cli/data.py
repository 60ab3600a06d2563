"""``moejax data``: text or tokens to a set that trainings read; tokenizers; what a set holds."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from moejax.cli.number import WORKERS, count, whole_number
from moejax.json_text import json_text
from moejax.report import render
from moejax.result import Column, Result, Table
from moejax.wording import command, some

NAME = "data"
NAMED = 20
"""Files that are skipped and named in JSON, at most."""
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
    """Options of the three."""
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
    prepare.add_argument("--out", required=True, metavar="DIR", help="folder of the set")
    prepare.add_argument(
        "--tokenizer", default="bytes", metavar="NAME", help="bytes, a tokenizer.json[#TOKEN], or ids:VOCAB:END"
    )
    prepare.add_argument(
        "--validation-share", type=float, default=0.05, metavar="SHARE", help="of documents held out (%(default)s)"
    )
    prepare.add_argument(
        "--corrupt-share", type=float, default=0.01, metavar="SHARE", help="that may be unreadable (%(default)s)"
    )
    prepare.add_argument("--workers", type=WORKERS, metavar="N", help="processes (default: one per core)")

    tokenizer = actions.add_parser(
        "tokenizer", parents=[source, both], help="train a byte-level BPE", allow_abbrev=False
    )
    tokenizer.set_defaults(out_is_file=True)
    tokenizer.add_argument("--out", required=True, metavar="FILE", help="tokenizer.json to write")
    tokenizer.add_argument("--vocab-size", type=count(1, 10_000_000), default=32_768, metavar="N", help="(%(default)s)")
    tokenizer.add_argument(
        "--max-bytes", type=whole_number, default=10**9, metavar="N", help="of text to learn from (%(default)s)"
    )

    show = actions.add_parser("show", parents=[both], help="what a prepared set holds", allow_abbrev=False)
    show.add_argument("folder", metavar="DIR", help="of the set")
    show.add_argument("--verify", action="store_true", help="also compare every file of tokens with its hash")
    show.add_argument("--sample", type=count(0), default=64, metavar="N", help="tokens to decode (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Do one of the three, and print what came of it."""
    return {"prepare": _prepare, "tokenizer": _tokenizer, "show": _show}[arguments.action](arguments)


def _prepare(arguments: argparse.Namespace) -> int:
    from moejax.cli.progress import progress_display
    from moejax.data.prepare import prepare
    from moejax.errors import UserError

    for name in ("validation_share", "corrupt_share"):
        if not 0 <= getattr(arguments, name) < 1:
            raise UserError(
                f"--{name.replace('_', '-')} is {getattr(arguments, name)}; it must be at least 0 and less than 1."
            )
    skipped = _say_skipped(arguments.source)
    with progress_display() as update:
        prepared = prepare(
            arguments.source,
            Path(arguments.out),
            tokenizer=arguments.tokenizer,
            validation_share=arguments.validation_share,
            corrupt_share=arguments.corrupt_share,
            text_field=arguments.text_field,
            workers=arguments.workers or _cores(),
            again=True,
            update=update,
        )
    _print(prepared, arguments, sample=0, skipped=skipped)
    if not arguments.json:
        print(f"train on it with {command(f'--config.recipe.data.source={arguments.out}')}")
    return 0


def _tokenizer(arguments: argparse.Namespace) -> int:
    from moejax.cli.out_folder import out_file
    from moejax.cli.progress import progress_display
    from moejax.data.train_tokenizer import train_tokenizer

    skipped = _say_skipped(arguments.source)
    unread: list[str] = []
    with out_file(Path(arguments.out)), progress_display() as update:
        found = train_tokenizer(
            arguments.source,
            Path(arguments.out),
            vocab_size=arguments.vocab_size,
            text_field=arguments.text_field,
            max_bytes=arguments.max_bytes,
            update=update,
            unread=unread.append,
        )
    if unread:
        print(f"moejax: nothing was learned from {len(unread):,} documents: {some(unread)}", file=sys.stderr)
    if found.vocab_size < arguments.vocab_size:
        print(f"The text gave only {found.vocab_size:,} tokens.", file=sys.stderr)
    result = {"tokenizer": arguments.out, "vocab_size": found.vocab_size, "sha256": found.sha256}
    result |= {"end_of_document": found.end_of_document, "unread": len(unread), **skipped}
    print(json_text(result) if arguments.json else f"{found.vocab_size:,} tokens: {arguments.out}")
    return 0


def _say_skipped(source: str) -> dict[str, Any]:
    """Say what of a folder is not read, and return it as data."""
    from moejax.data.sources import skipped

    found = skipped(source)
    if found is None or not found.read:
        # Without a file that is read, a sentence of its own says what there is instead.
        return {}
    if text := str(found):
        print(f"moejax: {source}: {text}", file=sys.stderr)
    by_suffix = {suffix or "none": count for suffix, count in found.by_suffix.items()}
    counts = {"files": len(found.files), "by_suffix": by_suffix, "named": list(found.files[:NAMED])}
    return {"skipped": {**counts, "hidden": len(found.hidden), "prepared_sets": list(found.prepared)}}


def _show(arguments: argparse.Namespace) -> int:
    from moejax.data.prepared import PreparedSet
    from moejax.errors import UserError

    prepared = PreparedSet(Path(arguments.folder))
    _print(prepared, arguments, sample=arguments.sample)
    if arguments.verify:
        wrong = prepared.verify()
        if wrong:
            raise UserError(
                f"{len(wrong)} files of {arguments.folder} are not what was written: {', '.join(wrong[:3])}; remove "
                f"them and run moejax data prepare with the same settings, which makes them again."
            )
        print(f"{len(prepared.manifest.shards):,} shards are as they were written", file=sys.stderr)
    return 0


def _print(prepared, arguments: argparse.Namespace, *, sample: int, skipped: Mapping[str, Any] = {}) -> None:
    from moejax.config import dump

    manifest = prepared.manifest
    whole = Column("", ",")
    columns = [Column("split"), *(replace(whole, name=name) for name in ("documents", "bytes", "tokens"))]
    rows = [
        [
            name,
            split.documents,
            split.bytes or "not known",
            split.tokens,
            split.bytes / split.tokens if split.bytes else None,
        ]
        for name, split in (("train", manifest.train), ("validation", manifest.validation))
    ]
    notes = [
        f"tokenizer {manifest.tokenizer.name}, {manifest.tokenizer.vocab_size:,} tokens",
        f"unigram entropy {manifest.unigram_entropy:.4f} nats/token; {len(manifest.shards):,} shards",
        f"SHA-256 of the text {manifest.sha256}",
    ]
    if manifest.corrupt.records:
        lost = f"{manifest.corrupt.records:,} records, {manifest.corrupt.bytes:,} bytes lost beside"
        notes += [f"left out as corrupt: {lost}", *(f"  {name}" for name in manifest.corrupt.named)]
    text = _sample(prepared, sample) if sample or arguments.json else ""
    if sample:
        notes.append(f"the first {sample} tokens held out:\n{text}")
    found = Result(
        tables=[Table(manifest.source, (*columns, Column("bytes/token", ".3f")), rows)],
        notes=notes,
        data={**dump(manifest), "shards": len(manifest.shards), "sample": text, **skipped},
    )
    render.show(found, as_json=arguments.json)


def _sample(prepared, tokens: int) -> str:
    return prepared.tokenizer.decode(prepared.split("validation").read(0, tokens))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
