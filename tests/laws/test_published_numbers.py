"""What the documents print comes out of the laws, under the readings that the docstrings name."""

import math

import jax.numpy as jnp
import pytest

from moejax.float64 import float64
from moejax.laws.active_params import Proportional
from moejax.laws.budget import allocation, resources
from moejax.laws.claim import check
from moejax.laws.dense import chinchilla
from moejax.laws.dense.loss_compute import LossCompute, flops_for_loss
from moejax.laws.design import Design
from moejax.laws.mixtures import effective_params, expert_count, leverage
from moejax.laws.mixtures.effective_params import CHAPTER_002
from moejax.laws.mixtures.five_factor import (
    ZHAO_2025,
    active_experts_range,
    best_active_experts,
    best_shared_share,
    efficient_active_share,
    loss_at_optimum,
    loss_compute_limit,
    optimal_active_at_compute,
    optimal_active_share,
    routed_experts_factor,
    shared_share_range,
    with_experts,
)
from moejax.laws.mixtures.leverage import leverage_between
from moejax.laws.mixtures.sparsity import ABNAR_2025, best_params_total, best_sparsity, joint_optimum, optimal_sparsity
from moejax.laws.predict import predict, published

ZHAO_MODELS = {
    "gpt-oss-20b": (3.6e9, 21e9, 42.89, 0.22, 0.09, (5.09, 9.04), (0.183, 0.446)),
    "Qwen3-30B-A3B": (3e9, 30e9, 40.04, 0.21, 0.09, (4.80, 9.58), (0.156, 0.473)),
    "Hunyuan-A13B": (13e9, 80e9, 33.16, 0.18, 0.07, (4.99, 9.21), (0.175, 0.455)),
    "GLM-4.5-Air": (12e9, 106e9, 31.41, 0.17, 0.07, (4.77, 9.64), (0.154, 0.476)),
    "gpt-oss-120b": (5.1e9, 117e9, 30.82, 0.16, 0.07, (4.27, 10.77), (0.102, 0.528)),
    "Qwen3-235B-A22B": (22e9, 235e9, 26.95, 0.14, 0.06, (4.61, 9.98), (0.138, 0.492)),
    "GLM-4.5": (32e9, 355e9, 24.89, 0.13, 0.06, (4.56, 10.09), (0.133, 0.497)),
    "Deepseek-V3.1": (37e9, 671e9, 22.02, 0.12, 0.05, (4.20, 10.93), (0.095, 0.535)),
    "Kimi-K2": (32e9, 1e12, 20.40, 0.11, 0.05, (3.85, 11.95), (0.053, 0.577)),
}
"""Tables 3 and 4: N_a, N, theoretical optimum in %, efficient share at 0.001 and 0.005, ranges of G and of S."""


def test_zhao_sections_5_1_and_5_2_the_best_number_of_active_experts_and_share_of_shared_ones():
    assert best_active_experts(ZHAO_2025) == pytest.approx(6.78, abs=0.005)
    assert best_shared_share(ZHAO_2025) == pytest.approx(0.31, abs=0.005)


@pytest.mark.parametrize("model", ZHAO_MODELS)
def test_zhao_table_4_theoretical_optimum_with_seven_experts_and_a_shared_share_of_0_31(model):
    _, total, percent, *_ = ZHAO_MODELS[model]
    share = optimal_active_share(ZHAO_2025, total, 7.0, 0.31).value["active_share"]
    # Qwen3-30B is 40.049 and printed 40.04.
    assert 100 * share == pytest.approx(percent, abs=0.0095)


@pytest.mark.parametrize("model", ZHAO_MODELS)
def test_zhao_table_4_efficient_shares_by_algorithm_1(model):
    _, total, _, fine, coarse, *_ = ZHAO_MODELS[model]
    with float64():
        for gain, printed in ((0.001, fine), (0.005, coarse)):
            assert float(efficient_active_share(ZHAO_2025, total, 7.0, 0.31, least_gain=gain)) == pytest.approx(printed)


def test_zhao_algorithm_1_is_undefined_when_every_step_pays():
    assert math.isnan(float(efficient_active_share(ZHAO_2025, 1e12, 7.0, 0.31, least_gain=-1.0)))


