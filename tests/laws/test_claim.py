"""Closed forms hold, wrong ones are caught."""

import dataclasses

import jax
import pytest

from moejax.laws.claim import Claim, check
from moejax.laws.design import Design
from moejax.laws.mixtures import effective_params
from moejax.laws.mixtures.effective_params import CHAPTER_002


def test_the_chapters_printed_exponent_of_expansion_is_not_stationary():
    law, flops, expansion = CHAPTER_002, 3.4e24, 18.1
    claim = effective_params.compute_optimal(law, flops, expansion)
    alpha, beta, gamma = law.params_exponent, law.tokens_exponent, law.expansion_exponent
    printed = expansion ** (gamma * (alpha - beta) / (alpha + beta))
    wrong = {"params_active": claim.value["params_active"] * printed, "tokens": claim.value["tokens"] / printed}
    checked = check(dataclasses.replace(claim, value=wrong))
    assert not checked.holds
    assert checked.numeric["params_active"] == pytest.approx(check(claim).value["params_active"], rel=1e-5)


def test_more_total_parameters_shift_the_optimum_to_fewer_active_ones_and_more_tokens():
    sparse = effective_params.compute_optimal(CHAPTER_002, 1e24, 18.0).value
    dense = effective_params.compute_optimal(CHAPTER_002, 1e24, 1.0).value
    assert sparse["params_active"] < dense["params_active"]
    assert sparse["tokens"] > dense["tokens"]


def test_a_maximum_does_not_pass_for_a_minimum():
    claim = Claim(statement="x = 1", source="here", value={"x": 1.0}, objective=_upside_down)
    checked = check(claim)
    assert checked.curvature < 0
    assert not checked.holds


def _upside_down(variables):
    return jax.numpy.exp(-(jax.numpy.log(variables["x"]) ** 2))


def test_a_constraint_that_is_no_product_of_powers_is_refused():
    claim = Claim(
        statement="x = y = 1",
        source="here",
        value={"x": 1.0, "y": 1.0},
        objective=lambda v: v["x"] ** 2 + v["y"] ** 3,
        held=lambda v: {"sum": v["x"] + v["y"]},
    )
    with pytest.raises(ValueError, match="not a product of powers"):
        check(claim)


def test_what_total_parameters_are_worth_is_read_where_the_exponent_of_effective_ones_is_almost_0():
    # Such ends are what fits of too few runs find: only gamma times alpha matters, and G^gamma alone is infinite.
    law = dataclasses.replace(CHAPTER_002, expansion_exponent=1e4, params_exponent=1e-5)
    loss = law(Design(params_active=1e9, params_total=8e9, tokens=1e11))
    expected = effective_params.dense_slice(law, 8.0)(Design(params_active=1e9, params_total=1e9, tokens=1e11))
    assert loss == pytest.approx(expected, rel=1e-12)
