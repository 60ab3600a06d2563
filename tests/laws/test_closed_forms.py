"""Every closed form is stationary, a minimum and where a search ends, whatever the coefficients."""

import dataclasses
import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import moejax.laws
from moejax.float64 import float64
from moejax.laws import CLAIMS
from moejax.laws.active_params import ACTIVE_PARAMS, BackboneByActive, BackboneByTotal, Proportional
from moejax.laws.budget import allocation
from moejax.laws.budget.allocation import Allocation
from moejax.laws.claim import check
from moejax.laws.dense import chinchilla, over_training
from moejax.laws.dense.chinchilla import Chinchilla
from moejax.laws.dense.over_training import OverTraining
from moejax.laws.design import Design
from moejax.laws.mixtures import (
    dense_to_moe,
    effective_params,
    expert_count,
    five_factor,
    granularity,
    isoflop_surface,
    leverage,
    marginal,
    sparse_repeats,
    sparsity,
)
from moejax.laws.mixtures.dense_to_moe import DenseToMoe
from moejax.laws.mixtures.effective_params import EffectiveParams
from moejax.laws.mixtures.expert_count import ExpertCount
from moejax.laws.mixtures.five_factor import FiveFactor
from moejax.laws.mixtures.granularity import Granularity
from moejax.laws.mixtures.isoflop_surface import IsoflopSurface
from moejax.laws.mixtures.leverage import Leverage
from moejax.laws.mixtures.marginal import MarginalActive, MarginalExperts, MarginalShared
from moejax.laws.mixtures.sparse_repeats import SparseRepeats
from moejax.laws.mixtures.sparsity import Sparsity

exponents = st.floats(0.1, 0.7)
scales = st.floats(1.0, 4.0).map(lambda power: 10.0**power)
shares = st.floats(0.05, 0.9)
budgets = st.floats(18.0, 26.0).map(lambda power: 10.0**power)
sizes = st.floats(8.0, 12.0).map(lambda power: 10.0**power)

USUAL = {"scale": scales, "exponent": exponents, "irreducible": st.floats(0.0, 2.0)}
"""Ranges of coefficients by the last word of their name."""


def laws(law, **unusual):
    """Laws with the given ranges of coefficients, and the usual ranges of all others."""
    names = [field.name for field in dataclasses.fields(law) if not field.metadata.get("static")]
    return st.builds(law, **{name: unusual.get(name, USUAL.get(name.rpartition("_")[2])) for name in names})


