"""Parse equations into trees: those at the beginning of a law's docstring, and those that a user fits (``--form``).

The docs render the equations of docstrings, and tests compare them with the code. The first paragraph consists of
equations, joined by commas, ``with`` and ``and``, and ends with a full stop. The other paragraphs define each letter
with ``is`` and a name in double backticks: a field of ``Design``, an output of the law, or a product or quotient of
these. Every product needs a sign, as in ``N^a·D^b`` or ``N^a*D^b``; adjacent letters do not form a product. Column
names that are not words need `backticks`. Numbers may be written as 1e9 or 48M.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from moejax import quantities
from moejax.errors import UserError

FUNCTIONS = ("log10", "log2", "log", "ln", "exp", "sqrt", "sigmoid")
"""Functions that may precede an argument; ``log`` and ``ln`` are both natural."""

MOST_CHARACTERS = 1_000
"""Maximum length of the text of equations."""
DEEPEST = 40
"""Maximum nesting depth of parentheses, functions and powers."""


@dataclass(frozen=True)
class Number:
    """A number as written."""

    text: str


@dataclass(frozen=True)
class Name:
    """A letter or word, including a subscript after an underscore."""

    text: str


@dataclass(frozen=True)
class Sum:
    """A sum of terms; a subtracted term is a ``Negative``."""

    terms: tuple[Tree, ...]


@dataclass(frozen=True)
class Negative:
    """A term with a minus sign."""

    term: Tree


@dataclass(frozen=True)
class Product:
    """A product of factors."""

    factors: tuple[Tree, ...]


@dataclass(frozen=True)
class Quotient:
    """A quotient."""

    over: Tree
    under: Tree


@dataclass(frozen=True)
class Power:
    """A power with base and exponent."""

    base: Tree
    exponent: Tree


@dataclass(frozen=True)
class Apply:
    """An application of one of ``FUNCTIONS`` to an argument."""

    function: str
    argument: Tree


@dataclass(frozen=True)
class Least:
    """The minimum of several terms."""

    terms: tuple[Tree, ...]


@dataclass(frozen=True)
class Greatest:
    """The maximum of several terms."""

    terms: tuple[Tree, ...]


@dataclass(frozen=True)
class Summation:
    """A sum of a term over i = 1, 2, …, up to the length of its coefficients with index i."""

    term: Tree


Tree = Number | Name | Sum | Negative | Product | Quotient | Power | Apply | Least | Greatest | Summation


@dataclass(frozen=True)
class Equation:
    """An equation: a left side with optional arguments, and a right side."""

    left: Tree
    arguments: tuple[Name, ...]
    right: Tree


@dataclass(frozen=True)
class Formula:
    """The formula in the docstring of a law."""

    text: str
    """Equations in one line, without the full stop."""
    equations: tuple[Equation, ...]
    letters: Mapping[str, str]
    """Meaning of each letter: a field of ``Design``, an output of the law, or a product or quotient of these."""
    prose: str
    """Other paragraphs of the docstring."""


def formula(law: type) -> Formula:
    """Return the formula at the beginning of a law's docstring.

    Raises:
      ValueError: the first paragraph is not equations.
    """
    first, _, prose = inspect.cleandoc(law.__doc__ or "").partition("\n\n")
    text = " ".join(first.split())
    if not text.endswith("."):
        raise ValueError(
            f"The docstring of {law.__name__} must begin with equations and a full stop; it begins with {text!r}."
        )
    equations = parse(text[:-1])
    used = {name for equation in equations for side in (equation.left, equation.right) for name in names(side)}
    letters = {letter: said for letter, said in _LETTER.findall(" ".join(prose.split())) if letter in used}
    return Formula(text[:-1], equations, {name: said.replace("``", "") for name, said in letters.items()}, prose)


def parse(text: str, *, what: str = "formula", arguments: bool = True) -> tuple[Equation, ...]:
    """Parse equations, such as ``L(N) = A/N^alpha + E, with N = 2·M``.

    Args:
      what: name of the text in error messages.
      arguments: whether the left side may list its arguments.

    Raises:
      UserError: the text does not match this grammar; the message gives the position.
    """
    return EquationReader(text, what, arguments).equations()


def names(tree: Tree) -> Iterator[str]:
    """Yield every name of a tree, in order."""
    return (node.text for node in nodes(tree) if isinstance(node, Name))


def nodes(tree: Tree) -> Iterator[Tree]:
    """Yield a tree and all its subtrees, in order."""
    yield tree
    for value in vars(tree).values():
        for part in value if isinstance(value, tuple) else (value,):
            if not isinstance(part, str):
                yield from nodes(part)


def replaced(tree: Tree, defined: Mapping[str, Tree]) -> Tree:
    """Return a tree with defined names replaced by their trees."""
    if isinstance(tree, Name):
        return defined.get(tree.text, tree)

    def put(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(put, value))
        return value if isinstance(value, str) else replaced(value, defined)

    return type(tree)(**{name: put(value) for name, value in vars(tree).items()})


def computed(tree: Tree, at: Callable[[Tree], Any], xp: ModuleType) -> Any:
    """Compute a tree with NumPy or ``jax.numpy``; ``at`` returns the values of its parts and names."""
    match tree:
        case Number(text):
            return float(text)
        case Sum(terms):
            return functools.reduce(operator.add, map(at, terms))
        case Negative(term):
            return -at(term)
        case Product(factors):
            return functools.reduce(operator.mul, map(at, factors))
        case Quotient(over, under):
            return xp.divide(at(over), at(under))
        case Power(base, exponent):
            return xp.power(at(base), at(exponent))
        case Apply("sigmoid", argument):
            return 1 / (1 + xp.exp(-at(argument)))
        case Apply(function, argument):
            return getattr(xp, "log" if function == "ln" else function)(at(argument))
        case Least(terms):
            return functools.reduce(xp.minimum, map(at, terms))
        case Greatest(terms):
            return functools.reduce(xp.maximum, map(at, terms))
    raise AssertionError(tree)


_HAT = "\N{COMBINING CIRCUMFLEX ACCENT}"
_WORD = rf"[^\W\d²³Σ]{_HAT}?[^\W²³]*"
_LETTER = re.compile(rf"({_WORD})(?: is| =)? ((?:\d+·)?``\w+``(?:[·/]``\w+``)*)")
_NUMBER = r"(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+(?!\w))?(?:[kKmMbBgGtT](?!\w))?"
_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_SIGNS = r"\*\*|//|==|!=|<=|>=|&&|\|\||[-+·*/%^²³()\[\],=<>&|~Σ]"
_TOKEN = re.compile(rf"\s*({_TEXT}|{_WORD}|`[^`]+`|{_NUMBER}|{_SIGNS})")
_RAISED = {"²": "2", "³": "3"}
_BETWEEN = (",", "with", "and")
_EXTREMES = {"min": Least, "max": Greatest}


class Reader:
    """A recursive-descent parser of sums of products of powers."""

    functions: tuple[str, ...] = FUNCTIONS
    reserved: tuple[str, ...] = (*FUNCTIONS, *_EXTREMES)
    """Words that cannot be names."""
    products: tuple[str, ...] = ("·", "*", "/")
    """Signs between factors; products are evaluated from left to right."""

    def __init__(self, text: str, what: str):
        self.text, self.what = text.rstrip(), what
        if len(self.text) > MOST_CHARACTERS:
            raise UserError(f"The {what} has {len(self.text):,} characters; shorten it to {MOST_CHARACTERS:,}.")
        self.tokens: list[str] = []
        self.places: list[int] = []
        end = 0
        while end < len(self.text):
            token = _TOKEN.match(self.text, end)
            if token is None:
                raise self.fault(
                    end + len(self.text[end:]) - len(self.text[end:].lstrip()), f"which is not allowed in {what}s"
                )
            self.tokens.append(token[1])
            self.places.append(token.start(1))
            end = token.end()
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def took(self, *tokens: str) -> str:
        """Consume and return the next token if it is one of these, else return an empty string."""
        if not self.next or self.next not in tokens:
            return ""
        self.at += 1
        return self.tokens[self.at - 1]

    def must(self, *wanted: str) -> None:
        """Consume the next token, which must be one of these."""
        if not self.took(*wanted):
            place = self.places[self.at] if self.next else len(self.text)
            expected = " or ".join(repr(one) if len(one) < 3 else one for one in wanted)
            raise self.fault(place, f"where {expected} is expected")

    def fault(self, place: int, why: str) -> UserError:
        rest = self.text[place:]
        shown = ascii(rest[:30] + ("…" if len(rest) > 30 else "")) if not rest.isprintable() else f"'{rest[:30]}'"
        what = f"has {shown} at character {place + 1}," if rest else "ends"
        return UserError(f"The {self.what} {self.text[:200]!r} {what} {why}.")

    def sum(self) -> Tree:
        terms = [self.first_term()]
        while sign := self.took("+", "-"):
            terms.append(Negative(self.term()) if sign == "-" else self.term())
        return terms[0] if len(terms) == 1 else Sum(tuple(terms))

    def first_term(self) -> Tree:
        return Negative(self.term()) if self.took("-") else self.term()

    def term(self) -> Tree:
        tree = self.factor()
        while sign := self.took(*self.products):
            tree = self.product(tree, sign, self.factor())
        return tree

    def product(self, tree: Any, sign: str, other: Any) -> Any:
        """Return the product or quotient of two trees."""
        if sign == "/":
            return Quotient(tree, other)
        return Product((*(tree.factors if isinstance(tree, Product) else (tree,)), other))

    def factor(self) -> Tree:
        return self.nested(self.power)

    def nested(self, part: Callable[[], Any]) -> Any:
        """Parse a part that may contain itself, up to ``DEEPEST`` levels."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.fault(self.places[min(self.at, len(self.places) - 1)], f"nested deeper than {DEEPEST} levels")
        tree = part()
        self.depth -= 1
        return tree

    def power(self) -> Tree:
        if self.took("-"):
            return Negative(self.factor())
        base = self.applied() or self.atom()
        if raised := self.took(*_RAISED):
            return Power(base, Number(_RAISED[raised]))
        return Power(base, self.factor()) if self.took("^", "**") else base

    def applied(self) -> Tree | None:
        """Return the application of a function; None if the next token is not a function."""
        if function := self.took(*self.functions):
            return Apply(function, self.atom() if self.next == "(" else self.factor())
        if extreme := self.took(*_EXTREMES):
            self.must("(")
            terms = [self.sum()]
            self.must(",")
            terms.append(self.sum())
            while self.took(","):
                terms.append(self.sum())
            self.must(")")
            return _EXTREMES[extreme](tuple(terms))
        return None

    def atom(self) -> Tree:
        if self.took("("):
            inner = self.sum()
            self.must(")")
            return inner
        if self.next[:1].isdigit() or self.next[:1] == ".":
            number = self.took(self.next)
            value = quantities.parse(number)
            return Number(number if number[-1].isdigit() else f"{value:.15g}")
        return self.name("a number, a name or '('")

    def name(self, wanted: str = "a name") -> Name:
        if self.next.startswith("`"):
            return Name(self.took(self.next)[1:-1])
        if not re.fullmatch(_WORD, self.next) or self.next in self.reserved:
            self.must(wanted)
        return Name(self.took(self.next))


class EquationReader(Reader):
    """A parser of equations."""

    reserved = (*Reader.reserved, *_BETWEEN[1:])

    def __init__(self, text: str, what: str, arguments: bool):
        super().__init__(unicodedata.normalize("NFC", text), what)
        self.arguments = arguments

    def equations(self) -> tuple[Equation, ...]:
        equations = [self.equation()]
        while self.took(*_BETWEEN):
            while self.took(*_BETWEEN):
                pass
            equations.append(self.equation())
        if self.next:
            self.must("the end")
        return tuple(equations)

    def equation(self) -> Equation:
        left, arguments = self.term(), []
        if self.arguments and self.took("("):
            arguments.append(self.name())
            while self.took(","):
                arguments.append(self.name())
            self.must(")")
        self.must("=")
        return Equation(left, tuple(arguments), self.sum())

    def term(self) -> Tree:
        return Summation(self.nested(self.term)) if self.took("Σ") else super().term()