@pytest.mark.parametrize("model", ZHAO_MODELS)
def test_zhao_table_3_practical_ranges_rounded_inward(model):
    active, total, *_, experts, shared = ZHAO_MODELS[model]
    at = with_experts(7, 0.31, params_total=total, params_active=active)
    low, high = active_experts_range(ZHAO_2025, at, tolerance=0.001)
    assert (math.ceil(low * 100) / 100, math.floor(high * 100) / 100) == experts
    low, high = shared_share_range(ZHAO_2025, at, tolerance=0.001)
    assert (math.ceil(low * 1000) / 1000, math.floor(high * 1000) / 1000) == shared


def test_zhao_equation_33_is_the_limit_without_the_share_coupling_and_lies_below_the_exact_loss():
    structure = ZHAO_2025.structure(with_experts(7, 0.31))
    limit = loss_compute_limit(ZHAO_2025, 1e12, structure)
    assert limit.irreducible == pytest.approx(1.87, abs=0.005)
    assert limit.scale == pytest.approx(576, abs=0.5)
    assert limit.exponent == pytest.approx(-0.158, abs=0.0005)
    for flops, gap in ((1e20, 0.002), (1e22, 0.003), (1e24, 0.013), (1e26, 0.039)):
        exact = check(optimal_active_at_compute(ZHAO_2025, flops, 1e12, 7.0, 0.31)).value["loss"]
        printed = 1.87 + 576 * flops**-0.158
        assert exact - printed == pytest.approx(gap, abs=0.001)


@pytest.mark.parametrize("flops", [1e18, 1e22, 1e26])
def test_zhao_equation_32_is_the_loss_at_the_root_of_equation_31(flops):
    claim = optimal_active_at_compute(ZHAO_2025, flops, 1e12, 7.0, 0.31)
    structure = ZHAO_2025.structure(with_experts(7, 0.31))
    assert loss_at_optimum(ZHAO_2025, claim.value["params_active"], 1e12, structure) == pytest.approx(
        check(claim).value["loss"], rel=1e-12
    )


def test_zhao_appendix_h_numbers_of_experts_that_keep_the_total():
    # d_expert 112, 224, 448, 896, 1344 around a base of 128 routed experts of width 224, G = 20, S = 0.2.
    counts = [128 * routed_experts_factor(width / 224, 20, 0.2, 128) for width in (112, 224, 448, 896, 1344)]
    assert counts == pytest.approx([260, 128, 62, 29, 18])


SPARSITIES = (0.0, 0.5, 0.9, 0.95)


def test_abnar_trends_of_the_best_size_and_sparsity():
    everything = Proportional()
    with float64():
        by_size = [best_sparsity(ABNAR_2025, 1e20, total, everything) for total in (5e8, 1e9, 4e9)]
        by_flops = [best_sparsity(ABNAR_2025, flops, 1e9, everything) for flops in (3e19, 1e20, 1e21)]
        sizes = [float(best_params_total(ABNAR_2025, 1e20, sparsity, everything)) for sparsity in SPARSITIES]
    assert by_size == sorted(by_size)
    assert by_flops == sorted(by_flops, reverse=True), "Section 3, not Section 6, agrees with Eq. 6"
    assert sizes == sorted(sizes)
    active = [everything(size, sparsity) for size, sparsity in zip(sizes, SPARSITIES, strict=True)]
    assert active == sorted(active, reverse=True)


def test_abnar_best_sparsity_says_when_it_is_a_bound_and_not_an_optimum():
    assert "no sparsity is too high" in optimal_sparsity(ABNAR_2025, 1e18, 1e12, Proportional()).notes[0]
    assert "dense model is best" in optimal_sparsity(ABNAR_2025, 1e22, 1e8, Proportional()).notes[0]
    assert optimal_sparsity(ABNAR_2025, 1e20, 1e9, Proportional()).notes == ()


def test_abnar_joint_optimum_is_degenerate_and_says_so():
    found = joint_optimum(ABNAR_2025, 1e20, Proportional(), cap=0.98)
    assert found.sparsity == pytest.approx(0.98)
    assert "is the cap, not an optimum of the law" in found.message
    assert 1 - joint_optimum(ABNAR_2025, 1e20, Proportional(), cap=1 - 1e-15).sparsity < 1e-12


