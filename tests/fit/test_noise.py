"""One run out of family is named, and moves neither the noise nor what is planned by it."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from known_fit import known_fit, known_runs

from moejax.fit.fit_result import FitResult, from_json
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Squared
from moejax.fit.search.starts import WarmStart
from moejax.fit.tables.read_runs import read_runs
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.fit.uncertainty.noise import noise, outliers
from moejax.laws.dense.chinchilla import Chinchilla
from moejax.laws.mixtures.effective_params import EffectiveParams


def spiked(run=17, loss=5.9):
    losses = np.where(np.arange(len(known_runs())) == run, loss, known_runs().loss)
    return dataclasses.replace(
        known_runs(), loss=losses, labels=tuple(f"row {i + 1}" for i in range(len(known_runs())))
    )


@pytest.fixture(scope="module")
def found():
    return fit_law(EffectiveParams, spiked(), starts=WarmStart((known_fit().law,)))


def test_noise_of_normal_residuals_is_their_standard_deviation():
    residuals = 0.01 * np.random.default_rng(0).normal(size=(400, 60))
    fitted = [noise(one, np.ones(60), 0) for one in residuals]
    assert np.mean(fitted) == pytest.approx(0.01, rel=0.02)


def test_noise_is_corrected_for_the_coefficients_that_were_fitted():
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(40, 6))
    left = np.eye(40) - slopes @ np.linalg.pinv(slopes)
    fitted = [noise(left @ (0.01 * rng.normal(size=40)), np.ones(40), 6) for _ in range(400)]
    assert np.mean(fitted) == pytest.approx(0.01, rel=0.05)


def test_noise_is_that_of_one_run_whatever_number_of_runs_each_is_the_mean_of():
    rng = np.random.default_rng(0)
    weight = np.array([1.0] * 20 + [16.0] * 40)
    means = 0.01 * rng.normal(size=(400, 60)) / np.sqrt(weight)
    assert np.mean([noise(one, weight, 0) for one in means]) == pytest.approx(0.01, rel=0.02)
    listed = [len(outliers(np.ones(60), np.exp(one), weight, 0, [f"run {i}" for i in range(60)])) for one in means]
    assert np.mean(np.array(listed) > 0) < 0.03


def test_a_spike_moves_the_noise_hardly_and_the_rmse_a_lot(found):
    assert found.metrics.rmse_log > 10 * known_fit().metrics.rmse_log
    assert found.noise == pytest.approx(known_fit().noise, rel=0.1)


def test_a_spike_is_named_with_its_row_and_the_r_squared_that_counts_it(found):
    (one,) = found.outliers
    assert (one.name, one.measured) == ("row 18", 5.9)
    (sentence,) = [text for text in found.warnings if "Outliers: " in text]
    assert "RMSE, AICc and BIC include it, so do not compare laws by these" in sentence
    assert "row 18 (loss 5.9, predicted" in sentence
    assert f"R² {found.metrics.r_squared:.3f}" in sentence
    assert from_json(found.to_json()).outliers == found.outliers


def test_a_fit_with_a_spike_comes_back_from_its_file(found, tmp_path):
    assert FitResult.load(found.save(tmp_path / "fit.json")).outliers == found.outliers


def test_a_spike_does_not_undo_what_the_runs_determine(found):
    assert found.unidentified_directions == known_fit().unidentified_directions


def test_runs_with_normal_noise_alone_are_all_of_one_family():
    assert known_fit().outliers == ()
    rng, named = np.random.default_rng(0), 0
    for _ in range(200):
        measured = np.exp(0.01 * rng.normal(size=50))
        named += bool(outliers(np.ones(50), measured, np.ones(50), 5, [""] * 50))
    assert named <= 6


def test_rounding_is_no_outlier():
    measured = np.ones(30)
    measured[3] += 5e-5
    assert outliers(np.ones(30), measured, np.ones(30), 5, [""] * 30) == ()


def table(losses, **columns):
    d = known_runs().design
    return pd.DataFrame({"params_active": d.params_active, "tokens": d.tokens, "loss": losses} | columns)


def notes(losses, **columns):
    return " ".join(read_runs(table(losses, **columns), Chinchilla).notes)


@pytest.mark.parametrize(
    ("noise_of_loss", "penalty", "said"), [(0.01, None, True), (0.001, None, False), (0.01, Squared(), False)]
)
def test_a_penalty_that_is_linear_in_most_residuals_is_said_with_what_uses_the_runs_better(
    noise_of_loss, penalty, said
):
    noisy = known_runs().loss * np.exp(noise_of_loss * np.random.default_rng(0).normal(size=len(known_runs())))
    runs = dataclasses.replace(known_runs(), loss=noisy)
    start = WarmStart((known_fit().law,))
    notes = " ".join(
        with_uncertainty(fit_law(EffectiveParams, runs, starts=start, penalty=penalty), runs).summary().notes
    )
    assert ("nearly a median regression" in notes) == said


def test_losses_like_perplexities_are_asked_about_with_the_remedy():
    assert 'If it is a perplexity, pass mapping={"loss": "log(loss)"}' in notes(np.exp(known_runs().loss))
    assert "perplexity" not in notes(known_runs().loss)
    read = read_runs(table(np.exp(known_runs().loss)), Chinchilla, mapping={"loss": "log(loss)"})
    np.testing.assert_allclose(read.runs.loss, known_runs().loss)


def test_a_loss_above_that_of_knowing_nothing_is_asked_about_with_its_row():
    losses = np.where(np.arange(len(known_runs())) == 4, 11.2, known_runs().loss)
    assert "diverge" not in notes(losses)
    found = notes(losses, vocab_size=50_304.0)
    assert "Row 5 (1 in all)" in found
    assert "The run may have diverged." in found
    assert "diverge" in notes(np.where(np.arange(len(known_runs())) == 4, 900.0, known_runs().loss))


def test_a_run_that_diverged_to_no_number_is_refused_with_the_remedy():
    losses = np.where(np.arange(len(known_runs())) == 4, np.nan, known_runs().loss)
    with pytest.raises(ValueError, match=r"row 5.*drop_invalid=True"):
        read_runs(table(losses), Chinchilla)
