"""Write the equations of laws as MathML, which browsers render without scripts, network or fonts."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from moejax.laws.formula import (
    Apply,
    Equation,
    Greatest,
    Least,
    Name,
    Negative,
    Number,
    Power,
    Product,
    Quotient,
    Sum,
    Summation,
    Tree,
)

_SPELT = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
GREEK = {name: unicodedata.lookup(f"GREEK SMALL LETTER {name.replace('lambda', 'lamda')}") for name in _SPELT.split()}
"""Greek letters by their names in formulas."""


def greek(symbol: str) -> str:
    """Return a symbol with its letter and index as Greek letters: ``α_N`` for ``alpha_N``."""
    return "_".join(GREEK.get(part, part) for part in symbol.split("_"))


HAT = "\N{COMBINING CIRCUMFLEX ACCENT}"


def block(equations: Iterable[Equation]) -> str:
    """Return several equations as one HTML block.

    Browsers break lines between ``math`` elements, not inside them, so each term, or sum in a product, is its own
    element.
    """
    return "\n".join(['<div class="formula">', *(f"<p>{_broken(e)}</p>" for e in equations), "</div>"])


def inline(tree: Tree) -> str:
    """Return a letter or a power as MathML for running text."""
    return f"<math>{_drawn(tree, inline=True)}</math>"


def _broken(equation: Equation) -> str:
    arguments = "".join(_operator(",") + _drawn(a) for a in equation.arguments).removeprefix(_operator(","))
    of = f"{_operator('(')}{arguments}{_operator(')')}" if arguments else ""
    first, *others = equation.right.terms if isinstance(equation.right, Sum) else (equation.right,)
    begins = _drawn(equation.left) + of + _infix("=")
    pieces = [begins + _drawn(first), *(_signed(term) for term in others)]
    if isinstance(first, Product) and sum(isinstance(factor, Sum) for factor in first.factors) > 1:
        factors = [_inside(factor, 2) for factor in first.factors]
        pieces[:1] = [begins + factors[0], *(_infix("·") + factor for factor in factors[1:])]
    return " ".join(f'<math displaystyle="true">{piece}</math>' for piece in pieces)


def _drawn(tree: Tree, inline: bool = False) -> str:
    """Return an expression tree as MathML. With ``inline``, quotients have a slash, as in exponents."""
    match tree:
        case Number(text):
            return f"<mn>{text}</mn>"
        case Name(text):
            return _name(text)
        case Sum((first, *others)):
            return _drawn(first, inline) + "".join(_signed(term, inline) for term in others)
        case Negative(term):
            return f'<mo form="prefix">−</mo>{_inside(term, 2, inline)}'
        case Product(factors):
            return _operator("·").join(_inside(factor, 2, inline) for factor in factors)
        case Quotient(over, under) if inline:
            return _inside(over, 2, inline) + _operator("/") + _inside(under, 3, inline)
        case Quotient(over, under):
            return f"<mfrac>{_row(_drawn(over))}{_row(_drawn(under))}</mfrac>"
        case Power(base, exponent):
            return f"<msup>{_row(_inside(base, 4, inline))}{_row(_drawn(exponent, inline=True))}</msup>"
        case Apply(function, argument):
            return _function(function) + _inside(argument, 3, inline, space='<mspace width="0.17em"/>')
        case Least(terms) | Greatest(terms):
            name, every = "min" if isinstance(tree, Least) else "max", (_drawn(term, inline) for term in terms)
            return _row(f"<mi>{name}</mi>{_operator('(')}{_operator(',').join(every)}{_operator(')')}")
        case Summation(term):
            sigma = f"<munder>{_operator('∑')}<mi>i</mi></munder>"
            return sigma + _inside(term, 2, inline)
    raise AssertionError(tree)


def _binding(tree: Tree) -> int:
    """Return the precedence of an expression: 1 for a sum, 2 for a product, 3 for a power, 4 for an atom."""
    match tree:
        case Sum() | Negative():
            return 1
        case Product() | Quotient() | Summation():
            return 2
        case Power() | Apply():
            return 3
        case _:
            return 4


def _inside(tree: Tree, least: int, inline: bool = False, space: str = "") -> str:
    """Return an expression as MathML, in parentheses if its precedence is below ``least``."""
    drawn = _drawn(tree, inline)
    if _binding(tree) >= least:
        return space + drawn
    return _row(f"{_operator('(')}{drawn}{_operator(')')}")


def _signed(term: Tree, inline: bool = False) -> str:
    if isinstance(term, Negative):
        return _infix("−") + _inside(term.term, 2, inline)
    return _infix("+") + _drawn(term, inline)


def _name(text: str) -> str:
    letter, _, below = text.partition("_")
    # Without a maths font, a separate accent is drawn too high; a precomposed letter is not.
    hat = HAT in unicodedata.normalize("NFD", letter)
    drawn = f'<mi style="font-style: italic">{letter}</mi>' if hat else f"<mi>{GREEK.get(letter, letter)}</mi>"
    if not below:
        return drawn
    index = f"<mn>{below}</mn>" if below.isdigit() else f"<mi>{GREEK.get(below, below)}</mi>"
    return f"<msub>{drawn}{index}</msub>"


def _function(name: str) -> str:
    base = name.removeprefix("log")
    return f"<msub><mi>log</mi><mn>{base}</mn></msub>" if base.isdigit() else f"<mi>{name}</mi>"


def _operator(sign: str) -> str:
    return f"<mo>{sign}</mo>"


def _infix(sign: str) -> str:
    """Return an infix operator, which keeps its spacing at the beginning of a line."""
    return f'<mo form="infix">{sign}</mo>'


def _row(drawn: str) -> str:
    return f"<mrow>{drawn}</mrow>"
