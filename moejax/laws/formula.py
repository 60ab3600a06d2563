"""The equations that a law's docstring begins with, read as trees: what pages render and tests hold to the code.

A docstring's first paragraph is one equation or more, joined by commas, ``with`` and ``and``, up to a full stop. The
others say what each letter is: the letter, ``is``, and between double backticks a field of ``Design`` or an output of
the law, or a product or quotient of such. Every product has its sign, ``N^a·D^b``: letters side by side are no product.
"""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

FUNCTIONS = ("log10", "log2", "log", "ln", "exp")
"""Names that are applied to what follows them; ``log`` and ``ln`` are both natural."""


@dataclass(frozen=True)
class Number:
    """A number, as it is written."""

    text: str


@dataclass(frozen=True)
class Name:
    """A letter or word, with what stands below it after an underscore."""

    text: str


@dataclass(frozen=True)
class Sum:
    """Terms added; one that is subtracted is a ``Negative``."""

    terms: tuple[Tree, ...]


@dataclass(frozen=True)
class Negative:
    """A term with a minus."""

    term: Tree


@dataclass(frozen=True)
class Product:
    """Factors multiplied."""

    factors: tuple[Tree, ...]


@dataclass(frozen=True)
class Quotient:
    """One over the other."""

    over: Tree
    under: Tree


@dataclass(frozen=True)
class Power:
    """A base and its exponent."""

    base: Tree
    exponent: Tree


@dataclass(frozen=True)
class Apply:
    """One of ``FUNCTIONS`` of an argument."""

    function: str
    argument: Tree


@dataclass(frozen=True)
class Least:
    """The smaller of two."""

    one: Tree
    other: Tree


@dataclass(frozen=True)
class Summation:
    """The sum of a term over i = 1, 2, …, as far as its coefficients with the index i go."""

    term: Tree


Tree = Number | Name | Sum | Negative | Product | Quotient | Power | Apply | Least | Summation


@dataclass(frozen=True)
class Equation:
    """What is defined, what it is a function of where the paper says so, and what it is."""

    left: Tree
    arguments: tuple[Name, ...]
    right: Tree


@dataclass(frozen=True)
class Formula:
    """What the docstring of a law says."""

    text: str
    """The equations, in one line and without the full stop."""
    equations: tuple[Equation, ...]
    letters: Mapping[str, str]
    """What letters of the equations are: fields of ``Design`` or outputs of the law, or arithmetic on them."""
    prose: str
    """The other paragraphs."""


def formula(law: type) -> Formula:
    """What a law's docstring says.

    Raises:
      ValueError: its first paragraph is not equations.
    """
    first, _, prose = inspect.cleandoc(law.__doc__ or "").partition("\n\n")
    text = " ".join(first.split())
    if not text.endswith("."):
        raise ValueError(f"The docstring of {law.__name__} must begin with equations and a full stop; it has {text!r}.")
    equations = parse(text[:-1])
    used = {name for equation in equations for side in (equation.left, equation.right) for name in names(side)}
    letters = {letter: said for letter, said in _LETTER.findall(" ".join(prose.split())) if letter in used}
    return Formula(text[:-1], equations, {name: said.replace("``", "") for name, said in letters.items()}, prose)


def parse(text: str) -> tuple[Equation, ...]:
    """Equations from their text, such as ``L(N) = A/N^alpha + E, with N = 2·M``.

    Raises:
      ValueError: it is not in this grammar, with the place.
    """
    return _Reader(text).equations()


def names(tree: Tree) -> Iterator[str]:
    """Every name of a tree, in order."""
    match tree:
        case Name(text):
            yield text
        case Sum(parts) | Product(parts):
            for part in parts:
                yield from names(part)
        case Negative(part) | Apply(_, part) | Summation(part):
            yield from names(part)
        case Quotient(one, other) | Power(one, other) | Least(one, other):
            yield from names(one)
            yield from names(other)


_HAT = "\N{COMBINING CIRCUMFLEX ACCENT}"
_WORD = rf"[^\W\d_²³Σ]{_HAT}?[^\W²³]*"
_LETTER = re.compile(rf"({_WORD})(?: is| =)? ((?:\d+·)?``\w+``(?:[·/]``\w+``)*)")
_TOKEN = re.compile(rf"\s*({_WORD}|\d+(?:\.\d+)?|[-+·/^²³()=,Σ])")
_RAISED = {"²": "2", "³": "3"}
_BETWEEN = (",", "with", "and")


class _Reader:
    """Recursive descent: a sum of products of powers."""

    def __init__(self, text: str):
        self.text = unicodedata.normalize("NFC", text).rstrip()
        self.tokens: list[str] = []
        end = 0
        while end < len(self.text):
            token = _TOKEN.match(self.text, end)
            if token is None:
                raise ValueError(f"{self.text[end:]!r} in the formula {text!r} cannot be read.")
            self.tokens.append(token[1])
            end = token.end()
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def took(self, *tokens: str) -> str:
        """The next token if it is one of these, else nothing."""
        if not self.next or self.next not in tokens:
            return ""
        self.at += 1
        return self.tokens[self.at - 1]

    def must(self, token: str) -> None:
        if not self.took(token):
            rest = " ".join(self.tokens[self.at :]) or "nothing"
            raise ValueError(f"The formula {self.text!r} has {rest!r} where {token!r} must stand.")

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
        if self.took("("):
            arguments.append(self.name())
            while self.took(","):
                arguments.append(self.name())
            self.must(")")
        self.must("=")
        return Equation(left, tuple(arguments), self.sum())

    def sum(self) -> Tree:
        terms = [Negative(self.term()) if self.took("-") else self.term()]
        while sign := self.took("+", "-"):
            terms.append(Negative(self.term()) if sign == "-" else self.term())
        return terms[0] if len(terms) == 1 else Sum(tuple(terms))

    def term(self) -> Tree:
        if self.took("Σ"):
            return Summation(self.term())
        tree = self.factor()
        while sign := self.took("·", "/"):
            other = self.factor()
            if sign == "/":
                tree = Quotient(tree, other)
            else:
                tree = Product((*(tree.factors if isinstance(tree, Product) else (tree,)), other))
        return tree

    def factor(self) -> Tree:
        if function := self.took(*FUNCTIONS):
            return Apply(function, self.factor())
        if self.took("min"):
            return self.least()
        base = self.atom()
        if raised := self.took(*_RAISED):
            return Power(base, Number(_RAISED[raised]))
        if self.took("^"):
            return Power(base, Negative(self.factor()) if self.took("-") else self.factor())
        return base

    def least(self) -> Tree:
        self.must("(")
        one = self.sum()
        self.must(",")
        other = self.sum()
        self.must(")")
        return Least(one, other)

    def atom(self) -> Tree:
        if self.took("("):
            inner = self.sum()
            self.must(")")
            return inner
        if self.next[:1].isdigit():
            return Number(self.took(self.next))
        return self.name()

    def name(self) -> Name:
        if not re.fullmatch(_WORD, self.next):
            self.must("a name")
        return Name(self.took(self.next))
