"""Evaluate arithmetic and conditions on the columns of a table, the language of ``--map`` and ``--where``.

An expression is parsed as Python and evaluated here, node by node. Only the nodes in this file are supported: numbers,
quoted texts, columns, arithmetic, comparisons, ``and``, ``or``, ``not``, ``in`` and the functions of ``FUNCTIONS``.
There are no attributes, indices or other calls, so an expression can only read the table.
"""

from __future__ import annotations

import ast
import operator
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from moejax import quantities, run_table
from moejax.errors import UserError
from moejax.wording import some

MOST_CHARACTERS = 1_000
"""Maximum length of an expression."""

FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "abs": (np.abs, 1, 1),
    "sqrt": (np.sqrt, 1, 1),
    "exp": (np.exp, 1, 1),
    "log": (np.log, 1, 1),
    "log2": (np.log2, 1, 1),
    "log10": (np.log10, 1, 1),
    "round": (np.round, 1, 1),
    "floor": (np.floor, 1, 1),
    "ceil": (np.ceil, 1, 1),
    "min": (lambda *values: np.minimum.reduce(np.broadcast_arrays(*values)), 2, 99),
    "max": (lambda *values: np.maximum.reduce(np.broadcast_arrays(*values)), 2, 99),
    "where": (np.where, 3, 3),
}
"""Functions of numbers, row by row, with the minimum and maximum number of arguments."""

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
# Quoted texts come first, so that their content is not parsed as anything else.
_PIECES = re.compile(
    r"""(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|`(?P<column>[^`]*)`"""
    r"""|(?P<number>(?<![\w.])(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[kKmMbBgGtT](?!\w))"""
    r"""|(?P<both>&&?)|(?P<either>\|\|?)|(?P<none>~)"""
)
_JOINTS = {"both": " and ", "either": " or ", "none": " not "}
_LANGUAGE = (
    "An expression is made of columns (a name with spaces between `backticks`), numbers, 'texts', + - * / // % **, "
    f"comparisons, in, and, or, not, and {', '.join(FUNCTIONS)}"
)


def evaluate(expression: str, frame: Any) -> np.ndarray:
    """Evaluate an expression and return one value per row of a table, as float64, bool or text.

    Args:
      expression: for example ``6 * Na * tokens`` or ``seed == 42 and optimizer in ['adamw', 'muon']``.
      frame: a pandas DataFrame. Texts such as 48M count as numbers in arithmetic.

    Raises:
      UserError: the expression is invalid, names an unknown column, or computes with texts.
    """
    if len(expression) > MOST_CHARACTERS:
        raise UserError(f"it is {len(expression)} characters long; {MOST_CHARACTERS} are the most")
    columns = _Columns(frame)
    try:
        with warnings.catch_warnings():
            # Python warns of discouraged syntax (1if 1else 2), which is refused below.
            warnings.simplefilter("ignore")
            tree = ast.parse(_as_python(expression, columns.quoted).strip(), mode="eval").body
        with np.errstate(all="ignore"):
            return np.broadcast_to(columns.plain(columns.value(tree)), len(frame))
    except UnicodeEncodeError as error:
        raise UserError("it holds a byte that is no UTF-8 text; write the whole character") from error
    except (SyntaxError, RecursionError, MemoryError, OverflowError, TypeError) as error:
        assigned = " A comparison is written ==." if re.search(r"(?<![=!<>])=(?!=)", expression) else ""
        raise UserError(f"it cannot be read as an expression.{assigned} {_LANGUAGE}") from error


def condition(expression: str, frame: Any) -> np.ndarray:
    """Return a bool for each row, True if the row meets a condition.

    Raises:
      UserError: as ``evaluate``, or it is not a condition.
    """
    met = evaluate(expression, frame)
    if met.dtype != bool:
        raise UserError("it is a value and no condition; compare it with something, as in tokens > 1e9")
    return met


def _as_python(expression: str, quoted: dict[str, str]) -> str:
    """Return the expression as Python code, with `backticks`, 48M, & and | replaced."""

    def piece(found: re.Match[str]) -> str:
        kind = found.lastgroup or ""
        if kind == "text":
            return found[0]
        if kind == "number":
            return repr(quantities.parse(found[0]))
        if kind in _JOINTS:
            return _JOINTS[kind]
        name = f"_quoted_{len(quoted)}"
        quoted[name] = found["column"]
        return name

    return _PIECES.sub(piece, expression)


