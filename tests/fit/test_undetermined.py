"""What the runs do not determine, or a search did not find, has a value and no standard error, range or interval."""

import dataclasses
from functools import cache

import numpy as np
import pandas as pd
import pytest
from known_fit import sweep

import moejax
from moejax.__main__ import main
from moejax.errors import UserError
from moejax.fit.answers import Answers
from moejax.fit.fit_result import ALSO_FITS, FitResult, from_json
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.starts import Sobol
from moejax.fit.selection.metrics import predict
from moejax.fit.summary import summary, tables
from moejax.fit.tables.column_names import law_of_formula
from moejax.fit.tables.read_runs import read_runs
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.fit.uncertainty.covariance import COVARIANCES, with_uncertainty
from moejax.fit.uncertainty.derivatives import deciding
from moejax.fit.uncertainty.estimands import coefficient_estimands, decision_estimands, prediction_estimand
from moejax.fit.uncertainty.estimates import estimate
from moejax.fit.uncertainty.undetermined import how_to_determine
from moejax.interval import Interval
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.laws.predict import published
from moejax.report import render
from moejax.report.laws import interval_in_words, interval_of
from moejax.result import Result

LOST = ["irreducible", "tokens_scale", "tokens_exponent"]
BUDGET = decision_estimands(Chinchilla, {"flops": 1e22})


@cache
def one_budget():
    """Runs of one number of tokens, and the fit to them: nothing separates E from B / D^beta."""
    design = dataclasses.replace(sweep(HOFFMANN_2022).design, tokens=np.full(120, 1e11))
    exact = predict(HOFFMANN_2022, runs_from(design, np.ones(120)))
    runs = runs_from(design, exact * np.exp(0.003 * np.random.default_rng(0).normal(size=120)))
    return with_uncertainty(fit_law(Chinchilla, runs), runs), runs


def test_coefficients_along_a_direction_that_no_run_tells_have_no_errors_and_the_others_keep_theirs():
    fit, _ = one_budget()
    assert fit.converged
    assert set(LOST) == {*fit.not_determined, *fit.unidentified}
    assert all(name in " ".join(fit.warnings) for name in LOST)
    errors = fit.conf_int()["std_err"]
    assert np.isnan(errors[LOST]).all()
    assert set(errors.dropna().index) == {"params_scale", "params_exponent"}
    many = dataclasses.replace(fit.law, **{n: np.full(20, v) for n, v in fit.coefficients.items()})
    resampled = Bootstrap(laws=many, values=np.zeros(20), unfinished=0, by="group", draws=120, fit=fit)
    assert {name for name, one in resampled.coefficients().items() if one.uninformative} == set(fit.not_determined)
    assert resampled.interval(lambda law: [law.irreducible, law.params_scale])[0].uninformative
    again = from_json(fit.to_json())
    assert again.not_determined == fit.not_determined
    text = render.text(fit.summary())
    assert text.count("not determined") + text.count("not set by the data") >= len(LOST)


def test_a_law_that_no_coefficient_moves_has_no_uncertainty_and_says_why():
    size = np.geomspace(1e7, 1e10, 12)
    table = pd.DataFrame({"params_active": size, "loss": 3 * (size / 1e7) ** -0.05})
    formula = "loss = exp(exp(exp(exp(A*params_active))))"
    runs = read_runs(table, formula).runs
    fitted = fit_law(law_of_formula(formula, table), runs, starts=Sobol(16))
    assert set(fitted.unidentified) == {"A"}
    for covariance in COVARIANCES:
        fit = with_uncertainty(fitted, runs, covariance=covariance)
        with pytest.raises(UserError, match="no standard errors and no intervals: the law's derivatives are 0"):
            fit.conf_int()
        assert "There are no standard errors: the law's derivatives are 0 at every run" in " ".join(fit.warnings)


