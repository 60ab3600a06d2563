"""Implement ``moejax data``: prepare text or tokens for training, train tokenizers, show prepared sets."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from moejax.cli.out_folder import out_file
from moejax.cli.progress import progress_display
from moejax.config import dump
from moejax.data.prepare import prepare
from moejax.data.prepared import PreparedSet
from moejax.data.sources import skipped
from moejax.data.train_tokenizer import train_tokenizer
from moejax.errors import UserError
from moejax.json_text import json_text
from moejax.report import render
from moejax.result import Column, Result, Table
from moejax.say import say
from moejax.wording import command, some

NAMED = 20
"""Maximum number of skipped files that JSON output names."""


def run(arguments: argparse.Namespace) -> int:
    """Run one of the three actions and print its result."""
    return {"prepare": _prepare, "tokenizer": _tokenizer, "show": _show}[arguments.action](arguments)


def _prepare(arguments: argparse.Namespace) -> int:
    skipped = _say_skipped(arguments.source)
    with progress_display() as update:
        prepared = prepare(
            arguments.source,
            arguments.out,
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
        say(f"train on it with {command(f'--config.recipe.data.source={arguments.out}')}", file=sys.stdout)
    return 0


def _tokenizer(arguments: argparse.Namespace) -> int:
    skipped = _say_skipped(arguments.source)
    unread: list[str] = []
    with out_file(arguments.out), progress_display() as update:
        found = train_tokenizer(
            arguments.source,
            arguments.out,
            vocab_size=arguments.vocab_size,
            text_field=arguments.text_field,
            max_bytes=arguments.max_bytes,
            update=update,
            unread=unread.append,
        )
    if unread:
        say(f"moejax: nothing was learned from {len(unread):,} documents: {some(unread)}")
    if found.vocab_size < arguments.vocab_size:
        say(f"The text gave only {found.vocab_size:,} tokens.")
    result = {"tokenizer": str(arguments.out), "vocab_size": found.vocab_size, "sha256": found.sha256}
    result |= {"end_of_document": found.end_of_document, "unread": len(unread), **skipped}
    if arguments.json:
        print(json_text(result))
    else:
        say(f"{found.vocab_size:,} tokens: {arguments.out}", file=sys.stdout)
    return 0


def _say_skipped(source: str) -> dict[str, Any]:
    """Report the files of a folder that are not read, and return them as data."""
    found = skipped(source)
    if found is None or not found.read:
        # If no file is readable, a separate message describes the folder.
        return {}
    if text := str(found):
        say(f"moejax: {source}: {text}")
    by_suffix = {suffix or "none": count for suffix, count in found.by_suffix.items()}
    counts = {"files": len(found.files), "by_suffix": by_suffix, "named": list(found.files[:NAMED])}
    return {"skipped": {**counts, "hidden": len(found.hidden), "prepared_sets": list(found.prepared)}}


def _show(arguments: argparse.Namespace) -> int:
    prepared = PreparedSet(Path(arguments.folder))
    _print(prepared, arguments, sample=arguments.sample)
    if arguments.verify:
        wrong = prepared.verify()
        if wrong:
            raise UserError(
                f"{len(wrong)} files of {arguments.folder} are not what was written: {', '.join(wrong[:3])}; remove "
                f"them and run moejax data prepare with the same settings, which makes them again."
            )
        say(f"{len(prepared.manifest.shards):,} shards are as they were written")
    return 0


def _print(prepared, arguments: argparse.Namespace, *, sample: int, skipped: Mapping[str, Any] = {}) -> None:
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
        notes += [f"the first {sample} tokens held out:", *text.splitlines()]
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
