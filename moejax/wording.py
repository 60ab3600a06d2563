"""Format sentences and lists for people."""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

from moejax.errors import UserError

MOST_NAMES = 40
"""Maximum number of known names in an error about an unknown name, since there may be thousands."""
LONGEST_WORD, LONGEST_SENTENCE = 256, 8_000
"""Maximum number of characters of a displayed word and sentence. Sentences of moejax are shorter, but a name in a table
may have a million characters. Longer paths are shortened too.
"""


def some(items: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """Return the first items of a list and the number of others: ``a, b and 3 more``."""
    rest = len(items) - most
    return between.join(items[:most]) + (f"{between.rstrip(', ')} and {rest} more" if rest > 0 else "")


def printable(text: str) -> str:
    """Return a text with control characters and direction marks written as escapes; line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Return a text as one printable line, with long words and long text shortened."""
    line = printable(_shortened(text, LONGEST_SENTENCE)).replace("\n", "\\n")
    return re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: _shortened(word[0], LONGEST_WORD), line)


def _shortened(text: str, most: int) -> str:
    """Return a text shortened in the middle, because names differ at their beginning or end."""
    kept = most * 2 // 3
    return text if len(text) <= most else f"{text[:kept]}…{text[kept + 1 - most :]}"


def counted(number: int, noun: str) -> str:
    """Return a count and its noun, with a plural s if needed: ``1 run``, ``2 runs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def lies(name: str, low: float, high: float, rows: str = "all rows") -> str:
    """Return the range of a column's numbers: ``bs is 256 in all rows``, ``tokens lie between 44 and 1.62e+04``."""
    many = name in ("tokens", "unique_tokens", "flops")
    smallest, largest = f"{low:.4g}", f"{high:.4g}"
    if smallest == largest:
        return f"{name} {'are' if many else 'is'} {smallest} in {rows}"
    where = "" if rows == "all rows" else f" in {rows}"
    return f"{name} {'lie' if many else 'lies'} between {smallest} and {largest}{where}"


def nearest(name: str, known: Iterable[str], alike: float = 0.5) -> list[str]:
    """Return at most three known names similar to an unknown one, the most similar first.

    Args:
      alike: minimum similarity, from 0 to 1, as difflib computes it.
    """
    return difflib.get_close_matches(name, list(known), n=3, cutoff=alike)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: ``did you mean a or b?``, else ``choose from a, b, c.``"""
    known = list(known)
    near = nearest(name, known)
    return f"did you mean {' or '.join(near)}?" if near else f"choose from {some(known, MOST_NAMES)}."


_IN_COMMAND: ContextVar[bool] = ContextVar("_IN_COMMAND", default=False)
_OPTIONS = {
    "like": "--arch or --config",
    "targets": "--target",
    "most": "--k",
    "mapping": "--map",
    "fixed": "--fix",
    "table": "--runs",
}
"""Options whose Python arguments have different names, keyed by the argument."""
_LISTS = ("where", "best_by")
"""Arguments that are lists of strings in Python."""


@contextlib.contextmanager
def in_command() -> Iterator[None]:
    """Make messages name options of the command line instead of arguments of Python."""
    before = _IN_COMMAND.set(True)
    try:
        yield
    finally:
        _IN_COMMAND.reset(before)


def argument(name: str, value: object = None) -> str:
    """Return an argument as a message names it: an option in a command, a name in backticks in Python.

    With a value, return what a user types: ``--group run`` or ``group="run"``, ``--map tokens=D`` or
    ``mapping={"tokens": "D"}``.

    Args:
      value: a text; values by name for ``mapping`` and ``fixed``; True for a flag.
    """
    if _IN_COMMAND.get():
        option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
        if isinstance(value, Mapping):
            return " ".join(command(option, f"{key}={one}") for key, one in value.items())
        return option if value in (None, True) else command(option.partition(" or ")[0], value)
    if value is None:
        return f"`{name}`"
    if isinstance(value, Mapping):
        # Texts in fixed are numbers, or the word VALUE for a number.
        write = str if name == "fixed" else _in_quotes
        return f"{name}={{{', '.join(f'{_in_quotes(key)}: {write(one)}' for key, one in value.items())}}}"
    if isinstance(value, str):
        items = value.split(",") if name == "best_by" else [value]
        return f"{name}=[{', '.join(map(_in_quotes, items))}]" if name in _LISTS else f"{name}={_in_quotes(value)}"
    return f"{name}={value}"


def _in_quotes(text: object) -> str:
    """Return a text as a Python literal, in double quotes unless it contains them."""
    written = repr(str(text))
    return written if '"' in written or "\\" in written else f'"{written[1:-1]}"'


def option_hint(text: str) -> str:
    """Return ``text``, a part of a sentence about options of the command line; in Python, return an empty text."""
    return text if _IN_COMMAND.get() else ""


def command(*words: object) -> str:
    """Return a command for a user to run, quoted for a shell."""
    return shlex.join(map(str, words))


_ABOVE_PACKAGE = Path(__file__).parents[1]
"""The folder that contains the package: a checkout if moejax is installed editable, otherwise site-packages."""


def install_command(extra: str, folder: Path = _ABOVE_PACKAGE) -> str:
    """Return the pip command that installs an extra of moejax, from the checkout if moejax is installed editable."""
    if (folder / "pyproject.toml").is_file():
        return command("pip", "install", "-e", f"{folder}[{extra}]")
    return command("pip", "install", f"moejax[{extra}]")


MOST_SHOWN = 80
"""Maximum number of characters of a wrong value in an error."""


def shown(value: object) -> str:
    """Format the value of a cell or setting for an error, shortened if needed."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"{value:.3e}" if value.bit_length() < 1000 else "a number with hundreds of digits"
    text = repr(getattr(value, "item")() if getattr(value, "ndim", None) == 0 else value)  # noqa: B009
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def listed(items: Iterable[str], joint: str = "and") -> str:
    """Return all items of a list: ``a, b and c``."""
    *head, last = list(items)
    return f"{', '.join(head)} {joint} {last}" if head else last


def says(library: str, error: BaseException, most: int = 200, end: bool = False) -> str:
    """Return a library's error for the parentheses of a sentence: ``json reported: JSONDecodeError: Expecting value``.

    The sentence itself names the file, the rule and the remedy. The error's text is shortened to one line. An error of
    the operating system is returned as ``system error: No such file or directory``, without the library.

    Args:
      most: maximum number of characters.
      end: True to keep the end of a longer text instead of its first line, if the cause comes last.
    """
    if isinstance(error, OSError) and error.strerror:
        return f"system error: {error.strerror}"
    text = str(error).strip()
    line = " ".join((text if end else text.partition("\n")[0]).split()).rstrip(".")
    # The text of a KeyError is only the key.
    kind = "" if type(error) in (Exception, ValueError, RuntimeError) else type(error).__name__
    said = ": ".join(filter(None, (kind, line))) or type(error).__name__
    if len(said) > most:
        said = f"…{said[1 - most :]}" if end else f"{said[: most - 1]}…"
    return f"{library} reported: {said}"


def told(error: BaseException) -> str:
    """Return an exception as text: the sentence of a ``UserError``, or ``says("Python", error)`` for others."""
    return str(error) if isinstance(error, UserError) else says("Python", error)