def test_what_does_not_move_along_the_direction_is_known_and_what_does_has_a_reason_instead():
    fit, runs = one_budget()
    at, away = (Design(params_active=1e9, tokens=tokens) for tokens in (1e11, 1e12))
    found = interval_of(fit, at).interval
    assert found["low"] < fit.law(at) < found["high"] < 1.02 * found["low"]
    assert interval_of(fit, away).interval is None
    assert "irreducible" in interval_in_words(fit, interval_of(fit, away), beyond=True)
    sizes = Design(params_active=np.full(2, 1e9), tokens=np.array([1e11, 1e12]))
    np.testing.assert_array_equal(np.isnan(fit.prediction_intervals(sizes).low), [False, True])
    assert np.isfinite(fit.spread(lambda law: law(at)).errors)
    decided = estimate(fit, BUDGET)
    assert all(np.isfinite(one.value) and one.interval is None and "tokens" in one.reason for one in decided)
    text = " ".join(render.text(Result(tables=tables(Answers(decisions=decided)))).split())
    assert (
        ": the fitted runs do not determine irreducible, tokens_scale" in text.partition("There is no interval for")[2]
    )
    with pytest.raises(ValueError, match=r"fitted runs do not determine irreducible.*, on which this depends"):
        deciding(fit, runs, BUDGET[0].functional)


def test_a_fit_that_did_not_converge_gives_numbers_and_no_errors():
    fit, _ = one_budget()
    fit = dataclasses.replace(fit, converged=False, undetermined=())
    assert fit.conf_int()["std_err"].isna().all()
    assert fit.likely() is None
    (one,) = estimate(fit, coefficient_estimands(Chinchilla)[:1])
    assert np.isfinite(one.value)
    assert "did not converge" in one.reason
    assert "Standard errors: none, because the search did not converge" in render.text(fit.summary())


def test_laws_beside_a_direction_show_which_answers_move_with_it():
    fit, _ = one_budget()
    probes = fit.probes
    assert len(probes.laws.irreducible) == 2 * len(fit.undetermined) + len(fit.alternatives)

    def moved(answer):
        (middle,), (error,) = (lambda known: (known.middle, known.errors))(fit.uncertainty.spread(fit.law, answer))
        return probes.moved(
            answer(probes.laws), Interval(low=0.0, middle=middle, high=0.0, deviation=error, undefined=0.0)
        )

    assert moved(lambda law: law.irreducible)
    assert not moved(lambda law: law.params_scale)
    assert not moved(lambda law: law(Design(params_active=1e9, tokens=1e11)))


def test_what_runs_leave_open_has_an_option_that_holds_it_where_one_is_published():
    fit, _ = one_budget()
    (said,) = [warning for warning in fit.warnings if "fixed=" in warning]
    assert f'fixed={{"tokens_exponent": {HOFFMANN_2022.tokens_exponent:.4g}}} (Hoffmann et al. 2022' in said
    zhao = published("zhao")
    of_coupling = how_to_determine(zhao.law, ["experts_slope", "active_coupling", "irreducible"])
    assert f'fixed={{"active_coupling": {zhao.law.active_coupling:.4g}}} ({zhao.source})' in of_coupling
    assert 'fixed={"irreducible": VALUE}' in how_to_determine(zhao.law, ["irreducible"])
    assert how_to_determine(zhao.law, []) == ""


def test_intervals_of_resamples_that_were_stopped_are_not_said_to_be_narrow():
    fit, _ = one_budget()
    many = dataclasses.replace(fit.law, **{n: np.full(20, v) for n, v in fit.coefficients.items()})
    for unfinished, words in ((16, "how far the searches went"), (1, "still changing")):
        resampled = Bootstrap(laws=many, values=np.zeros(20), unfinished=unfinished, by="group", draws=120, fit=fit)
        said = render.text(summary(fit, answers=Answers(bootstrap=resampled.stored())))
        assert f"{unfinished} of 20 resamples were stopped" in said
        assert words in " ".join(said.split())
        assert "too narrow" not in said


def loss(n, d):
    return 1.7 + 400 / n**0.34 + 410 / d**0.28


