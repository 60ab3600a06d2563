"""Read tables of any origin within limits, and write CSV without formulas for spreadsheets.

Formats are CSV (also separated by semicolons, tabs or bars), JSON lines and Parquet.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from pathlib import Path
from typing import Any

from moejax import input_file, quantities
from moejax.errors import UserError
from moejax.json_text import parse
from moejax.wording import says

MOST_BYTES = 1_000_000_000
"""Maximum size of an uncompressed table. A run table has one row per run."""
MOST_COLUMNS = 10_000
MOST_CELLS = 20_000_000
"""Maximum of rows times columns. Empty cells count, because they take as much memory as other cells."""

ROWS_AT_ONCE = 1_000
"""Number of rows of a Parquet file that are unpacked before the size is checked again."""

_REMEDY = "save it as a UTF-8 CSV file with decimal points"
_HALF = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def read_csv(path: Path) -> Any:
    """Read a CSV file, which may be compressed with gzip, as a pandas DataFrame.

    Cells are separated by commas (in a ``.tsv``: tabs). If the header has none, the separator is the first of comma,
    semicolon, tab and bar that it contains.

    Raises:
      UserError: the file exceeds the limits, or is not UTF-8 (or UTF-16 with a byte order mark). Or it has ambiguous
        decimal commas, two columns with the same name, rows of different lengths, or a quote that spans other rows.
    """
    import pandas as pd

    text = _text(path)
    separator = _separator(text, "\t" if input_file.inner_suffix(path) == ".tsv" else ",")
    shape, decimal = _shape_of_csv(text, separator)
    mended = f"its rows are ambiguous; {_REMEDY}"
    try:
        # Without index_col, pandas would use the first cells of too long lines as an index.
        frame = pd.read_csv(io.StringIO(text), sep=separator, decimal=decimal, low_memory=False, index_col=False)
    except (ValueError, OverflowError) as error:
        raise UserError(mended) from error
    if frame.shape != shape:
        raise UserError(mended)
    if decimal == ",":
        # pandas leaves numbers with units as text, and also all numbers of a column that contains other text.
        for place, kind in enumerate(frame.dtypes):
            if kind.kind not in "iufb":
                frame.isetitem(place, frame.iloc[:, place].map(_with_point, na_action="ignore"))
    return frame


def _separator(text: str, usual: str) -> str:
    header = next((line for line in io.StringIO(text) if not line.isspace()), "")
    return usual if usual in header else next((other for other in _SEPARATORS if other in header), usual)


def _shape_of_csv(text: str, separator: str) -> tuple[tuple[int, int], str]:
    """Return the number of rows and columns of a CSV text, and its decimal separator.

    pandas guesses if lines do not match the header: it pads short ones, shifts long ones, and reads a quoted cell
    across line breaks. So the lines are counted first.
    """
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    names: list[str] = []
    seen: dict[str, str] = {}
    rows, first = 0, 1
    usual = csv.field_size_limit(MOST_BYTES)
    try:
        for cells in lines:
            at, first = first, lines.line_num + 1
            if not cells or (len(cells) == 1 and cells[0].isspace()):
                continue
            _check_quotes(cells, at, lines.line_num, separator)
            if not names:
                names = cells
                _check_columns(cells)
                continue
            if len(cells) != len(names):
                raise UserError(
                    f"line {at} has {len(cells):,} cells, but the header has {len(names):,}; give every row as many "
                    f"{_SEPARATORS[separator]} as the header"
                )
            rows += 1
            _check_cells(rows, len(names))
            if separator != ",":
                _look_for_commas(cells, seen)
    except csv.Error as error:
        raise UserError(
            f"line {first} has a quote that is not closed, or text after a closing quote; correct it"
        ) from error
    finally:
        csv.field_size_limit(usual)
    if not names:
        raise UserError("it is empty; write a header and one row per run")
    return (rows, len(names)), _decimal_point(seen)


def _look_for_commas(cells: list[str], seen: dict[str, str]) -> None:
    for cell in cells:
        if ("," in cell or "." in cell) and (kind := _kind(cell)):
            seen.setdefault(kind, cell.strip())


def _kind(cell: str) -> str | None:
    """Return a number's use of commas and points, as a key of ``_COMMAS``; None for other text.

    The number may have a unit or a power of ten.
    """
    text = cell.strip()
    if len(text) > quantities.LONGEST:
        return None
    if not _BARE.fullmatch(text):
        text = _UNIT.sub("", quantities.plainly(text))
    return next((kind for kind, shape in _COMMAS.items() if shape.fullmatch(text)), None)


def _with_point(cell: Any) -> Any:
    """Replace a decimal comma by a point; other cells are unchanged."""
    return cell.replace(",", ".") if isinstance(cell, str) and "," in cell and _kind(cell) else cell


def _decimal_point(seen: dict[str, str]) -> str:
    decimal = "decimal" in seen
    unclear = [seen[kind] for kind in (("thousands", "points") if decimal else ("either",)) if kind in seen]
    if unclear and (decimal or "thousands" not in seen):
        raise UserError(f"{unclear[0]!r} has a separator for either decimals or thousands; {_REMEDY}")
    return "," if decimal else "."


_BARE = re.compile(r"[+-]?[\d.,]+")
_UNIT = re.compile(r"\s*[KMBGT]$", re.IGNORECASE)
_COMMAS = {
    "thousands": re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3}){2,}(\.\d*)?|[+-]?[1-9]\d{0,2},\d{3}\.\d*"),
    "either": re.compile(r"[+-]?[1-9]\d{0,2},\d{3}"),
    "points": re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+"),
    "decimal": re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?"),
}
"""Patterns of numbers with commas or points, keyed by the meaning of the separator. The first match applies."""
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def _check_quotes(cells: list[str], first: int, last: int, separator: str) -> None:
    """Raise ``UserError`` if a row of several lines would be several complete rows without its quotes.

    A superfluous quote at the beginning of a cell opens a text that continues to the next quote. If the lines of this
    text are complete rows, its number of separators per line break equals the number of separators of a row.
    """
    taken = last - first
    if taken and sum(cell.count(separator) for cell in cells) == taken * (len(cells) - 1):
        raise UserError(
            f"lines {first} to {last} form one row, because a quoted cell has line breaks; without quotes they form "
            f"{taken + 1} rows. Remove the quote, or the line breaks in the cell"
        )


def read_json_lines(path: Path) -> Any:
    """Read a file with one JSON object per line as a pandas DataFrame.

    Raises:
      UserError: the file exceeds the limits or is not UTF-8. Or a line is not an object, has a name twice, or has
        text that is not valid Unicode.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    names: dict[str, None] = {}
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = parse(line, object_pairs_hook=_object)
        except UserError as error:
            raise UserError(f"line {number}: {error}") from None
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise UserError(
                f'line {number} is not a JSON object; write one per line, such as {{"tokens": 1e9, "loss": 3.2}}'
            )
        if _HALF.search(line) and not _is_unicode(row):
            raise UserError(
                f"line {number} has an unpaired surrogate (\\ud800 to \\udfff); write the whole character, or remove it"
            )
        rows.append(row)
        names.update(dict.fromkeys(row))
        # A frame has a cell for every name in any line, so a short file may be a large table.
        if len(names) > MOST_COLUMNS:
            raise UserError(_too_large(f"{len(names):,} columns"))
        _check_cells(len(rows), len(names))
    return pd.DataFrame(rows)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in pairs:
        if name in row:
            raise UserError(f"it has the name {name[:60]!r} twice; rename or remove one")
        row[name] = value
    return row


