"""A fit's file answers without its runs: the ranges, the covariance and the omissions are in it."""

import dataclasses
import json
from functools import cache

import jax
import numpy as np
import pytest
from known_fit import known_fit, known_runs

from moejax.__main__ import main
from moejax.api.commands import design
from moejax.fit.fit_result import SCHEMA, FitResult, from_json
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Squared
from moejax.fit.search.starts import WarmStart
from moejax.fit.selection import metrics
from moejax.fit.uncertainty.covariance import draws_at, gauss_newton, with_uncertainty
from moejax.fit.uncertainty.derivatives import derivatives
from moejax.fit.uncertainty.estimands import decision_estimands
from moejax.fit.uncertainty.estimates import estimate
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.laws.law import coefficients
from moejax.laws.mixtures.routed import Routed
from moejax.laws.predict import predict, published
from moejax.report import render
from moejax.report.laws import interval_in_words, interval_of
from moejax.stored import write_json


@cache
def routed():
    """Runs in which experts are worth the same at every size, and a fit to them."""
    rng = np.random.default_rng(3)
    true = dataclasses.replace(published("routed").law, coupling=0.0)
    sizes, experts = (a.ravel() for a in np.meshgrid(np.geomspace(2e7, 2e9, 6), [2.0, 8.0, 32.0, 128.0, 512.0]))
    design = Design(params_active=sizes, num_experts=experts, top_k=np.ones(30))
    exact = runs_from(design, np.ones(30))
    runs = runs_from(design, metrics.predict(true, exact) * np.exp(0.01 * rng.normal(size=30)))
    return with_uncertainty(fit_law(Routed, runs, starts=WarmStart((true,))), runs), runs


SIZES = {"params_active": 1e12, "params_total": 4e12, "tokens": 2e13}


@cache
def stored_fit():
    return with_uncertainty(known_fit(), known_runs(), dropped=("Dropped: row 3.",))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return stored_fit().save(tmp_path_factory.mktemp("fit") / "fit.json")


@pytest.mark.parametrize("covariance", ["sandwich", "gauss_newton"])
def test_errors_from_the_file_are_those_of_the_covariance_in_the_coordinates_of_the_search(covariance):
    fit, runs = with_uncertainty(known_fit(), known_runs(), covariance=covariance), known_runs()
    at = derivatives(fit, runs, past_zero=True)
    wanted = draws_at(at, runs.group).covariance if covariance == "sandwich" else gauss_newton(at)
    stored = from_json(json.loads(json.dumps(fit.to_json())))
    for functional in (lambda law: law(Design(**SIZES)), lambda law: law):
        slopes = at.slopes(functional)
        errors = np.sqrt(np.einsum("af,fg,ag->a", slopes, wanted, slopes))
        np.testing.assert_allclose(stored.spread(functional).errors, errors, rtol=1e-6)


def test_an_error_is_finite_where_its_square_overflows():
    fit = stored_fit()
    one, huge = (fit.uncertainty.spread(fit.law, lambda law, unit=unit: unit * law.irreducible) for unit in (1, 1e200))
    np.testing.assert_allclose(huge.errors, 1e200 * one.errors)
    np.testing.assert_allclose(huge.degrees_of_freedom, one.degrees_of_freedom)


def test_drawn_laws_are_as_uncertain_as_the_fit_says_and_keep_their_signs():
    many = dataclasses.replace(stored_fit().uncertainty, degrees_of_freedom=10_000, leverages=())
    drawn = coefficients(many.draws(stored_fit().law, 4000).laws)
    for name, value in coefficients(stored_fit().law).items():
        share = many.spread(stored_fit().law, lambda law, name=name: coefficients(law)[name]).errors[0] / abs(value)
        assert np.std(np.log(drawn[name] / value)) == pytest.approx(share, rel=0.1)


def test_drawn_laws_of_a_fit_that_hardly_determines_its_coefficients_predict_the_fitted_runs():
    sizes, tokens = (a.ravel() for a in np.meshgrid(np.geomspace(2e8, 2e9, 3), np.geomspace(4e9, 4e10, 3)))
    exact = runs_from(Design(params_active=sizes, tokens=tokens), np.ones(9))
    noise = np.exp(0.01 * np.random.default_rng(0).normal(size=9))
    runs = runs_from(exact.design, metrics.predict(HOFFMANN_2022, exact) * noise, group=range(9))
    fit = with_uncertainty(fit_law(Chinchilla, runs, starts=WarmStart((HOFFMANN_2022,))), runs, by="run")
    point = Design(params_active=6e8, tokens=1.2e10)
    spread = fit.uncertainty.spread(fit.law, lambda law: law(point))
    drawn = np.asarray(jax.vmap(lambda law: law(point))(fit.uncertainty.draws(fit.law, 1000).laws))
    shares = np.abs(list(fit.uncertainty.spread(fit.law, lambda law: law).errors)) / np.abs(
        list(coefficients(fit.law).values())
    )
    assert max(shares) > 0.5, "a coefficient is hardly determined"
    assert abs(np.median(drawn) - spread.middle[0]) < 2 * spread.errors[0]
    assert np.subtract(*np.quantile(drawn, [0.95, 0.05])) < 3 * 3.3 * spread.errors[0]


