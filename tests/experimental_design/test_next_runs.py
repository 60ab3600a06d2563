"""What to train next: what runs are worth, that the best are found, and that a plan holds what it promises."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.optimize

from moejax.architecture import Architecture
from moejax.experimental_design.candidates import customary_vocabulary, is_mostly_vocabulary, like, of_table
from moejax.experimental_design.criterion import posterior_arrays, share_left, sums, variances, with_run
from moejax.experimental_design.experiment_plan import RunBudget, choose_runs, corner, deviations, exchange, relax
from moejax.experimental_design.laplace_posterior import PRIOR, laplace_posterior
from moejax.experimental_design.propose import candidates_like, propose
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Squared
from moejax.fit.search.starts import Sobol, WarmStart
from moejax.fit.selection.metrics import predict
from moejax.fit.tables.read_runs import read_runs
from moejax.fit.uncertainty.covariance import variance_components, with_uncertainty
from moejax.fit.uncertainty.estimands import decision_estimands, find, prediction_estimand
from moejax.float64 import float64
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import EffectiveParams

NOISE = 0.003
LARGE = prediction_estimand(Chinchilla, {"params_active": 70e9, "tokens": 1.4e12})


def designs(active, tokens):
    active, tokens = (a.ravel() for a in np.meshgrid(active, tokens))
    return Design(params_active=active, tokens=tokens, flops=6 * active * tokens)


TABLE = designs([5e7, 1e8, 2e8], [1e9, 2e9, 4e9])
CANDIDATES = designs(np.geomspace(3e7, 3e9, 8), np.geomspace(5e8, 5e10, 6))
BUDGET = RunBudget(flops=3e20, runs=5)


def measured(design, seed=0, noise=NOISE):
    exact = predict(HOFFMANN_2022, runs_from(design, np.ones(np.size(design.tokens))))
    return runs_from(design, exact * np.exp(noise * np.random.default_rng(seed).normal(size=len(exact))))


@pytest.fixture(scope="module")
def posterior():
    return laplace_posterior(HOFFMANN_2022, measured(TABLE), CANDIDATES, [LARGE.functional], noise=NOISE)


@pytest.fixture(scope="module")
def planned(posterior):
    return choose_runs([posterior], CANDIDATES.flops, BUDGET)


def test_a_run_adds_what_its_row_of_the_information_says(posterior):
    arrays, counts = posterior_arrays([posterior]), np.zeros(48)
    with float64():
        before = sums(arrays, counts)
        one = share_left(arrays, with_run(arrays, before, 7), before)
        counts[7] = 1.0
        assert float(one) == pytest.approx(float(share_left(arrays, sums(arrays, counts), before)), rel=1e-9)


def test_no_run_makes_an_answer_less_certain(posterior):
    now = deviations(posterior_arrays([posterior]), np.zeros(48))
    for run in range(48):
        assert deviations(posterior_arrays([posterior]), np.eye(48)[run]) <= now


def test_the_plan_keeps_its_budget_and_no_random_runs_of_it_are_better(posterior, planned):
    spent = CANDIDATES.flops[list(planned.order)]
    assert len(planned.order) <= BUDGET.runs
    assert spent.sum() <= BUDGET.flops
    rng = np.random.default_rng(0)
    for _ in range(50):
        counts, left = np.zeros(48), BUDGET.flops
        for i in rng.permutation(48):
            if CANDIDATES.flops[i] <= left and counts.sum() < BUDGET.runs:
                counts[i], left = 1, left - CANDIDATES.flops[i]
        assert deviations(posterior_arrays([posterior]), counts) >= planned.after * (1 - 1e-9)


def test_the_relaxation_bounds_every_plan_of_whole_runs(posterior, planned):
    relaxed = relax(posterior_arrays([posterior]), CANDIDATES.flops, BUDGET)
    assert relaxed.bound <= relaxed.left
    assert planned.bound <= planned.left[-1]
    assert planned.efficiency > 0.7


def test_runs_come_in_the_order_in_which_they_tell_most(planned):
    assert np.all(np.diff(planned.left) < 0)
    assert planned.after == pytest.approx(planned.before * np.sqrt(planned.left[-1]))


def test_the_deviation_that_is_promised_is_that_of_fits_to_such_runs(planned):
    table, new = measured(TABLE, noise=0), list(planned.order)
    every = Design(
        **{name: np.r_[getattr(TABLE, name), getattr(CANDIDATES, name)[new]] for name in ("params_active", "tokens")}
    )
    assert len(table) == 9
    found = []
    for seed in range(40):
        start = WarmStart((HOFFMANN_2022,))
        fit = fit_law(HOFFMANN_2022, measured(every, seed), penalty=Squared(), starts=start)
        found.append(float(np.log(LARGE.functional(fit.law))))
    assert np.std(found) == pytest.approx(float(planned.after[0]), rel=0.5)


SHARED = 0.9
"""Of the variance of log loss, what the budgets of a model have in common."""
MODELS = 12
BUDGETS = designs(np.geomspace(3e7, 3e9, MODELS), [1e9, 4e9, 1.6e10, 6.4e10])


def with_luck(seed, shared=SHARED):
    """The budgets of twelve models, which share their luck; a model's runs are every twelfth."""
    exact = measured(BUDGETS, noise=0)
    luck, own = np.random.default_rng(seed).normal(size=(2, len(exact)))
    scatter = NOISE * (np.sqrt(shared) * luck[exact.group] + np.sqrt(1 - shared) * own)
    return dataclasses.replace(exact, loss=exact.loss * np.exp(scatter))