def _is_unicode(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def read_parquet(path: Path) -> Any:
    """Read a Parquet file as a pandas DataFrame.

    Raises:
      UserError: the file is not Parquet, is damaged, or exceeds the limits.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        # Pages of other writers may have no checksum; those of ``run_table.write`` have one.
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            about, schema = file.metadata, file.schema_arrow
            _check_columns(list(schema.names))
            # A cell may be a list, so the number of rows does not bound the size.
            groups = [about.row_group(group) for group in range(about.num_row_groups)]
            leaves = range(about.num_columns)
            values = sum(group.column(leaf).num_values for group in groups for leaf in leaves)
            cells = max(about.num_rows * max(len(schema.names), 1), values)
            size = sum(group.total_byte_size for group in groups)
            _check_unpacked(cells, size)
            # A text that occurs in many rows may be stored once, so the size is known only when the rows are read.
            batches, size = [], 0
            for batch in file.iter_batches(ROWS_AT_ONCE):
                size += batch.nbytes
                _check_unpacked(cells, size)
                batches.append(batch)
        table = pa.Table.from_batches(batches, schema)
        # pandas metadata in the file (index, types, attributes) may be damaged or arbitrary, so it is ignored.
        table = table.drop_columns([name for name in schema.names if _INDEX.fullmatch(name)])
        # Validate text here. It would otherwise be decoded on use, too late for a precise error.
        table.validate(full=True)
        return table.to_pandas(ignore_metadata=True)
    except MemoryError:
        raise
    except pa.ArrowNotImplementedError as error:
        raise UserError(
            f"it has a column of an unsupported type ({says('pyarrow', error)}); convert or remove this column"
        ) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError("it is not a Parquet file, or is damaged; write it again") from error


_INDEX = re.compile(r"__index_level_\d+__")
"""Names under which pandas writes an unnamed index."""


def _check_unpacked(cells: int, size: int) -> None:
    if size > MOST_BYTES or cells > MOST_CELLS:
        raise UserError(_too_large(f"{cells:,} cells in {size:,} bytes"))


def inert(value: Any) -> Any:
    """Return a cell that a spreadsheet shows but does not evaluate: text that begins a formula gets a leading ``'``."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def csv_text(frame: Any, **options: Any) -> str:
    """Return a pandas DataFrame as CSV, with ``inert`` applied to texts and column names."""
    safe = frame.copy()
    for place, kind in enumerate(frame.dtypes):
        if kind.kind not in "iufbM":
            safe.isetitem(place, frame.iloc[:, place].map(inert, na_action="ignore"))
    safe.columns = [inert(str(name)) for name in frame.columns]
    return safe.to_csv(index=False, **options)


def _text(path: Path) -> str:
    try:
        with input_file.opened(path) as file:
            content = file.read(MOST_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError("it is not a complete gzip file; compress or download it again") from error
    if len(content) > MOST_BYTES:
        raise UserError(_too_large(f"more than {MOST_BYTES:,} bytes, unpacked"))
    # A byte order mark determines the byte order of UTF-16. Without one, it is unknown.
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"it is not valid {encoding[:6].upper().rstrip('-')} (first invalid byte at position {error.start:,}); "
            f"save it as UTF-8 text"
        ) from None
    if "\0" in text:
        raise UserError("it has a zero byte, so it is not UTF-8 text; save it as UTF-8 text")
    return text


def _check_columns(names: list[str]) -> None:
    if len(names) > MOST_COLUMNS:
        raise UserError(_too_large(f"{len(names):,} columns"))
    seen: set[str] = set()
    for name in names:
        if name and name in seen:
            raise UserError(f"it has two columns named {name[:60]!r}; rename or remove one")
        seen.add(name)


def _check_cells(rows: int, columns: int) -> None:
    if rows * columns > MOST_CELLS:
        raise UserError(_too_large(f"more than {MOST_CELLS:,} cells ({columns:,} columns)"))


def _too_large(what: str) -> str:
    return (
        f"it has {what}; a run table has at most {MOST_BYTES:,} bytes, {MOST_COLUMNS:,} columns and {MOST_CELLS:,} "
        f"cells. Give a table with one row per run"
    )
