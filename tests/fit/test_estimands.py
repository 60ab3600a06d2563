"""Every number that a law decides has a name, is what its claim says, and can be differentiated."""

import dataclasses
import re
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from known_fit import known_fit, known_resamples, known_runs, sweep

import moejax as mj
from moejax.fit.answers import Answers, Decisive, asked_of
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.summary import summary, tables
from moejax.fit.uncertainty.bootstrap import bootstrap
from moejax.fit.uncertainty.derivatives import deciding
from moejax.fit.uncertainty.estimands import coefficient_estimands, decision_estimands, find, prediction_estimand
from moejax.fit.uncertainty.estimates import (
    Estimate,
    beyond,
    beyond_each,
    estimate,
    predict_run,
    reach,
    with_expansion_of_runs,
)
from moejax.fit.uncertainty.extrapolation import outside, sentences, where_decided
from moejax.fit.uncertainty.uncertainty import share_ends
from moejax.float64 import float64
from moejax.laws import DECISIONS, LAWS, PUBLISHED
from moejax.laws.claim import check
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.laws.law import coefficients
from moejax.laws.mixtures.dense_to_moe import DenseToMoe
from moejax.laws.mixtures.effective_params import CHAPTER_002, EffectiveParams, compute_optimal
from moejax.laws.mixtures.fewer_factors import FourFactor
from moejax.laws.mixtures.five_factor import ZHAO_2025, FiveFactor, best_active_experts
from moejax.laws.mixtures.marginal import MarginalActive, MarginalExperts, MarginalShared
from moejax.laws.mixtures.sparsity import ABNAR_2025, Sparsity
from moejax.quantities import format
from moejax.report import render
from moejax.report.leverage import leverage_under_law

UNPUBLISHED = {
    DenseToMoe: DenseToMoe(
        params_scale=400.0,
        params_exponent=0.34,
        experts_exponent=0.1,
        tokens_scale=410.0,
        tokens_exponent=0.28,
        irreducible=1.7,
    ),
    FourFactor: FourFactor(**{name: v for name, v in coefficients(ZHAO_2025).items() if not name.startswith("shared")}),
    MarginalActive: MarginalActive(active_scale=30.0, active_exponent=0.24, active_slope=1e-10, offset=2.0),
    MarginalExperts: MarginalExperts(experts_slope=0.01, experts_inverse=0.4, offset=2.0),
    MarginalShared: MarginalShared(shared_square=1.0, shared_slope=-0.6, offset=2.0),
}
GIVEN = {
    "flops": 1e22,
    "loss": 2.2,
    "error": 0.4,
    "accuracy": 0.6,
    "expansion": 8.0,
    "num_experts": 8.0,
    "expert_expansion": 8.0,
    "granularity": 4.0,
    "sparsity": 0.9,
    "params_total": 1e10,
    "params_active": 1e9,
}


def published(law):
    name = next(name for name, known in LAWS.items() if known is law)
    return UNPUBLISHED[law] if law in UNPUBLISHED else next(iter(PUBLISHED[name].values())).law


def every_decision(law):
    given = {rule.given: {name: GIVEN[name] for name in rule.given} for rule in DECISIONS[law]}
    found = [estimand for known in given.values() for estimand in decision_estimands(law, known)]
    return list({estimand.title: estimand for estimand in found}.values())


def shown(decided, runs=None):
    """What is printed of estimates and, if their runs are given, the warnings about extrapolation."""
    far = () if runs is None else beyond_each(decided, where_decided(runs))
    return render.text(Answers(decisions=decided, beyond=far).summary())


