"""Printed 90 % intervals hold the truth about as often as they say, for groups of runs that share their luck too."""

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtrit

from moejax.fit.answers import Answers
from moejax.fit.fit_result import from_json
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import FitObjective, Huber, Squared
from moejax.fit.search.starts import WarmStart
from moejax.fit.selection.metrics import predict
from moejax.fit.summary import resampled, summary, tables
from moejax.fit.uncertainty import estimates
from moejax.fit.uncertainty.bootstrap import bootstrap
from moejax.fit.uncertainty.covariance import draws_at, with_uncertainty
from moejax.fit.uncertainty.derivatives import FitDerivatives, derivatives, psi_and_stiffness
from moejax.fit.uncertainty.estimands import decision_estimands
from moejax.fit.uncertainty.uncertainty import alone, satterthwaite, stretch
from moejax.laws import LAWS, NOT_SEARCHED
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.report import render
from moejax.result import Result

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import intervals as coverage  # pyright: ignore[reportMissingImports]
import law_tables  # pyright: ignore[reportMissingImports]


def fitted(setting, seed=0):
    runs = coverage.table(setting, seed)
    return fit_law(Chinchilla, runs, starts=WarmStart((HOFFMANN_2022,)), penalty=setting.penalty), runs


LEAST = 0.75
"""Share of 60 tables that an interval of .9 holds less often by luck once in 2,000 times."""


def hold_as_often_as_they_say(hits, at_most=0.97):
    """Check the mean coverage of all numbers, and the least of any.

    The numbers of a table share its noise, so their mean coverage has a standard error of 0.03 over 60 tables.
    """
    assert 0.83 <= np.mean([*hits.values()]) <= at_most, hits
    assert min(hits.values()) >= LEAST, hits


def test_intervals_of_forty_tables_hold_every_coefficient_and_the_best_size_as_often_as_they_say():
    hits = coverage.covered(coverage.Setting(10, 4, 0.003, 0.003), 40)
    assert hits.keys() == {"E", "A", "alpha", "B", "beta", "N*"}
    hold_as_often_as_they_say(hits)


def test_the_stiffness_of_noise_that_is_many_deltas_is_the_residuals_density_whatever_delta_is():
    residual = np.random.default_rng(0).normal(size=15)
    densities = [
        psi_and_stiffness(Huber(delta=delta), residual, np.ones(15), 3)[1] / (2 * delta) for delta in (1e-2, 1e-4, 1e-6)
    ]
    assert 0.2 < np.mean(densities[0]) < 0.6
    np.testing.assert_allclose(densities[1:], densities[:1] * 2, atol=0.02)


def medians(design, losses, delta):
    """Huber's regression of every row of losses on a design, by weights that are repeated until they stay."""
    weight = np.ones_like(losses)
    for _ in range(400):
        matrix, right = np.einsum("ri,tr,rj->tij", design, weight, design), (weight * losses) @ design
        residual = losses - np.linalg.solve(matrix, right[..., None])[..., 0] @ design.T
        weight = np.minimum(1, delta / np.maximum(np.abs(residual), 1e-12))
    return np.linalg.solve(matrix, right[..., None])[..., 0], -residual


def three_coefficients_of_fifteen_runs():
    size, ratio = np.repeat(np.linspace(-2, 2, 5), 3), np.tile([-1.0, 0.0, 1.0], 5)
    return np.column_stack([np.ones(15), size, ratio + 0.5 * size])


def five_coefficients_of_nine_runs():
    size, ratio = np.linspace(-2, 2, 9), np.tile([-1.0, 0.0, 1.0], 3)
    return np.column_stack([np.ones(9), size, ratio, size**2, size * ratio])


