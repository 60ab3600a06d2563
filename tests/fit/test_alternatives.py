"""Laws that fit the runs as well: what they answer otherwise has no interval."""

import numpy as np
import pandas as pd
import pytest

import moejax
from moejax.__main__ import main
from moejax.fit.fit_result import ALSO_FITS, FitResult
from moejax.fit.uncertainty.estimands import decision_estimands, prediction_estimand
from moejax.fit.uncertainty.estimates import estimate
from moejax.laws.design import Design


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
    assert any("Other laws of this form fit the runs as well" in warning for warning in at_one_ratio.warnings)


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