def test_chapter_002_effective_parameters_of_a_mixture_of_671b():
    design = Design(params_active=37e9, params_total=37e9 * 18.1, tokens=14.8e12)
    assert CHAPTER_002.dense_equivalent(design) == pytest.approx(1.0195e11, rel=1e-4), "printed as 1.05e11"


def test_chapter_002_ranks_its_three_designs_as_printed_by_other_losses_than_printed():
    losses = {
        name: CHAPTER_002(Design(params_active=n, params_total=n * g, tokens=3.4e24 / (6 * n)))
        for name, (n, g) in {"dense": (70e9, 1.0), "deepseek": (37e9, 18.1), "switch": (7e9, 16.0)}.items()
    }
    assert losses == pytest.approx({"dense": 1.8733, "deepseek": 1.8470, "switch": 1.8737}, abs=5e-5)


def test_chapter_002_exponent_of_expansion_in_the_best_active_size():
    at = [effective_params.compute_optimal(CHAPTER_002, 3e24, g).value["params_active"] for g in (2.0, 4.0)]
    assert math.log2(at[1] / at[0]) == pytest.approx(-0.1919, abs=5e-5), "printed as -0.16"


def test_tian_section_4_leverage_above_7_and_best_granularity_near_12():
    law = published("tian").law
    mixture = Design(num_experts=1000, top_k=31, num_shared_experts=0, model_dim=6, expert_hidden=1, flops=1e22)
    assert predict("tian", mixture).values["efficiency_leverage"] == pytest.approx(7.245, abs=5e-4)
    assert leverage.optimal_granularity(law, 0.031, 1e22).value["granularity"] == pytest.approx(11.34, abs=0.005)


def test_tian_leverage_of_a_dense_model_is_one_within_a_percent():
    dense = Design(num_experts=0, top_k=0, num_shared_experts=1, model_dim=6, expert_hidden=1, flops=1e22)
    assert predict("tian", dense).values["efficiency_leverage"] == pytest.approx(1, abs=0.011)


def test_tian_moe_mini_has_a_leverage_below_7_by_the_documents_own_definition_of_activation():
    # Table 1: 12 of 384 experts and 1 shared, 2048 over 384 wide: A = 3.4 %, and G = 10.67 where the text has 12.
    mini = Design(num_experts=384, top_k=12, num_shared_experts=1, model_dim=2048, expert_hidden=384, flops=1e22)
    assert float(mini.activation_ratio) == pytest.approx(0.034, abs=5e-4)
    assert mini.granularity == pytest.approx(10.67, abs=0.005)
    assert predict("tian", mini).values["efficiency_leverage"] == pytest.approx(6.98, abs=0.005)


@pytest.mark.parametrize(
    ("flops", "learning_rate", "sequences"),
    [(2e18, 1.52e-3, 98), (6e18, 1.31e-3, 147), (2e19, 1.11e-3, 228), (6e19, 9.5e-4, 342), (2e20, 8.1e-4, 531)],
)
def test_tian_table_8_learning_rates_and_batches(flops, learning_rate, sequences):
    found = predict(published("hyperparameters", "tian-2025-tables"), Design(flops=flops)).values
    assert found["learning_rate"] == pytest.approx(learning_rate, rel=0.006)
    assert found["batch_tokens"] == pytest.approx(sequences * 4096, rel=0.006)
    printed = predict(published("hyperparameters", "tian-2025"), Design(flops=flops)).values
    assert abs(printed["learning_rate"] / learning_rate - 1) > 0.1, "Eq. 5 is not what the tables used"


@pytest.mark.parametrize(("constants", "product"), [("tian-2025-dense", 0.9994), ("tian-2025-moe", 1.0002)])
def test_tian_table_5_model_scale_times_tokens_is_the_compute(constants, product):
    law = published("allocation", constants).law
    for flops in (1e18, 1e22):
        found = law(Design(flops=flops))
        assert found["flops_per_token"] * found["tokens"] / flops == pytest.approx(product, abs=5e-5)
    assert allocation.implied_loss(law).params_exponent == pytest.approx(law.tokens_exponent)