@pytest.mark.parametrize("designed", [three_coefficients_of_fifteen_runs, five_coefficients_of_nine_runs])
def test_intervals_of_few_runs_whose_noise_is_twenty_deltas_hold_the_truth_as_often_as_they_say(designed):
    random, penalty, design = np.random.default_rng(0), Huber(delta=0.05), designed()
    count, free = design.shape
    centers, residuals = medians(design, random.normal(size=(500, count)), penalty.delta)
    held = []
    for center, residual in zip(centers, residuals, strict=True):
        psi, stiffness = psi_and_stiffness(penalty, residual, np.ones(count), free)
        at = FitDerivatives(
            objective=FitObjective(Chinchilla, penalty),
            data={},
            weight=np.ones(count),
            point=center,
            jacobian=design,
            psi=psi,
            stiffness=stiffness,
        )
        draws = draws_at(at, np.arange(count))
        reach = stdtrit(satterthwaite(draws.leverages, draws.axes.T), 0.95) * np.sqrt(np.diag(draws.covariance))
        held.append(np.abs(center) <= reach)
    assert 0.885 <= np.mean(held) <= 0.945


@pytest.mark.slow
def test_a_coefficient_that_one_architecture_carries_alone_is_held_as_often_as_is_said():
    assert coverage.covered(coverage.Setting(20, 4, 0.003, 0.003, True, "lone"), 40)["gamma"] >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("setting", coverage.settings(), ids=str)
def test_intervals_of_every_kind_of_table_and_noise_hold_each_number_as_often_as_they_say(setting):
    hits = coverage.covered(setting, 60)
    print(f"{setting}: {np.mean([*hits.values()]):.3f}, {hits}")
    # Intervals of 15 runs are too wide rather than too narrow: 0.966 to 0.978 over 150 tables (docs/benchmarks.md).
    hold_as_often_as_they_say(hits, at_most=0.99 if setting.architectures * setting.budgets <= 15 else 0.97)


@pytest.mark.slow
@pytest.mark.parametrize("squared", [False, True], ids=["Huber", "Squared"])
def test_the_sandwich_holds_where_noise_grows_with_tokens(squared):
    hits = coverage.covered(coverage.Setting(40, 6, 0.0, 0.004, squared, growing=True), 60)
    assert 0.85 <= np.mean([*hits.values()]) <= 0.95, hits


