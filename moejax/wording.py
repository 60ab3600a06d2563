"""Sentences and tables for people."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Sequence

from moejax.errors import UserError

MOST_NAMES = 40
"""How many known names a sentence about an unknown one lists: a library of others may have ten thousand."""


def some(items: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """The first of a list, and how many more there are: ``a, b and 3 more``."""
    rest = len(items) - most
    return between.join(items[:most]) + (f"{between.rstrip(', ')} and {rest} more" if rest > 0 else "")


def counted(number: int, noun: str) -> str:
    """``1 training``, ``2 trainings``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def lies(name: str, low: float, high: float, rows: str = "all rows") -> str:
    """Where a column's numbers lie: ``bs is 256 in all rows``, ``tokens lie between 44 and 1.62e+04``."""
    many = name in ("tokens", "unique_tokens", "flops")
    smallest, largest = f"{low:.4g}", f"{high:.4g}"
    if smallest == largest:
        return f"{name} {'are' if many else 'is'} {smallest} in {rows}"
    where = "" if rows == "all rows" else f" in {rows}"
    return f"{name} {'lie' if many else 'lies'} between {smallest} and {largest}{where}"


def nearest(name: str, known: Iterable[str], alike: float = 0.5) -> list[str]:
    """The known names that an unknown one may have meant, the likeliest first; three at most.

    Args:
      alike: the least that names have in common, from 0 to 1, as difflib counts it.
    """
    return difflib.get_close_matches(name, list(known), n=3, cutoff=alike)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: ``did you mean a or b?``, else ``known are a, b and c.``"""
    known = list(known)
    near = nearest(name, known)
    return f"did you mean {' or '.join(near)}?" if near else f"known are {some(known, MOST_NAMES)}."


def command(*words: object) -> str:
    """A command as it is printed for a person to give: quoted for a shell."""
    return shlex.join(map(str, words))


def listed(items: Iterable[str], joint: str = "and") -> str:
    """All of a list: ``a, b and c``."""
    *head, last = list(items)
    return f"{', '.join(head)} {joint} {last}" if head else last


def says(library: str, error: BaseException, most: int = 200, end: bool = False) -> str:
    """What a library said, for the parentheses of a sentence of ours: ``json says: JSONDecodeError: Expecting value``.

    A sentence of ours names the file, the rule and the remedy; what somebody else's program raised is introduced as
    its own, in one line, and cut. Of the operating system's errors, its words alone.

    Args:
      most: characters of its words.
      end: keep the end of a longer text and not its first line, where the cause comes last.
    """
    if isinstance(error, OSError) and error.strerror:
        return f"the system says: {error.strerror}"
    text = str(error).strip()
    line = " ".join((text if end else text.partition("\n")[0]).split()).rstrip(".")
    # A KeyError's text is a key alone.
    kind = "" if type(error) in (Exception, ValueError, RuntimeError) else type(error).__name__
    said = ": ".join(filter(None, (kind, line))) or type(error).__name__
    if len(said) > most:
        said = f"…{said[1 - most :]}" if end else f"{said[: most - 1]}…"
    return f"{library} says: {said}"


def told(error: BaseException) -> str:
    """An exception, for people: the sentence of a ``UserError``, otherwise introduced as a library's words."""
    return str(error) if isinstance(error, UserError) else says("a library", error)