@pytest.mark.parametrize("shared", [0.0, SHARED])
def test_the_deviation_so_far_is_the_standard_error_of_fits_to_runs_that_share_luck(shared):
    def log_of_it(law):
        return jnp.log(LARGE.functional(law))

    told, errors, found = [], [], []
    for seed in range(16):
        runs = with_luck(seed, shared)
        fit = fit_law(Chinchilla, runs, penalty=Squared(), starts=WarmStart((HOFFMANN_2022,)))
        luck = variance_components(fit, runs)
        one_run = Design(params_active=np.asarray([1e9]), tokens=np.asarray([2e10]))
        seen = laplace_posterior(
            fit.law, runs, one_run, [LARGE.functional], noise=luck.noise, shared=luck.shared or 0.0
        )
        told.append(seen.deviations[0])
        errors.append(float(with_uncertainty(fit, runs).spread(log_of_it).errors[0]))
        found.append(luck.shared)
    # Taken for independent, runs that share 90 % of their variance would have half the error.
    assert np.median(told) == pytest.approx(np.median(errors), rel=0.2)
    assert np.mean(found) == pytest.approx(shared, abs=0.1)


def test_what_further_runs_leave_is_what_the_whole_covariance_says():
    runs = with_luck(0)
    ratio, design = SHARED / (1 - SHARED), designs([3e7, 7e8], [2e9, 8e9])
    seen = laplace_posterior(HOFFMANN_2022, runs, design, [LARGE.functional], noise=NOISE, shared=SHARED)
    # The first model is in the table and the other is new: both unknown, as are the lucks of those in the table.
    assert seen.model.tolist() == [0, 1, 0, 1]
    assert seen.model_runs.any(axis=0).tolist() == [True, False]
    old, new = seen.run_slopes, seen.slopes
    taken = np.linalg.lstsq(old.T @ old, old.T, rcond=None)[0]
    alike = ratio * (runs.group[:, None] == runs.group) + np.eye(len(runs))
    known = np.linalg.inv(np.linalg.inv(taken @ alike @ taken.T) + np.eye(5) / PRIOR**2)
    assert seen.covariance == pytest.approx(known, rel=1e-4)
    luck = ratio / (1 + 4 * ratio)
    expected = [row - luck * old[runs.group == 0].sum(axis=0) for row in new[[0, 2]]]
    rows, lucks = np.stack([*expected, *new[[1, 3]]]), [luck, luck, ratio, ratio]
    shared = np.kron(np.eye(2), np.ones((2, 2))) * np.asarray(lucks) + np.eye(4)
    after = np.linalg.inv(np.linalg.inv(known) + rows.T @ np.linalg.inv(shared) @ rows)
    arrays = posterior_arrays([seen])
    with float64():
        assert np.asarray(sums(arrays, np.ones(4))["inverse"][0]) == pytest.approx(after, rel=1e-4)
        so_far = sums(arrays, np.asarray([1.0, 1.0, 0.0, 1.0]))
        one_more = with_run(arrays, so_far, 2)
        taken = np.asarray(one_more["taken"][0])
        assert np.asarray(one_more["inverse"][0]) - np.outer(taken, taken) == pytest.approx(after, rel=1e-4)


def test_a_second_budget_of_a_model_tells_less_than_the_same_run_of_another():
    runs = with_luck(0)
    twice = Design(params_active=np.asarray([6e9, 6e9, 6.001e9]), tokens=np.asarray([1e9, 2e9, 2e9]))
    seen = laplace_posterior(HOFFMANN_2022, runs, twice, [LARGE.functional], noise=NOISE, shared=SHARED)
    arrays = posterior_arrays([seen])
    same, another = (deviations(arrays, np.asarray(counts)) for counts in ([1, 1, 0], [1, 0, 1]))
    assert another < same