def test_every_law_that_is_searched_has_a_made_up_table():
    names = {name.split()[0] for name in law_tables.made_up()}
    assert names - {"power_law"} == {n for n, law in LAWS.items() if law not in NOT_SEARCHED} - {"resources"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kaplan", "sparsity", "chinchilla error_from_loss"])
def test_intervals_of_a_law_hold_each_coefficient_and_what_lies_beyond_as_often_as_they_say(name):
    counts = coverage.recovered(law_tables.made_up()[name], 60)
    print(", ".join(coverage.in_words(*each) for each in counts.items()))
    # Of sparsity's tables a third lose the irreducible loss, and say so.
    known = {what: count["held"] / (count["held"] + count["missed"]) for what, count in counts.items()}
    hold_as_often_as_they_say(known)
    assert all(count["unknown"] + count["open"] <= 30 for count in counts.values())


def lone(expansions):
    """A fit whose architectures have these expansions."""
    setting = coverage.Setting(len(expansions), 4, 0.003, 0.003, True, "lone")
    runs = coverage.table(setting, 0)
    sizes = runs.design.params_active
    design = dataclasses.replace(runs.design, params_total=sizes * np.asarray(expansions)[runs.group])
    truth = coverage.KINDS["lone"][0]
    noise = runs.loss / predict(truth, runs)
    exact = predict(truth, runs_from(design, np.ones(len(runs))))
    runs = runs_from(design, exact * noise, group=runs.group)
    return fit_law(type(truth), runs, starts=WarmStart((truth,)), penalty=Squared()), runs


def freedom_of(result, runs, name):
    return float(with_uncertainty(result, runs).spread(lambda law: getattr(law, name)).degrees_of_freedom[0])


def warnings(result, runs):
    stored = with_uncertainty(result, runs).uncertainty
    assert stored is not None
    return stored.warnings


def test_a_number_has_as_many_degrees_of_freedom_as_draws_carry_it_whatever_is_said_of_the_others():
    one = lone([1.0] * 11 + [32.0] + [1.2])
    many = lone(np.geomspace(1, 32, 13))
    assert freedom_of(*one, "expansion_exponent") < 2 < 6 < freedom_of(*many, "expansion_exponent")
    assert freedom_of(*one, "tokens_exponent") > 6


def test_degrees_of_freedom_of_balanced_groups_are_those_of_a_t_test():
    """Satterthwaite's number for a mean over G equal groups is G - 1, exactly."""
    rows = np.full((4, 1), np.sqrt(1 / 24))
    leverages = [np.linalg.svd(rows, full_matrices=False)[1][:, None] for _ in range(6)]
    np.testing.assert_allclose(satterthwaite(leverages, np.array([[1.0], [-3.0]])), 5.0)
    # A slope of any size, as of a scale that the runs do not set, has the same number and no warning.
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = satterthwaite(leverages, np.array([[1e200], [1e-200], [np.inf], [np.nan], [0.0]]))
    np.testing.assert_allclose(found, [5.0, 5.0, 1.0, 1.0, 1.0])


def test_degrees_of_freedom_are_those_of_simulated_variances_where_one_draw_sets_a_direction_alone():
    """The variance is estimated 4,000 times from normal residuals; its mean and scatter give the degrees of freedom."""
    rng = np.random.default_rng(0)
    columns = rng.standard_normal((8, 3, 3))
    columns[:, :, 2] = np.arange(8)[:, None] == 0
    basis = np.linalg.qr(columns.reshape(24, 3))[0]
    pieces = [np.linalg.svd(own, full_matrices=False) for own in basis.reshape(8, 3, 3)]
    leverages = [size[:, None] * right for _, size, right in pieces]
    lost = alone(leverages, 3)
    np.testing.assert_allclose(np.trace(lost), 1.0)
    luck = rng.standard_normal((4000, 24))
    residuals = (luck - luck @ basis @ basis.T).reshape(-1, 8, 3)
    slopes = [
        e @ (left * size * stretch(size)) @ right
        for e, (left, size, right) in zip(residuals.swapaxes(0, 1), pieces, strict=True)
    ]
    seen = np.einsum("gtx,gty->txy", slopes, slopes)
    contrasts = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 2.0, 3.0]])
    variance = seen + np.trace(seen, axis1=1, axis2=2)[:, None, None] / 2 * lost
    found = np.einsum("ax,txy,ay->ta", contrasts, variance, contrasts)
    wanted = 2 * found.mean(axis=0) ** 2 / found.var(axis=0)
    np.testing.assert_allclose(satterthwaite(leverages, contrasts), wanted, rtol=0.15)


def test_runs_that_leave_no_residual_give_no_standard_error_and_it_is_said():
    design = Design(params_active=np.array([1e8, 3e8, 1e9, 3e9]), tokens=np.array([2e10, 2e9, 5e10, 6e9]))
    exact = predict(HOFFMANN_2022, runs_from(design, np.ones(4)))
    runs = runs_from(design, exact * np.array([1.001, 0.999, 1.002, 1.0]), group=np.arange(4))
    four = fit_law(Chinchilla, runs, fixed={"irreducible": 1.69}, starts=WarmStart((HOFFMANN_2022,)), penalty=Squared())
    for kind in ("sandwich", "gauss_newton"):
        assert not with_uncertainty(four, runs, covariance=kind).has_covariance
    (said,) = warnings(four, runs)
    assert "There are no standard errors" in said


def test_how_much_one_group_alone_sets_is_said():
    result, runs = lone([1.0] * 11 + [32.0] + [1.0])
    (said,) = warnings(result, runs)
    assert re.search(r": \d+ % of the variance is in a direction that no other", said)


def test_a_coefficient_that_rests_on_one_group_is_named_with_the_group():
    result, runs = lone([1.0] * 11 + [32.0] + [1.2])
    (said,) = warnings(result, runs)
    assert re.search(r"expansion_exponent depends mostly on one group \(run 45, run 46, run 47", said)
    assert re.search(r": 1 degree of freedom|: 1\.\d degrees of freedom", said)
    named = dataclasses.replace(runs, models=tuple(f"dense-{group}" for group in runs.group))
    assert "mostly on one group (dense-11, 4 rows)" in warnings(result, named)[0]
    assert said in with_uncertainty(result, runs).warnings
    assert not warnings(*lone(np.geomspace(1, 32, 13)))