@pytest.mark.parametrize("law", DECISIONS, ids=lambda law: law.__name__)
def test_every_rule_gives_the_decisions_it_names_each_a_finite_number_with_its_own_name_and_letter(law):
    truth, estimands = published(law), every_decision(law)
    wanted = {(name, letter) for rule in DECISIONS[law] for name, letter in rule.gives.items()}
    assert {(estimand.name, estimand.symbol) for estimand in estimands} == wanted
    with float64():
        assert all(np.isfinite(float(estimand.functional(truth))) for estimand in estimands)
    taken = [
        name for estimand in (*estimands, *coefficient_estimands(law)) for name in (estimand.name, estimand.symbol)
    ]
    of_one_place = {(estimand.name, estimand.symbol) for estimand in (*estimands, *coefficient_estimands(law))}
    assert len({name for pair in of_one_place for name in pair}) == 2 * len(of_one_place), taken


def test_a_decision_at_a_sparsity_names_the_ratio_that_it_assumes_or_takes_one():
    size = np.geomspace(1e8, 1e9, 6)
    design = Design(params_total=10.3 * size, params_active=size, num_experts=32 + 0 * size, top_k=2 + 0 * size)
    runs = runs_from(dataclasses.replace(design, tokens=20 * size), np.ones(6))
    at = {"flops": 1e21, "sparsity": 0.9375}
    assumed, given = decision_estimands(Sparsity, at), decision_estimands(Sparsity, at | {"expansion": 10.3})
    assert [one.name for one in given] == [one.name for one in assumed]
    with float64():
        total, active, tokens, loss = (float(one.functional(ABNAR_2025)) for one in given)
        predicted = ABNAR_2025(Design(params_total=total, tokens=tokens, num_experts=32.0, top_k=2.0))
    assert (total / active, 6 * active * tokens, loss) == pytest.approx((10.3, 1e21, float(predicted)), rel=1e-6)
    assert loss != pytest.approx(float(assumed[-1].functional(ABNAR_2025)), rel=1e-4)
    said = Estimate(**assumed[0].naming, value=1.0, assumes=assumed[0].rule.assumes)
    (told,) = with_expansion_of_runs([said], runs)
    assert told == Estimate.from_json(told.to_json() | {"standard_error": None})
    assert "assumes N_a = (1-S)·N; give the expansion" in " ".join(shown((told,)).split())
    assert "(the fitted runs with this sparsity have an expansion of 10.3)" in " ".join(shown((told,)).split())
    (other,) = with_expansion_of_runs([Estimate(**given[0].naming, value=1.0)], runs)
    assert not other.assumes


def test_a_decision_reads_experts_by_the_ratio_that_the_law_reads_of_the_table():
    given = decision_estimands(LAWS["expert_count"], {"flops": 1e22, "num_experts": 32.0, "top_k": 2.0})[0].given
    assert given == {"flops": 1e22, "expert_expansion": 16.0}
    assert (
        decision_estimands(Sparsity, {"flops": 1e22, "num_experts": 32.0, "top_k": 2.0})[0].given["sparsity"] == 15 / 16
    )
    fitted = {"num_experts": (1.0, 64.0), "top_k": (1.0, 4.0), "expert_expansion": (1.0, 16.0)}
    assert not outside(reach(given), fitted)
    assert outside(reach({"expert_expansion": 32.0}), fitted) == {"expert_expansion": 2.0}
    with pytest.raises(ValueError, match="num_experts alone does not determine; give top_k too, or expert_expansion"):
        decision_estimands(LAWS["expert_count"], {"flops": 1e22, "num_experts": 32.0})
    with pytest.raises(ValueError, match=r"num_experts / top_k must be at least 1"):
        decision_estimands(LAWS["expert_count"], {"flops": 1e22, "num_experts": 2.0, "top_k": 4.0})


@pytest.mark.parametrize("law", DECISIONS, ids=lambda law: law.__name__)
@pytest.mark.matrix(4)
def test_every_decision_has_the_slope_that_small_changes_of_the_coefficients_show(law):
    truth = published(law)
    values, treedef = jax.tree.flatten(truth)
    for estimand in every_decision(law):
        with float64():

            def at(e_folds, of=estimand.functional):
                return of(
                    jax.tree.unflatten(treedef, [v * (1 + e_folds) for v, e_folds in zip(values, e_folds, strict=True)])
                )

            direction = np.linspace(0.5, 1.0, len(values))
            step = 1e-5
            _, slope = jax.jvp(jax.jit(at), (np.zeros(len(values)),), (direction,))
            measured = (float(at(step * direction)) - float(at(-step * direction))) / (2 * step)
            assert float(slope) == pytest.approx(measured, rel=1e-4, abs=1e-12), estimand.title