def test_tian_algorithm_1_gives_leverage_from_two_curves_and_is_undefined_below_the_dense_floor():
    dense = LossCompute(scale=60.0, exponent=-0.08, irreducible=1.8)
    assert leverage_between(dense, dense, 1e20) == pytest.approx(1.0, rel=1e-4)
    eager = LossCompute(scale=60.0 * 4.0**-0.08, exponent=-0.08, irreducible=1.8)
    assert leverage_between(eager, dense, 1e20) == pytest.approx(4.0, rel=1e-3)
    better = LossCompute(scale=60.0, exponent=-0.08, irreducible=0.1)
    assert jnp.isnan(leverage_between(better, dense, 1e22))


def test_a_loss_compute_curve_and_its_inverse_agree():
    law = published("loss_compute").law
    assert flops_for_loss(law, law(Design(flops=1e21))) == pytest.approx(1e21, rel=1e-4)


LUDZIEJEWSKI_TABLE_1 = {
    (1e20, 1): (1.7e9, 9.7e9),
    (1e20, 8): (990e6, 17e9),
    (1e20, 32): (669e6, 24.9e9),
    (1e21, 1): (5.7e9, 29.3e9),
    (1e21, 32): (2.85e9, 58.4e9),
    (1e22, 4): (15.8e9, 105.4e9),
    (1e22, 32): (12.2e9, 136.9e9),
}


@pytest.mark.parametrize(("flops", "experts"), LUDZIEJEWSKI_TABLE_1)
def test_ludziejewski_table_1_compute_optimal_sizes(flops, experts):
    active, tokens = LUDZIEJEWSKI_TABLE_1[flops, experts]
    found = expert_count.compute_optimal(published("ludziejewski").law, flops, experts).value
    assert found["params_active"] == pytest.approx(active, rel=0.02)
    assert found["tokens"] == pytest.approx(tokens, rel=0.02)


KRAJEWSKI_TABLE_2 = [
    (100e6, 4.37e9, 8, 3.133),
    (1e9, 28.94e9, 16, 2.491),
    (3e9, 72.90e9, 16, 2.245),
    (7e9, 137.60e9, 32, 2.076),
    (70e9, 941.07e9, 32, 1.694),
    (300e9, 2.96e12, 64, 1.503),
    (1e12, 7.94e12, 64, 1.367),
]


@pytest.mark.parametrize(("active", "tokens", "granularity", "loss"), KRAJEWSKI_TABLE_2)
def test_krajewski_table_2_losses_with_total_parameters_of_64_experts(active, tokens, granularity, loss):
    total = active * (8 * 64 + 4) / 12
    design = Design(params_total=total, tokens=tokens, model_dim=granularity, expert_hidden=4)
    assert predict("krajewski", design).loss == pytest.approx(loss, abs=0.003)


def test_clark_effective_parameters_of_a_5m_model_with_128_experts():
    law = published("clark").law
    assert law.effective_params(5e6, 128) == pytest.approx(55e6, rel=0.07), "from three printed digits"
    assert law.effective_params(5e6, 1) == pytest.approx(5e6, rel=1e-5)


def test_hoffmann_best_size_for_gophers_budget_is_40b():
    assert chinchilla.optimal_split(chinchilla.HOFFMANN_2022, 5.76e23)["params_active"] == pytest.approx(40e9, rel=0.02)


def test_besiroglu_best_ratio_at_chinchillas_budget_is_about_20_tokens_per_parameter():
    found = chinchilla.optimal_split(published("besiroglu", "besiroglu-2024").law, 5.76e23)
    assert 17 < found["tokens"] / found["params_active"] < 23


def test_kaplan_compute_curve_is_one_nat_at_its_critical_compute():
    assert published("loss_compute", "kaplan-2020").law(Design(flops=3.1e8 * 8.64e19)) == pytest.approx(1.0)


