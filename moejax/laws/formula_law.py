"""Make a law class from a formula, with the coefficients and inputs that the formula names.

``loss = E + A/N^alpha + B/D^beta`` is a law with the coefficients E, A, alpha, B and beta that reads ``params_active``
and ``tokens``. The properties of coefficients that the fitting engine needs are derived from the formula:

- A coefficient is positive if it is a factor of a power law (``A/N^alpha``, ``k*N^a``), a single term in a sum of power
  laws (``E``), or an exponent in ``N^-a`` or ``1/N^a``. Other coefficients may have any sign, unless the user declares
  a sign.
- The scale of a term has the inverse of the dimension of the term's columns. A coefficient such as T in ``min(D, T)``
  or ``(D + T)^b`` has the dimension of D. A coefficient that is added to ``b*log(N)`` is shifted by a change of N's
  unit. A column without such a coefficient keeps its unit.
"""

from __future__ import annotations

import functools
import keyword
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from moejax.errors import UserError
from moejax.laws.decision import DecisionRule
from moejax.laws.design import DERIVED, FIELDS, KINDS, Design, design_from, value_of
from moejax.laws.formula import (
    Apply,
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
    computed,
    names,
    nodes,
    parse,
    replaced,
)
from moejax.laws.law import LOSS, Law, Sign, coefficient, law
from moejax.laws.search import best_split, why_no_split
from moejax.wording import did_you_mean, listed, some

LETTERS = {"N": "params_active", "D": "tokens", "C": "flops", "L": "loss"}
"""Columns by letter, for letters that are not column names."""
SIGNS = {"+": "positive", "-": "negative", "any": "any sign"}
MOST_PARTS = 2_000
"""Maximum size of a formula's tree after substituting its definitions."""

LOGARITHMS = ("log", "ln", "log2", "log10")
_BASES = {"log2": 2.0, "log10": 10.0}


@dataclass(frozen=True)
class ReadFormula:
    """A formula and the meaning of its names, which together define the law."""

    text: str
    columns: tuple[tuple[str, str], ...]
    """Names in the formula that are targets or inputs, with their columns: fields, ratios or other columns."""
    signs: tuple[tuple[str, Sign], ...]
    """Coefficients in order, with their signs."""
    budget: str = ""
    """Formula for a cost in terms of two columns, such as ``C = 6*N*D``; empty if the law makes no decisions."""

    @property
    def sentence(self) -> str:
        """Return a sentence about the columns and coefficients of the formula."""
        by_sign = {sign: [name for name, one in self.signs if one == sign] for sign in SIGNS}
        said = "; ".join(f"{', '.join(ones)} ({SIGNS[sign]})" for sign, ones in by_sign.items() if ones)
        read = ", ".join(ours if name == ours else f"{name} ({ours})" for name, ours in self.columns)
        return f"The formula reads the columns {read}. Its coefficients are {said}."


class FormulaLaw:
    """Base class of laws that a formula defines."""

    inputs: ClassVar[tuple[str, ...]]
    outputs: ClassVar[Mapping[str, str]]
    formula: ClassVar[ReadFormula]
    decides: ClassVar[tuple[DecisionRule, ...]]

    def __call__(self, design: Design) -> Any:
        """Return the formula's value for a design."""
        raise NotImplementedError