chinchillas = laws(Chinchilla)
over_trainings = laws(OverTraining, flops_exponent=st.floats(0.05, 0.35))
effective = laws(EffectiveParams, expansion_exponent=st.floats(0.0, 1.0))
granularities = laws(Granularity)
expert_counts = laws(
    ExpertCount,
    params_exponent=st.floats(-0.5, -0.15),
    params_experts=st.floats(-0.5, 0.5),
    params_coupling=st.floats(-0.02, 0.02),
    tokens_exponent=st.floats(-0.5, -0.15),
    tokens_experts=st.floats(-0.5, 0.5),
    tokens_coupling=st.floats(-0.02, 0.02),
    experts_start=st.floats(1.5, 4.0),
    experts_maximum=st.floats(100.0, 500.0),
)
dense_to_moes = laws(DenseToMoe, experts_exponent=st.floats(0.0, 0.5))
five_factors = laws(
    FiveFactor,
    experts_slope=st.floats(0.05, 1.0),
    experts_inverse=st.floats(2.0, 20.0),
    shared_square=st.floats(2.0, 10.0),
    shared_slope=st.floats(-4.0, -1.0),
    active_coupling=st.floats(1e-4, 1.0),
    share_coupling=st.floats(0.01, 0.2),
    total_scale=st.floats(5.0, 100.0),
    params_exponent=st.floats(0.15, 0.4),
    active_scale=st.floats(5.0, 100.0),
)
sparsities = laws(
    Sparsity,
    params_exponent=st.floats(0.2, 0.7),
    tokens_exponent=st.floats(0.2, 0.6),
    sparsity_scale=st.floats(0.1, 1.0),
    sparsity_exponent=st.floats(-0.4, -0.1),
    coupling_scale=st.floats(5.0, 50.0),
    coupling_exponent=st.floats(0.1, 0.4),
    coupling_params_exponent=st.floats(0.1, 0.3),
    irreducible=st.floats(0.0, 1.0),
)
sparse_repeats_laws = laws(
    SparseRepeats,
    irreducible=st.floats(0.5, 2.0),
    exponent=st.floats(0.2, 0.5),
    density_exponent=st.floats(-0.2, 0.2),
    sparse_scale=st.floats(-0.4, 1.0),
    sparse_exponent=st.floats(0.3, 2.0),
    params_decay=st.floats(1.0, 20.0),
    params_decay_slope=st.floats(0.0, 2.0),
    params_decay_square=st.floats(-0.5, 0.5),
    tokens_decay=st.floats(1.0, 20.0),
    tokens_decay_slope=st.floats(0.0, 2.0),
    tokens_decay_square=st.floats(-0.5, 0.5),
)
conventions = st.sampled_from([Proportional(), BackboneByActive(ratio=0.5), BackboneByTotal(share=0.05)])
leverages = laws(
    Leverage,
    base_exponent=st.floats(-1.0, 0.0),
    flops_slope=st.floats(-0.1, -0.01),
    granularity_square=st.floats(0.01, 0.1),
    granularity_slope=st.floats(-0.5, -0.05),
    ratio_start=st.floats(0.001, 0.05),
    ratio_maximum=st.just(1e9),
)
surfaces = laws(
    IsoflopSurface,
    size=st.tuples(st.floats(-4.0, -1.0), st.floats(0.05, 0.2)),
    sparsity=st.tuples(st.floats(-0.5, -0.1), st.floats(0.01, 0.1)),
    interaction=st.tuples(st.floats(-0.01, 0.01), st.floats(1e-4, 1e-3)),
    offset=st.floats(0.0, 4.0),
)
allocations = laws(
    Allocation,
    model_scale=st.floats(0.01, 1.0),
    model_exponent=st.floats(0.3, 0.7),
    tokens_scale=st.just(1.0),
    tokens_exponent=st.just(0.5),
)
mixtures = st.builds(
    Design,
    params_total=st.just(1e10),
    params_active=st.floats(1e8, 1e10),
    tokens=sizes,
    top_k=st.floats(0.5, 20.0),
    num_shared_experts=st.floats(0.0, 4.0),
)
marginal_actives = laws(MarginalActive, active_slope=st.floats(1e-12, 1e-9), offset=st.floats(0.0, 3.0))
marginal_experts = laws(
    MarginalExperts,
    experts_slope=st.floats(0.001, 0.1),
    experts_inverse=st.floats(0.01, 1.0),
    offset=st.floats(0.0, 3.0),
)
marginal_shareds = laws(
    MarginalShared,
    shared_square=st.floats(0.01, 1.0),
    shared_slope=st.floats(-1.0, -0.01),
    offset=st.floats(0.0, 3.0),
)
expansions = st.floats(1.0, 64.0)
active_experts = st.floats(1.0, 20.0)
shared_shares = st.floats(0.0, 0.7)

