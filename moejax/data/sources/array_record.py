"""Read ArrayRecord files, in which each record is a document of UTF-8 text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moejax.data.source import INPUT_SHARD_BYTES, Broken, Corrupt, Document, File, FileRange, SourceOptions, ranges
from moejax.errors import UserError
from moejax.wording import says


@dataclass(frozen=True)
class Records(FileRange):
    """Records ``[start, end)`` of a file."""

    size_bytes: int
    BEFORE_START = ", record "

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield a document per record."""
        reader = _open(self.file)
        try:
            for start, end in ranges(self.end - self.start, _RECORDS):
                yield from _read(reader, self.file.name, self.start + start, self.start + end)
        finally:
            reader.close()


def input_shards(files: Sequence[File], root: Path, options: SourceOptions) -> Iterator[Records | Broken]:
    """Yield ranges of records of about ``INPUT_SHARD_BYTES``."""
    for file in files:
        reader = _open(file)
        count = reader.num_records() if reader.ok() else 0
        try:
            reader.close()
        # The reader reports errors of a file when it is closed.
        except RuntimeError as error:
            yield Broken(file, f"it is not a valid ArrayRecord file ({says('array_record', error)})")
            continue
        step = max(1, count * INPUT_SHARD_BYTES // max(file.size, 1))
        for start, end in ranges(count, step):
            yield Records(file, start, end, file.size * (end - start) // count)


def _open(file: File):
    try:
        from array_record.python import array_record_module  # type: ignore[attr-defined]
    except ImportError:
        raise UserError(
            f"{file.path} is an ArrayRecord file, but the package array_record is not installed; it may have no "
            "build for this system. Install it, or convert the text to Parquet or JSON lines."
        ) from None
    return array_record_module.ArrayRecordReader(file.path, "readahead_buffer_size:0")


def _read(reader, name: str, start: int, end: int) -> Iterator[Document | Corrupt]:
    try:
        records = reader.read(start, end)
    except (ValueError, RuntimeError, OSError) as error:
        if end - start == 1:
            yield Corrupt(f"{name}:{start}", f"damaged ({says('array_record', error)})")
            return
        # Read records separately, so that one damaged record does not affect the others.
        for number in range(start, end):
            yield from _read(reader, name, number, number + 1)
        return
    for number, record in enumerate(records, start):
        yield Document(f"{name}:{number}", bytes(record))


_RECORDS = 256