@pytest.mark.docs
@pytest.mark.parametrize("law", DECISIONS, ids=lambda law: law.__name__)
def test_the_fitting_guide_names_what_every_law_decides(law):
    guide = Path("docs/fitting.md").read_text().split("| law | given quantities | decisions |")[1].split("\n\n")[0]
    name = next(name for name, known in LAWS.items() if known is law)
    lines = [line.split(" | ") for line in guide.splitlines() if f"`{name}`" in line]
    told = {(given, letter) for _, given, named in lines for letter in re.findall(r"[A-Za-z_]+\*|EL|N_eff", named)}
    ours = {
        (", ".join(f"`{known}`" for known in rule.given) or "nothing", letter)
        for rule in DECISIONS[law]
        for letter in rule.gives.values()
    }
    assert told == ours, f"correct the rows of {name} in docs/fitting.md, 'What each law decides'"


def test_a_mixture_of_one_expert_has_no_leverage_and_more_experts_have_more():
    def leverage(expansion):
        (estimand,) = find(
            "EL", decision_estimands(EffectiveParams, {"flops": 1e22, "expansion": expansion}), EffectiveParams
        )
        with float64():
            return float(estimand.functional(CHAPTER_002))

    assert leverage(1.0) == pytest.approx(1.0, rel=1e-9)
    assert 1 < leverage(4.0) < leverage(16.0)


def test_the_compute_that_a_loss_costs_is_the_budget_whose_best_loss_it_is():
    given = {"flops": 1e22, "expansion": 8.0}
    with float64():
        (best,) = find("L*", decision_estimands(EffectiveParams, given), EffectiveParams)
        loss = float(best.functional(CHAPTER_002))
        (cost,) = decision_estimands(EffectiveParams, {"loss": loss, "expansion": 8.0})
        assert float(cost.functional(CHAPTER_002)) == pytest.approx(1e22, rel=1e-9)


def test_sizes_at_a_budget_are_those_of_the_claim_that_a_search_confirms():
    with float64():
        claim = compute_optimal(CHAPTER_002, 1e22, 8.0)
        assert check(claim).holds
        (size,) = find(
            "N_act*", decision_estimands(EffectiveParams, {"flops": 1e22, "expansion": 8.0}), EffectiveParams
        )
        assert float(size.functional(CHAPTER_002)) == pytest.approx(float(claim.value["params_active"]), rel=1e-12)


def test_abnars_sizes_spend_the_budget_at_the_sparsity():
    with float64():
        found = {
            estimand.symbol: float(estimand.functional(ABNAR_2025))
            for estimand in decision_estimands(Sparsity, {"flops": 1e20, "sparsity": 0.9})
        }
    assert 6 * found["N_a*"] * found["D*"] == pytest.approx(1e20, rel=1e-12)
    assert found["N_a*"] == pytest.approx(0.1 * found["N*"], rel=1e-12)


def test_what_a_law_decides_by_its_coefficients_alone_needs_nothing_given():
    found = {estimand.symbol: estimand for estimand in decision_estimands(FiveFactor)}
    assert [symbol for symbol, estimand in found.items() if estimand.is_share] == ["S*"]
    assert set(found) == {"G*", "S*"}
    assert found["G*"].functional(ZHAO_2025) == best_active_experts(ZHAO_2025)
    (exponent,) = decision_estimands(Chinchilla)
    with float64():
        wanted = HOFFMANN_2022.tokens_exponent / (HOFFMANN_2022.tokens_exponent + HOFFMANN_2022.params_exponent)
        assert float(exponent.functional(HOFFMANN_2022)) == pytest.approx(wanted, rel=1e-12)
    assert exponent.is_share
    assert decision_estimands(LAWS["kaplan"]) == []


