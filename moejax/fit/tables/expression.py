"""Evaluate arithmetic and conditions on the columns of a table: the language of ``--map`` and ``--where``.

The language extends the arithmetic of formulas (``moejax.laws.formula``) by comparisons, ``and``, ``or``, ``not``,
``in``, quoted texts and the functions of ``FUNCTIONS``. It has no attributes, indices or other calls, so an expression
can only read the table. ``mapped`` and ``select`` apply the two options.
"""

from __future__ import annotations

import functools
import operator
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax import run_table
from moejax.errors import UserError
from moejax.laws.formula import Name, Reader, Tree, computed
from moejax.run_sources.column_mapping import ColumnMapping
from moejax.run_table import DataFrame
from moejax.wording import nearest, some, told

FUNCTIONS = ("abs", "sqrt", "exp", "log", "log2", "log10", "round", "floor", "ceil")
"""Functions of one number, applied to each row; ``min``, ``max`` and ``where`` are separate."""
CALLED = (*FUNCTIONS, "min", "max", "where")
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LANGUAGE = (
    "An expression has columns (a name with spaces between `backticks`), numbers, 'texts', + - * / // % **, "
    f"comparisons, in, and, or, not, and {', '.join(CALLED)}"
)


@dataclass(frozen=True)
class Text:
    """A quoted text."""

    text: str


@dataclass(frozen=True)
class Operation:
    """An operation that formulas do not have: ``//``, ``%``, ``where``, ``not``, ``and`` or ``or``."""

    name: str
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class ComparisonChain:
    """A chain of comparisons such as ``1 < x <= 2``, which must all hold; ``in`` is followed by a list of values."""

    first: Node
    others: tuple[tuple[str, Node | tuple[Node, ...]], ...]


Node = Tree | Text | Operation | ComparisonChain