def test_what_one_group_alone_tells_apart_is_said_and_has_an_error_as_if_its_luck_were_the_others():
    result, runs = lone([1.0] * 11 + [32.0] + [1.0])
    (said,) = warnings(result, runs)
    assert said.startswith("Only one group (run 45, run 46, run 47 and 1 more) separates expansion_exponent")
    errors = with_uncertainty(result, runs).conf_int()["std_err"]
    alike = with_uncertainty(result, runs, covariance="gauss_newton").conf_int()["std_err"]
    assert errors["expansion_exponent"] > 0.5 * alike["expansion_exponent"]


@pytest.mark.slow
def test_with_every_run_its_own_group_the_covariance_is_hc2():
    """MacKinnon and White (1985): for least squares, squared residuals over 1 - leverage, worked out in full."""
    result, runs = fitted(coverage.Setting(8, 4, 0.0, 0.01, squared=True))
    at = derivatives(result, runs)
    normal = np.linalg.inv(at.jacobian.T @ at.jacobian)
    leverage = np.einsum("rf,fg,rg->r", at.jacobian, normal, at.jacobian)
    meat = (at.jacobian.T * ((at.psi / 2) ** 2 / (1 - leverage))) @ at.jacobian
    np.testing.assert_allclose(draws_at(at, np.arange(len(runs))).covariance, normal @ meat @ normal, rtol=1e-6)


def test_an_interval_is_of_one_sign_and_holds_the_fit():
    result, runs = fitted(coverage.Setting(6, 4, 0.01, 0.01))
    for name, one in with_uncertainty(result, runs).conf_int().iterrows():
        assert 0 < one["low"] < result.coefficients[name] < one["high"], name


def test_no_more_groups_than_coefficients_is_said_of_standard_errors_and_of_the_bootstrap():
    result, runs = fitted(coverage.Setting(4, 8, 0.003, 0.003))
    few, known = "! 4 groups cannot determine the errors of 5 coefficients", with_uncertainty(result, runs)
    assert few in render.text(known.summary())
    assert "valid if residuals within a group are correlated, 4 groups" in render.text(known.summary())
    (sentence,) = (sentence for sentence in from_json(known.to_json()).warnings if few[2:] in sentence)
    assert 'group="COLUMN"' in sentence
    assert "cannot determine the errors" not in str(with_uncertainty(result, runs, by="run").summary())
    assert "cannot determine the errors" not in str(with_uncertainty(result, runs, covariance="gauss_newton").summary())
    by_group, by_run = (bootstrap(result, runs, 8, by=by).stored() for by in ("group", "run"))
    assert few in str(resampled(by_group))
    assert "cannot determine the errors" not in str(resampled(by_run))


def shown(decided):
    return render.text(Result(tables=tables(Answers(decisions=decided))))


def test_a_decision_has_the_interval_of_its_standard_error_where_resamples_are_of_too_few_groups():
    result, runs = fitted(coverage.Setting(4, 8, 0.003, 0.003))
    estimands = decision_estimands(Chinchilla, {"flops": 1e21})
    known = with_uncertainty(result, runs, by="run")
    alone = estimates.estimate(known, estimands)
    few = estimates.estimate(known, estimands, resampled=bootstrap(result, runs, 8))
    assert [one.interval for one in few] == [one.interval for one in alone]
    said = shown(few)
    assert "! 4 groups cannot determine the errors of 5 coefficients: intervals by resamples" in said
    assert "interval, from standard errors" in said
    assert "Student's t with df degrees of freedom" in said
    assert "cannot determine the errors" not in shown(alone)
    for one in few:
        plain = one.to_json()
        assert f" {one.degrees_of_freedom:.2g} " in said
        assert plain["interval"]["by"] == "from standard errors"
        assert plain["interval"]["degrees_of_freedom"] == one.degrees_of_freedom
    by_run = estimates.estimate(known, estimands, resampled=bootstrap(result, runs, 8, by="run"))
    assert all(one.by.startswith("bootstrap of ") for one in by_run)
    assert "degrees of freedom" not in shown(by_run)