class _Columns:
    """An evaluator of an expression's nodes on the columns of a table."""

    def __init__(self, frame: Any):
        self.frame = frame
        self.quoted: dict[str, str] = {}
        # Python normalizes some letters of a bare name (µ to μ).
        self.bare = {unicodedata.normalize("NFKC", str(column)): column for column in reversed(list(frame.columns))}

    def value(self, node: ast.expr) -> Any:
        """Evaluate a node to a number, a bool, a text, an array of them, or an unconverted column."""
        match node:
            case ast.Constant(value=bool() | str() as value):
                return value
            case ast.Constant(value=int() | float() as value):
                return np.float64(value)
            case ast.Name(id=name):
                return self.column(name)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](self.number(left), self.number(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.number(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.number(operand)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~self.truth(operand)
            case ast.BoolOp(op=op, values=values):
                join = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return join.reduce(np.broadcast_arrays(*map(self.truth, values)))
            case ast.Compare(left=left, ops=ops, comparators=others):
                pairs = zip([left, *others], ops, others, strict=False)
                return np.logical_and.reduce(np.broadcast_arrays(*(self.compared(*pair) for pair in pairs)))
            case ast.Call(func=ast.Name(id=name), args=given, keywords=[]):
                return self.called(name, given)
        what = _NODES.get(type(node), f"'{ast.unparse(node)}' has no meaning there")
        raise UserError(f"{what}. {_LANGUAGE}")

    def column(self, name: str) -> Any:
        wanted = self.quoted.get(name, name)
        names = {str(column): column for column in self.frame.columns}
        found = names.get(wanted, self.bare.get(unicodedata.normalize("NFKC", wanted)))
        if found is None:
            also = f"; {wanted} is a function, written {wanted}(...)" if wanted in FUNCTIONS else ""
            raise UserError(f"there is no column {wanted}{also}; the columns are {some(list(names), most=40)}")
        return self.frame[found]

    def called(self, name: str, given: list[ast.expr]) -> Any:
        if name not in FUNCTIONS:
            raise UserError(f"{name} is no function; there are {', '.join(FUNCTIONS)}")
        function, least, most = FUNCTIONS[name]
        if not least <= len(given) <= most:
            count = least if least == most else f"{least} or more"
            raise UserError(f"{name} takes {count} values, and {len(given)} are given; it is computed row by row")
        if name == "where":
            return function(self.truth(given[0]), self.number(given[1]), self.number(given[2]))
        return function(*map(self.number, given))

    def number(self, node: ast.expr) -> Any:
        """Evaluate a node as float64 for arithmetic."""
        value = self.value(node)
        if isinstance(value, str):
            raise UserError(f"{value!r} is a text, and no number to compute with")
        if _is_column(value) and value.dtype != bool:
            return run_table.numbers(value, where="the table").to_numpy(np.float64)
        # True and False count as 1 and 0 in arithmetic. Fits do not use them.
        return np.asarray(value, np.float64)

    def truth(self, node: ast.expr) -> Any:
        value = self.plain(self.value(node))
        if np.asarray(value).dtype != bool:
            raise UserError(f"'{ast.unparse(node)}' is no condition, and stands where one belongs")
        return value

    def compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(right, ast.List | ast.Tuple) or not right.elts:
                raise UserError("after in stands a list of values, as in seed in [1, 2]")
            found = [self.compared(left, ast.Eq(), each) for each in right.elts]
            among = np.logical_or.reduce(np.broadcast_arrays(*found))
            return ~among if isinstance(op, ast.NotIn) else among
        if type(op) not in _COMPARISONS:
            raise UserError("values are compared by == != < <= > >=, in and not in")
        compare, sides = _COMPARISONS[type(op)], (self.value(left), self.value(right))
        quoted = any(isinstance(side, str) for side in sides)
        if not quoted and (not all(map(self.is_texts, sides)) or all(map(self.is_numbers_as_texts, sides))):
            # 48M is less than 1B as a number and greater as a text.
            return compare(self.number(left), self.number(right))
        ordered = not isinstance(op, ast.Eq | ast.NotEq)
        for side, other in (sides, sides[::-1]):
            if not isinstance(other, str) or isinstance(side, str):
                continue
            if not self.is_texts(side) or (ordered and self.is_numbers_as_texts(side)):
                raise UserError(f"{other!r} is a text, and is compared with numbers; write a number without quotes")
        # An empty cell is equal to no text, and neither less nor greater.
        without = isinstance(op, ast.NotEq)
        cells = np.broadcast(*(np.asarray(side, object) for side in sides))
        met = [compare(a, b) if isinstance(a, str) and isinstance(b, str) else without for a, b in cells]
        return np.array(met, bool).reshape(cells.shape)

    def is_texts(self, value: Any) -> bool:
        return isinstance(value, str) or (_is_column(value) and any(isinstance(cell, str) for cell in value))

    def is_numbers_as_texts(self, value: Any) -> bool:
        """Return whether a column has texts and all of them are numbers such as 48M."""
        if not _is_column(value) or not self.is_texts(value):
            return False
        try:
            return bool(run_table.numbers(value).notna().any())
        except ValueError:
            return False

    def plain(self, value: Any) -> Any:
        """Return a value as a NumPy array; a column of texts stays one."""
        if not _is_column(value):
            return np.asarray(value)
        return value.to_numpy(bool) if value.dtype == bool else value.to_numpy()


_NODES: Mapping[type[ast.expr], str] = {
    ast.Attribute: "a dot between names has no meaning",
    ast.Subscript: "an index in [ ] has no meaning",
    ast.Call: "only functions by name are called, with values between ( )",
    ast.List: "a list stands after in alone",
    ast.Tuple: "a list stands after in alone",
    ast.IfExp: "if has no meaning; write where(condition, value, otherwise)",
}


def _is_column(value: Any) -> bool:
    return hasattr(value, "to_numpy")
