"""A score through the loss: two fits whose uncertainty travels together, saved, asked and decided with as one law."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

import moejax
from moejax.__main__ import main
from moejax.errors import UserError
from moejax.fit.chain import chain, with_loss_design
from moejax.fit.fit_result import FitResult
from moejax.fit.search.starts import Sobol
from moejax.fit.tables.read_runs import read_runs
from moejax.fit.uncertainty.bootstrap import bootstrap
from moejax.fit.uncertainty.estimands import decision_estimands
from moejax.fit.uncertainty.estimates import estimate
from moejax.laws.dense.chinchilla import Chinchilla, optimal_split
from moejax.laws.dense.loss_compute import LossCompute
from moejax.laws.design import Design, design_from
from moejax.laws.scores.accuracy_from_loss import AccuracyFromLoss
from moejax.laws.scores.chained_law import chained_law
from moejax.laws.scores.error_from_loss import ErrorFromLoss

LOSS = Chinchilla(irreducible=1.7, params_scale=400.0, params_exponent=0.34, tokens_scale=410.0, tokens_exponent=0.28)
ERROR = ErrorFromLoss(chance_error=0.85, gain_scale=2.1, gain_rate=0.75)
CHAINED = chained_law(Chinchilla, ErrorFromLoss)(**vars(LOSS), **vars(ERROR))
NOISE = {"loss": 0.003, "error": 0.004}
STARTS = Sobol(256)


def table(seed=0, sizes=8):
    chance, rows = np.random.default_rng(seed), []
    for params in np.geomspace(20e6, 1e9, sizes):
        for tokens in params * np.array([10.0, 20.0, 40.0, 80.0]):
            exact = LOSS.irreducible + 400 / params**0.34 + 410 / tokens**0.28
            loss = exact * np.exp(chance.normal(0, NOISE["loss"]))
            error = (0.85 - 2.1 * np.exp(-0.75 * loss)) * np.exp(chance.normal(0, NOISE["error"]))
            rows.append({"params_active": params, "tokens": tokens, "loss": loss, "error": error})
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def fitted():
    return moejax.fit(table(), "error_from_loss", loss_law="chinchilla", starts=STARTS)


LARGE = Design(params_active=7e9, tokens=1e12)


def test_ranges_of_shares_lie_between_0_and_1_and_those_of_percent_do_not():
    few = table(sizes=4)
    few["error"] = np.minimum(few["error"] * np.exp(0.2 * np.random.default_rng(1).normal(size=len(few))), 0.98)
    for factor in (1, 100):
        fit = moejax.fit(few.assign(error=factor * few["error"]), "error_from_loss", starts=STARTS)
        assert fit.is_share == (factor == 1)
        found = fit.prediction_intervals(design_from({"loss": np.array([2.0, 2.6, 3.4])}))
        assert (found.high[np.isfinite(found.high)] < 1).all() == (factor == 1)
        assert (found.low[np.isfinite(found.low)] > 0).all()


def test_a_chained_law_says_the_score_of_the_loss():
    loss = float(LOSS(LARGE))
    assert float(CHAINED(LARGE)["error"]) == pytest.approx(float(ERROR(design_from({"loss": loss}))["error"]))
    assert chained_law(Chinchilla, ErrorFromLoss) is type(CHAINED)
    step = 1e-3
    moved = float(CHAINED.score(loss * (1 + step))) / float(CHAINED.score(loss)) - 1
    assert float(CHAINED.elasticity(LARGE)) == pytest.approx(moved / step, rel=2e-2)


def test_a_run_beyond_the_fitted_ones_lies_in_the_range_of_its_score(fitted):
    predicted = fitted.predict(LARGE).iloc[0]
    assert predicted["low"] < float(CHAINED(LARGE)["error"]) < predicted["high"]
    assert 0.005 < predicted["high"] / predicted["low"] - 1 < 0.3


def test_the_intervals_hold_the_coefficients_of_both_laws(fitted):
    intervals = fitted.conf_int(0.99)
    for name, value in (vars(LOSS) | vars(ERROR)).items():
        assert intervals.loc[name, "low"] < value < intervals.loc[name, "high"], name


def test_the_variance_of_a_score_is_that_of_both_fits(fitted):
    """By hand: the loss's, through the slope of the score, and the score's own."""
    losses, scores = (read_runs(table(), law) for law in ("chinchilla", "error_from_loss"))
    of_loss, of_score = (
        moejax.fit(one, law, starts=STARTS) for one, law in ((losses, Chinchilla), (scores, ErrorFromLoss))
    )
    loss = float(of_loss.law(LARGE))
    slope = (float(fitted.law.score(loss + 1e-3)) - float(fitted.law.score(loss - 1e-3))) / 2e-3
    own = of_score.spread(lambda law: law(design_from({"loss": loss}))["error"]).errors[0]
    through = of_loss.spread(lambda law: law(LARGE)).errors[0] * slope
    both = fitted.spread(lambda law: law(LARGE)["error"])
    assert both.errors[0] == pytest.approx(np.hypot(own, through), rel=5e-3)
    # A run's own luck has both parts too.
    assert fitted.noise_at(Design(params_active=np.array([7e9]), tokens=np.array([1e12]))) == pytest.approx(
        np.hypot(of_score.noise, of_loss.noise * slope * loss / float(fitted.law(LARGE)["error"])), rel=5e-3
    )


def test_a_chained_fit_is_the_same_from_its_file(fitted, tmp_path):
    again = FitResult.load(fitted.save(tmp_path / "fit.json"))
    assert type(again.law) is type(fitted.law)
    assert again.coefficients == fitted.coefficients
    pd.testing.assert_frame_equal(again.predict(LARGE), fitted.predict(LARGE))


def test_what_the_law_of_the_loss_decides_is_decided_with_the_score(fitted):
    decided = {one.name: one for one in estimate(fitted, decision_estimands(type(fitted.law), {"flops": 1e23}))}
    best = optimal_split(fitted.law.loss_law, 1e23)
    assert decided["optimal_tokens"].value == pytest.approx(float(best["tokens"]), rel=1e-3)
    error = decided["optimal_error"]
    assert error.value == pytest.approx(float(fitted.law(Design(**best))["error"]), rel=1e-3)
    assert error.interval.low < error.value < error.interval.high


def test_the_flops_of_a_score_are_those_of_its_loss(fitted):
    (flops,) = estimate(fitted, decision_estimands(type(fitted.law), {"error": 0.42}))
    best = optimal_split(fitted.law.loss_law, flops.value)
    assert float(fitted.law(Design(**best))["error"]) == pytest.approx(0.42, rel=1e-3)
    (never,) = estimate(fitted, decision_estimands(type(fitted.law), {"error": 0.9}))
    assert "the error stays below 0.8" in never.reason


def test_scores_of_some_runs_are_chained_to_the_loss_of_all():
    frame = table(sizes=6)
    losses = read_runs(frame, "chinchilla")
    scores = read_runs(frame.iloc[4:], "error_from_loss")
    own = with_loss_design(losses.runs, losses.rows, scores.runs, np.arange(5, len(frame) + 1))
    assert len(own) == len(frame) - 4
    assert own.output == "error"
    with pytest.raises(UserError, match=r"Row 99 has a score but is not in the fit"):
        with_loss_design(losses.runs, losses.rows, scores.runs, np.arange(99, 99 + len(scores.runs)))


def test_laws_that_make_no_chain_are_refused_in_sentences(fitted):
    with pytest.raises(UserError, match="LossCompute reads flops; a law that is chained"):
        chained_law(Chinchilla, LossCompute)
    with pytest.raises(UserError, match="predicts accuracy; chain a score law to a loss law"):
        chained_law(AccuracyFromLoss, ErrorFromLoss)
    with pytest.raises(UserError, match="both have a coefficient slope"):
        moejax.fit(
            table().assign(accuracy=lambda t: 1 / t["loss"]),
            "accuracy_from_loss",
            loss_law="loss = E + slope/params_active^a",
        )
    with pytest.raises(UserError, match="give the file or DataFrame"):
        moejax.fit(read_runs(table(), "error_from_loss"), "error_from_loss", loss_law="chinchilla")
    with pytest.raises(UserError, match="combines a fit of the loss and a fit of the score"):
        bootstrap(fitted, read_runs(table(), "error_from_loss").runs, 2)


def test_a_fit_without_uncertainty_is_not_chained():
    frame = table(sizes=5)
    read = read_runs(frame, "error_from_loss")
    bare = dataclasses.replace(moejax.fit(read, ErrorFromLoss, starts=STARTS), uncertainty=None)
    with pytest.raises(UserError, match="has no covariance"):
        chain(dataclasses.replace(bare, law=LOSS), bare, read.runs)


def test_the_command_fits_decides_predicts_and_is_asked_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table().to_csv("runs.csv", index=False)
    asked = ["fit", "runs.csv", "--law", "error_from_loss", "--loss-law", "chinchilla", "--starts", "256"]
    assert (
        main([*asked, "--predict", "params_active=7B,tokens=1T", "--decide", "flops=1e23", "--out", "err", "--json"])
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    (predicted,) = said["predictions"]
    assert predicted["low"] < float(CHAINED(LARGE)["error"]) < predicted["high"]
    assert {"optimal_error", "optimal_params_active"} <= {one["name"] for one in said["decisions"]}
    assert len(pd.read_csv("err/predictions.csv")) == len(table())
    assert main(["predict", "--law", "./err", "--params-active", "7B", "--tokens", "1T", "--json"]) == 0
    (again,) = json.loads(capsys.readouterr().out)["predictions"]
    assert again["interval"]["low"] == pytest.approx(predicted["low"], rel=1e-6)
    assert main([*asked, "--bootstrap", "10"]) == 2
    assert "--loss-law and --bootstrap exclude each other" in capsys.readouterr().err
    assert main(["design", "--law", "./err", "--flops", "1e23"]) == 2
    assert "needs a law that predicts a loss or a leverage" in capsys.readouterr().err


def test_the_scores_of_the_largest_runs_are_held_out_with_their_losses(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = ["fit", "runs.csv", "--law", "error_from_loss", "--loss-law", "chinchilla", "--starts", "128"]
    predicted = []
    for wrong in (1.0, 1.2):
        frame = table(seed=2)
        largest = frame["params_active"] > 5e8
        frame.loc[largest, ["loss", "error"]] *= wrong
        frame.to_csv("runs.csv", index=False)
        assert main([*asked, "--hold-out", "params_active:5e8", "--out", "err"]) == 0
        assert "held_out.csv to err." in capsys.readouterr().err
        held = pd.read_csv("err/held_out.csv")
        assert len(held) == largest.sum()
        assert held["measured"].to_numpy() == pytest.approx(frame["error"][largest].to_numpy())
        predicted.append(held[["predicted", "low", "high"]].to_numpy())
        if wrong == 1.0:
            assert ((held["low"] < held["measured"]) & (held["measured"] < held["high"])).mean() > 0.7
    np.testing.assert_allclose(predicted[0], predicted[1], rtol=1e-6)
    assert (tmp_path / "err/fit.json").exists()