def test_a_range_inside_the_runs_has_no_condition_and_one_beyond_them_has(file, capsys):
    for far, said in ((1.0, False), (1e4, True)):
        inside = {name: far * float(np.median(getattr(known_runs().design, name))) for name in SIZES}
        assert (
            main(["predict", "--law", str(file), *(f"--{n.replace('_', '-')}={v:g}" for n, v in inside.items())]) == 0
        )
        assert ("if the law's form holds" in " ".join(capsys.readouterr().out.split())) == said


def test_a_design_outside_the_runs_is_said_with_the_factor():
    largest = float(known_runs().design.tokens.max())
    said = predict(stored_fit(), Design(**{**SIZES, "tokens": 5 * largest}))
    assert said.extrapolated["tokens"] == pytest.approx(5)
    assert not said.unchecked


def test_a_ratio_outside_the_runs_is_said_by_the_file_too():
    said = predict(stored_fit(), Design(params_active=1e8, params_total=1e10, tokens=1e11))
    assert said.extrapolated == {"expansion": pytest.approx(100 / 32)}


def test_a_fit_that_is_read_back_shows_errors_and_intervals(file):
    fit = FitResult.load(file)
    text = render.text(fit.summary(level=0.8))
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    table = fit.conf_int(0.8)
    for name, one in table.iterrows():
        assert f"{one.std_err:.3g}" in lines[name]
        assert f"[{one.low:.4g}, {one.high:.4g}]" in lines[name]
    assert "80% interval, from standard errors" in [column.heading for column in fit.coefficient_table(0.8).columns]
    groups = len(np.unique(known_runs().group))
    assert f"(Bell and McCaffrey 2002), valid if residuals within a group are correlated, {groups} groups" in text


def test_how_far_a_design_lies_beyond_the_runs_in_flops_is_said_by_the_file_too():
    spent = float((6 * known_runs().design.params_active * known_runs().design.tokens).max())
    said = predict(stored_fit(), Design(**SIZES, flops=3 * spent))
    assert said.extrapolated["flops"] == pytest.approx(3)
    assert "flops" not in predict(stored_fit(), Design(**SIZES)).unchecked


@pytest.mark.slow
def test_a_design_by_a_fit_has_intervals_and_says_how_far_it_lies_beyond_the_runs():
    found = design(stored_fit(), flops=1e26, params_total=1e12, level=0.8)
    loss = found.intervals["loss"]
    assert loss.low < found.optimum.values["loss"] < loss.high
    assert (found.level, found.by) == (0.8, "200 laws drawn from the covariance")
    assert found.built.prediction.extrapolated["tokens"] > 1
    assert not design("chinchilla", flops=1e22).intervals
    with pytest.raises(ValueError, match="level is 90"):
        design(stored_fit(), flops=1e26, level=90.0)


@pytest.mark.parametrize("architectures", [4, 6])
def test_a_design_has_the_interval_of_decide_and_none_from_too_few_groups(architectures):
    count = 4 * architectures
    sizes, group = np.repeat(np.geomspace(1e8, 3e9, architectures), 4), np.repeat(np.arange(architectures), 4)
    sweep = Design(params_active=sizes, tokens=sizes * np.tile(np.geomspace(5, 100, 4), architectures))
    rng = np.random.default_rng(0)
    noise = 0.003 * (rng.standard_normal(architectures)[group] + rng.standard_normal(count))
    exact = metrics.predict(HOFFMANN_2022, runs_from(sweep, np.ones(count)))
    runs = runs_from(sweep, exact * np.exp(noise), group=group)
    fit = with_uncertainty(fit_law(Chinchilla, runs, starts=WarmStart((HOFFMANN_2022,))), runs)
    # Four groups move five coefficients along four ways: of the fifth rounding is no luck.
    assert [one > 0 for one in fit.uncertainty.deviations] == [architectures > 4, True, True, True, True]
    decided = estimate(fit, decision_estimands(Chinchilla, {"flops": 1e20})[:1])[0].interval
    designed = design(fit, flops=1e20).intervals
    if architectures == 4:
        assert (decided, designed) == (None, {})
    else:
        wanted = pytest.approx((decided.low, decided.high), rel=1e-6)
        assert (designed["params_active"].low, designed["params_active"].high) == wanted


