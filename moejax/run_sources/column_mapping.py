"""Map a table's columns to moejax's columns, with expressions from the user or from a file next to the table."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moejax import input_file
from moejax.errors import UserError
from moejax.run_table import ENDINGS, table_in
from moejax.wording import says, shown, told

MOST_BYTES = 1_000_000
KEYS = {"table", "map", "trust_units", "group"}


@dataclass(frozen=True, kw_only=True)
class SavedMapping:
    """A column mapping that is saved next to its table."""

    file: Path | None = None
    """File of the mapping: ``runs.toml`` for ``runs.csv``, ``runs.csv.gz`` or ``runs.parquet``; None for a tracker."""
    map: Mapping[str, str] = field(default_factory=dict)
    """Expressions over the table's columns, keyed by moejax's column name."""
    trust_units: bool = False
    """True if counts are accepted even though their units look wrong."""
    group: str | None = None
    """Column with the group of each row, if one is saved."""
    note: str = ""
    """Remark if the file names another table and is therefore not used."""


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """The column mapping of a table, with the origin of each entry."""

    expressions: Mapping[str, str]
    """Expressions over the table's columns, keyed by moejax's column name."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """File of each saved expression, keyed by moejax's column name."""
    trusted_by: str = ""
    """File or option that accepts counts even though their units look wrong; empty if they are rejected."""
    group: str | None = None
    """Column with the group of each row; None to group rows by their sizes."""
    saved_in: Path | None = None
    """File of the saved mapping in use, which the user has confirmed; None without one."""
    notes: tuple[str, ...] = ()


def column_mapping(
    table: object, given: Mapping[str, str] | None = None, *, trust_units: bool = False, group: str | None = None
) -> ColumnMapping:
    """Combine the mapping saved next to a table with the given mapping, which takes precedence.

    Raises:
      UserError: like ``saved_mapping``.
    """
    given = given or {}
    saved = saved_mapping(table) if isinstance(table, (str, Path)) else SavedMapping()
    files = {name: saved.file for name in saved.map if name not in given and saved.file is not None}
    taken = [f"{name} from {saved.map[name]}" for name in files]
    taken += [f"groups from {saved.group}"] if saved.group and not group else []
    return ColumnMapping(
        expressions={**saved.map, **given},
        files=files,
        trusted_by="--trust-units" if trust_units else str(saved.file) if saved.trust_units else "",
        group=group or saved.group,
        saved_in=saved.file if saved.map or saved.trust_units or saved.group else None,
        notes=(
            *filter(None, [saved.note]),
            *([f"Columns mapped by {saved.file}: {', '.join(taken)}."] if taken else []),
        ),
    )


def saved_mapping(path: str | Path) -> SavedMapping:
    """Return the mapping saved next to a table. It is empty if there is no file or if the file names another table.

    A TOML file with neither ``map`` nor ``trust_units`` nor ``group`` is not a mapping and is ignored.

    Raises:
      UserError: the file cannot be read, names no table, or has unknown or invalid entries.
    """
    path = Path(table_in(path))
    ending = next((ending for ending in ENDINGS if path.name.endswith(ending)), None)
    if ending is None or "://" in str(path):
        return SavedMapping()
    file = path.with_name(f"{path.name.removesuffix(ending)}.toml")
    if not file.is_file():
        return SavedMapping(file=file)
    remedy = "correct it, or move it away"
    try:
        content = tomllib.loads(input_file.read_bytes(file, MOST_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}, the mapping of {path}, cannot be read ({told(error)}); {remedy}.") from error
    if not KEYS - {"table"} & {*content}:
        return SavedMapping(file=file)
    of_columns, trust, table = content.get("map", {}), content.get("trust_units", False), content.get("table")
    if not isinstance(of_columns, dict) or not all(isinstance(one, str) for one in of_columns.values()):
        raise UserError(f'{file}: map must be a table of strings, such as tokens = "step * 520000"; {remedy}.')
    group = content.get("group")
    unknown = [f"has the unknown key {shown(key)}" for key in content if key not in KEYS]
    wrong = [] if isinstance(trust, bool) else ["sets trust_units to neither true nor false"]
    wrong += [] if group is None or isinstance(group, str) else ["sets group to something other than a column's name"]
    if unknown or wrong:
        raise UserError(
            f"{file} {[*unknown, *wrong][0]}. A mapping has the keys table, map (a table), trust_units (true or false) "
            f"and group (a column); {remedy}."
        )
    if not isinstance(table, str):
        raise UserError(
            f"{file} does not name the table that it maps. If it maps {path}, add the first line "
            f"table = {_toml_text(path.name)}. If it does not, move it away."
        )
    if table != path.name:
        return SavedMapping(file=file, note=f"{file} maps the table {shown(table)} and is not used for {path}.")
    return SavedMapping(file=file, map=of_columns, trust_units=trust, group=group or None)


def save_mapping(
    path: str | Path, mapping: Mapping[str, str], *, trust_units: bool, group: str | None = None
) -> Path | None:
    """Save a mapping next to its table and return the file, or None if the file already contains this mapping.

    Raises:
      UserError: the mapping is empty, the source is not a table file, the file exists with other content, or it cannot
        be written.
    """
    saved = saved_mapping(path)
    if saved.file is None:
        raise UserError(f"{path} is not a table file, so its mapping cannot be saved; leave out --save-mapping.")
    if not mapping and not trust_units and not group:
        raise UserError("There is no mapping to save; give --map NAME=EXPRESSION, --group COLUMN or --trust-units.")
    if (dict(saved.map), saved.trust_units, saved.group) == (dict(mapping), trust_units, group):
        return None
    keys = {name: name if re.fullmatch("[A-Za-z0-9_-]+", name) else _toml_text(name) for name in mapping}
    lines = [
        "# Columns of a table as moejax reads them. --map and --group take precedence.",
        f"table = {_toml_text(Path(table_in(path)).name)}",
        *(["trust_units = true"] if trust_units else []),
        *([f"group = {_toml_text(group)}"] if group else []),
        *(["", "[map]"] if mapping else []),
        *(f"{keys[name]} = {_toml_text(expression)}" for name, expression in mapping.items()),
    ]
    _create(saved.file, "\n".join(lines) + "\n")
    return saved.file


def _create(file: Path, text: str) -> None:
    """Write a complete new file. A hard link replaces neither a dangling link nor the file of another process."""
    partial = file.with_name(f".{os.getpid()}.toml")
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{str(file)!r}: the table's name is not UTF-8; rename the table to save a mapping.") from error
    try:
        partial.write_bytes(content)
        os.link(partial, file)
    except FileExistsError as error:
        raise UserError(
            f"{file} exists and is not overwritten; edit it, or move it away to save another mapping."
        ) from error
    except OSError as error:
        raise UserError(
            f"The mapping cannot be saved as {file} ({says('the disk', error)}). Leave out --save-mapping, or copy the "
            f"table to a writable folder with free space."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def _toml_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
