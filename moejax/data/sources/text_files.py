"""Read text files, one document per file. A file is split at line ends into several documents if it is the source's
only file or larger than an input shard.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moejax.data import source
from moejax.data.source import INPUT_SHARD_BYTES, Corrupt, Document, File, FileRange, SourceOptions, ranges
from moejax.input_file import UNREADABLE, is_compressed, opened
from moejax.wording import says


@dataclass(frozen=True)
class TextFiles:
    """An input shard that combines small files. Files above ``INPUT_SHARD_BYTES`` are split instead (``TextRange``),
    except compressed files.
    """

    root: str
    """Folder to which the documents' names and keys are relative."""
    files: tuple[File, ...]
    split_by_path: bool = False
    """True to determine the split of each file by its path instead of its text."""
    documents_per_file: int = 1
    """Maximum number of documents per file; they have about equal sizes and are cut at line ends."""

    @property
    def name(self) -> str:
        """Return the name of the first file."""
        return os.path.relpath(self.files[0].path, self.root)

    @property
    def size_bytes(self) -> int:
        """Return the total size of the files."""
        return sum(file.size for file in self.files)

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield at most ``documents_per_file`` documents for each file. In a compressed file, this limit applies to
        each piece of ``INPUT_SHARD_BYTES``.
        """
        for file in self.files:
            path = Path(file.path).relative_to(self.root).as_posix()
            key = path.encode() if self.split_by_path else None
            try:
                with opened(file.path) as stream:
                    pieces = (
                        text
                        for piece in _pieces(stream, file.path)
                        for text in _cut_lines(piece, self.documents_per_file)
                    )
                    for number, text in enumerate(pieces):
                        yield Document(f"{path}, part {number + 1}" if number else path, text, key)
            except UNREADABLE as error:
                yield Corrupt(path, f"damaged ({says('the decompressor', error)})", file.size)


@dataclass(frozen=True)
class TextRange(FileRange):
    """One document with the lines that begin in ``[start, end)`` of a large file. Lines above 1 MiB may be cut."""

    @property
    def name(self) -> str:
        """Return the file name with the byte range."""
        return f"{self.file.name}[{self.start}:{self.end}]"

    @property
    def size_bytes(self) -> int:
        """Return the number of bytes in the range."""
        return self.end - self.start

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield one document."""
        try:
            with open(self.file.path, "rb") as stream:
                start, end = _cut(stream, self.start), _cut(stream, self.end)
                stream.seek(start)
                if start < end:
                    yield Document(self.name, stream.read(end - start))
        except OSError as error:
            yield Corrupt(self.name, f"unreadable ({says('the system', error)})", self.size_bytes)


def input_shards(files: Sequence[File], root: Path, options: SourceOptions) -> Iterator[TextFiles | TextRange]:
    """Yield input shards in the given order: small files are combined, large files are split."""
    return gathered(
        files, root, split_by_path=False, documents_per_file=DOCUMENTS_OF_A_SINGLE_FILE if options.single_file else 1
    )


def gathered(
    files: Sequence[File], root: Path, *, split_by_path: bool, documents_per_file: int = 1
) -> Iterator[TextFiles | TextRange]:
    """Yield input shards like ``input_shards``. With ``split_by_path``, a file's path determines its split."""
    group: list[File] = []
    size = 0
    for file in files:
        large = file.size > INPUT_SHARD_BYTES and not is_compressed(file.path)
        if group and (large or size + file.size > INPUT_SHARD_BYTES):
            yield TextFiles(str(root), tuple(group), split_by_path, documents_per_file)
            group, size = [], 0
        if large:
            yield from (TextRange(file, start, end) for start, end in ranges(file.size, INPUT_SHARD_BYTES))
        else:
            group.append(file)
            size += file.size
    if group:
        yield TextFiles(str(root), tuple(group), split_by_path, documents_per_file)


_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


def python_stdlib(options: SourceOptions) -> Iterator[TextFiles | TextRange]:
    """Yield the built-in corpus: the ``.py`` files of the running Python's standard library, without its tests.

    Every machine has these files, so a first training run needs no download. The corpus differs between Python
    versions; its hash is stored with every run. A file's split is determined by its path, which stays the same if its
    text changes.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    paths.sort(key=lambda path: path.relative_to(root).as_posix())
    return gathered([source.file(path) for path in paths], root, split_by_path=True)


def _cut_lines(text: bytes, documents: int) -> Iterator[bytes]:
    """Split ``text`` into at most ``documents`` blocks of whole lines; each except the last has at least an equal
    share.
    """
    share = -(-len(text) // documents)
    start = 0
    while len(text) - start > share:
        end = text.find(b"\n", start + share - 1) + 1
        if not end:
            break
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


def _pieces(stream, path: str) -> Iterator[bytes]:
    if not is_compressed(path):
        yield stream.read()
        return
    text = stream.read(INPUT_SHARD_BYTES)
    while text:
        text += stream.readline(_LONGEST_LINE)
        rest = stream.read(INPUT_SHARD_BYTES)
        # A longer line is cut between two characters.
        here = len(text) if not rest or text.endswith(b"\n") else _last_character(text)
        yield text[:here]
        text = text[here:] + rest


def _last_character(text: bytes) -> int:
    """Return the start of the last UTF-8 character, which may be incomplete; the end of the text if it is not UTF-8."""
    begins = (len(text) - back for back in range(1, min(len(text), 4) + 1) if text[-back] & 0xC0 != 0x80)
    return next(begins, len(text))


def _cut(stream, position: int) -> int:
    """Return the cut position near ``position``: after the end of the line, or between two characters of a longer
    line.
    """
    if position == 0:
        return 0
    stream.seek(position - 1)
    if stream.readline(_LONGEST_LINE).endswith(b"\n"):
        return stream.tell()
    while (byte := stream.read(1)) and 0x80 <= byte[0] < 0xC0:
        pass
    return stream.tell() - len(byte)


_LONGEST_LINE = 2**20

DOCUMENTS_OF_A_SINGLE_FILE = 256
"""Number of documents of a single file: enough that a held-out share of 5 % is practically never empty, with documents
that are still long.
"""
