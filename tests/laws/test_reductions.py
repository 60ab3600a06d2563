"""Laws that contain one another agree where they meet, and mean what their names say."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.float64 import float64
from moejax.laws.dense.chinchilla import HOFFMANN_2022
from moejax.laws.design import Design
from moejax.laws.law import coefficients
from moejax.laws.mixtures.dense_to_moe import DenseToMoe
from moejax.laws.mixtures.effective_params import CHAPTER_002
from moejax.laws.mixtures.fewer_factors import FourFactor, ThreeFactor, TwoFactor, at_structure
from moejax.laws.mixtures.five_factor import (
    ZHAO_2025,
    active_experts_range,
    best_active_experts,
    best_shared_share,
    efficient_active_share,
    routed_experts_factor,
    shared_share_range,
    with_experts,
)
from moejax.laws.mixtures.marginal import margin_of_active, margin_of_shared
from moejax.laws.predict import predict, published

MIXTURE = Design(params_total=30e9, params_active=3e9, tokens=2e12, num_experts=128, top_k=8, num_shared_experts=2)


def test_without_shared_terms_five_factors_are_four():
    four = {name: value for name, value in coefficients(ZHAO_2025).items() if name in FourFactor.__dataclass_fields__}
    five = dataclasses.replace(ZHAO_2025, shared_square=0.0, shared_slope=0.0)
    assert FourFactor(**four)(MIXTURE) == five(MIXTURE)


def test_without_the_active_terms_three_factors_are_two():
    two = TwoFactor(total_scale=40.0, params_exponent=0.3, tokens_scale=900.0, tokens_exponent=0.4, irreducible=1.7)
    three = ThreeFactor(**coefficients(two), active_scale=0.0, share_slope=0.0)
    assert three(MIXTURE) == two(MIXTURE)


def test_effective_parameters_without_expansion_are_chinchilla():
    dense = Design(params_active=7e9, params_total=7e9, tokens=1e12)
    same = {name: value for name, value in coefficients(CHAPTER_002).items() if name != "expansion_exponent"}
    assert CHAPTER_002(dense) == dataclasses.replace(HOFFMANN_2022, **same)(dense)


def test_wang_with_one_expert_is_chinchilla():
    dense = Design(params_active=7e9, tokens=1e12, num_experts=0)
    law = DenseToMoe(**coefficients(HOFFMANN_2022), experts_exponent=0.2)
    assert law(dense) == pytest.approx(HOFFMANN_2022(dense))


@pytest.mark.parametrize("router", ["clark-2022-s-base", "clark-2022-rl-r", "clark-2022-hash"])
def test_clarks_effective_parameters_are_those_of_the_dense_model_of_equal_loss(router):
    entry = published("clark", router)
    with float64():
        effective = float(entry.law.effective_params(2e8, 64))
    routed = predict(entry, Design(params_active=2e8, num_experts=64, top_k=1)).loss
    dense = predict(entry, Design(params_active=effective, num_experts=0, top_k=0)).loss
    assert dense == pytest.approx(routed, rel=1e-12)


@settings(max_examples=30)
@given(st.floats(0.05, 8.0), st.floats(1.0, 20.0), st.floats(0.0, 0.8), st.integers(32, 512))
def test_wider_experts_in_the_right_number_keep_the_total_and_change_the_active_parameters(u, g, s, experts):
    v = routed_experts_factor(u, g, s, experts)
    width = 224

    def expert_params(width, shared, routed):
        return 3 * width * (shared + routed)

    assert expert_params(width * u, s * g, experts * v) == pytest.approx(expert_params(width, s * g, experts))


@settings(max_examples=30)
@given(st.floats(9.0, 13.0), st.floats(0.02, 0.9), st.floats(1e-4, 1e-2))
def test_practical_ranges_end_where_the_loss_has_risen_by_the_tolerance(power, share, tolerance):
    sizes = {"params_total": 10**power, "params_active": share * 10**power, "tokens": 1e12}
    experts, shared = best_active_experts(ZHAO_2025), best_shared_share(ZHAO_2025)
    best = ZHAO_2025(with_experts(experts, shared, **sizes))
    at = with_experts(experts, shared, **sizes)
    for end in active_experts_range(ZHAO_2025, at, tolerance=tolerance):
        assert ZHAO_2025(with_experts(end, shared, **sizes)) - best == pytest.approx(tolerance, rel=1e-6)
    for end in shared_share_range(ZHAO_2025, at, tolerance=tolerance):
        assert ZHAO_2025(with_experts(experts, end, **sizes)) - best == pytest.approx(tolerance, rel=1e-6)


@pytest.mark.parametrize("gain", [0.0005, 0.001, 0.005])
def test_algorithm_1_is_the_loop_that_the_document_prints(gain):
    total, step = 106e9, 0.01

    def loss(share):
        return ZHAO_2025(with_experts(7, 0.31, params_total=total, params_active=share * total, tokens=5e12))

    share = step
    while loss(share) - loss(share + step) >= gain:
        share += step
    with float64():
        found = efficient_active_share(ZHAO_2025, total, 7.0, 0.31, least_gain=gain)
    np.testing.assert_allclose(found, share + step)


@pytest.mark.parametrize(("experts", "top_k"), [(0, 0), (0, 1), (1, 1), (0, 8)])
def test_a_dense_model_has_no_sparsity_however_its_table_counts_no_experts(experts, top_k):
    design = Design(num_experts=experts, top_k=top_k, num_shared_experts=0)
    assert design.expert_expansion == 1
    assert design.sparsity == 0


@pytest.mark.parametrize(("experts", "shared"), [(7.0, 0.31), (2.0, 0.0)])
def test_the_five_factor_law_at_one_structure_is_equation_7_and_its_margins_are_equations_5_and_10(experts, shared):
    point = with_experts(experts, shared, params_total=3e9, params_active=4e8, tokens=2e10)
    with float64():
        expected = float(ZHAO_2025(point))
        made = (
            at_structure(ZHAO_2025, experts, shared),
            margin_of_active(ZHAO_2025, dataclasses.replace(point, params_active=None)),
            margin_of_shared(ZHAO_2025, with_experts(experts, 0.5, params_total=3e9, params_active=4e8, tokens=2e10)),
        )
    assert [float(law(point)) for law in made] == pytest.approx([expected] * 3, rel=1e-12)
