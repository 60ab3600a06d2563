"""Prepare text or tokens for training, train tokenizers, and show prepared datasets."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from moejax.cli.options import Command, argument, option, out
from moejax.cli.out_folder import out_file
from moejax.cli.progress import progress_display
from moejax.cli.shared import Workers
from moejax.errors import UserError
from moejax.json_text import json_text
from moejax.ranges import NumberRange, whole
from moejax.say import say
from moejax.wording import command, some

EXAMPLE = """\
  moejax data tokenizer texts/ --vocab-size 32768 --out tokenizer.json
  moejax data prepare texts/ --tokenizer tokenizer.json --out sets/texts
  moejax data prepare web.jsonl.zst --text-field content --out sets/web --workers 8
  moejax data prepare train.bin --tokenizer ids:50257:50256 --out sets/gpt2     # tokens of nanoGPT or Megatron
  moejax data prepare hf:roneneldan/TinyStories --out sets/stories              # pip install 'moejax[hf]'
  moejax data show sets/texts --verify
  moejax train --config=configs/tiny.py --config.recipe.data.source=sets/web --out runs/web"""
MOST_NAMED = 20
"""Maximum number of skipped files that JSON output names."""
DocumentShare = Annotated[float, NumberRange(0, 1, without_high=True)]


@dataclass(frozen=True, kw_only=True)
class InputOptions(Command):
    """A source of text."""

    source: str = argument(
        "a file, a folder, hf:NAME[:CONFIG], or python_stdlib; formats: docs/data.md", metavar="SOURCE"
    )
    text_field: str = option("text", "field of a record with the text", metavar="NAME")

    def skipped(self) -> dict[str, Any]:
        """Report the files of the source folder that are not read. Return their counts and names for the JSON output,
        keyed by ``skipped``.
        """
        from moejax.data.sources import skipped

        files = skipped(self.source)
        if files is None or not files.read:
            # If no file is readable, a separate message describes the folder.
            return {}
        if text := str(files):
            say(f"moejax: {self.source}: {text}")
        by_suffix = {suffix or "none": count for suffix, count in files.by_suffix.items()}
        counts = {"files": len(files.files), "by_suffix": by_suffix, "named": list(files.files[:MOST_NAMED])}
        return {"skipped": {**counts, "hidden": len(files.hidden), "prepared_sets": list(files.prepared)}}


@dataclass(frozen=True, kw_only=True)
class PrepareCommand(InputOptions, name="data prepare"):
    """Tokenize text once, in parallel; an interrupted preparation is resumed."""

    out: Path = out("folder of the set", required=True)
    tokenizer: str = option("bytes", "bytes, a tokenizer.json[#TOKEN], or ids:VOCAB:END", metavar="NAME")
    validation_share: DocumentShare = option(0.05, "share of documents held out", metavar="SHARE")
    corrupt_share: DocumentShare = option(
        0.01, "maximum share of unreadable documents before preparation fails", metavar="SHARE"
    )
    workers: Workers | None = option(None, "number of processes (default: one per core)", metavar="N")

    def check(self) -> None:
        is_folder = self.source.strip() and Path(self.source).is_dir()
        if is_folder and Path(os.path.realpath(self.out)).is_relative_to(os.path.realpath(self.source)):
            raise UserError(f"--out {self.out} is inside the source, {self.source}; name a folder outside it.")

    def run(self) -> None:
        from moejax.data.prepare import prepare
        from moejax.data.summary import summary
        from moejax.report import render

        skipped = self.skipped()
        with progress_display() as update:
            prepared = prepare(
                self.source,
                self.out,
                tokenizer=self.tokenizer,
                validation_share=self.validation_share,
                corrupt_share=self.corrupt_share,
                text_field=self.text_field,
                workers=self.workers or _cores(),
                again=True,
                update=update,
            )
        render.show(summary(prepared, skipped=skipped), as_json=self.json)
        if not self.json:
            say(f"train on it with {command(f'--config.recipe.data.source={self.out}')}", file=sys.stdout)


@dataclass(frozen=True, kw_only=True)
class TokenizerCommand(InputOptions, name="data tokenizer"):
    """Train a byte-level BPE tokenizer."""

    out: Path = out("tokenizer.json to write", required=True, metavar="FILE")
    vocab_size: Annotated[int, whole(1, 10_000_000)] = option(32_768, "size of the vocabulary", metavar="N")
    max_bytes: Annotated[int, whole(1, 10**15)] = option(10**9, "maximum bytes of text to train on", metavar="N")

    def run(self) -> None:
        from moejax.data.train_tokenizer import train_tokenizer

        skipped = self.skipped()
        unread: list[str] = []
        with out_file(self.out), progress_display() as update:
            trained = train_tokenizer(
                self.source,
                self.out,
                vocab_size=self.vocab_size,
                text_field=self.text_field,
                max_bytes=self.max_bytes,
                update=update,
                unread=unread.append,
            )
        if unread:
            say(f"moejax: {len(unread):,} documents could not be read and were skipped: {some(unread)}")
        if trained.vocab_size < self.vocab_size:
            say(
                f"The text is too small for --vocab-size {self.vocab_size}: the vocabulary has only "
                f"{trained.vocab_size:,} tokens. Give more text for a larger one."
            )
        if not self.json:
            say(f"{trained.vocab_size:,} tokens: {self.out}", file=sys.stdout)
            return
        result = {"tokenizer": str(self.out), "vocab_size": trained.vocab_size, "sha256": trained.sha256}
        print(json_text(result | {"end_of_document": trained.end_of_document, "unread": len(unread), **skipped}))


@dataclass(frozen=True, kw_only=True)
class DataShowCommand(Command, name="data show"):
    """Show the content of a prepared dataset."""

    folder: str = argument("folder of the set", metavar="DIR")
    verify: bool = option(False, "also compare the hash of every token file with the recorded one")
    sample: Annotated[int, whole(0, 1_000_000)] = option(64, "number of tokens to decode", metavar="N")

    def run(self) -> None:
        from moejax.data.prepared import PreparedSet
        from moejax.data.summary import summary
        from moejax.report import render

        prepared = PreparedSet(Path(self.folder))
        render.show(summary(prepared, self.sample), as_json=self.json)
        if self.verify:
            if wrong := prepared.verify():
                raise UserError(
                    f"{len(wrong)} files of {self.folder} were changed: {', '.join(wrong[:3])}; remove them and run "
                    f"moejax data prepare with the same settings to recreate them."
                )
            say(f"{len(prepared.manifest.shards):,} shards match their hashes")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
