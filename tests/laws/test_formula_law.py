"""A law by formula is what the formula says, in any unit; what is no formula is a sentence with the place."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moejax.fit.runs import runs_from
from moejax.fit.search.objective import describes_its_dimensions, units_of
from moejax.float64 import float64
from moejax.laws import formula_law
from moejax.laws.dense.chinchilla import HOFFMANN_2022, optimal_split
from moejax.laws.design import Design
from moejax.laws.formula_law import FormulaLaw

RUNS = runs_from(
    Design(
        params_active=np.array([1e8, 1e9, 3e9]),
        tokens=np.array([2e9, 2e10, 5e11]),
        unique_tokens=np.array([1e9, 9e10, 1e11]),
        flops=np.array([1e18, 1e20, 1e22]),
        num_experts=np.array([8.0, 16.0, 64.0]),
        top_k=np.array([1.0, 2.0, 4.0]),
        columns={"width": np.array([512.0, 1024.0, 2048.0]), "shift": np.array([-1.0, 0.0, 1.0])},
    ),
    np.array([3.0, 2.5, 2.2]),
)

FORMULAS = {
    "loss = E + A/N^alpha + B/D^beta": "+++++",
    "loss = E + A·N^-alpha + B*D**-alpha": "++++",
    "lr = k*N^a*D^b*width^-c": "+aa+",
    "accuracy = a + b*log10(C)": "aa",
    "accuracy = sigmoid(a - b*log(C/N))": "aa",
    "loss = c + k*(log(D) - m)^2": "aaa",
    "accuracy = sigmoid(b*log10(C) - a)": "aa",
    "loss = ((Nc/N)^(a/b) + Dc/D)^b": "++a+",
    "loss = E + (A/N^alpha + B/U^beta)*(1 + c*width^-g), with U = min(D, unique_tokens)": "+++++++",
    "loss = E + A/(N*sqrt(width))^alpha": "+++",
    "loss = E + A*exp(-r*sparsity)/N^alpha": "aaa+",
    "loss = E + A/N^(alpha - gamma*alpha)": "++aa",
    "loss = E + A/max(N, M, 2*P)^alpha + B/min(D, T)^beta": "++aa++a+",
    "loss = E + A/min(N, 1/r)^alpha + B/(D + T)^beta": "++a++a+",
    "lr = k*(width + w)^a*min(D^b, T)": "+aaaa",
    "loss = (E + A/N^alpha)*exp(c*log(width/(k*N^p*D^q))^2)": "+++aaaa",
}


def law_of(text):
    return formula_law.formula_law(text, RUNS.design.columns)


@pytest.mark.parametrize("text", FORMULAS)
def test_signs_are_read_off_a_formula(text):
    assert "".join(sign[0] for _, sign in law_of(text).formula.signs) == FORMULAS[text]


@pytest.mark.parametrize("text", [text for text in FORMULAS if "gamma" not in text and "sqrt" not in text])
def test_a_formula_gives_the_same_in_every_unit_of_its_columns(text):
    law = law_of(text)
    assert units_of(law, RUNS)
    assert describes_its_dimensions(law, RUNS)


def test_a_column_whose_dimension_no_coefficient_can_bear_keeps_its_unit():
    law = law_of("loss = E + A/(N*sqrt(width))^alpha")
    assert describes_its_dimensions(law, RUNS, {"params": 1e9})
    assert not describes_its_dimensions(law, RUNS, {"width": 1000.0})


def test_chinchillas_formula_is_chinchillas_law():
    law = law_of("loss = E + A/N^alpha + B/D^beta")
    assert law is law_of("loss = E + A/N^alpha + B/D^beta")
    values = dataclasses.astuple(HOFFMANN_2022)
    names = ("E", "A", "alpha", "B", "beta")
    with float64():
        mine = jax.vmap(law(**dict(zip(names, values, strict=True))))(RUNS.design)
        np.testing.assert_allclose(mine, jax.vmap(HOFFMANN_2022)(RUNS.design), rtol=1e-14)


def test_everything_of_the_language_is_computed():
    law = law_of("x = a*max(N, 2B, D)/1e9 + min(width, 1k)^2 - sqrt(a)*sigmoid(-shift)*2^-a + ln(exp(a)) + sparsity")
    with float64():
        found = jax.vmap(law(a=3.0))(RUNS.design)["x"]
    n, d, w, s = (np.asarray(x) for x in (RUNS.design.params_active, RUNS.design.tokens, *RUNS.design.columns.values()))
    largest = np.maximum(np.maximum(n, 2e9), d)
    sparsity = 1 - np.array([1 / 8, 2 / 16, 4 / 64])
    expected = 3 * largest / 1e9 + np.minimum(w, 1000) ** 2 - 3**0.5 / (1 + np.exp(s)) / 8 + 3 + sparsity
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_several_targets_are_several_outputs():
    law = law_of("learning_rate = k*C^a, batch_tokens = m*C^b")
    assert list(law.outputs) == ["learning_rate", "batch_tokens"]
    assert law(k=2.0, a=0.0, m=3.0, b=0.0)(Design(flops=jnp.float32(5.0))) == {"learning_rate": 2, "batch_tokens": 3}


def test_a_law_is_made_again_from_what_is_stored():
    law = formula_law.formula_law("loss = E + A/N^a", signs={"a": "any"})
    plain = formula_law.stored(law)
    assert formula_law.from_stored(plain) is law
    assert issubclass(law, FormulaLaw)
    with pytest.raises(ValueError, match="has no coefficient F"):
        formula_law.from_stored(plain | {"signs": {"E": "+", "F": "+", "a": "any"}})
    with pytest.raises(ValueError, match="does not match the columns and coefficients"):
        formula_law.from_stored(plain | {"columns": plain["columns"] | {"x": "y"}})


@pytest.mark.slow
def test_a_budget_is_split_as_chinchilla_splits_it():
    law = formula_law.formula_law("loss = E + A/N^alpha + B/D^beta", budget="C = 6*N*D")
    fitted = law(**dict(zip(("E", "A", "alpha", "B", "beta"), dataclasses.astuple(HOFFMANN_2022), strict=True)))
    (rule,) = law.decides
    assert rule.given == ("flops",)
    assert rule.gives == {"optimal_params_active": "N*", "optimal_tokens": "D*", "optimal_loss": "L*"}
    with float64():
        found = rule.decide(fitted, flops=1e24)
        none = dataclasses.replace(fitted, B=0.0)
        endless, why = rule.decide(none, flops=1e24), rule.why_none(none, {"flops": 1e24})
    expected = optimal_split(HOFFMANN_2022, 1e24)
    assert {name: float(found[f"optimal_{name}"]) for name in expected} == pytest.approx(expected, rel=1e-11)
    assert np.isnan(endless["optimal_tokens"])
    assert "still decreases at the end of the search range, at params_active = 3.63e+18 and tokens = " in why
    assert formula_law.from_stored(formula_law.stored(law)) is law


@pytest.mark.slow
def test_a_split_moves_with_the_coefficients_as_chinchillas_does():
    law = formula_law.formula_law("loss = E + A/N^alpha + B/D^beta", budget="C = 6*N*D")
    values = dataclasses.astuple(HOFFMANN_2022)
    fitted = law(**dict(zip(("E", "A", "alpha", "B", "beta"), values, strict=True)))
    with float64():
        mine = jax.grad(lambda one: law.decides[0].decide(one, flops=1e24)["optimal_tokens"])(fitted)
        theirs = jax.grad(lambda one: optimal_split(one, 1e24)["tokens"])(HOFFMANN_2022)
    np.testing.assert_allclose(jax.tree.leaves(mine), jax.tree.leaves(theirs), rtol=1e-9, atol=1e-3)


BUDGETS = {
    "C = 1": "depends on no column; it must depend on exactly two columns",
    "C = 6*N": "depends on N; it must depend on exactly two columns",
    "C = 6*N*width": "depends on width, which the formula .* does not read; use N or D",
    "N = 6*D": "has the name N, which the formula .* reads",
    "C = 6*N*D, x = N*D": "defines several names",
    "C = 6*N*": r"The budget 'C = 6\*N\*' ends where a number",
    "C = 6*N*D, C = N": "The budget .* defines C twice",
    "loss = N*D": "has the name loss, which the formula .* uses",
    "L = N*D": "has the name L, which the formula .* uses",
    "E = N*D": "has the name E, which the formula .* uses",
}


@pytest.mark.parametrize("flops", [1e20, 1e21, 1e22, 1e24])
@pytest.mark.parametrize("text", ["loss = E + A/(N*D)^a", "loss = E + A/(N^a*D^a)"])
def test_of_a_budget_of_which_all_splits_have_one_loss_none_is_best(text, flops):
    law = formula_law.formula_law(text, budget="C = 6*N*D")
    (rule,) = law.decides
    one = law(E=1.7, A=1200.0, a=0.15)
    with float64():
        assert np.isnan([float(number) for number in rule.decide(one, flops=flops).values()]).all()
        assert "no split of the budget is best: the law gives" in rule.why_none(one, {"flops": flops})


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_budget_that_splits_nothing_is_a_sentence(budget):
    with pytest.raises(ValueError, match=BUDGETS[budget]):
        formula_law.formula_law("loss = E + A/N^alpha + B/D^beta", budget=budget)


REFUSED = {
    "loss = E + + A": "has '.*' at character 12, where a number, a name or '\\(' is expected",
    "loss = A[0]*N": r"has '\[0\]\*N' at character 9, where the end is expected",
    "loss = __import__('os')": "at character 18, where the end is expected",
    "loss = N.real": "at character 9, which is not allowed in formulas",
    f"loss = {'(' * 300}N{')' * 300}": "deeper than 40 levels",
    f"loss = {'A^' * 300}N": "deeper than 40 levels",
    f"loss = {'Σ ' * 400}A": "deeper than 40 levels",
    f"loss = N{'+A' * 600}": "has 1,208 characters",
    "x = b*N with b=c+c, c=d+d, d=e+e, e=f+f, f=g+g, g=h+h, h=i+i, i=j+j, j=k+k, k=l+l": "more than 2,000 parts",
    "loss = A*N^1e999": "is too large; give 0",
    "loss = 3*N": "no coefficient to fit",
    "loss = E + A/N^ϵ": "has a coefficient ϵ; write it as ε",
    "loss = E + A": "reads no column; E, A would be coefficients",
    "loss = E + loss/N": "defines loss in terms of itself",
    "L = E + loss/N": "has its target loss on both sides",
    "log(loss) = A*N": "must have a single name on the left",
    "loss = lambda*N": "lambda, which is a keyword of Python",
    "loss = inputs*N": "inputs, which is an attribute of every law",
    "loss(q) = A*N": r"has '\(q\) = A\*N' at character 5, where '=' is expected",
    "loss = `no such`*N": "'no such', which is neither a column",
    "loss = A*N, loss = B*D": "defines loss twice",
    "loss = Σ a*N": "write out its terms",
    "loss == A*N": "at character 6",
    "loss = min(A)*N": "',' is expected",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_fitted_is_a_sentence_with_the_place(text):
    with pytest.raises(ValueError, match=REFUSED[text]):
        formula_law.formula_law(text)
