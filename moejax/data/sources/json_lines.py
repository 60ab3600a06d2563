"""Read JSON lines, and ``.json`` files with one array of records. One field of each record contains its text."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from moejax import input_file
from moejax.data.source import INPUT_SHARD_BYTES, Corrupt, Document, File, FileRange, SourceOptions, WholeFile, ranges
from moejax.errors import UserError
from moejax.input_file import UNREADABLE, inner_suffix, is_compressed, opened
from moejax.json_text import parse
from moejax.wording import says, told


@dataclass(frozen=True)
class JsonLines(FileRange):
    """Lines that begin in ``[start, end)`` of a file. A compressed file can only be read from its start, so its lines
    are all in one input shard.
    """

    text_field: str

    @property
    def size_bytes(self) -> int:
        """Return the size on disk."""
        return self.end - self.start

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield a document per line that is not blank."""
        try:
            with opened(self.file.path) as stream:
                end = None if is_compressed(self.file.path) else self.end
                if self.start:
                    stream.seek(self.start - 1)
                    input_file.skip_line(stream, end)
                number = 0
                while (end is None or stream.tell() < end) and (line := input_file.read_line(stream)) != b"":
                    number += 1
                    name = f"{self.name}:{number}"
                    if line is None:
                        input_file.skip_line(stream, end)
                        lost = 0 if end is None else self.size_bytes
                        yield Corrupt(name, f"a line of more than {input_file.MOST_LINE_BYTES:,} bytes", lost)
                    elif line.strip():
                        yield _document(line, name, self.text_field)
        except UNREADABLE as error:
            yield Corrupt(f"{self.name}, the rest", f"damaged ({says('the decompressor', error)})", self.size_bytes)


@dataclass(frozen=True)
class JsonArray(WholeFile):
    """A file with one array of records, as ``json.dump`` writes a list."""

    text_field: str

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield a document per item. Items after a damaged item are lost, because its end is unknown."""
        number = 0
        try:
            with opened(self.file.path) as stream:
                for record in _items(stream):
                    number += 1
                    yield _text_of(record, f"{self.name}:{number}", self.text_field)
        except (ValueError, RecursionError, *UNREADABLE) as error:
            why = f"it is not a valid JSON array ({says('json', error)})"
            yield Corrupt(f"{self.name}, after item {number}", why, self.size_bytes)


def input_shards(files: Sequence[File], root: Path, options: SourceOptions) -> Iterator[JsonLines | JsonArray]:
    """Yield ranges of uncompressed files of lines; a compressed file or an array is one input shard."""
    for file in files:
        if inner_suffix(file.path) == ".json" and _is_array(file):
            yield JsonArray(file, options.text_field)
            continue
        step = file.size if is_compressed(file.path) else INPUT_SHARD_BYTES
        for start, end in ranges(file.size, step):
            yield JsonLines(file, start, end, options.text_field)


def _is_array(file: File) -> bool:
    try:
        with opened(file.path) as stream:
            return stream.read(1024).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["
    except UNREADABLE:
        return False


def _items(stream: IO[bytes]) -> Iterator[Any]:
    decode, decoder = codecs.getincrementaldecoder("utf-8-sig")().decode, json.JSONDecoder()
    text, at, mark = "", 0, "["
    while True:
        here = _behind_spaces(text, at)
        try:
            if text[here : here + 1] not in ("]", mark):
                raise ValueError(f"'{mark}' is missing")
            next_item = _behind_spaces(text, here + 1)
            if text[here] == "]" or (mark == "[" and text[next_item : next_item + 1] == "]"):
                break
            item, end = decoder.raw_decode(text, next_item)
            if end == len(text) and not isinstance(item, dict):
                # A number may continue in the next chunk.
                raise ValueError("']' is missing")
        except ValueError:
            chunk = b"" if len(text) - at > input_file.MOST_LINE_BYTES else stream.read(max(len(text) - at, _CHUNK))
            if not chunk:
                raise
            text, at = text[at:] + decode(chunk), 0
            continue
        yield item
        at, mark = end, ","
    if text[next_item:].strip(" \t\r\n]") or stream.read(_CHUNK).strip():
        raise ValueError("the array is followed by other content")


def _behind_spaces(text: str, at: int) -> int:
    return _SPACES.match(text, at).end()  # type: ignore[union-attr] -- it may be of no character


_SPACES = re.compile(r"[ \t\r\n]*")
_CHUNK = 2**20


def _document(line: bytes, name: str, field: str) -> Document | Corrupt:
    try:
        # Decode first, because the parser could take bytes for UTF-16. Concatenated files may have a byte order mark
        # at the start of any line.
        record = parse(line.decode("utf-8-sig"))
    except ValueError as error:
        return Corrupt(name, f"it is not JSON ({told(error) if isinstance(error, UserError) else says('json', error)})")
    return _text_of(record, name, field)


def _text_of(record: Any, name: str, field: str) -> Document | Corrupt:
    if not isinstance(record, dict):
        return Corrupt(name, "it is not a JSON object")
    text = record.get(field)
    if not isinstance(text, str):
        return Corrupt(name, f"it has no text in its field {field!r} (its fields are {', '.join(map(repr, record))})")
    try:
        return Document(name, text.encode())
    except UnicodeEncodeError:
        return Corrupt(name, "it has an unpaired surrogate, which UTF-8 cannot encode")