def formula_law(
    text: str,
    columns: Iterable[str] = (),
    signs: Mapping[str, Sign] | None = None,
    *,
    known: Mapping[str, str] | None = None,
    budget: str = "",
) -> type[FormulaLaw]:
    """Return the law of a formula; equal formulas give the same class.

    Args:
      text: formula, such as ``loss = E + A/N^alpha + B/D^beta``; definitions follow after a comma or ``with``.
      columns: column names in addition to the fields of a ``Design``, its ratios, ``loss`` and N, D, C, L.
      signs: signs of coefficients that differ from those suggested by the formula: ``"+"``, ``"-"`` or ``"any"``.
      known: mapping from column names in the formula to names in a ``Design``; replaces the defaults and ``columns``.
      budget: formula for a cost in terms of two columns, such as ``C = 6*N*D``; the law then splits a given cost.

    Raises:
      UserError: the text is not a formula, or cannot be fitted; the message gives the position or the name.
    """
    if known is None:
        known = LETTERS | {name: name for name in (*FIELDS, *DERIVED, "loss", *columns)}
    outputs = _outputs(text)
    right = {name: name for tree in outputs.values() for name in names(tree)}
    for name in right:
        if name in outputs or known.get(name) in {known.get(target, target) for target in outputs}:
            raise UserError(f"The formula {text!r} has its target {name} on both sides; write it only on the left.")
    coefficients = [name for name in right if name not in known]
    _check_coefficients(text, coefficients)
    read = tuple((name, known[name]) for name in right if name in known)
    if not read:
        raise UserError(
            f"The formula {text!r} reads no column; {', '.join(coefficients)} would be coefficients. Use at least one "
            f"of the columns {some(list(known), most=40)}."
        )
    if unknown := [name for name in signs or {} if name not in coefficients]:
        raise UserError(
            f"The formula {text!r} has no coefficient {unknown[0]}; {did_you_mean(unknown[0], coefficients)}"
        )
    inferred = _Signs(dict(read), outputs.values()).signs | dict(signs or {})
    targets = tuple((name, known.get(name, name)) for name in outputs)
    spent = _spent(text, budget, dict(read), known) if budget else ()
    if spent and ({spent[0][0], spent[0][1]} & {*coefficients, *(name for pair in targets for name in pair)}):
        name = spent[0][0]
        raise UserError(
            f"The budget {budget!r} has the name {name}, which the formula {text!r} uses; choose another name."
        )
    used = (*targets, *dict.fromkeys((*read, *spent)))
    return _made(ReadFormula(text, used, tuple((name, inferred[name]) for name in coefficients), budget))


def assumed_signs(cls: type[FormulaLaw]) -> dict[str, Sign]:
    """Return the signs that the formula implies, keyed by coefficient, without signs that the user changed."""
    suggested = _Signs(dict(cls.formula.columns), _outputs(cls.formula.text).values()).signs
    return {name: sign for name, sign in cls.formula.signs if sign != "any" and suggested[name] == sign}


def stored(cls: type[FormulaLaw]) -> dict[str, Any]:
    """Return the law of a formula as plain data."""
    said = cls.formula
    return {"formula": said.text, "columns": dict(said.columns), "signs": dict(said.signs), "budget": said.budget}


def from_stored(plain: Mapping[str, Any]) -> type[FormulaLaw]:
    """Return the law from plain data, the inverse of ``stored``.

    Raises:
      UserError: the text is not a formula, or its names differ from the stored columns and coefficients.
    """
    made = formula_law(plain["formula"], signs=plain["signs"], known=plain["columns"], budget=plain["budget"])
    if stored(made) != {name: plain[name] for name in ("formula", "columns", "signs", "budget")}:
        raise UserError(
            f"The formula {plain['formula']!r} does not match the columns and coefficients stored with it; fit again."
        )
    return made


def _outputs(text: str, what: str = "formula") -> dict[str, Tree]:
    """Return the targets of a formula with their trees, after substituting definitions; messages call the text
    ``what``."""
    equations = parse(text, what=what, arguments=False)
    sides: dict[str, Tree] = {}
    for equation in equations:
        if not isinstance(equation.left, Name):
            raise UserError(f"The {what} {text!r} must have a single name on the left, as in 'loss = E + A/N^alpha'.")
        if equation.left.text in sides:
            raise UserError(f"The {what} {text!r} defines {equation.left.text} twice; keep one definition.")
        sides[equation.left.text] = equation.right
    for tree in sides.values():
        if any(isinstance(one, Summation) for one in nodes(tree)):
            raise UserError(
                f"The {what} {text!r} has a sum over an index (Σ), which is not supported; write out its terms."
            )
    used = {name for tree in sides.values() for name in names(tree)}
    targets = {name: tree for name, tree in sides.items() if name not in used}
    if not targets:
        raise UserError(
            f"The {what} {text!r} defines {next(iter(sides))} in terms of itself; write the target only on the left."
        )
    defined = {name: tree for name, tree in sides.items() if name in used}
    for _ in defined:
        targets = {name: replaced(tree, defined) for name, tree in targets.items()}
        if sum(1 for tree in targets.values() for _ in nodes(tree)) > MOST_PARTS:
            raise UserError(f"The {what} {text[:200]!r} has more than {MOST_PARTS:,} parts; write a shorter one.")
    if round_about := [name for tree in targets.values() for name in names(tree) if name in defined]:
        raise UserError(f"The {what} {text!r} defines {round_about[0]} in terms of itself; remove the cycle.")
    return targets


