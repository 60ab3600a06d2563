"""Every closed form of an optimum comes out of the general optimiser."""

import jax
import pytest

from moejax.design.coordinates import Sizes
from moejax.design.problem import Limit, Problem, Unbounded, of_sizes, optimise
from moejax.laws import PUBLISHED, five_factor_optima, sparsity_optima
from moejax.laws.active_params import Proportional
from moejax.laws.chinchilla import HOFFMANN_2022, optimal_split
from moejax.laws.effective_params import CHAPTER_002
from moejax.laws.effective_params import compute_optimal as effective_optimal
from moejax.laws.expert_count import compute_optimal as experts_optimal
from moejax.laws.five_factor import ZHAO_2025
from moejax.laws.leverage import optimal_granularity
from moejax.laws.sparsity import ABNAR_2025

LUDZIEJEWSKI = PUBLISHED["expert_count"]["ludziejewski-2025"].law
TIAN = PUBLISHED["leverage"]["tian-2025"].law

TABLE_4 = {
    "gpt-oss-20b": (21e9, 0.4289),
    "Qwen3-30B-A3B": (30e9, 0.4004),
    "Hunyuan-A13B": (80e9, 0.3316),
    "GLM-4.5-Air": (106e9, 0.3141),
    "gpt-oss-120b": (117e9, 0.3082),
    "Qwen3-235B-A22B": (235e9, 0.2695),
    "GLM-4.5": (355e9, 0.2489),
    "Deepseek-V3.1": (671e9, 0.2202),
    "Kimi-K2": (1e12, 0.2040),
}
"""Zhao et al. (2025), Table 4: N and the theoretical optimum of N_a / N as printed, at seven experts and S = 0.31."""


def held(name, value):
    return Limit(name=name, low=value, high=value)


def chosen(law, *limits, **options):
    return optimise(of_sizes(law, limits, **options)).values


def agree(found, expected):
    for name, value in expected.items():
        assert found[name] == pytest.approx(float(value), rel=1e-6), name


@pytest.mark.parametrize("flops", [1e19, 5.76e23])
def test_hoffmanns_split(flops):
    agree(chosen(HOFFMANN_2022, Limit(name="flops", high=flops)), optimal_split(HOFFMANN_2022, flops))


def test_the_split_of_effective_parameters():
    found = chosen(CHAPTER_002, Limit(name="flops", high=3.4e24), held("expansion", 18.1))
    agree(found, effective_optimal(CHAPTER_002, 3.4e24, 18.1).value)


def test_ludziejewskis_split_at_eight_experts():
    found = chosen(LUDZIEJEWSKI, Limit(name="flops", high=1e22), held("expert_expansion", 8.0))
    agree(found, experts_optimal(LUDZIEJEWSKI, 1e22, 8.0).value)


def test_zhaos_experts_shared_share_and_sizes_at_once():
    found = chosen(ZHAO_2025, Limit(name="flops", high=1e24), Limit(name="params_total", high=1e12))
    experts, share = five_factor_optima.best_active_experts(ZHAO_2025), five_factor_optima.best_shared_share(ZHAO_2025)
    agree(found, {"active_experts": experts, "shared_share": share})
    # Zhao et al. count C = N_a·D, without the factor 6.
    sizes = five_factor_optima.optimal_active_at_compute(ZHAO_2025, 1e24 / 6, 1e12, experts, share).value
    agree(found, {"params_active": sizes["params_active"], "tokens": sizes["tokens"]})


@pytest.mark.parametrize("model", TABLE_4)
def test_table_4_of_zhao(model):
    total, printed = TABLE_4[model]
    experts, share = 7.0, 0.31
    found = chosen(
        ZHAO_2025,
        *(held("params_total", total), held("active_experts", experts), held("shared_share", share)),
        held("tokens", 1e12),
    )
    expected = five_factor_optima.optimal_active_share(ZHAO_2025, total, experts, share).value["active_share"]
    assert 1 / found["expansion"] == pytest.approx(float(expected), rel=1e-6)
    assert 1 / found["expansion"] == pytest.approx(printed, abs=1e-4)


@pytest.mark.parametrize(("total", "flops"), [(3e9, 1e20), (1e10, 3e20)])
def test_abnars_sparsity_at_a_size(total, flops):
    found = chosen(ABNAR_2025, Limit(name="flops", high=flops), held("params_total", total))
    with jax.enable_x64(True):
        best = sparsity_optima.best_sparsity(ABNAR_2025, flops, total, Proportional())
    # A valley this flat is placed to 1e-6 by the derivative, not by the loss.
    assert 1 / found["expert_expansion"] == pytest.approx(1 - float(best), rel=1e-6)


def test_tians_granularity_of_greatest_leverage():
    found = chosen(TIAN, held("expert_expansion", 32.0), Limit(name="flops", high=1e22))
    expected = optimal_granularity(TIAN, 1 / 32, 1e22).value["granularity"]
    assert found["granularity"] == pytest.approx(float(expected), rel=1e-6)


def test_the_cheapest_way_to_a_loss_is_the_best_way_to_spend_that_much():
    spent = chosen(HOFFMANN_2022, Limit(name="flops", high=1e22))
    reached = chosen(HOFFMANN_2022, Limit(name="loss", high=spent["loss"]), goal="flops")
    agree(reached, {name: spent[name] for name in ("flops", "params_active", "tokens")})


def test_a_degenerate_optimum_is_said_and_not_returned():
    with pytest.raises(Unbounded, match="still falls where the search ends, at expert_expansion"):
        chosen(ABNAR_2025, Limit(name="flops", high=1e20))


def test_what_a_law_decides_follows_from_what_it_reads():
    assert [c.name for c in Sizes(HOFFMANN_2022.inputs).coordinates] == ["params_active", "tokens"]
    assert [c.name for c in Sizes(TIAN.inputs).coordinates] == ["expert_expansion", "granularity", "flops"]


def test_a_coordinate_on_which_nothing_depends_is_said_to_be_undecided():
    routed = next(iter(PUBLISHED["routed"].values())).law
    limits = (Limit(name="params_active", high=1e9), Limit(name="expert_expansion", high=64.0))
    assert optimise(Problem(law=routed, limits=limits, space=Sizes(routed.inputs))).undecided == ("tokens",)