@pytest.mark.parametrize(
    ("law", "given", "words"),
    [
        (
            Chinchilla,
            {"expansion": 8.0},
            r"has no decision for expansion.*moejax\.decide\(fit, flops=…\): optimal_params_active \(N\*\)",
        ),
        (Chinchilla, {"flops": 1e22, "expansion": 8.0}, "has no decision for expansion"),
        (Chinchilla, {"flops": -1.0}, "flops is -1; give a positive number"),
        (EffectiveParams, {"flops": 1e22, "expansion": 0.5}, "at least 1"),
        (Sparsity, {"flops": 1e22, "sparsity": 1.5}, "below 1"),
        (LAWS["kaplan"], {"flops": 1e22}, "kaplan has no decisions"),
        (
            EffectiveParams,
            {"flops": 1e22},
            r"effective_params has no decision for flops without expansion \(of params_total and params_",
        ),
    ],
)
def test_what_decides_nothing_is_a_sentence_with_what_would(law, given, words):
    with pytest.raises(ValueError, match=words):
        decision_estimands(law, given)


def test_a_name_that_is_not_known_is_answered_by_the_nearest_and_by_what_the_law_decides():
    estimands = [*coefficient_estimands(Chinchilla), *decision_estimands(Chinchilla, {"flops": 1e22})]
    with pytest.raises(ValueError, match=r"did you mean tokens_exponent.*optimal_tokens \(D\*\)"):
        find("tokens_exponnt", estimands, Chinchilla)
    assert [estimand.name for estimand in find("beta", estimands, Chinchilla)] == ["tokens_exponent"]


def test_a_run_is_described_by_what_the_law_reads():
    with pytest.raises(ValueError, match="also give tokens"):
        prediction_estimand(Chinchilla, {"params_active": 1e9})
    with pytest.raises(ValueError, match="A design has no size"):
        prediction_estimand(Chinchilla, {"size": 1e9})


def test_a_decision_has_a_standard_error_near_its_bootstrap_and_says_how_far_it_reaches():
    estimands = decision_estimands(EffectiveParams, {"flops": 1e25, "expansion": 8.0})
    resampled = bootstrap(known_fit(), known_runs(), 200)
    found = estimate(known_fit(), estimands, resampled=resampled)
    for one, alone in zip(found, estimate(known_fit(), estimands), strict=True):
        assert one.interval.low < one.value < one.interval.high
        assert alone.error == pytest.approx(one.interval.deviation, rel=0.5)
        # One error of a number, that of its interval.
        assert one.error == one.interval.deviation
    text = shown(found)
    assert "90% interval, bootstrap of 200 resamples by group" in text
    assert {one.by for one in found} == {resampled.method}
    assert text.count("flops = 1e+25, expansion = 8") == len(found)
    assert "Beyond the largest fitted run" in shown(found, known_runs())
    assert [one.symbol for one in found] == ["N_act*", "D*", "L*", "EL", "a*"]


def test_a_decision_outside_the_runs_in_a_ratio_is_said_as_one_in_a_size_is():
    def times(given):
        found = estimate(known_fit(), decision_estimands(EffectiveParams, given))
        return shown(found, known_runs()), beyond_each(found, where_decided(known_runs()))

    text, ((far),) = times({"flops": 1e21, "expansion": 128.0})
    assert far.times == {"expansion": pytest.approx(4.0)}
    assert "Beyond the largest fitted run: 4 times in expansion." in text
    assert times({"flops": 1e21, "expansion": 32.0})[1] == ()
    kept = known_runs().where(known_runs().design.params_total > 1.5 * known_runs().design.params_active)
    assert sentences(outside({"expansion": 1.0}, where_decided(kept))) == [
        "Below the smallest fitted run: 0.5 times in expansion."
    ]