def test_no_number_but_a_coefficient_has_an_interval_from_no_more_groups_than_coefficients():
    result, runs = fitted(coverage.Setting(4, 8, 0.003, 0.003))
    known = from_json(with_uncertainty(result, runs).to_json())
    few, estimands = (
        "4 groups cannot determine the errors of 5 coefficients",
        decision_estimands(Chinchilla, {"flops": 1e21}),
    )
    decided = estimates.estimate(known, estimands)
    for one in decided:
        assert (one.few, one.interval, one.without_interval) == (few, None, True)
        assert np.isfinite(one.value)
        assert np.isnan(one.error)
    said = render.text(summary(known, 0.9, Answers(decisions=decided)))
    assert f"no intervals: {few}." in said.splitlines()[2]
    assert f"! {few}: intervals would be too small and are not shown." in said
    assert np.isfinite(known.conf_int()["low"]).all()
    assert set(known.prediction_intervals(runs.design).unknown) == {few}
    assert known.likely() is None
    enough = with_uncertainty(result, runs, by="run")
    assert not any(one.few or one.interval is None for one in estimates.estimate(enough, estimands))


def test_one_group_says_nothing_of_how_groups_differ():
    result, runs = fitted(coverage.Setting(8, 4, 0.0, 0.01))
    alone = dataclasses.replace(runs, group=np.zeros(len(runs), int))
    assert not with_uncertainty(result, alone).has_covariance


def fitted_as_nothing():
    """A fit of runs whose luck makes an irreducible loss of .05 vanish."""
    truth = dataclasses.replace(HOFFMANN_2022, irreducible=0.05, params_exponent=0.2, tokens_exponent=0.2)
    sizes = np.repeat(np.geomspace(1e7, 1e9, 6), 4)
    design = Design(params_active=sizes, tokens=np.tile([10.0, 20.0, 40.0, 80.0], 6) * sizes)
    luck = np.exp(0.01 * np.random.default_rng(2).normal(size=24))
    runs = runs_from(design, predict(truth, runs_from(design, np.ones(24))) * luck, group=np.arange(24))
    return truth, fit_law(Chinchilla, runs, starts=WarmStart((truth,)), penalty=Squared()), runs


def test_what_luck_makes_vanish_may_be_off_and_widens_what_makes_up_for_it():
    """By finite differences of the law, with the irreducible loss free to be below 0."""
    truth, result, runs = fitted_as_nothing()
    values = result.coefficients
    assert values["irreducible"] < 1e-4
    steps = {name: 1e-4 * (1.0 if name == "irreducible" else value) for name, value in values.items()}

    def log_losses(**changed):
        return np.log(predict(Chinchilla(**(values | changed)), runs))

    each = [log_losses(**{n: values[n] + h}) - log_losses(**{n: values[n] - h}) for n, h in steps.items()]
    slopes = np.stack(each, axis=1) / 2
    miss = log_losses() - np.log(runs.loss)
    expected = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes)) * (miss @ miss) / (len(runs) - 5)) * [*steps.values()]
    errors = with_uncertainty(result, runs, covariance="gauss_newton").conf_int()["std_err"]
    assert np.isnan(errors["irreducible"])
    for name, error in zip(values, expected, strict=True):
        assert name == "irreducible" or errors[name] == pytest.approx(error, rel=1e-3), name
    low, high = with_uncertainty(result, runs).conf_int().loc["params_exponent", ["low", "high"]]
    assert low < truth.params_exponent < high


def test_drawn_laws_have_no_coefficient_of_the_other_sign_where_one_has_vanished():
    _, result, runs = fitted_as_nothing()
    drawn = with_uncertainty(result, runs).likely(drawn=True)
    assert drawn is not None
    irreducible = drawn.laws.irreducible
    assert (len(drawn.steps), len(irreducible)) == (200, 200)
    assert irreducible.min() > 0
    assert 0.01 < np.median(irreducible) < 2