def _spent(
    text: str, budget: str, read: Mapping[str, str], known: Mapping[str, str]
) -> tuple[tuple[str, str], tuple[str, str], tuple[str, str]]:
    """Return a budget and its two columns, each with its name in the formula and its name in a ``Design``.

    Raises:
      UserError: the budget does not define a new name in terms of two columns of the formula.
    """
    (name, tree), *more = _outputs(budget, "budget").items()
    spent = dict.fromkeys(names(tree))
    if more:
        raise UserError(f"The budget {budget!r} defines several names; define one, as in 'C = 6*N*D'.")
    if name in read or known.get(name) in read.values():
        raise UserError(
            f"The budget {budget!r} has the name {name}, which the formula {text!r} reads; choose another name."
        )
    if unread := [one for one in spent if known.get(one) not in read.values()]:
        raise UserError(
            f"The budget {budget!r} depends on {unread[0]}, which the formula {text!r} does not read; use "
            f"{listed(read, 'or')}."
        )
    if len(spent) != 2 or any(known[one] in DERIVED for one in spent):
        given = listed(spent) if spent else "no column"
        raise UserError(f"The budget {budget!r} depends on {given}; it must depend on exactly two columns.")
    one, other = ((each, known[each]) for each in spent)
    return (name, known.get(name, LETTERS.get(name, name))), one, other