def test_a_sparsity_and_a_predicted_run_are_held_to_the_ratios_of_the_runs():
    sizes = np.geomspace(1e8, 1e9, 12)
    design = Design(params_total=sizes, num_experts=np.tile([4.0, 20.0], 6), top_k=np.ones(12), tokens=100 * sizes)
    runs = runs_from(design, np.ones(12))
    assert beyond(reach({"sparsity": 0.95}), runs) == {}
    assert beyond(reach({"sparsity": 0.99}), runs) == {"expert_expansion": pytest.approx(5.0)}
    assert reach({"params_active": 2e8, "expansion": 8.0})["params_total"] == 16e8
    assert beyond(reach({"num_experts": 20.0, "top_k": 1.0, "params_total": 5e8}), runs) == {}


def test_without_resamples_a_decision_has_the_interval_of_its_standard_error_at_its_own_degrees_of_freedom():
    estimands = decision_estimands(EffectiveParams, {"flops": 1e25, "expansion": 8.0})
    found = estimate(known_fit(), estimands, level=0.8)
    for one, estimand in zip(found, estimands, strict=True):
        low, high = known_fit().spread(estimand.functional).ends(0.8, True)
        assert 0 < one.interval.low < one.value < one.interval.high
        if estimand.is_share:
            assert one.interval.high < 1
            continue
        np.testing.assert_allclose([one.interval.low, one.interval.high], [low[0], high[0]])
    assert "80% interval, from standard errors" in (text := shown(found))
    assert text.count("[") == len(found)
    assert {(one.by, one.level) for one in found} == {("from standard errors", 0.8)}
    assert [Estimate.from_json(one.to_json()) for one in found] == [*found]


def test_the_interval_of_a_share_lies_between_0_and_1_however_wide():
    middle, reach = np.array([0.02, 0.5, 0.97]), np.array([0.05, 0.6, 0.4])
    low, high = share_ends(middle, reach)
    assert (low > 0).all()
    assert (low < middle).all()
    assert (middle < high).all()
    assert (high < 1).all()
    low, high = share_ends(middle, 1e-6 * reach)
    np.testing.assert_allclose((high - middle, middle - low), (1e-6 * reach, 1e-6 * reach), rtol=1e-4)


def test_a_loss_that_no_compute_reaches_has_no_cost():
    found = estimate(known_fit(), decision_estimands(EffectiveParams, {"loss": 0.5, "expansion": 8.0}))
    assert "no answer" in shown(found)
    assert found[0].to_json()["value"] is None
    assert "under the fitted law the loss stays above" in shown(found)
    claim = decision_estimands(EffectiveParams, {"flops": 1e21, "expansion": 8.0})[0]
    nowhere = dataclasses.replace(claim, functional=lambda law: np.nan * law.irreducible)
    assert "gives no finite value" in estimate(known_fit(), [nowhere])[0].reason


def test_what_is_decided_at_an_end_of_the_search_says_which_and_nothing_there_has_an_interval():
    size, *others = decision_estimands(EffectiveParams, {"flops": 1e21, "expansion": 8.0})
    with float64():
        value = float(size.functional(known_fit().law))
    for ends, side in (((1.0, value), "upper"), ((value, 1e25), "lower")):
        rule = dataclasses.replace(size.rule, ends={size.name: ends})
        capped = [dataclasses.replace(one, rule=rule if one.rule is size.rule else one.rule) for one in (size, *others)]
        found = estimate(known_fit(), capped)
        assert [one.interval is None for one in found] == [True, True, True, False, False]
        assert f"optimal_params_active is at its {side} bound" in " ".join(shown(found).split())
        assert all(one.at_a_bound for one in found[:3])


