"""The one reader and writer of the JSON files that moejax keeps: what is read is what was written, or a sentence says
what is wrong with which file, and what to do.

``write_json`` adds to what it writes one entry, the seal: ``"moejax": {"schema": 2, "sha256": …}``, the hash of the
rest; a list is kept as ``{"items": …, "moejax": …}``. ``read_json`` checks the seal, takes it off, and checks the rest
against a shape. A file without a seal is refused: it could hold anything. What other programs write has none, and is
read by ``foreign_json``.
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
"""Changes when an older version could misread what this one writes."""

SEAL = "moejax"
"""The entry that says by whom and in which schema a file was written, and the hash of the rest."""

ITEMS = "items"


ANOTHER_OUT = "choose another --out"


class Damaged(UserError):
    """A stored file does not hold what was written there."""


class Missing(Damaged):
    """A stored file is not there."""


class Unreadable(Damaged):
    """A stored file could not be read this time: what it holds is not known, and may be all that was written."""


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole. NaN becomes null.

    Raises:
      UserError: a number is infinite.
    """
    write_text(path, sealed(value))


def sealed(value: Any, *, indent: int | None = 2) -> str:
    """The text of a stored file; of a line in one of several such lines, if ``indent`` is None."""
    read = json.loads(json_text(value, indent=None))
    plain = {name: item for name, item in read.items() if name != SEAL} if isinstance(read, dict) else {ITEMS: read}
    return json_text({**plain, SEAL: {"schema": SCHEMA, "sha256": _hash(plain)}}, indent=indent) + "\n"


def read_json(path: Path, shape: Any, *, remedy: str) -> Any:
    """The content of a stored file.

    Args:
      shape: a type: a frozen dataclass, ``list[T]``, ``dict[str, T]``, ``int | None`` and so on; or a mapping from the
        keys that must be there to their types, beside which others may be.
      remedy: what a reader of the sentence can do, after a semicolon.

    Raises:
      Missing: there is no such file.
      Unreadable: the system cannot read it.
      Damaged: it holds something else than was written.
    """
    return parse_json(read_bytes(path, remedy=remedy), shape, path, remedy=remedy)


def read_bytes(path: Path, *, remedy: str) -> bytes:
    """All bytes of a stored file.

    Raises:
      Missing: there is no such file.
      Unreadable: the system cannot read it.
    """
    try:
        if (descriptor := open_regular(path, os.O_RDONLY)) is None:
            raise Unreadable(f"{path} cannot be read (it is no regular file); {_end(remedy)}")
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(f"{path} is not there; {_end(remedy)}") from None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read ({says('the system', error)}); {_end(remedy)}") from error


def parse_json(content: bytes | str, shape: Any, where: object, *, remedy: str) -> Any:
    """The same, of what a file at ``where`` holds.

    Raises:
      Damaged: it holds something else than was written.
    """
    try:
        return convert(shape, _opened(_parsed(content)), "content")
    except ValueError as error:
        raise Damaged(f"{where} cannot be read: {told(error).rstrip('.')}; {_end(remedy)}") from error


def foreign_json(content: bytes | str, where: object, *, remedy: str, shape: Any = Any) -> Any:
    """What another program wrote as JSON: as it is, without an entry of ours. NaN and infinity are allowed.

    Raises:
      Damaged: it is no JSON, or not of that shape.
    """
    try:
        return convert(shape, _parsed(content, strict=False), "content")
    except ValueError as error:
        raise Damaged(f"{where} cannot be read: {told(error).rstrip('.')}; {_end(remedy)}") from error


def parse_line(content: bytes, shape: Any) -> Any:
    """One line of a log in JSON lines; None if it holds no such thing, as one that was torn does."""
    try:
        return convert(shape, _parsed(content, strict=False), "content")
    except ValueError:
        return None


def claim(folder: Path, name: str, value: Any) -> None:
    """Make ``folder`` the output of ``value``, kept in ``folder/name``; continue if it is already.

    Raises:
      UserError: the folder cannot be written, or holds something else.
    """
    check_writable(folder)
    path = folder / name
    if path.exists():
        refuse_another(folder, read_json(path, dict, remedy=f"bring back a copy, or {ANOTHER_OUT}"), value)
    elif any(child for child in folder.iterdir() if not child.name.startswith(".")):
        raise UserError(f"{folder} is not empty and holds no {name}; choose an empty or new folder with --out.")
    else:
        write_json(path, value)


def check_writable(folder: Path) -> None:
    """Make a folder if it is not there.

    Raises:
      UserError: nothing can be written in it.
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
    """Raise ``UserError`` if ``folder``, which is the output of ``owner``, would become that of another value."""
    different = differences(owner, as_read(value))
    if different:
        raise UserError(
            f"{folder} belongs to another run: {some(different, between='; ')}. Choose another --out, or the same "
            "settings."
        )


def as_read(value: Any, default: Callable[[Any], Any] | None = None) -> Any:
    """Plain data as it comes back from a file; ``default`` makes plain what is not."""
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
            f"it is no JSON, or only a part of it (line {error.lineno}, column {error.colno}; {says('json', error)})"
        ) from None


def _opened(value: Any) -> Any:
    """What was sealed."""
    if not isinstance(value, dict) or SEAL not in value:
        raise UserError(
            f"it has no entry {SEAL!r} with the hash of what moejax wrote: it was changed by hand, or written by "
            "something else"
        )
    seal, plain = value[SEAL], {name: item for name, item in value.items() if name != SEAL}
    if not isinstance(seal, dict) or not isinstance(seal.get("schema"), int):
        raise UserError(f"its entry {SEAL!r} is {seal!r}, and must hold schema and sha256")
    if seal["schema"] != SCHEMA:
        raise UserError(f"it is of schema {seal['schema']} of another version, and this moejax reads schema {SCHEMA}")
    if seal.get("sha256") != _hash(plain):
        raise UserError("its content is not what moejax wrote there: it was damaged, or changed by hand")
    return plain[ITEMS] if set(plain) == {ITEMS} else plain


def _hash(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def _refused(text: str) -> float:
    raise UserError(f"it holds {text}, which is no number")


@functools.lru_cache(4096)
def _number(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refused(text)


def _end(remedy: str) -> str:
    return remedy if remedy.endswith(".") else f"{remedy}."
