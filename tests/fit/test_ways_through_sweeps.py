"""Minima of sweeps and their best rows: both are reported, and a difference beyond their intervals is a warning."""

import json

import numpy as np
import pandas as pd

from moejax.__main__ import main
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Squared
from moejax.fit.sweeps.ways_through_sweeps import ALIKE, BEST, MINIMA, ways_through_sweeps
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.laws.design import Design
from moejax.laws.formula_law import formula_law

LAW = formula_law("learning_rate = k*params_active^-a", ())
SIZE = np.geomspace(1e7, 1e9, 12)


def rates(exponent, seed=0, weight=None):
    noise = 0.01 * np.random.default_rng(seed).normal(size=len(SIZE))
    rate = 0.3 * SIZE**-exponent * np.exp(noise)
    return runs_from(Design(params_active=SIZE), rate, weight=weight, output="learning_rate")


def ways(minima, best):
    options = {"penalty": Squared(), "starts": 64}
    result = with_uncertainty(fit_law(LAW, minima, **options), minima)
    return ways_through_sweeps(result, minima, best, 0.9, how={}, **options)


def test_equal_optima_are_shown_in_three_ways_and_there_is_no_warning():
    found = ways(rates(0.5), rates(0.5, seed=1))
    assert found.warnings == ()
    assert [*found.ways] == [MINIMA, ALIKE, BEST]
    for way in found.ways.values():
        one = way.coefficients["a"]
        assert one.low < one.value < one.high


def test_minima_that_differ_from_best_rows_beyond_both_intervals_are_a_warning():
    (said,) = [one for one in ways(rates(0.45), rates(0.5, seed=1)).warnings if one.startswith("a is")]
    assert "each outside the other's interval" in said
    assert "finer grid" in said


def test_weights_that_decide_are_named():
    minima = rates(0.5)
    steep = np.arange(len(SIZE)) < 6
    bent = runs_from(
        Design(params_active=SIZE),
        np.where(steep, minima.loss * (SIZE / SIZE[5]) ** 0.08, minima.loss),
        weight=np.where(steep, 1.98, 0.02),
        output="learning_rate",
    )
    (said,) = [one for one in ways(bent, rates(0.46, seed=1)).warnings if one.startswith("a is")]
    assert "the weights cause the difference" in said


def test_fit_smooth_reports_all_three_ways(tmp_path, capsys):
    random, rows = np.random.default_rng(0), []
    for size in np.geomspace(5e7, 8e8, 6):
        for rate in 2.0 ** np.arange(-12, -5):
            loss = 3 + 0.02 * np.log(rate / (1.8 * size**-0.3)) ** 2 + 0.0005 * random.normal()
            rows.append({"params_active": size, "lr": rate, "loss": loss})
    table = tmp_path / "sweep.csv"
    pd.DataFrame(rows).to_csv(table, index=False)
    words = ["fit", str(table), "--form", "lr = k*params_active^-a", "--best-by", "lr", "--smooth", "--starts", "64"]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    minima = said["sweeps"]["ways"][MINIMA]["coefficients"]["a"]
    assert minima["value"] == said["law"]["coefficients"]["a"]
    assert minima["low"] < 0.3 < minima["high"]
    assert main(words) == 0
    assert "Coefficients from three reductions of the sweeps" in capsys.readouterr().out