def test_a_decision_that_no_coefficient_moves_is_constant():
    estimand = dataclasses.replace(
        decision_estimands(FiveFactor)[0], functional=lambda law: 0.999 + 0 * law.irreducible
    )
    (found,) = estimate(known_fit(), [estimand])
    assert "constant" in shown((found,))
    assert "not determined" not in shown((found,))
    assert found.to_json()["standard_error"] is None


def test_the_leverage_of_a_dense_model_is_1_without_an_interval():
    found = estimate(known_fit(), decision_estimands(EffectiveParams, {"flops": 1e21, "expansion": 1.0}))
    (leverage,) = (one for one in found if one.symbol == "EL")
    assert leverage.value == pytest.approx(1)
    assert leverage.interval is None
    assert "efficiency_leverage (EL) 1 (no fitted" in summary(known_fit(), 0.9, Answers(decisions=found)).lead[0]
    assert Estimate.from_json(leverage.to_json()).is_constant


def test_the_leverage_of_a_family_over_itself_has_no_interval():
    fit, moe = known_fit(), {"expansion": 4.0}
    rows = leverage_under_law("fit", fit.law, fit, ("A", "B"), (moe, moe), [1e21], level=0.9).to_frame()
    assert rows["leverage"][0] == pytest.approx(1)
    assert rows["low"].isna().all()
    over_dense = leverage_under_law("fit", fit.law, fit, ("A", "B"), (moe, {"expansion": 1.0}), [1e21], level=0.9)
    assert over_dense.to_frame().notna().all(axis=None)


def test_the_runs_that_decide_are_those_without_which_the_fit_decisions_otherwise():
    loss = np.array(known_runs().loss)
    loss[np.argmax(known_runs().design.tokens)] *= 1.2
    runs = dataclasses.replace(known_runs(), loss=loss)
    result = fit_law(Chinchilla, runs)
    found = deciding(result, runs, lambda law: law.tokens_exponent)
    assert len(found.runs) == 3
    kept = ~np.isin(np.arange(len(runs)), found.runs)
    again = fit_law(Chinchilla, runs.only(kept))
    assert found.without_all == pytest.approx(again.coefficients["tokens_exponent"], rel=1e-5)
    one = Decisive(
        name="tokens_exponent",
        symbol="beta",
        given={},
        rows=(1, 2, 3),
        runs=("a", "b", "c"),
        value=found.value,
        predicted=found.predicted,
        refitted=found.refitted,
        without_all=found.without_all,
    )
    (table,) = tables(Answers(influence=(one,)))
    assert [row[1] for row in table.rows] == ["none", "row 1 (a)", "row 2 (b)", "row 3 (c)", "all of these"]
    assert [row[2] for row in table.rows] == [found.value, *found.refitted, found.without_all]


def test_new_runs_fall_into_their_ranges_as_often_as_the_level_says():
    new = sweep(CHAPTER_002, noise=0.002, seed=9)
    found = known_fit().prediction_intervals(new.design, 0.8, known_resamples().spread)
    inside = (found.low < new.loss) & (new.loss < found.high)
    assert inside.mean() == pytest.approx(0.8, abs=0.12)


def test_far_beyond_the_table_the_range_widens_and_the_coefficients_are_to_blame():
    def at(size):
        design = Design(params_active=np.array([size]), params_total=np.array([8 * size]), tokens=np.array([20 * size]))
        return known_fit().prediction_intervals(design, spread=known_resamples().spread)

    near, far = at(1e9), at(1e14)
    assert (far.high / far.low)[0] > (near.high / near.low)[0]
    assert far.from_coefficients > near.from_coefficients


def test_a_share_of_answers_that_is_none_is_no_answer_and_the_reason_has_the_number():
    losses = np.linspace(2.2, 3.2, 12)
    noise = 0.005 * np.random.default_rng(0).normal(size=12)
    fit = mj.fit(pd.DataFrame({"x": losses, "accuracy": 1.5 - 0.28 * losses + noise}), "accuracy = a - b*x")
    (far, near) = fit.prediction_intervals(Design(columns={"x": np.array([20.0, 2.5])})).loss
    assert np.isnan(far)
    assert 0 < near < 1
    asked = prediction_estimand(type(fit.law), {"x": 20.0}, "accuracy")
    found = predict_run(fit, asked).to_json()
    assert found["accuracy"] is None
    assert "-4.1" in found["reason"]