def test_laws_are_told_apart_by_the_same_sums_whether_a_run_is_added_or_counted():
    dense = dataclasses.replace(BUDGETS, params_total=1.0 * BUDGETS.params_active)
    table, wide = with_luck(0), designs([1e8, 4e8], [2e9, 8e9])
    runs = dataclasses.replace(table, design=dataclasses.replace(table.design, params_total=dense.params_total))
    mixtures = dataclasses.replace(wide, params_total=np.asarray([1.0, 16.0, 1.0, 16.0]) * wide.params_active)
    same = {name: getattr(HOFFMANN_2022, name) for name in vars(HOFFMANN_2022)}
    given = {"params_active": 1e9, "params_total": 64e9, "tokens": 1e12}
    arrays = posterior_arrays(
        [
            laplace_posterior(
                law, runs, mixtures, [prediction_estimand(type(law), given).functional], noise=NOISE, shared=SHARED
            )
            for law in (HOFFMANN_2022, EffectiveParams(**same, expansion_exponent=0.3))
        ]
    )
    with float64():
        before = sums(arrays, np.zeros(4))
        one_more = with_run(arrays, sums(arrays, np.asarray([0.0, 1.0, 0.0, 0.0])), 3)
        added, counted = (
            np.asarray(variances(arrays, after, before))
            for after in (one_more, sums(arrays, np.asarray([0.0, 1.0, 0.0, 1.0])))
        )
    assert added == pytest.approx(counted, rel=1e-6)


def test_a_run_may_be_repeated_where_that_is_allowed(posterior):
    counts = exchange(posterior_arrays([posterior]), CANDIDATES.flops, dataclasses.replace(BUDGET, repeats=5), None)
    assert counts.max() > 1
    assert counts.sum() <= BUDGET.runs


def test_an_answer_that_the_runs_leave_open_is_said_to_be_and_the_runs_that_settle_it_are_found():
    one_size = designs([1e8], [1e9, 2e9, 4e9, 8e9])
    (best,) = find("N*", decision_estimands(Chinchilla, {"flops": 1e23}), Chinchilla)
    seen = laplace_posterior(HOFFMANN_2022, measured(one_size), CANDIDATES, [best.functional], noise=NOISE)
    found = choose_runs([seen], CANDIDATES.flops, RunBudget(flops=1e21, runs=8))
    assert found.unidentified == ((True,),)
    assert found.still_unidentified == ((False,),)
    assert len(set(CANDIDATES.params_active[list(found.order)])) > 1


@pytest.mark.slow
def test_what_a_fit_lost_is_planned_for_as_published_and_the_runs_that_settle_it_do():
    (best,) = find("N*", decision_estimands(Chinchilla, {"flops": 1e21}), Chinchilla)
    found = propose(
        {"chinchilla": Chinchilla},
        measured(designs([1e8], np.geomspace(1e9, 1e11, 8))),
        of_table(runs_from(CANDIDATES, np.ones(48)), []),
        {"chinchilla": [best.functional]},
        RunBudget(flops=1e21, runs=12),
        starts=Sobol(256),
    )
    lost = found.fits["chinchilla"].unidentified
    assert lost
    assert found.assumed["chinchilla"] == {name: getattr(HOFFMANN_2022, name) for name in lost}
    assert found.plan.unidentified == ((True,),)
    assert found.plan.still_unidentified == ((False,),)
    new = list(found.plan.order)
    every = Design(
        **{
            name: np.r_[old, getattr(CANDIDATES, name)[new]]
            for name, old in (("params_active", np.full(8, 1e8)), ("tokens", np.geomspace(1e9, 1e11, 8)))
        }
    )
    after = fit_law(Chinchilla, measured(every), starts=Sobol(256))
    assert not after.unidentified
    off = np.log(float(best.functional(after.law)) / float(best.functional(HOFFMANN_2022)))
    # Before, nothing was known of it; .3 % of noise in 20 runs leave it within a fifth.
    assert abs(off) < 0.2


