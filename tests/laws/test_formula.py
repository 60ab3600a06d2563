"""The formula of a law's docstring is the law: read as a tree and evaluated, it gives what the code gives."""

import dataclasses
import functools
import math
import operator
import random

import jax
import pytest
from law_draws import any_design, any_law

from moejax.float64 import float64
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.design import FIELDS, Design
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
    formula,
    names,
    parse,
)
from moejax.laws.law import LOSS

FUNCTIONS = {"log": math.log, "ln": math.log, "log2": math.log2, "log10": math.log10, "exp": math.exp}
FUNCTIONS["sigmoid"] = lambda x: 1 / (1 + math.exp(-x))
INVERSES = {"log": math.exp, "ln": math.exp, "log2": lambda x: 2**x, "log10": lambda x: 10**x}


def evaluate(tree, known):
    """A tree at numbers by name; a name with the index i is a tuple."""
    at = functools.partial(evaluate, known=known)
    match tree:
        case Number(text):
            return float(text)
        case Name(text):
            return known[text]
        case Sum(terms):
            return math.fsum(map(at, terms))
        case Negative(term):
            return -at(term)
        case Product(factors):
            return functools.reduce(operator.mul, map(at, factors))
        case Quotient(over, under):
            return at(over) / at(under)
        case Power(base, exponent):
            return at(base) ** at(exponent)
        case Apply(function, argument):
            return FUNCTIONS[function](at(argument))
        case Least(terms):
            return min(map(at, terms))
        case Greatest(terms):
            return max(map(at, terms))
        case Summation(term):
            (indexed,) = (name for name in names(term) if name.endswith("_i"))
            return math.fsum(
                evaluate(term, known | {"i": i, indexed: one}) for i, one in enumerate(known[indexed], start=1)
            )


def solved(equation, known):
    """The name on the left of an equation, and its value."""
    value = evaluate(equation.right, known)
    match equation.left:
        case Name(name):
            return name, value
        case Apply(function, Name(name)):
            return name, INVERSES[function](value)
        case Quotient(Number("1"), Name(name)):
            return name, 1 / value
    raise AssertionError(f"{equation.left} is not solved for a name")


def values(law, design):
    """Every left side of the formula of a law's docstring, by name, at a design."""
    known = {f.metadata["symbol"]: getattr(law, f.name) for f in dataclasses.fields(law)}
    said = formula(type(law))
    for letter, meaning in said.letters.items():
        (read,) = parse(f"x = {meaning}")
        words = set(names(read.right))
        if not words & set(law.outputs):
            known[letter] = evaluate(read.right, {word: float(getattr(design, word)) for word in words})
    found, waiting = {}, list(said.equations)
    while waiting:
        ready = [e for e in waiting if set(names(e.right)) <= {"i", *known, *found}]
        assert ready, f"{waiting} need letters that nothing gives"
        for equation in ready:
            name, value = solved(equation, known | found)
            # A letter that is both a field of the design and an equation must be the same by both.
            assert value == pytest.approx(known.get(name, value), rel=1e-12)
            found[name] = value
            waiting.remove(equation)
    return found


def held_to_the_code(law, design):
    with float64():
        exact, point = jax.tree.map(lambda x: jax.numpy.asarray(x, "float64"), (law, design))
        said, found = exact(point), values(law, design)
    if law.outputs == LOSS:
        assert "L" in found, f"the equation of {type(law).__name__} gives {', '.join(found)}; a law of LOSS gives L"
        assert found["L"] == pytest.approx(float(said), rel=1e-12)
        return
    letters = {meaning: letter for letter, meaning in formula(type(law)).letters.items()}
    for output in law.outputs:
        assert found[letters[output]] == pytest.approx(float(said[output]), rel=1e-11), output


@pytest.mark.parametrize("name", LAWS)
def test_the_formula_of_the_docstring_is_the_law_at_random_coefficients_and_designs(name):
    for seed in range(5):
        chance = random.Random(f"{name} {seed}")
        held_to_the_code(any_law(LAWS[name], chance), any_design(chance))


SETS = [(name, constants) for name, sets in PUBLISHED.items() for constants in sets]


@pytest.mark.parametrize(("name", "constants"), SETS)
def test_the_formula_of_the_docstring_is_the_law_with_published_constants(name, constants):
    held_to_the_code(PUBLISHED[name][constants].law, any_design(random.Random(constants)))


@pytest.mark.parametrize("name", LAWS)
def test_every_letter_of_a_formula_is_a_coefficient_or_said_to_be_something(name):
    said, cls = formula(LAWS[name]), LAWS[name]
    symbols = {f.metadata["symbol"] for f in dataclasses.fields(cls)} - {""}
    letters = {word for e in said.equations for side in (e.left, e.right, *e.arguments) for word in names(side)}
    defined = {word for equation in said.equations for word in names(equation.left)}
    assert letters <= symbols | set(said.letters) | defined | {"i"}
    assert symbols <= letters, "a coefficient that the formula does not have"
    for meaning in said.letters.values():
        for word in names(parse(f"x = {meaning}")[0].right):
            assert word in FIELDS or word in cls.outputs or isinstance(getattr(Design, word), property)


def test_a_wrong_formula_is_caught():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Wrong(LAWS["chinchilla"]):
        """L(N, D) = E + A/N^alpha + B/D^alpha.

        N is ``params_active`` and D is ``tokens``.
        """

    jax.tree_util.register_dataclass(Wrong)
    chance = random.Random(0)
    with pytest.raises(AssertionError):
        held_to_the_code(any_law(Wrong, chance), any_design(chance))


def test_powers_bind_before_products_and_products_before_sums():
    tree = parse("y = -a·b^-c/d + log2 e·(f - 2)²")[0].right
    known = {"a": 3.0, "b": 2.0, "c": 2.0, "d": 4.0, "e": 8.0, "f": 5.0}
    assert evaluate(tree, known) == -3 * 2.0**-2 / 4 + 3 * 9


def test_the_least_of_two_and_an_exponential_are_read():
    assert evaluate(parse("y = 2·min(a, exp(b)/c)")[0].right, {"a": 9.0, "b": 0.0, "c": 0.5}) == 4.0


def test_equations_are_parted_by_commas_with_and_and():
    found = parse("f(x, y_a) = x + y_a, with x = 2·z and z = 1, w = 3")
    assert [equation.left for equation in found] == [Name("f"), Name("x"), Name("z"), Name("w")]
    assert found[0] == Equation(Name("f"), (Name("x"), Name("y_a")), Sum((Name("x"), Name("y_a"))))


@pytest.mark.parametrize("text", ["L = a +", "L = a b", "L a", "L = (a", "L = a ? b", "L = 2a", "= a"])
def test_what_is_no_formula_is_a_sentence(text):
    with pytest.raises(ValueError, match=r"formula .* (has|ends|cannot be read)"):
        parse(text)


def test_a_docstring_without_equations_is_a_sentence():
    class Prose:
        """What a law says in words"""

    with pytest.raises(ValueError, match="Prose must begin with equations and a full stop"):
        formula(Prose)
