"""Sentences and tables for people."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Sequence

from moejax.errors import UserError

MOST_NAMES = 40
"""How many known names a sentence about an unknown one lists: a library of others may have ten thousand."""
LONGEST_WORD, LONGEST_SENTENCE = 256, 8_000
"""Characters to which what people are shown is shortened: no sentence of ours has as many, and a name in a table may
have a million. A path that is longer than a word may be is shortened too."""


def some(items: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """The first of a list, and how many more there are: ``a, b and 3 more``."""
    rest = len(items) - most
    return between.join(items[:most]) + (f"{between.rstrip(', ')} and {rest} more" if rest > 0 else "")


def printable(text: str) -> str:
    """A text whose control characters and marks of direction, such as those that move a terminal's cursor or turn a
    name around, are written as escapes; line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """A text as every output shows it to people: one line that can be printed, with what is too long shortened."""
    line = printable(_shortened(text, LONGEST_SENTENCE)).replace("\n", "\\n")
    return re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: _shortened(word[0], LONGEST_WORD), line)


def _shortened(text: str, most: int) -> str:
    """Beginning and end, which tell names apart."""
    kept = most * 2 // 3
    return text if len(text) <= most else f"{text[:kept]}…{text[kept + 1 - most :]}"


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


MOST_SHOWN = 80
"""Characters of a wrong cell that an error shows."""


def shown(value: object) -> str:
    """What a cell holds, in a sentence."""
    text = repr(getattr(value, "item")() if getattr(value, "ndim", None) == 0 else value)  # noqa: B009
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


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
