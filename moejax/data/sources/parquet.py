"""Read Parquet files, in which each row is a record with its text in one column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from moejax.data.source import INPUT_SHARD_BYTES, Broken, Corrupt, Document, File, FileRange, SourceOptions
from moejax.errors import UserError
from moejax.wording import says


@dataclass(frozen=True)
class RowGroups(FileRange):
    """Row groups ``[start, end)`` of a file."""

    text_field: str
    size_bytes: int
    BEFORE_START = ", group "

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield a document per row."""
        number = 0
        try:
            with pq.ParquetFile(self.file.path) as file:
                groups = list(range(self.start, self.end))
                for batch in file.iter_batches(_ROWS, row_groups=groups, columns=[self.text_field]):
                    column = batch.column(0)
                    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                    for value in plain:
                        number += 1
                        yield _document(value, f"{self.name}:{number}", self.text_field)
        except _UNREADABLE as error:
            yield Corrupt(f"{self.name}, after row {number}", f"damaged ({says('pyarrow', error)})", self.size_bytes)


def input_shards(files: Sequence[File], root: Path, options: SourceOptions) -> Iterator[RowGroups | Broken]:
    """Yield row groups, combined to about ``INPUT_SHARD_BYTES``.

    Raises:
      UserError: a file lacks the text column, or that column does not hold text.
    """
    for file in files:
        try:
            parquet = pq.ParquetFile(file.path)
        except _UNREADABLE as error:
            yield Broken(file, f"it is not a valid Parquet file ({says('pyarrow', error)})")
            continue
        with parquet:
            _check_column(file, parquet.schema_arrow, options.text_field)
            start, size = 0, 0
            groups = parquet.metadata.num_row_groups
            for group in range(groups):
                size += parquet.metadata.row_group(group).total_byte_size
                if size >= INPUT_SHARD_BYTES or group + 1 == groups:
                    yield RowGroups(file, start, group + 1, options.text_field, size)
                    start, size = group + 1, 0


REMEDY = "set data.text_field, or --text-field of moejax data prepare, to the column with the text"


def _check_column(file: File, schema: pa.Schema, field: str) -> None:
    if field not in schema.names:
        raise UserError(f"{file.path} has no column {field!r}, only {', '.join(schema.names)}; {REMEDY}.")
    kind = schema.field(field).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not any(is_text(kind) for is_text in _TEXT):
        raise UserError(f"Column {field!r} of {file.path} holds {kind}, not text; {REMEDY}.")


def _document(value: pa.Scalar, name: str, field: str) -> Document | Corrupt:
    buffer = value.as_buffer() if value.is_valid else None
    return Corrupt(name, f"no value in column {field!r}") if buffer is None else Document(name, buffer.to_pybytes())


_ROWS = 256
_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError)
"""Exceptions raised for damaged files. UnicodeDecodeError occurs because column names are decoded in Python."""
_TEXT = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)