@pytest.mark.slow
def test_laws_that_agree_on_the_table_are_told_apart_where_they_differ():
    dense = designs([5e7, 1e8, 2e8], [1e9, 2e9, 4e9])
    table = dataclasses.replace(dense, params_total=1.0 * dense.params_active)
    grid = designs(np.geomspace(5e7, 2e8, 4), [1e9, 4e9])
    mixtures = dataclasses.replace(grid, params_total=16 * grid.params_active)
    both = {
        name: np.r_[np.asarray(getattr(grid, name)), np.asarray(getattr(mixtures, name))]
        for name in ("params_active", "tokens", "flops")
    }
    candidates = Design(**both, params_total=np.r_[grid.params_active, mixtures.params_total])
    given = {"params_active": 1e9, "params_total": 64e9, "tokens": 1e12}
    same = {name: getattr(HOFFMANN_2022, name) for name in vars(HOFFMANN_2022)}
    effective = EffectiveParams(**same, expansion_exponent=1.0)
    posteriors = [
        laplace_posterior(
            law,
            measured(table),
            candidates,
            [prediction_estimand(type(law), given).functional],
            noise=NOISE,
            weight=0.5,
        )
        for law in (HOFFMANN_2022, effective)
    ]
    apart = abs(posteriors[0].answers - posteriors[1].answers)
    assert apart > posteriors[0].deviations
    found = choose_runs(posteriors, candidates.flops, RunBudget(flops=1e20, runs=2))
    assert found.order[0] >= len(grid.tokens), "only a mixture tells them apart"
    assert found.after < 0.7 * found.before


@pytest.mark.slow
def test_where_the_fitted_law_has_no_answer_runs_are_planned_for_its_coefficients():
    def nothing(law):
        return -law.irreducible

    found = propose(
        {"chinchilla": Chinchilla},
        measured(TABLE),
        of_table(runs_from(CANDIDATES, np.ones(48)), []),
        {"chinchilla": [nothing]},
        BUDGET,
        starts=Sobol(64),
    )
    assert found.instead == ("irreducible", "params_scale", "params_exponent", "tokens_scale", "tokens_exponent")
    assert np.all(found.plan.after < found.plan.before)


SMALL = Architecture(
    vocab_size=257, model_dim=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, num_experts=8, top_k=2,
    expert_hidden=64,
)  # fmt: skip


def test_candidates_are_buildable_near_the_table_and_within_the_budget():
    table = Design(
        params_active=np.asarray([5e4, 4e5]), params_total=np.asarray([5e4, 1e6]), tokens=np.asarray([3e5, 1e6])
    )
    found = like(
        [SMALL], EffectiveParams.inputs, runs_from(table, [3.0, 2.5]), most_flops=2e12, sequence_length=128, count=64
    )
    assert len(found) == 64
    assert found.flops.max() <= 2e12
    assert found.design.params_active.max() <= 4 * 4e5 * (1 + 1e-9)
    assert found.design.params_active.min() >= 5e4
    # Four times the active parameters with four times the ratio to the total would be sixteen times the largest run.
    assert found.design.params_total.max() <= 4 * 1e6 * (1 + 1e-9)
    for architecture in found.architectures:
        architecture.check()
    assert len({a.num_experts for a in found.architectures}) > 3


@pytest.mark.parametrize(("times", "of_params"), [(None, True), (6.1, True), (8.0, False)])
def test_candidates_cost_as_the_runs_of_the_table_do(times, of_params):
    sizes = {"params_active": np.asarray([5e4, 4e5]), "tokens": np.asarray([3e5, 4e6])}
    counted = {} if times is None else {"flops": times * sizes["params_active"] * sizes["tokens"]}
    runs = runs_from(Design(**sizes, **counted), [3.0, 2.5])
    found = like([SMALL], ("params_active", "tokens"), runs, most_flops=2e14, sequence_length=128)
    product = 6 * found.design.params_active * found.design.tokens
    assert np.allclose(found.flops, product, rtol=1e-9) == of_params
    assert np.array_equal(found.flops, found.design.flops)


def test_candidates_have_ratios_near_those_of_the_table():
    table = Design(
        params_active=np.asarray([5e4, 4e5]), params_total=np.asarray([5e4, 1e6]), tokens=np.asarray([3e5, 4e6]),
        num_experts=np.asarray([0, 6]), top_k=np.asarray([0, 2]),
    )  # fmt: skip
    runs = runs_from(table, [3.0, 2.5])
    found = like([SMALL], EffectiveParams.inputs, runs, most_flops=2e14, sequence_length=128)
    assert found.design.num_experts.max() <= 2 * 6
    assert 6 / 2 <= found.design.tokens_per_param.min() <= found.design.tokens_per_param.max() <= 10 * 2
    assert found.design.expansion.max() <= 2 * 2.5 * (1 + 1e-9)
    farther = like([SMALL], EffectiveParams.inputs, runs, most_flops=2e14, sequence_length=128, reach=16.0)
    assert farther.design.num_experts.max() > 2 * 6
    assert farther.design.tokens_per_param.max() > 10 * 2


