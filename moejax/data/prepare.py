"""Tokenize a source once, in parallel, with one token shard per input shard. A killed run can be resumed."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from moejax.config import dump
from moejax.data.prepared import (
    MANIFEST,
    SHARDS,
    CorruptRecords,
    Manifest,
    PreparedSet,
    SplitTotals,
    TokenizerName,
    read_counts,
    remember_checked,
    shard_hashes,
    summed,
)
from moejax.data.shard import NAMED_CORRUPT, SPLITS, TokenShard, token_type, write_shard
from moejax.data.source import InputShard, SourceOptions
from moejax.data.sources import CHOICES, input_shards_of
from moejax.data.tokenizer import Tokenizer, open_tokenizer
from moejax.data.workers import BytesCallback, in_processes
from moejax.errors import UserError
from moejax.folder import atomic_write, differences, only_writer
from moejax.say import ProgressCallback
from moejax.stored import Damaged, check_writable, read_json, write_json

FORMAT = 1
"""Version of the format; increase it whenever the same source would produce different files."""


def prepare(
    source: str,
    folder: Path,
    *,
    tokenizer: str | Tokenizer = "bytes",
    validation_share: float = 0.05,
    corrupt_share: float = 0.01,
    text_field: str = "text",
    workers: int = 1,
    again: bool = False,
    patience_seconds: float = 15.0,
    update: ProgressCallback = lambda share, text: None,
) -> PreparedSet:
    """Tokenize ``source`` into ``folder``, keeping shards that are already finished.

    A finished set is only opened. With ``again``, changed input shards of the source are read again. If another process
    prepares the same set, wait for at most ``patience_seconds``. With a ``validation_share`` of 1, the training split
    is empty.

    Raises:
      UserError: the source or tokenizer does not exist; too many records are corrupt; one split is empty; or the folder
        holds a set with other settings.
    """
    opened = tokenizer if isinstance(tokenizer, Tokenizer) else open_tokenizer(tokenizer)
    choices = {
        "format": FORMAT,
        "source": source,
        "tokenizer": opened.sha256,
        "validation_share": validation_share,
        "text_field": text_field,
    }
    if folder.is_dir():
        # Check before locking, because the folder may belong to something else.
        _check_choices(folder, choices)
    check_writable(folder)
    with only_writer(folder, patience_seconds):
        _check_choices(folder, choices)
        if again or not (folder / MANIFEST).exists():
            input_shards = input_shards_of(source, _source_options(opened, text_field, validation_share))
            write_json(folder / CHOICES, choices)
            saved = _save_tokenizer(opened, folder)
            shards = _tokenize(input_shards, folder, choices, saved, workers, update)
            size = sum(input_shard.size_bytes for input_shard in input_shards)
            manifest = _manifest(source, folder, shards, saved, size, corrupt_share, validation_share)
            write_json(folder / MANIFEST, dump(manifest))
            _clean(folder, {shard.stem for shard in shards})
    return PreparedSet(folder)


def _source_options(tokenizer: Tokenizer, text_field: str, validation_share: float) -> SourceOptions:
    end = None if tokenizer.name == "bytes" else tokenizer.end_of_document
    return SourceOptions(text_field, end, tokenizer.vocab_size, held_out=validation_share < 1)


def _tokenize(
    input_shards: Sequence[InputShard],
    folder: Path,
    choices: dict[str, Any],
    tokenizer: TokenizerName,
    workers: int,
    update: ProgressCallback,
) -> list[TokenShard]:
    shards_folder = folder / SHARDS
    shards_folder.mkdir(exist_ok=True)
    _clean(folder, None)
    stems = [_stem(input_shard, choices) for input_shard in input_shards]
    done = {stem: shard for stem in stems if (shard := _finished(shards_folder, stem, tokenizer.vocab_size))}
    missing = [(input_shard, stem) for input_shard, stem in zip(input_shards, stems, strict=True) if stem not in done]
    total = sum(input_shard.size_bytes for input_shard in input_shards)
    share = 1 - sum(input_shard.size_bytes for input_shard, _ in missing) / max(total, 1)

    def show(amount: int) -> None:
        update(share, f"{len(done):,} of {len(input_shards):,} shards, {amount / 1e6:,.0f} MB in this run")

    common = (folder, tokenizer.name, choices["validation_share"])
    sizes = {stem: input_shard.size_bytes for input_shard, stem in missing}
    workers = max(1, min(workers, len(missing)))
    written: dict[Path, str] = {}
    for shard in in_processes(_shard, missing, workers, common=common, look=show):
        done[shard.stem] = shard
        written |= shard_hashes(folder, shard)
        share += sizes[shard.stem] / max(total, 1)
    remember_checked(folder, written)
    return [done[stem] for stem in stems]


def _shard(
    input_shard: InputShard, stem: str, folder: Path, tokenizer: str, share: float, tick: BytesCallback
) -> TokenShard:
    return write_shard(input_shard, stem, folder / SHARDS, open_tokenizer(tokenizer, folder), share, tick)


def _stem(input_shard: InputShard, choices: dict[str, Any]) -> str:
    """Return the name of a shard: a hash of all inputs. An existing shard with this name is therefore valid."""
    identity = [
        type(input_shard).__name__,
        asdict(input_shard),  # type: ignore[call-overload]
        choices["format"],
        choices["tokenizer"],
        choices["validation_share"],
    ]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]


def _finished(folder: Path, stem: str, vocab_size: int) -> TokenShard | None:
    path = folder / f"{stem}.json"
    if not path.exists():
        return None
    try:
        shard = read_json(path, TokenShard, remedy="")
    # The shard is written again from its input shard.
    except Damaged:
        return None
    sizes = {f"{stem}.counts.npy": None}
    for name in SPLITS:
        counts = getattr(shard, name)
        sizes[f"{stem}.{name}.tokens"] = counts.tokens * token_type(vocab_size).itemsize
        sizes[f"{stem}.{name}.ends"] = counts.documents * 8
    for name, size in sizes.items():
        file = folder / name
        if not file.exists() or size not in (None, file.stat().st_size):
            return None
    return shard


def _manifest(
    source: str,
    folder: Path,
    shards: Sequence[TokenShard],
    tokenizer: TokenizerName,
    size_bytes: int,
    corrupt_share: float,
    validation_share: float,
) -> Manifest:
    corrupt = CorruptRecords(
        records=sum(shard.corrupt for shard in shards),
        bytes=sum(shard.corrupt_bytes for shard in shards),
        named=tuple(name for shard in shards for name in shard.corrupt_named)[:NAMED_CORRUPT],
    )
    splits = {name: summed(SplitTotals, [getattr(shard, name) for shard in shards]) for name in SPLITS}
    all_held_out = validation_share == 1
    # Only commands that hold out a part of the documents have an option for the share of corrupt records.
    remedy = "leave them out" if all_held_out else "allow more with --corrupt-share (data.corrupt_share)"
    _check_corrupt(source, corrupt, splits, size_bytes, corrupt_share, remedy)
    if all_held_out and not splits["validation"].documents:
        raise UserError(f"{source} has no document; give more text.")
    for name, split in splits.items():
        if not split.documents and not all_held_out:
            number = sum(split.documents for split in splits.values())
            raise UserError(
                f"The {name} split of {source} has no document; the source has {number:,} and the validation share "
                f"is {validation_share}. Equal documents are in the same split, so give "
                f"{'more documents' if number < 100 else 'documents that differ'}, or change the share."
            )
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for shard in shards:
        tokens = shard.train.tokens + shard.validation.tokens
        counts += read_counts(folder / SHARDS / f"{shard.stem}.counts.npy", tokenizer.vocab_size, tokens)
    with atomic_write(folder / "counts.npy") as partial, partial.open("wb") as file:
        np.save(file, counts)
    frequency = counts[counts > 0] / counts.sum()
    return Manifest(
        source=source,
        sha256=hashlib.sha256("".join(shard.sha256 for shard in shards).encode()).hexdigest(),
        tokenizer=tokenizer,
        unigram_entropy=-math.fsum(frequency * np.log(frequency)),
        corrupt=corrupt,
        shards=tuple(shards),
        **splits,
    )


def _check_corrupt(
    source: str,
    corrupt: CorruptRecords,
    splits: dict[str, SplitTotals],
    size_bytes: int,
    allowed: float,
    remedy: str,
) -> None:
    records = corrupt.records + sum(split.documents for split in splits.values())
    lost = max(corrupt.records / max(records, 1), corrupt.bytes / max(size_bytes, 1))
    if lost > allowed:
        shown = "; ".join(corrupt.named[:3]) + ("; …" if corrupt.records > 3 else "")
        raise UserError(
            f"{corrupt.records:,} of {records:,} records of {source} are corrupt ({lost:.2%}; at most {allowed:.2%} "
            f"is allowed): {shown}. Fix the records (text must be UTF-8), or {remedy}."
        )


def _check_choices(folder: Path, choices: dict[str, Any]) -> None:
    path = folder / CHOICES
    if path.exists():
        different = differences(read_json(path, dict, remedy="choose another folder"), choices)
        if different:
            raise UserError(
                f"{folder} holds a set prepared with other settings: {'; '.join(different)}. Use the same settings, "
                "or another folder."
            )
    elif any(not child.name.startswith(".") for child in folder.iterdir()):
        raise UserError(f"{folder} is not empty and does not hold a set that can be resumed; choose another folder.")


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> TokenizerName:
    name = tokenizer.save(folder)
    return TokenizerName(name, tokenizer.sha256, tokenizer.vocab_size, tokenizer.end_of_document)


def _clean(folder: Path, stems: set[str] | None) -> None:
    """Remove the partial files of a killed process. With ``stems``, also remove the token shards of removed input
    shards."""
    for path in [*folder.iterdir(), *(folder / SHARDS).iterdir()]:
        if _PARTIAL.match(path.name):
            path.unlink(missing_ok=True)
    for path in (folder / SHARDS).iterdir():
        if stems is not None and path.name.partition(".")[0] not in stems:
            path.unlink(missing_ok=True)


_PARTIAL = re.compile(r"\.\d+\.")
"""Names of the partial files of ``moejax.folder.atomic_write``."""
