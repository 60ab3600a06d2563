"""Summarize a prepared set as a ``Result``: its sizes, its tokenizer, and its first held-out tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moejax.config import dump
from moejax.data.prepared import PreparedSet
from moejax.result import Column, Result, Table


def summary(prepared: PreparedSet, sample: int = 0, skipped: Mapping[str, Any] | None = None) -> Result:
    """Return the sizes of both splits, and the text of the first ``sample`` held-out tokens. ``skipped`` is added to
    the result's data.
    """
    manifest = prepared.manifest
    columns = (
        Column("split"),
        Column("documents", ","),
        Column("bytes", ","),
        Column("tokens", ","),
        Column("bytes/token", ".3f"),
    )
    rows = [
        [
            name,
            split.documents,
            split.bytes or "unknown",
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
        lost = f"{manifest.corrupt.records:,} corrupt records, and {manifest.corrupt.bytes:,} further bytes"
        notes += [f"left out: {lost}", *(f"  {name}" for name in manifest.corrupt.named)]
    text = prepared.tokenizer.decode(prepared.split("validation").read(0, sample)) if sample else ""
    if sample:
        notes += [f"the first {sample} held-out tokens:", *text.splitlines()]
    data = {**dump(manifest), "shards": len(manifest.shards), "sample": text, **(skipped or {})}
    return Result(tables=[Table(manifest.source, columns, rows)], notes=notes, data=data)