def spent_in_rows(law: type[FormulaLaw], columns: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the column of a law's budget and the budget formula's value in every row."""
    named = dict(law.formula.columns)
    ((spent, tree),) = _outputs(law.formula.budget).items()
    return named[spent], _evaluate(tree, {name: columns[named[name]] for name in names(tree)})


def _rule(said: ReadFormula, inputs: tuple[str, ...], target: str) -> DecisionRule:
    columns = dict(said.columns)
    ((spent, tree),) = _outputs(said.budget).items()
    one, other = letters = list(dict.fromkeys(names(tree)))
    split = columns[one], columns[other]
    held = tuple(name for name in inputs if name not in split)

    def asked(law: Law, given: Mapping[str, float]) -> tuple[Any, ...]:
        at = {name: given[name] for name in held}

        def output(law: Law, variables: Mapping[str, Any]) -> Any:
            outputs = law(design_from(at | dict(variables)))
            return outputs[target] if isinstance(outputs, Mapping) else outputs

        def cost(_: Any, variables: Mapping[str, Any]) -> Any:
            return _evaluate(tree, {letter: variables[columns[letter]] for letter in letters})

        return law, output, cost, given[columns[spent]], split

    def decide(law: Law, **given: float) -> dict[str, Any]:
        _, output, *_ = problem = asked(law, given)
        best = best_split(*problem)
        return {f"optimal_{name}": value for name, value in (best | {target: output(law, best)}).items()}

    def reason(law: Law, **given: float) -> str:
        return why_no_split(*asked(law, given))

    symbols = {f"optimal_{ours}": f"{letter}*" for letter, ours in zip(letters, split, strict=True)}
    symbols |= {f"optimal_{target}": "L*" if target == "loss" else f"{target}*"}
    return DecisionRule((columns[spent], *held), symbols, decide, reason=reason)


def _check_coefficients(text: str, coefficients: list[str]) -> None:
    if not coefficients:
        raise UserError(
            f"The formula {text!r} has no coefficient to fit, because every name in it is a column; add one."
        )
    for name in coefficients:
        if not name.isidentifier():
            raise UserError(
                f"The formula {text!r} has {name!r}, which is neither a column nor a valid name of a coefficient."
            )
        if (plain := unicodedata.normalize("NFKC", name)) != name:
            # Python treats both spellings as the same name.
            raise UserError(f"The formula {text!r} has a coefficient {name}; write it as {plain}.")
        taken = "is a keyword of Python" if keyword.iskeyword(name) else "is an attribute of every law"
        if keyword.iskeyword(name) or name in vars(FormulaLaw).get("__annotations__", ()):
            raise UserError(f"The formula {text!r} has a coefficient {name}, which {taken}; rename it.")


@functools.cache
def _made(said: ReadFormula) -> type[FormulaLaw]:
    """Make the class of a formula, cached so that equal formulas share compiled programs."""
    columns, trees = dict(said.columns), _outputs(said.text)
    used = {name for tree in trees.values() for name in names(tree)}
    read = {name: ours for name, ours in columns.items() if name in used}
    inputs = tuple(dict.fromkeys(field for ours in read.values() for field in DERIVED.get(ours, (ours,))))
    targets = {columns[name]: tree for name, tree in trees.items()}
    shape = _Dimensions(read, trees.values())
    powers = (one for tree in trees.values() for one in nodes(tree) if isinstance(one, Power))
    raised = {name for power in powers for name in names(power.exponent)}
    fields = {
        name: coefficient(
            SIGNS[sign],
            symbol=name,
            sign=sign,
            dimension=shape.dimensions.get(name),
            shift=shape.shifts.get(name),
            log_base=shape.bases.get(name, math.e),
            is_scale=name in shape.scales,
            is_exponent=name in raised,
        )
        for name, sign in said.signs
    }

    def call(self: Any, design: Design) -> Any:
        values = {name: getattr(self, name) for name in fields}
        values |= {name: value_of(design, ours) for name, ours in read.items()}
        outputs = {target: _evaluate(tree, values) for target, tree in targets.items()}
        return outputs["loss"] if list(outputs) == ["loss"] else outputs

    body = {
        "__doc__": f"{said.text}.",
        "__module__": __name__,
        "__annotations__": dict.fromkeys(fields, Any),
        "inputs": inputs,
        "outputs": {name: LOSS.get(name, "as in the table") for name in targets},
        "formula": said,
        "decides": tuple(_rule(said, inputs, target) for target in targets) if said.budget else (),
        "__call__": call,
    }
    return law(type(said.text, (FormulaLaw,), body | fields))


def _evaluate(tree: Tree, values: Mapping[str, Any]) -> Any:
    match tree:
        case Name(text):
            return values[text]
        case Apply("sigmoid", argument):
            return jax.nn.sigmoid(_evaluate(argument, values))
        case _:
            return computed(tree, functools.partial(_evaluate, values=values), jnp)


def _factors(tree: Tree, below: bool = False) -> Iterator[tuple[Tree, bool]]:
    match tree:
        case Product(factors):
            for factor in factors:
                yield from _factors(factor, below)
        case Quotient(over, under):
            yield from _factors(over, below)
            yield from _factors(under, not below)
        case Negative(term):
            yield from _factors(term, below)
        case _:
            yield tree, below


def _terms(tree: Tree) -> tuple[Tree, ...]:
    return tuple(
        term.term if isinstance(term, Negative) else term for term in (tree.terms if isinstance(tree, Sum) else (tree,))
    )


class _Signs:
    """Signs implied by a formula; a coefficient may have any sign if one of its occurrences allows any sign."""

    def __init__(self, read: Mapping[str, str], trees: Iterable[Tree]):
        self.read = read
        self.signs: dict[str, Sign] = {}
        self.logarithms = 0
        """Number of logarithms around the current term. Inside one, a power acts as a factor and suggests no sign."""
        for tree in trees:
            self.sum(tree, inside=False)

    def note(self, name: str, positive: bool) -> None:
        if name not in self.read:
            self.signs[name] = "+" if positive and self.signs.get(name, "+") == "+" else "any"

    def note_all(self, tree: Tree, positive: bool) -> None:
        for name in names(tree):
            self.note(name, positive)

    def reads(self, tree: Tree) -> bool:
        return any(name in self.read for name in names(tree))

    def is_power_law(self, term: Tree) -> bool:
        """Return whether a term is a product with a power of a column and without other functions of columns."""
        functions = (one for one in nodes(term) if isinstance(one, Apply) and one.function != "sqrt")
        if any(map(self.reads, functions)):
            return False
        factors = [(tree, below) for tree, below in _factors(term) if self.reads(tree)]
        sums = [tree for tree, _ in factors if isinstance(tree, Sum)]
        return any(below or isinstance(tree, Power) for tree, below in factors) or any(
            self.is_power_law(one) for tree in sums for one in _terms(tree)
        )

    def sum(self, tree: Tree, inside: bool) -> None:
        terms = _terms(tree)
        alone = [term for term in terms if isinstance(term, Name | Number)]
        powers = all(self.is_power_law(term) for term in terms if term not in alone) and len(alone) < len(terms)
        for term in terms:
            if isinstance(term, Name):
                self.note(term.text, powers and not inside)
            else:
                self.term(term, inside)

    def term(self, term: Tree, inside: bool) -> None:
        positive = self.is_power_law(term) and not inside
        for tree, below in _factors(term):
            match tree:
                case Name(text):
                    self.note(text, positive)
                case Power(base, exponent):
                    self.power(base, exponent, below, inside)
                case Apply(function, argument):
                    self.logarithms += function in LOGARITHMS
                    self.sum(argument, inside=True)
                    self.logarithms -= function in LOGARITHMS
                case Least(several) | Greatest(several):
                    for one in several:
                        self.sum(one, inside)
                case _:
                    self.sum(tree, inside) if isinstance(tree, Sum) else None

    def power(self, base: Tree, exponent: Tree, below: bool, inside: bool) -> None:
        columns_below = all(under for tree, under in _factors(base) if self.reads(tree))
        falls = below != isinstance(exponent, Negative) if not columns_below else True
        falls = falls and not self.logarithms
        self.note_all(exponent, falls and not any(isinstance(one, Sum) for one in nodes(exponent)))
        for tree, _ in _factors(base):
            # The base of a fitted power must be positive.
            self.note(tree.text, True) if isinstance(tree, Name) else self.sum(tree, inside)


Exponent = tuple[str, ...] | None
"""Summands of an exponent: numbers and names of coefficients, optionally negated; None for other exponents."""


class _Dimensions:
    """Dimensions and shifts with which a formula's coefficients absorb changes of units."""

    def __init__(self, read: Mapping[str, str], trees: Iterable[Tree]):
        self.read = read
        self.dimensions: dict[str, dict[str, tuple[str, ...]]] = {}
        self.shifts: dict[str, dict[str, str]] = {}
        self.bases: dict[str, float] = {}
        self.scales: set[str] = set()
        for tree in trees:
            self.scale(tree)
            self.settle(tree)

    def kind(self, name: str) -> str | None:
        """Return the kind of a column's unit: a key of ``KINDS``, or the column's name if it is not a ``Design`` field.
        None means that the unit never changes."""
        ours = self.read[name]
        own = None if ours in FIELDS or ours in DERIVED else ours
        return next((kind for kind, names in KINDS.items() if ours in names), own)

    def scale(self, tree: Tree) -> None:
        """Record the coefficient of each term that has the output's magnitude."""
        for term in _terms(tree):
            factors = [*_factors(term)]
            bare = [
                one.text for one, below in factors if isinstance(one, Name) and not below and one.text not in self.read
            ]
            if bare:
                self.scales.add(bare[0])
            elif sums := [one for one, below in factors if isinstance(one, Sum) and not below]:
                self.scale(sums[0])

    def settle(self, tree: Tree) -> None:
        """Assign dimensions so that every term of a sum keeps its value in any unit."""
        terms = tree.terms if isinstance(tree, Sum) else (tree,)
        plain = [(term.term, True) if isinstance(term, Negative) else (term, False) for term in terms]
        bare = [(one.text, minus) for one, minus in plain if isinstance(one, Name) and one.text not in self.read]
        for term in terms:
            if not (bare and isinstance(tree, Sum) and self.shifted(term, *bare[0])):
                self.carry(*self.powers(term))

    def shifted(self, term: Tree, bearer: str, subtracted: bool) -> bool:
        """Record how a unit change shifts a coefficient that is added to ``b*log(N)``; return whether the term has this
        form.

        Args:
          subtracted: whether the coefficient is subtracted, as in ``log(N) - m``.
        """
        factors = [*_factors(term)]
        logs = [tree for tree, below in factors if isinstance(tree, Apply) and tree.function in LOGARITHMS]
        slopes = [tree for tree, _ in factors if tree not in logs]
        if len(logs) != 1 or len(slopes) > 1 or any(below for _, below in factors):
            return False
        powers, bearers = self.powers(logs[0].argument)
        slope = self.exponent(slopes[0]) if slopes else ("1",)
        if bearers or slope is None or len(slope) != 1:
            return False
        for kind, exponent in powers.items():
            if exponent in (("1",), ("-1",)):
                minus = ((exponent == ("-1",)) != isinstance(term, Negative)) != subtracted
                self.shifts.setdefault(bearer, {})[kind] = _minus(slope[0]) if minus else slope[0]
                self.bases[bearer] = _BASES.get(logs[0].function, math.e)
        return True

    def carry(self, powers: Mapping[str, Exponent], bearers: list[tuple[str, bool]]) -> None:
        """Assign the inverse of a term's dimension to a coefficient."""
        if any(powers.values()) and bearers and not any(name in self.dimensions for name, _ in bearers):
            self.dimensions[bearers[0][0]] = _borne(powers, bearers[0][1])

    def compared(self, powers: Mapping[str, Exponent], beside: list[list[tuple[str, bool]]]) -> bool:
        """Assign the dimension of the columns to a coefficient of each other part; return whether all these parts have
        it."""
        inverse = {kind: _negated(exponent) for kind, exponent in powers.items()}
        if None in powers.values() or not all(beside):
            return False
        for bearers in beside:
            self.carry(inverse, bearers)
        return all(self.dimensions.get(name) == _borne(inverse, below) for (name, below), *_ in beside)

    def powers(self, tree: Tree, exponent: Exponent = ("1",)) -> tuple[dict[str, Exponent], list[tuple[str, bool]]]:
        """Return a term's unit exponents by kind, and the coefficients that can absorb them, each with a mark for a
        denominator."""
        powers: dict[str, Exponent] = {}
        bearers: list[tuple[str, bool]] = []
        for factor, below in _factors(tree):
            raised = exponent if exponent is None or not below else _negated(exponent)
            more: dict[str, Exponent] = {}
            match factor:
                case Name(text) if text in self.read:
                    more = {kind: raised for kind in [self.kind(text)] if kind is not None}
                case Name(text):
                    bearers += [(text, raised == ("-1",))] if raised in (("1",), ("-1",)) else []
                case Power(base, power):
                    more = self.raised(base, _times(self.exponent(power), raised))
                case Apply("sqrt", argument):
                    more = self.raised(argument, _times(("0.5",), raised))
                case Apply(_, argument):
                    self.settle(argument)
                case Sum(several) | Least(several) | Greatest(several):
                    more = self.alike(several, factor, raised)
            for kind, one in more.items():
                both = powers.get(kind, ())
                powers[kind] = None if one is None or both is None else (*both, *one)
        return powers, bearers

    def raised(self, base: Tree, exponent: Exponent) -> dict[str, Exponent]:
        """Return the unit exponents of a power, keyed by kind; empty if a coefficient in the base absorbs the units."""
        powers, bearers = self.powers(base, exponent)
        if isinstance(base, Name) or not self.powers(base)[1]:
            return powers if not bearers else {}
        self.carry(*self.powers(base))
        return {}

    def alike(self, several: tuple[Tree, ...], tree: Tree, exponent: Exponent) -> dict[str, Exponent]:
        """Return the unit exponents of a sum, minimum or maximum, keyed by kind.

        The parts must share these exponents, and one part must have no coefficient. A coefficient such as T in
        ``min(D, T)`` gets the dimension of D.
        """
        plain = [self.powers(one) for one in several]
        columns = [powers for powers, _ in plain if powers]
        beside = [bearers for powers, bearers in plain if not powers]
        same = all(powers == columns[0] for powers in columns) and any(not b for powers, b in plain if powers)
        if same and (not beside or self.compared(columns[0], beside)):
            return next(powers for powers, _ in (self.powers(one, exponent) for one in several) if powers)
        if isinstance(tree, Sum):
            self.settle(tree)
        else:
            for one in several:
                self.settle(one)
        return {}

    def exponent(self, tree: Tree) -> Exponent:
        match tree:
            case Number(text):
                return (text,)
            case Name(text):
                return None if text in self.read else (text,)
            case Negative(term):
                return _negated(self.exponent(term))
            case Sum(terms):
                each = [self.exponent(term) for term in terms]
                return None if None in each else tuple(one for some in each for one in some or ())
            case Product((one, other)):
                return _times(self.exponent(one), self.exponent(other))
            case _:
                return None


def _borne(powers: Mapping[str, Exponent], below: bool) -> dict[str, tuple[str, ...]]:
    """Return the dimension, keyed by kind, of a coefficient that absorbs a term's units.

    It is the term's dimension if the coefficient is in a denominator, and its inverse if it is a factor.
    """
    return {kind: (one if below else _negated(one)) or () for kind, one in powers.items() if one}


def _negated(exponent: Exponent) -> Exponent:
    return exponent and tuple(map(_minus, exponent))


def _minus(one: str) -> str:
    return one[1:] if one.startswith("-") else f"-{one}"


def _times(one: Exponent, other: Exponent) -> Exponent:
    """Return the product of two exponents. One must be a number, and an integer if the other contains names."""
    if one is None or other is None:
        return None
    for number, rest in ((one, other), (other, one)):
        if len(number) != 1 or not _is_number(number[0]):
            continue
        times = float(number[0])
        if all(map(_is_number, rest)):
            return tuple(f"{times * float(each):g}" for each in rest)
        if times == int(times) and 0 < abs(times) <= 8:
            return (rest if times > 0 else _negated(rest)) * abs(int(times))  # type: ignore[operator]
    return None


def _is_number(text: str) -> bool:
    return not text.lstrip("-")[:1].isalpha()