def test_no_number_of_resamples_hides_the_lack_of_fit():
    found = known_fit().prediction_intervals(known_runs().design, spread=known_resamples().spread)
    assert (np.log(found.high / found.loss) > 1.6 * known_fit().metrics.rmse_log).all()


def test_the_mean_of_several_runs_falls_into_a_narrower_range_than_one():
    found = [known_fit().prediction_intervals(known_runs().design, weight=weight) for weight in (1.0, 16.0)]
    wide, narrow = (np.log(one.high / one.low) for one in found)
    assert (narrow < wide).all()
    assert (narrow > wide / 4).all(), "what coefficients do is alike in all of them"


def test_a_level_that_is_no_share_is_refused():
    with pytest.raises(ValueError, match=r"above 0 and at most 0\.9999"):
        known_fit().prediction_intervals(known_runs().design, level=90.0)


def test_resamples_of_no_more_groups_than_coefficients_say_nothing_of_a_run():
    asked = prediction_estimand(EffectiveParams, {"params_active": 1e9, "params_total": 8e9, "tokens": 2e10})
    few = dataclasses.replace(known_resamples(), draws=known_fit().free)
    by_errors, by_few, by_many = (predict_run(known_fit(), asked, one) for one in (None, few, known_resamples()))
    assert by_errors.to_json() == by_few.to_json() != by_many.to_json()


def test_latex_prints_the_coefficients_and_then_the_decisions():
    fit = known_fit()
    decisions = estimate(fit, decision_estimands(type(fit.law), {"flops": 1e22, "expansion": 4.0}))
    coefficients, decided = render.latex(summary(fit, 0.9, Answers(decisions=decisions))).split("\n\n")
    assert coefficients.count("\\\\") == 1 + len(fit.coefficients)
    assert decided.count("\\\\") == 1 + len(decisions)
    assert decided.count("tabular") == 2
    assert r"90\% interval, from standard errors \\" in decided
    assert (
        rf"$N_{{\mathrm{{act}}}}^*$ & $C = 1 \times 10^{{22}}$, expansion $= 4$ & {format(decisions[0].value)} & "
        in decided
    )


def test_a_fit_leads_with_what_to_train_or_how_to_ask():
    fit = known_fit()
    asked = asked_of(type(fit.law), "loss", (), decide=[{"flops": 1e22, "expansion": 4.0}])
    answers = Answers(decisions=estimate(fit, asked.decisions))
    said = summary(fit, 0.9, answers)
    decided = next(one for one in answers.decisions if one.name == "optimal_params_active" and one.given)
    assert said.tables[0].title == "Decisions"
    assert said.lead[0].startswith("At flops = 1e+22, expansion = 4: ")
    assert f"{format(decided.value)}, 90% interval {decided.interval.bounds()}" in said.lead[0]
    assert render.text(said).splitlines()[2] == said.lead[0]
    assert render.latex(summary(fit)).count("\\\\") == 1 + len(fit.coefficients)
    unasked = summary(fit)
    assert re.fullmatch(
        r"What to train: .*moejax\.decide\(fit, flops=(\de\d+), expansion=…\).* The budget of \1 FLOPs is an example\.",
        unasked.lead[0],
    )


def test_what_is_not_determined_is_said_first_with_the_reason():
    one = Estimate(name="n", symbol="N*", given={"flops": 1e22}, value=7e9, reason="tokens do not vary")
    lost = summary(known_fit(), 0.9, Answers(decisions=(one,)))
    assert lost.lead == ["At flops = 1e+22: n (N*) is not determined, because tokens do not vary (the fit has 7B)."]
