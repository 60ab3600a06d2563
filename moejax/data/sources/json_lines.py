"""JSON lines: a line is a record with its text in one field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moejax.data.compression import UNREADABLE, is_compressed, opened
from moejax.data.source import INPUT_SHARD_BYTES, Corrupt, Document, File, SourceOptions, ranges
from moejax.wording import says


@dataclass(frozen=True)
class JsonLines:
    """The lines that begin in ``[start, end)`` of a file; of a compressed file, where no line can be found before
    those in front of it are read, all lines."""

    file: File
    text_field: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """The file's, with the byte it begins at."""
        return f"{self.file.name}@{self.start}" if self.start else self.file.name

    @property
    def size_bytes(self) -> int:
        """On disk."""
        return self.end - self.start

    def documents(self) -> Iterator[Document | Corrupt]:
        """A document per line; blank lines are none."""
        try:
            with opened(self.file.path) as stream:
                if self.start:
                    stream.seek(self.start - 1)
                    stream.readline()
                end = None if is_compressed(self.file.path) else self.end
                number = 0
                while (end is None or stream.tell() < end) and (line := stream.readline()):
                    number += 1
                    if line.strip():
                        yield _document(line, f"{self.name}:{number}", self.text_field)
        except UNREADABLE as error:
            yield Corrupt(f"{self.name}, the rest", f"damaged ({says('the reader', error)})", self.size_bytes)


def input_shards(files: Sequence[File], root: Path, options: SourceOptions) -> Iterator[JsonLines]:
    """Ranges of plain files; a compressed file is one input shard."""
    for file in files:
        step = file.size if is_compressed(file.path) else INPUT_SHARD_BYTES
        for start, end in ranges(file.size, step):
            yield JsonLines(file, options.text_field, start, end)


def _document(line: bytes, name: str, field: str) -> Document | Corrupt:
    try:
        record = json.loads(line)
    except ValueError as error:
        return Corrupt(name, f"no JSON ({says('json', error)})")
    if not isinstance(record, dict):
        return Corrupt(name, "no JSON object")
    text = record.get(field)
    if not isinstance(text, str):
        return Corrupt(name, f"no text in its field {field!r} (its fields are {', '.join(map(repr, record))})")
    try:
        return Document(name, text.encode())
    except UnicodeEncodeError:
        return Corrupt(name, "a surrogate that stands alone, which no UTF-8 can hold")
