"""What can be read. A source is named by a name of ``NAMED``, as ``hf:NAME``, or as a file or folder, whose formats
are told by their suffixes, in front of ``.gz`` or ``.zst`` if compressed.

A format is a function ``parts(files, root, reading)``; add one here and in ``docs/data.md``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

from moejax.data.compression import inner_suffix, is_compressed
from moejax.data.source import File, Part, Reading, file
from moejax.data.sources import (
    array_record,
    hugging_face,
    json_lines,
    megatron,
    parquet,
    python_stdlib,
    text_files,
    token_files,
)

NAMED: dict[str, Callable[[Reading], Iterable[Part]]] = {"python_stdlib": python_stdlib.parts}
"""Sources by name."""

Format = Callable[[Sequence[File], Path, Reading], Iterable[Part]]

FORMATS: dict[str, Format] = {
    ".txt": text_files.parts,
    ".text": text_files.parts,
    ".md": text_files.parts,
    ".rst": text_files.parts,
    ".tex": text_files.parts,
    ".html": text_files.parts,
    ".py": text_files.parts,
    ".jsonl": json_lines.parts,
    ".ndjson": json_lines.parts,
    ".json": json_lines.parts,
    ".parquet": parquet.parts,
    ".arrayrecord": array_record.parts,
    ".array_record": array_record.parts,
    ".bin": token_files.parts,
    ".npy": token_files.parts,
}
"""Formats by suffix. A ``.bin`` with an ``.idx`` beside it is Megatron's."""

COMPRESSIBLE: tuple[Format, ...] = (text_files.parts, json_lines.parts)
"""Formats that are read through ``.gz`` and ``.zst``; the others compress inside, or are memory-mapped."""


CHOICES = "choices.json"
"""A folder that holds this file is a prepared set: inside a source it is passed over."""


def parts_of(source: str, reading: Reading) -> list[Part]:
    """The parts of a source, in order.

    Raises:
      ValueError: there is no such source, or it holds nothing that can be read.
    """
    if source in NAMED:
        return list(NAMED[source](reading))
    if source.startswith(hugging_face.PREFIX):
        return list(hugging_face.parts(source, reading))
    path = Path(source).expanduser()
    if not path.exists():
        raise ValueError(
            f"There is no file or folder {source} to read; known names are {', '.join(NAMED)}, and "
            f"{hugging_face.PREFIX}NAME for a data set of the Hugging Face Hub."
        )
    files, passed_over = _files(path)
    if not files:
        seen = ", ".join(f"{count} {suffix or 'without a suffix'}" for suffix, count in passed_over.most_common(5))
        raise ValueError(
            f"{source} holds no file that can be read{f' (but {seen})' if seen else ''}; known are "
            f"{', '.join(FORMATS)}, the text formats also with .gz or .zst."
        )
    root = path if path.is_dir() else path.parent
    found: list[Part] = []
    for read, group in groupby(files, _format):
        assert read is not None
        found += read([file(path) for path in group], root.absolute(), reading)
    return found


def _files(path: Path) -> tuple[list[Path], Counter[str]]:
    """Files that some format reads, in the order of their paths, and how many of what suffix none does."""
    if path.is_file():
        every = [path]
    else:
        every = []
        for folder, folders, names in os.walk(path):
            if CHOICES in names:
                folders.clear()
                continue
            every += [Path(folder, name) for name in names if name[0] != "."]
    known = [one for one in every if _format(one) is not None]
    passed_over = Counter(one.suffix for one in every if _format(one) is None and one.suffix != ".idx")
    return sorted(known, key=lambda one: one.relative_to(path).as_posix()), passed_over


def _format(path: Path) -> Format | None:
    read = FORMATS.get(inner_suffix(path))
    if is_compressed(path) and read not in COMPRESSIBLE:
        return None
    return megatron.parts if read is token_files.parts and megatron.index_of(path).exists() else read