def ladder(spread=0.0, seed=5):
    """Runs of 20 tokens per parameter, times what spreads them."""
    chance = np.random.default_rng(seed)
    n = np.geomspace(2e7, 2e9, 14)
    d = 20 * n * np.exp(spread * chance.normal(size=14))
    noise = np.exp(0.002 * chance.normal(size=14))
    return pd.DataFrame({"params_active": n, "params_total": n, "tokens": d, "loss": loss(n, d) * noise})


@pytest.fixture(scope="module")
def at_one_ratio():
    return moejax.fit(ladder(), "chinchilla")


def test_at_one_ratio_the_two_terms_may_be_exchanged(at_one_ratio):
    assert at_one_ratio.alternatives
    own, others = at_one_ratio.coefficients, at_one_ratio.alternatives
    exchanged = own["params_exponent"], own["tokens_exponent"]
    found = [(other["tokens_exponent"], other["params_exponent"]) for other in others]
    assert any(np.allclose(min(one), min(exchanged), rtol=0.1) for one in found)
    assert any((one[0] > one[1]) == (exchanged[0] > exchanged[1]) for one in found)
    assert {"params_exponent", "tokens_exponent"} & {*at_one_ratio.not_determined}
    assert any("Other laws of this form fit the runs equally well" in warning for warning in at_one_ratio.warnings)


def test_losses_are_known_at_the_ratio_of_the_runs_and_nowhere_else(at_one_ratio):
    larger = Design(params_active=np.array([4e9, 1e9]), tokens=np.array([8e10, 1e12]))
    found = at_one_ratio.prediction_intervals(larger)
    assert found.low[0] < loss(4e9, 8e10) < found.high[0]
    assert found.unknown == ("", ALSO_FITS)
    assert np.isnan(found.low[1])
    (one,) = estimate(at_one_ratio, [prediction_estimand(at_one_ratio.law, {"params_active": 1e9, "tokens": 1e12})])
    assert one.interval is None
    assert one.reason == ALSO_FITS


def test_how_to_split_a_budget_is_not_known(at_one_ratio, tmp_path, capsys):
    decided = estimate(at_one_ratio, decision_estimands(type(at_one_ratio.law), {"flops": 1e22}))
    assert not any(one.interval and not one.interval.uninformative for one in decided if one.symbol in "N*D*")
    path = str(at_one_ratio.save(tmp_path / "fit.json"))
    assert FitResult.load(path).alternatives == at_one_ratio.alternatives
    assert main(["design", "--law", path, "--flops", "1e22"]) == 0
    assert "(not determined by these runs)" in capsys.readouterr().out


def test_runs_at_other_ratios_leave_one_law():
    fit = moejax.fit(ladder(spread=1.0), "chinchilla")
    assert not fit.not_determined
    found = fit.prediction_intervals(Design(params_active=1e9, tokens=1e12))
    assert found.low[0] < loss(1e9, 1e12) < found.high[0]


def test_a_table_of_one_ratio_is_said_and_how_far_a_run_lies_beside_it():
    read = moejax.read_runs(ladder(), "chinchilla")
    assert any("tokens is 20 times params_active in all rows" in note for note in read.notes)
    assert not any(" times params_active in all" in note for note in moejax.read_runs(ladder(0.2), "chinchilla").notes)
    fit = moejax.fit(ladder(0.2), "chinchilla")
    row = fit.predict(Design(params_active=1e9, tokens=1e12)).iloc[0]
    assert "tokens_per_param" in row["beyond"]


def test_other_laws_are_held_against_the_errors_that_are_asked_about(at_one_ratio):
    def tokens_exponent(law):
        return law.tokens_exponent

    assert at_one_ratio.unknown(tokens_exponent, 1, np.array([0.0])) == (ALSO_FITS,)
    assert at_one_ratio.unknown(tokens_exponent, 1, np.array([1.0])) == ("",)
    assert at_one_ratio.unknown(tokens_exponent, 1, np.array([np.nan])) == (ALSO_FITS,)