RANDOM = {
    chinchilla.compute_optimal: (chinchillas, budgets),
    over_training.compute_optimal: (over_trainings, budgets),
    effective_params.compute_optimal: (effective, budgets, expansions),
    granularity.compute_optimal: (granularities, budgets, st.floats(1.0, 16.0), expansions),
    expert_count.compute_optimal: (expert_counts, budgets, st.floats(1.0, 128.0)),
    dense_to_moe.compute_optimal: (dense_to_moes, budgets, expansions),
    five_factor.optimal_active_experts: (five_factors, mixtures),
    five_factor.optimal_shared_share: (five_factors, mixtures),
    five_factor.optimal_active_share: (five_factors, sizes, active_experts, shared_shares),
    five_factor.optimal_active_at_compute: (five_factors, budgets, sizes, active_experts, shared_shares),
    marginal.optimal_active: (marginal_actives,),
    marginal.optimal_experts: (marginal_experts,),
    marginal.optimal_shared: (marginal_shareds,),
    sparse_repeats.compute_optimal: (sparse_repeats_laws, budgets, st.floats(1.1, 64.0)),
    sparsity.optimal_params_total: (sparsities, budgets, shares, conventions),
    sparsity.optimal_sparsity: (sparsities, budgets, sizes, conventions),
    isoflop_surface.optimal_params_total: (surfaces, shares),
    isoflop_surface.optimal_sparsity: (surfaces, sizes),
    leverage.optimal_granularity: (leverages, shares, budgets),
    allocation.compute_optimal: (allocations, budgets),
}
"""Every claim of the library, over random coefficients."""


def named(build):
    return f"{build.__module__.rpartition('.')[2]}.{build.__name__}"


def test_every_function_of_the_library_that_makes_a_claim_is_tested():
    modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(moejax.laws.__path__, "moejax.laws.")]
    makers = {
        named(value)
        for module in modules
        for value in vars(module).values()
        if inspect.isfunction(value)
        and not value.__name__.startswith("_")
        and inspect.signature(value).return_annotation == "Claim"
    }
    assert makers == {named(build) for build in RANDOM}
    assert set(CLAIMS) <= makers


def test_the_closed_forms_hold_with_published_constants():
    checked = {name: check(make()) for name, make in CLAIMS.items()}
    assert all(found.holds for found in checked.values()), checked


@pytest.mark.parametrize("build", RANDOM, ids=named)
@settings(max_examples=8, derandomize=True)
@given(st.data())
@pytest.mark.matrix(4)
def test_a_closed_form_holds_with_any_coefficients(build, data):
    claim = build(*data.draw(st.tuples(*RANDOM[build])))
    assume(not claim.notes)
    checked = check(claim)
    assert checked.holds, (claim.statement, checked)


@pytest.mark.parametrize("convention", ACTIVE_PARAMS.values(), ids=ACTIVE_PARAMS)
def test_every_reading_of_active_parameters_is_all_of_them_without_sparsity_and_falls_with_it(convention):
    assert convention(1e9, 0.0) == pytest.approx(1e9)
    assert 0 < convention(1e9, 0.9) < convention(1e9, 0.5) < 1e9


def test_a_surface_of_other_degrees_has_no_closed_form_and_says_so():
    flat = IsoflopSurface(size=(1.0,), sparsity=(1.0,), interaction=(), offset=2.0)
    with pytest.raises(ValueError, match=r"degrees \(1, 1, 0\)"):
        isoflop_surface.optimal_params_total(flat, 0.5)


def test_a_decision_can_be_batched_over_resampled_laws():
    law = CLAIMS["expert_count.compute_optimal"]().objective.args[0]
    laws = jax.tree.map(lambda x: jnp.asarray([x, x * 1.01]), law)
    batched = jax.vmap(lambda one: expert_count.compute_optimal(one, 1e22, 32.0).value)(laws)
    single = expert_count.compute_optimal(law, 1e22, 32.0).value
    assert float(batched["tokens"][0]) == pytest.approx(single["tokens"], rel=1e-4)
    assert batched["tokens"].shape == (2,)


def test_the_frontier_is_the_loss_of_the_best_split_at_every_budget():
    with float64():
        for flops in (1e18, 1e22, 1e26):
            best = chinchilla.optimal_split(chinchilla.HOFFMANN_2022, flops)
            assert chinchilla.frontier(chinchilla.HOFFMANN_2022)(Design(flops=flops)) == pytest.approx(
                chinchilla.HOFFMANN_2022(Design(**best)), rel=1e-12
            )
