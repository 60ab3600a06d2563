"""Options of the form ``NAME=VALUE`` that may be repeated."""

from __future__ import annotations

from collections.abc import Sequence

from moejax.errors import UserError


def pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Names and values of ``texts``.

    Raises:
      UserError: one is of another form, or a name is given twice.
    """
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.strip() and value.strip()):
            raise UserError(f"{option} {text!r} has no name and value; write {option} NAME=VALUE.")
        if name.strip() in dict(found):
            raise UserError(f"{option} gives {name.strip()} twice; give it once.")
        found.append((name.strip(), value.strip()))
    return found