def test_models_that_are_mostly_vocabulary_are_candidates_only_if_there_are_no_others():
    table = runs_from(Design(params_active=np.asarray([5e4, 4e5]), tokens=np.asarray([3e5, 4e6])), [3.0, 2.5])

    def shares(vocab_size):
        given = SMALL.replace(vocab_size=vocab_size)
        found = like([given], ("params_active", "tokens"), table, most_flops=2e14, sequence_length=128)
        return [is_mostly_vocabulary(one) for one in found.architectures]

    assert not any(shares(700))
    assert all(shares(20_000))


def test_a_customary_vocabulary_suits_the_smallest_model_of_a_table():
    given = SMALL.replace(vocab_size=151_552)
    sizes = [customary_vocabulary(given, smallest) for smallest in (1e4, 2e6, 2e8, 1e10)]
    assert sizes == sorted(set(sizes)), "larger tables allow larger vocabularies"
    assert (sizes[0], sizes[-1]) == (256, 151_552)


def test_default_candidates_are_like_the_runs_of_a_small_table():
    active, experts = (a.ravel() for a in np.meshgrid([2e7, 6e7, 2e8], [1, 16, 32]))
    total = active * np.where(experts == 1, 1.0, 0.4 + 0.6 * experts / 2)
    design = Design(
        params_active=active, params_total=total, tokens=100 * active, num_experts=experts, top_k=1 + (experts > 1)
    )
    frame = pd.DataFrame({"params_active": active, "params_total": total, "tokens": design.tokens})
    frame = frame.assign(num_experts=experts, top_k=design.top_k, loss=3.0)
    read = read_runs(frame, EffectiveParams)
    found = candidates_like(read, EffectiveParams.inputs, {}, most_flops=1e20)
    assert found.design.params_active.min() < 1.1 * active.min()
    assert found.design.expansion.max() > (total / active).max()
    assert {a.top_k for a in found.architectures if a.is_moe} == {2}
    assert not all(a.is_moe for a in found.architectures)
    assert len({a.vocab_size for a in found.architectures}) == 1


def test_a_proposal_starts_from_a_table_and_says_what_it_was_fitted_to():
    runs = measured(TABLE)
    found = propose(
        {"chinchilla": Chinchilla},
        runs,
        of_table(runs_from(CANDIDATES, np.ones(48)), [f"row {i}" for i in range(48)]),
        {"chinchilla": [LARGE.functional]},
        BUDGET,
        starts=Sobol(256),
    )
    assert found.noise == pytest.approx(NOISE, rel=0.8)
    assert found.shared is None, "three models cannot show what luck theirs is"
    assert found.fits["chinchilla"].converged
    assert found.plan.after < found.plan.before


@pytest.mark.parametrize(
    ("budget", "says"), [(RunBudget(flops=1e10, runs=3), "cheapest candidate"), (RunBudget(flops=3e20, runs=5), None)]
)
def test_a_budget_that_buys_nothing_is_refused(posterior, budget, says):
    if says is None:
        assert choose_runs([posterior], CANDIDATES.flops, budget).order
        return
    with pytest.raises(ValueError, match=says):
        choose_runs([posterior], CANDIDATES.flops, budget)


def test_runs_that_scatter_so_far_that_they_tell_nothing_are_not_proposed():
    nothing = laplace_posterior(HOFFMANN_2022, measured(TABLE), CANDIDATES, [LARGE.functional], noise=1e12)
    with pytest.raises(ValueError, match=r"With a noise of 1e\+12 in log loss, no candidate"):
        choose_runs([nothing], CANDIDATES.flops, BUDGET)


@pytest.mark.parametrize("repeats", [1, 3])
def test_the_corner_of_a_budget_is_that_of_a_linear_program(repeats):
    rng = np.random.default_rng(repeats)
    for _ in range(20):
        cost, slope = 10 ** rng.uniform(16, 21, 60), -(10 ** rng.uniform(-5, 0, 60))
        budget = RunBudget(
            flops=cost.sum() * 10 ** rng.uniform(-3, 0.2), runs=int(rng.integers(1, 65)), repeats=repeats
        )
        limits = {"A_ub": np.stack([cost / budget.flops, np.ones(60) / budget.runs]), "b_ub": [1.0, 1.0]}
        best = scipy.optimize.linprog(slope, **limits, bounds=(0.0, float(repeats)))
        found = corner(slope, cost, budget)
        assert found @ cost <= budget.flops * (1 + 1e-9)
        assert found.sum() <= budget.runs * (1 + 1e-9)
        assert 0 <= found.min() <= found.max() <= repeats
        assert slope @ found == pytest.approx(best.fun, rel=1e-6)
