"""Text files: a file is a document; one larger than a part is read as several, cut at line ends."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moejax.data.compression import UNREADABLE, is_compressed, opened
from moejax.data.document import Corrupt, Document
from moejax.data.source import PART_BYTES, File, Reading, ranges


@dataclass(frozen=True)
class TextFiles:
    """Several files, none of which is larger than a part."""

    root: str
    """What the documents' names and keys leave out of their paths."""
    files: tuple[File, ...]
    split_by_path: bool = False
    """Decide the side of each file by its path instead of its text."""

    @property
    def name(self) -> str:
        """The first file's."""
        return os.path.relpath(self.files[0].path, self.root)

    @property
    def size_bytes(self) -> int:
        """Sum over the files."""
        return sum(file.size for file in self.files)

    def documents(self) -> Iterator[Document | Corrupt]:
        """A document per file; of a compressed one, a document per ``PART_BYTES``."""
        for file in self.files:
            path = Path(file.path).relative_to(self.root).as_posix()
            key = path.encode() if self.split_by_path else None
            try:
                with opened(file.path) as stream:
                    for number, text in enumerate(_pieces(stream, file.path)):
                        yield Document(f"{path}, part {number + 1}" if number else path, text, key)
            except UNREADABLE as error:
                yield Corrupt(path, str(error) or type(error).__name__, file.size)


@dataclass(frozen=True)
class TextRange:
    """The lines that begin in ``[start, end)`` of one large file, as one document; lines above 1 MiB may be cut."""

    file: File
    start: int
    end: int

    @property
    def name(self) -> str:
        """The file's, with the bytes."""
        return f"{self.file.name}[{self.start}:{self.end}]"

    @property
    def size_bytes(self) -> int:
        """Of the range."""
        return self.end - self.start

    def documents(self) -> Iterator[Document | Corrupt]:
        """One document."""
        try:
            with open(self.file.path, "rb") as stream:
                start, end = _cut(stream, self.start), _cut(stream, self.end)
                stream.seek(start)
                if start < end:
                    yield Document(self.name, stream.read(end - start))
        except OSError as error:
            yield Corrupt(self.name, str(error), self.size_bytes)


def parts(files: Sequence[File], root: Path, reading: Reading) -> Iterator[TextFiles | TextRange]:
    """Small files gathered to parts, large ones cut into parts, in the order given."""
    return gathered(files, root, split_by_path=False)


def gathered(files: Sequence[File], root: Path, *, split_by_path: bool) -> Iterator[TextFiles | TextRange]:
    """As ``parts``, with the choice of what decides a file's side."""
    group: list[File] = []
    size = 0
    for file in files:
        large = file.size > PART_BYTES and not is_compressed(file.path)
        if group and (large or size + file.size > PART_BYTES):
            yield TextFiles(str(root), tuple(group), split_by_path)
            group, size = [], 0
        if large:
            yield from (TextRange(file, start, end) for start, end in ranges(file.size, PART_BYTES))
        else:
            group.append(file)
            size += file.size
    if group:
        yield TextFiles(str(root), tuple(group), split_by_path)


def _pieces(stream, path: str) -> Iterator[bytes]:
    if not is_compressed(path):
        yield stream.read()
        return
    while text := stream.read(PART_BYTES):
        yield text + stream.readline()


def _cut(stream, position: int) -> int:
    """Where the text is cut near ``position``: after the line's end, or in a longer line between two characters."""
    if position == 0:
        return 0
    stream.seek(position - 1)
    if stream.readline(_LONGEST_LINE).endswith(b"\n"):
        return stream.tell()
    while (byte := stream.read(1)) and 0x80 <= byte[0] < 0xC0:
        pass
    return stream.tell() - len(byte)


_LONGEST_LINE = 2**20