def test_the_explainers_activation_rate_and_its_inverse():
    for total in (5.0, 22.0, 46.0):
        for rate in (0.1, 0.2, 1.0):
            active = resources.active_ratio(rate, total)
            assert resources.activation_rate(active, total) == pytest.approx(rate)
            assert active == pytest.approx(rate * total + 4 / 3 * (rate - 1)), "Eq. 27"


def test_the_explainers_shape_cannot_activate_less_than_its_attention():
    assert resources.activation_rate(0.0, 22.0) == pytest.approx(0.0571, abs=5e-5)


def explained(rate, *, total_ratio=22.0, model_dim=1408, num_layers=16):
    """The paper's shape, zeta = 88, at an activation rate."""
    total = resources.layer_params(model_dim, num_layers, total_ratio)
    design = Design(params_total=total, params_active=rate * total, model_dim=model_dim, num_layers=num_layers)
    return published("li").law(design)


def test_the_explainers_ratios_come_back_from_its_counts():
    found = explained(0.2)
    assert found["total_ratio"] == pytest.approx(22)
    assert resources.activation_rate(found["active_ratio"], found["total_ratio"]) == pytest.approx(0.2)


def test_the_explainers_doubling_of_the_parameters():
    found = explained(0.2)
    assert found["total_ratio_doubled"] == pytest.approx(2 * 22 + 4 / 3)
    assert found["active_ratio_doubled"] == pytest.approx(2 * found["active_ratio"] + 4 / 3)
    assert found["active_ratio_doubled"] / found["active_ratio"] == pytest.approx(2.4, abs=0.01)


def test_the_explainers_equal_compute_at_equal_size_means_more_tokens_the_fewer_are_active():
    found = [explained(rate) for rate in (0.1, 0.2, 0.3)]
    ratios = [f["compute_ratio"] for f in found]
    assert ratios[2] - ratios[1] == pytest.approx(ratios[1] - ratios[0]), "R_c is affine in r_a"
    assert [f["token_multiplier"] for f in found] == pytest.approx([1 / ratio for ratio in ratios])


def test_the_explainers_dense_model_has_the_size_that_is_asked_for():
    law = published("li").law
    width = law.dense_width(7e9)
    assert resources.layer_params(width, width / law.dense_aspect, law.dense_ratio) == pytest.approx(7e9)


def test_the_explainers_flops_are_two_per_active_parameter_and_attention():
    model_dim, num_layers, sequence, active = 1408, 16, 16384, 4.0
    params = resources.layer_params(model_dim, num_layers, active)
    by_factor = 2 * params * resources.attention_factor(active, sequence / model_dim)
    assert by_factor == pytest.approx(2 * params + 4 * model_dim * sequence * num_layers), "Eqs. 17 and 19"


WU_HELD_OUT = [
    (2.68e8, 0.5, 41.6e9, 5.2e9, 2.8764),
    (2.68e8, 0.5, 20.8e9, 5.2e9, 2.9038),
    (2.68e8, 0.5, 41.6e9, 10.4e9, 2.8634),
    (5.21e8, 1.0, 5.2e9, 2.6e9, 2.9238),
    (5.21e8, 0.5, 20.8e9, 5.2e9, 2.8343),
    (5.21e8, 0.25, 20.8e9, 5.2e9, 2.8837),
    (1.17e9, 1.0, 5.2e9, 2.6e9, 2.8703),
    (1.92e9, 1.0, 10.4e9, 2.6e9, 2.8002),
    (1.92e9, 0.5, 20.8e9, 20.8e9, 2.7250),
    (3.84e9, 0.5, 10.4e9, 2.6e9, 2.7725),
    (7.68e9, 0.25, 10.4e9, 2.6e9, 2.7790),
]
"""Weights, share of them that is not 0, tokens, different tokens and the loss that the released code prints."""


@pytest.mark.parametrize(("weights", "density", "tokens", "unique", "printed"), WU_HELD_OUT)
def test_wus_code_prints_these_losses_of_the_eleven_runs_that_it_holds_out(weights, density, tokens, unique, printed):
    design = Design(params_active=weights * density, params_total=weights, tokens=tokens, unique_tokens=unique)
    assert predict(published("wu"), design).loss == pytest.approx(printed, abs=5e-5)
