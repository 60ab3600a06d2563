"""The law of repeated tokens: what its paper prints, what it is without repeats, and that its kinks are none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.float64 import float64
from moejax.laws.dense.chinchilla import optimal_params, optimal_split
from moejax.laws.dense.data_constrained import DataConstrained
from moejax.laws.design import Design
from moejax.laws.predict import predict, published

KNOWN = published("muennighoff")
LAW = KNOWN.law


def at(params, tokens, unique):
    return predict(KNOWN, Design(params_active=params, tokens=tokens, unique_tokens=unique)).loss


SIZES = st.floats(7.0, 12.0).map(lambda power: 10.0**power)


@st.composite
def any_law(draw):
    exponents = draw(st.floats(0.1, 0.6)), draw(st.floats(0.1, 0.6))
    return DataConstrained(
        irreducible=draw(st.floats(0.5, 2.0)),
        params_scale=draw(st.floats(10.0, 1000.0)),
        params_exponent=exponents[0],
        params_decay=draw(st.floats(0.5, 50.0)),
        tokens_scale=draw(st.floats(10.0, 1000.0)),
        tokens_exponent=exponents[1],
        tokens_decay=draw(st.floats(0.5, 50.0)),
    )


@pytest.mark.parametrize(
    ("params", "tokens", "printed"), [(6.34e9, 242e9, 2.2256440889984477), (8.67e9, 178e9, 2.2269634075087867)]
)
def test_muennighoff_prints_the_losses_of_figure_1_on_25_billion_different_tokens(params, tokens, printed):
    assert at(params, tokens, 25e9) == pytest.approx(printed, rel=1e-14)


def test_four_epochs_are_nearly_as_good_as_new_tokens_and_forty_are_not():
    # The abstract: up to 4 epochs change the loss next to nothing, and with more the value decays to zero.
    def share(epochs):
        return LAW.effective(Design(params_active=1e6, tokens=epochs * 1e9, unique_tokens=1e9)).tokens / epochs / 1e9

    assert share(4) > 0.93
    assert share(40) < 0.4
    assert share(400) < 0.05


RELEASED = {58e9: 2.348107, 44e9: 2.351177, 35e9: 2.360029, 25e9: 2.376484}
"""Losses of 8.67B parameters on 178B tokens of C4, by how many of these are different (huggingface/datablations)."""


@pytest.mark.parametrize("unique", RELEASED)
def test_muennighoffs_largest_model_loses_by_three_to_seven_epochs_what_the_law_says(unique):
    measured = RELEASED[unique] / 2.336741 - 1
    assert at(8.67e9, 178e9, unique) / at(8.67e9, 178e9, 178e9) - 1 == pytest.approx(measured, abs=0.0015)


def test_after_r_d_repeats_one_more_is_worth_1_over_e_of_a_new_token():
    unique = 1e9

    def worth(tokens):
        return LAW.effective(Design(params_active=1e8, tokens=tokens, unique_tokens=unique)).tokens

    with float64():
        assert float(jax.grad(worth)(unique * (1 + LAW.tokens_decay))) == pytest.approx(np.exp(-1), rel=1e-12)
        assert float(worth(1e6 * unique)) == pytest.approx(unique * (1 + LAW.tokens_decay))


@settings(max_examples=40)
@given(any_law(), SIZES, st.floats(0.01, 1.0), st.floats(1.0, 1e6))
def test_a_model_no_larger_than_its_tokens_ask_for_has_chinchillas_loss_if_no_token_returns(law, tokens, less, more):
    with float64():
        params = less * optimal_params(law.unrepeated, tokens)
        found = law(Design(params_active=params, tokens=tokens, unique_tokens=more * tokens))
        plain = law.unrepeated(Design(params_active=params, tokens=tokens))
    assert float(found) == pytest.approx(float(plain), rel=1e-12)


@settings(max_examples=40)
@given(any_law(), SIZES, SIZES, SIZES, st.floats(1.0, 10.0))
def test_more_of_anything_never_raises_the_loss(law, params, tokens, unique, more):
    sizes = {"params_active": params, "tokens": tokens, "unique_tokens": unique}
    with float64():
        loss = float(law(Design(**sizes)))
        for name in sizes:
            assert float(law(Design(**{**sizes, name: more * sizes[name]}))) <= loss * (1 + 1e-12), name
        assert loss >= float(law.unrepeated(Design(**sizes))) * (1 - 1e-12)


@pytest.mark.parametrize("unique", [1e9, 3e10, 1e13])
def test_the_slope_is_finite_where_the_law_bends_and_does_not_jump_at_the_first_repeat_or_excess_parameter(unique):
    with float64():
        enough = float(optimal_params(LAW.unrepeated, unique))

        def slopes(params, tokens):
            point = {"params_active": params, "tokens": tokens, "unique_tokens": unique}
            found = jax.grad(lambda z: LAW(Design(**jax.tree.map(jnp.exp, z))))(jax.tree.map(jnp.log, point))
            return np.asarray([float(found[name]) for name in point])

        for params, tokens in ((enough, 2 * unique), (enough / 2, unique)):
            for side in (1 - 1e-9, 1 + 1e-9):
                near = slopes(params * side, tokens), slopes(params, tokens * side)
                np.testing.assert_allclose(near, [slopes(params, tokens)] * 2, atol=1e-8)
        for params in (enough, 2 * enough):
            assert np.isfinite(slopes(params, unique)).all()


def test_the_size_for_some_tokens_is_that_of_the_budget_that_takes_them():
    split = optimal_split(LAW.unrepeated, 1e22)
    assert float(optimal_params(LAW.unrepeated, split["tokens"])) == pytest.approx(split["params_active"], rel=1e-5)


def test_the_law_is_not_asked_without_the_number_of_different_tokens():
    with pytest.raises(ValueError, match="also give unique_tokens"):
        predict(KNOWN, Design(params_active=1e9, tokens=1e10))
