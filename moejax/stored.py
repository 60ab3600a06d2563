"""Read and write moejax's JSON files. A file that differs from what was written raises an error with a remedy.

``write_json`` adds one entry, the seal: ``"moejax": {"schema": 2, "sha256": …}``, with the hash of the rest. A list is
stored as ``{"items": …, "moejax": …}``. ``read_json`` checks and removes the seal, and checks the rest against a shape.
A file without a seal is rejected, since its content is arbitrary. ``foreign_json`` reads files of other programs, which
have no seal.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moejax.config import convert
from moejax.errors import UserError
from moejax.folder import differences, open_regular, write_text
from moejax.json_text import json_text, parse
from moejax.wording import says, some, told

SCHEMA = 2
"""Schema version; it changes when an older version could misread new files."""

SEAL = "moejax"
"""Entry with the schema version and the hash of the rest of the file."""

ITEMS = "items"


ANOTHER_OUT = "choose another --out"


class Damaged(UserError):
    """An error for a stored file that differs from what was written."""


class Missing(Damaged):
    """An error for a stored file that does not exist."""


class Unreadable(Damaged):
    """An error for a stored file that could not be read this time. Its content is unknown, and may be intact."""


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically. NaN becomes null.

    Raises:
      UserError: a number is infinite.
    """
    write_text(path, sealed(value))


def sealed(value: Any, *, indent: int | None = 2) -> str:
    """Return the text of a stored file, or of one line of a log if ``indent`` is None."""
    read = json.loads(json_text(value, indent=None))
    plain = {name: item for name, item in read.items() if name != SEAL} if isinstance(read, dict) else {ITEMS: read}
    return json_text({**plain, SEAL: {"schema": SCHEMA, "sha256": _hash(plain)}}, indent=indent) + "\n"


def read_json(path: Path, shape: Any, *, remedy: str) -> Any:
    """Read the content of a stored file.

    Args:
      shape: a type, such as a frozen dataclass, ``list[T]``, ``dict[str, T]`` or ``int | None``; or a mapping from
        required keys to their types, where further keys are allowed.
      remedy: an instruction for the user, appended after a semicolon.

    Raises:
      Missing: there is no such file.
      Unreadable: the system cannot read it.
      Damaged: the content differs from what was written.
    """
    return parse_json(read_bytes(path, remedy=remedy), shape, path, remedy=remedy)


def read_bytes(path: Path, *, remedy: str) -> bytes:
    """Read all bytes of a stored file.

    Raises:
      Missing: there is no such file.
      Unreadable: the system cannot read it.
    """
    try:
        if (descriptor := open_regular(path, os.O_RDONLY)) is None:
            raise Unreadable(f"{path} cannot be read (it is not a regular file); {_end(remedy)}")
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(f"{path} does not exist; {_end(remedy)}") from None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read ({says('the system', error)}); {_end(remedy)}") from error


def parse_json(content: bytes | str, shape: Any, where: object, *, remedy: str) -> Any:
    """Parse the content of a stored file like ``read_json``. Errors call the file ``where``.

    Raises:
      Damaged: the content differs from what was written.
    """
    try:
        return convert(shape, _opened(_parsed(content)), "content")
    except ValueError as error:
        raise Damaged(f"{where} cannot be read: {told(error).rstrip('.')}; {_end(remedy)}") from error


def foreign_json(content: bytes | str, where: object, *, remedy: str, shape: Any = Any) -> Any:
    """Parse JSON of another program, which has no seal. NaN and infinity are allowed.

    Raises:
      Damaged: the text is not JSON, or does not have that shape.
    """
    try:
        return convert(shape, _parsed(content, strict=False), "content")
    except ValueError as error:
        raise Damaged(f"{where} cannot be read: {told(error).rstrip('.')}; {_end(remedy)}") from error


def parse_line(content: bytes, shape: Any) -> Any:
    """Parse one line of a log in JSON lines. Return None if it is invalid, such as a torn line."""
    try:
        return convert(shape, _parsed(content, strict=False), "content")
    except ValueError:
        return None


def claim(folder: Path, name: str, value: Any) -> None:
    """Claim ``folder`` for ``value`` by storing it in ``folder/name``; do nothing if it is already stored there.

    Raises:
      UserError: the folder cannot be written, or holds other files or the output of another run.
    """
    check_writable(folder)
    path = folder / name
    if path.exists():
        refuse_another(folder, read_json(path, dict, remedy=f"restore a copy, or {ANOTHER_OUT}"), value)
    elif any(child for child in folder.iterdir() if not child.name.startswith(".")):
        raise UserError(f"{folder} is not empty and holds no {name}; choose an empty or new folder with --out.")
    else:
        write_json(path, value)


def check_writable(folder: Path) -> None:
    """Create a folder if it does not exist.

    Raises:
      UserError: the folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"The output folder {folder} cannot be written ({says('the system', error)}); choose another --out."
        ) from error


def refuse_another(folder: object, owner: Any, value: Any) -> None:
    """Raise ``UserError`` if ``value`` differs from ``owner``, the run whose output ``folder`` is."""
    different = differences(owner, as_read(value))
    if different:
        raise UserError(
            f"{folder} belongs to another run: {some(different, between='; ')}. Choose another --out, or use the same "
            "settings."
        )


def as_read(value: Any, default: Callable[[Any], Any] | None = None) -> Any:
    """Return plain data as it would be read from a file; ``default`` converts other objects."""
    return json.loads(json.dumps(value, default=default))


def _parsed(content: bytes | str, *, strict: bool = True) -> Any:
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"it is not UTF-8 text (at byte {error.start:,})") from None
    if not text.strip():
        raise UserError("it is empty")
    numbers: dict[str, Any] = {"parse_constant": _refused, "parse_float": _number} if strict else {}
    try:
        return parse(text, **numbers)
    except json.JSONDecodeError as error:
        raise UserError(
            f"it is not JSON, or only a part of it (line {error.lineno}, column {error.colno}; {says('json', error)})"
        ) from None


def _opened(value: Any) -> Any:
    if not isinstance(value, dict) or SEAL not in value:
        raise UserError(
            f"it has no entry {SEAL!r} with the hash of its content: it was changed by hand, or written by another "
            "program"
        )
    seal, plain = value[SEAL], {name: item for name, item in value.items() if name != SEAL}
    if not isinstance(seal, dict) or not isinstance(seal.get("schema"), int):
        raise UserError(f"its entry {SEAL!r} is {seal!r}, and must contain schema and sha256")
    if seal["schema"] != SCHEMA:
        raise UserError(
            f"it has schema {seal['schema']} of another version, and this version of moejax reads schema {SCHEMA}"
        )
    if seal.get("sha256") != _hash(plain):
        raise UserError("its content differs from what moejax wrote: it was damaged, or changed by hand")
    return plain[ITEMS] if set(plain) == {ITEMS} else plain


def _hash(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def _refused(text: str) -> float:
    raise UserError(f"it contains {text}, which is not a finite number")


@functools.lru_cache(4096)
def _number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refused(text)


def _end(remedy: str) -> str:
    return remedy if remedy.endswith(".") else f"{remedy}."