def test_predict_and_design_say_what_the_file_knows(file, capsys):
    asked = [f"--{name.replace('_', '-')}={value:g}" for name, value in SIZES.items()]
    assert main(["predict", "--law", str(file), *asked]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert interval_in_words(stored_fit(), interval_of(stored_fit(), Design(**SIZES)), beyond=True) in shown
    assert "if the law's form holds that far" in shown
    assert "tokens" in shown
    assert "Dropped: row 3." in shown
    assert main(["design", "--law", str(file), "--flops", "1e27", "--params-total", "1e13", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["extrapolated"]["tokens"] > 1
    assert plain["intervals"]["loss"]["low"] < plain["intervals"]["loss"]["high"]


def test_a_fit_without_uncertainty_is_read_and_says_what_it_lacks():
    bare = from_json(dataclasses.replace(stored_fit(), uncertainty=None).to_json())
    assert interval_of(bare, Design(**SIZES)).interval is None
    assert "fit again" in interval_in_words(bare, interval_of(bare, Design(**SIZES)), beyond=False)
    assert predict(bare, Design(**SIZES)).unchecked


def test_a_file_of_an_older_schema_is_refused_with_what_to_do(tmp_path):
    write_json(tmp_path / "fit.json", stored_fit().to_json() | {"schema": SCHEMA - 1})
    with pytest.raises(ValueError, match=f"schema {SCHEMA - 1}, but this moejax reads schema {SCHEMA}; fit again"):
        FitResult.load(tmp_path / "fit.json")


def test_intervals_of_coefficients_hold_the_fit():
    for fit in (routed()[0], stored_fit()):
        table = fit.conf_int().drop(index=list(fit.without_error))
        assert ((table["low"] < table["value"]) & (table["value"] < table["high"])).all()


def test_a_coefficient_of_either_sign_that_runs_do_not_tell_from_nothing_has_an_interval_that_holds_0():
    low, high = routed()[0].conf_int().loc["coupling", ["low", "high"]]
    assert low < 0 < high
    drawn = coefficients(routed()[0].uncertainty.draws(routed()[0].law, 1000).laws)
    assert 0.05 < np.mean(np.sign(drawn["coupling"]) != np.sign(routed()[0].law.coupling)) < 0.5
    assert (drawn["params_slope"] < 0).all()


@cache
def lone_group():
    """Twenty groups of one size and one of another, which alone tells how loss depends on size; and their fit."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(21), 6)
    design = Design(params_active=np.where(group == 20, 1e9, 1e8), tokens=np.tile(np.geomspace(2e9, 5e10, 6), 21))
    exact = metrics.predict(HOFFMANN_2022, runs_from(design, np.ones(126)))
    noise = 0.005 * rng.standard_normal(21)[group] + 0.002 * rng.standard_normal(126)
    runs = runs_from(design, exact * np.exp(noise), group=group)
    result = fit_law(
        Chinchilla, runs, fixed={"irreducible": 1.69}, starts=WarmStart((HOFFMANN_2022,)), penalty=Squared()
    )
    return with_uncertainty(result, runs), runs


@pytest.mark.slow
def test_of_a_table_with_a_lone_group_intervals_from_the_file_are_those_from_the_runs():
    back = from_json(json.loads(json.dumps(lone_group()[0].to_json())))
    here = lone_group()[0].spread(lambda law: law)
    there = back.uncertainty.spread(back.law, lambda law: law)
    np.testing.assert_allclose(there.degrees_of_freedom, here.degrees_of_freedom, rtol=1e-3)
    np.testing.assert_allclose(there.ends(0.9, True), here.ends(0.9, True), rtol=1e-4)
    # Six digits are enough, as from a file that was rounded.
    digits = tuple(
        tuple(tuple(float(f"{x:.6g}") for x in row) for row in rows) for rows in lone_group()[0].uncertainty.leverages
    )
    rounded = dataclasses.replace(lone_group()[0].uncertainty, leverages=digits)
    np.testing.assert_allclose(
        rounded.spread(lone_group()[0].law, lambda law: law).degrees_of_freedom, here.degrees_of_freedom, rtol=1e-2
    )


@pytest.mark.parametrize("ranges", [{"nosuch": [1, 2]}, {"tokens": [0, 0]}, {"tokens": [5, 1]}, {"tokens": [-1, 1]}])
def test_a_range_that_no_field_can_have_is_refused_with_a_sentence(ranges):
    plain = stored_fit().to_json()
    with pytest.raises(ValueError, match=r"uncertainty\.ranges has '.*fit again"):
        from_json({**plain, "uncertainty": {**plain["uncertainty"], "ranges": ranges}})