class _Reader(Reader):
    """A parser of values and conditions."""

    functions = FUNCTIONS
    reserved = ("and", "or", "not", "in", "if", "else", "is", "lambda", "for")
    products = (*Reader.products, "//", "%")

    def whole(self) -> Node:
        tree = self.condition()
        if self.next:
            self.must("the end")
        return tree

    def condition(self) -> Node:
        return self.joined("or", ("or", "|", "||"), lambda: self.joined("and", ("and", "&", "&&"), self.negation))

    def joined(self, joint: str, signs: tuple[str, ...], part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self.took(*signs):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Operation(joint, tuple(parts))

    def negation(self) -> Node:
        return Operation("not", (self.nested(self.negation),)) if self.took("not", "~") else self.comparison()

    def comparison(self) -> Node:
        first, others = self.sum(), []
        while sign := self.took(*_COMPARISONS, "in", "not"):
            if sign == "not":
                self.must("in")
                sign = "not in"
            others.append((sign, self.listing() if sign in ("in", "not in") else self.sum()))
        return ComparisonChain(first, tuple(others)) if others else first

    def listing(self) -> tuple[Node, ...]:
        closing = {"(": ")", "[": "]"}.get(self.next, "")
        self.must("[", "(")
        items = [self.sum()]
        while self.took(",") and self.next != closing:
            items.append(self.sum())
        self.must(closing)
        return tuple(items)

    def first_term(self) -> Any:
        # The minus in -a % b applies to a, as in Python.
        return self.term()

    def product(self, tree: Any, sign: str, other: Any) -> Any:
        return Operation(sign, (tree, other)) if sign in ("//", "%") else super().product(tree, sign, other)

    def applied(self) -> Any:
        # A column may have the name of a function; only a function is followed by a parenthesis.
        if self.tokens[self.at + 1 : self.at + 2] != ["("]:
            return None
        if self.took("where"):
            self.must("(")
            condition = self.condition()
            self.must(",")
            value = self.sum()
            self.must(",")
            otherwise = self.sum()
            self.must(")")
            return Operation("where", (condition, value, otherwise))
        if re.match(r"\w", self.next) and self.next not in (*CALLED, *self.reserved):
            raise UserError(f"{self.next} is not a function; the functions are {', '.join(CALLED)}")
        return super().applied()

    def atom(self) -> Any:
        if self.took("+"):
            return self.factor()
        if self.took("("):
            inner = self.condition()
            self.must(")")
            return inner
        if self.next[:1] in ("'", '"'):
            return Text(re.sub(r"\\(.)", r"\1", self.took(self.next)[1:-1]))
        return super().atom()


def evaluate(expression: str, frame: DataFrame) -> np.ndarray:
    """Evaluate an expression and return one value per row of a table, as float64, bool or text.

    Args:
      expression: for example ``6 * Na * tokens`` or ``seed == 42 and optimizer in ['adamw', 'muon']``.
      frame: a pandas DataFrame. Texts such as 48M count as numbers in arithmetic.

    Raises:
      UserError: the expression is invalid, names an unknown column, or computes with texts.
    """
    try:
        tree = _Reader(expression, "expression").whole()
    except UserError as error:
        assigned = " To compare, write ==." if re.search(r"(?<![=!<>])=(?!=)", expression) else ""
        raise UserError(f"{str(error).rstrip('.')}.{assigned} {_LANGUAGE}") from error
    columns = _Columns(frame)
    with np.errstate(all="ignore"):
        return np.broadcast_to(columns.plain(columns.value(tree)), len(frame))


def condition(expression: str, frame: DataFrame) -> np.ndarray:
    """Return a bool for each row, True if the row meets a condition.

    Raises:
      UserError: the expression is invalid or not a condition.
    """
    met = evaluate(expression, frame)
    if met.dtype != bool:
        raise UserError("it is a value, not a condition; compare it with another value, such as tokens > 1e9")
    return met


class _Columns:
    """An evaluator of trees on the columns of a table."""

    def __init__(self, frame: DataFrame):
        self.frame = frame
        self.names = {str(column): column for column in frame.columns}
        # Some letters have two code points (µ and μ).
        self.alike = {unicodedata.normalize("NFKC", str(column)): column for column in reversed(list(frame.columns))}

    def value(self, tree: Node) -> Any:
        """Evaluate a tree to a number, a bool, a text, an array of them, or an unconverted column."""
        match tree:
            case Text(text):
                return text
            case Name(text):
                return self.column(text)
            case Operation("not", (condition,)):
                return ~self.truth(condition)
            case Operation("and" | "or" as joint, conditions):
                return functools.reduce(getattr(np, f"logical_{joint}"), map(self.truth, conditions))
            case Operation("where", (condition, value, otherwise)):
                return np.where(self.truth(condition), self.number(value), self.number(otherwise))
            case Operation(sign, parts):
                return (np.floor_divide if sign == "//" else np.mod)(*map(self.number, parts))
            case ComparisonChain(first, others):
                pairs = zip([first, *(right for _, right in others)], others, strict=False)
                return functools.reduce(np.logical_and, (self.compared(left, *other) for left, other in pairs))
        return computed(tree, self.number, np)

    def column(self, name: str) -> Any:
        if name in self.names:
            return self.frame[self.names[name]]
        if (same := unicodedata.normalize("NFKC", name)) in self.alike:
            return self.frame[self.alike[same]]
        if name in ("True", "False"):
            return name == "True"
        also = f"; {name} is a function, written {name}(...)" if name in CALLED else ""
        raise UserError(f"there is no column {name}{also}; the columns are {some(list(self.names), most=40)}")

    def number(self, tree: Node) -> Any:
        """Evaluate a tree as float64 for arithmetic."""
        value = self.value(tree)
        if isinstance(value, str):
            raise UserError(f"{value!r} is text; arithmetic needs columns of numbers")
        if _is_column(value) and value.dtype != bool:
            return run_table.numbers(value, where="the table").to_numpy(np.float64)
        # True and False count as 1 and 0 in arithmetic. Fits do not use them.
        return np.asarray(value, np.float64)

    def truth(self, tree: Node) -> Any:
        value = self.plain(self.value(tree))
        if value.dtype != bool:
            raise UserError("a value is used as a condition; compare it with another value, such as tokens > 1e9")
        return value

    def compared(self, left: Any, sign: str, right: Any) -> Any:
        if isinstance(right, tuple):
            among = functools.reduce(np.logical_or, (self.compared(left, "==", each) for each in right))
            return ~among if sign == "not in" else among
        compare, sides = _COMPARISONS[sign], (self.value(left), self.value(right))
        quoted = any(isinstance(side, str) for side in sides)
        if not quoted and (not all(map(self.is_texts, sides)) or all(map(self.is_numbers_as_texts, sides))):
            # 48M is less than 1B as a number and greater as a text.
            return compare(self.number(left), self.number(right))
        for side, other in (sides, sides[::-1]):
            if not isinstance(other, str) or isinstance(side, str):
                continue
            if not self.is_texts(side) or (sign not in ("==", "!=") and self.is_numbers_as_texts(side)):
                raise UserError(f"{other!r} is text, but is compared with numbers; write numbers without quotes")
        # An empty cell is not equal to, less than or greater than any text.
        cells = np.broadcast(*(np.asarray(side, object) for side in sides))
        met = [compare(a, b) if isinstance(a, str) and isinstance(b, str) else sign == "!=" for a, b in cells]
        return np.array(met, bool).reshape(cells.shape)

    def is_texts(self, value: Any) -> bool:
        return isinstance(value, str) or (_is_column(value) and any(isinstance(cell, str) for cell in value))

    def is_numbers_as_texts(self, value: Any) -> bool:
        """Return whether a column has texts that are all numbers, such as 48M."""
        if not _is_column(value) or not self.is_texts(value):
            return False
        try:
            return bool(run_table.numbers(value).notna().any())
        except ValueError:
            return False

    def plain(self, value: Any) -> np.ndarray:
        """Return a value or a column as a NumPy array."""
        if not _is_column(value):
            return np.asarray(value)
        return value.to_numpy(bool) if value.dtype == bool else value.to_numpy()


def _is_column(value: Any) -> bool:
    return hasattr(value, "to_numpy")


def mapped(frame: DataFrame, mapping: ColumnMapping, named: str) -> DataFrame:
    """Return the table with the columns of a mapping added.

    Raises:
      UserError: a column cannot be computed.
    """
    computed = {}
    for name, expression in mapping.expressions.items():
        if expression in frame.columns:
            computed[name] = frame[expression]
            continue
        try:
            computed[name] = evaluate(expression, frame)
        except ValueError as error:
            near = nearest(expression, map(str, frame.columns))
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            origin = f" of {mapping.files[name]}" if name in mapping.files else ""
            raise UserError(
                f"{named}: {name}={expression}{origin} cannot be computed: {told(error).rstrip('.')}.{hint}"
            ) from error
    return frame.assign(**computed)


def select(frame: DataFrame, where: Sequence[str], named: str) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the rows that meet all conditions, and notes with the number of rows.

    Raises:
      UserError: a condition cannot be applied, or no row meets it.
    """
    notes = []
    for text in where:
        before = len(frame)
        try:
            frame = frame[condition(text, frame)]
        except ValueError as error:
            raise UserError(f"{named}: the condition {text!r} cannot be applied: {told(error).rstrip('.')}.") from error
        notes.append(f"{len(frame)} of {before} rows meet {text!r}.")
        if not len(frame):
            raise UserError(f"{named}: no row meets {text!r}; change or remove this condition.")
    return frame.copy(), tuple(notes)
