"""Runs that were not fitted have ranges, and as many lie in theirs as is said."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from known_fit import known_runs, sweep

from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Squared
from moejax.fit.search.starts import WarmStart
from moejax.fit.selection.held_out_runs import COLUMNS, TestedRuns, coverage, held_out_runs
from moejax.fit.selection.holdout import folds, hold_out, largest, split_of
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import design_from
from moejax.laws.formula_law import formula_law
from moejax.laws.mixtures.effective_params import CHAPTER_002, EffectiveParams

NEAR = {"starts": WarmStart((HOFFMANN_2022,)), "penalty": Squared()}


def ranges(splits, level=0.9):
    """Runs that were not fitted, of a table whose rows begin at 1."""
    return held_out_runs(splits, np.arange(1, len(splits[0].fitted) + 1), level)


def test_of_runs_with_independent_luck_as_many_lie_in_their_ranges_as_is_said():
    tables = [sweep(HOFFMANN_2022, noise=0.004, count=24, seed=seed) for seed in range(6)]
    fitted = [hold_out(Chinchilla, runs, folds(runs, 3), **NEAR) for runs in tables]
    for level in (0.5, 0.9):
        found = pd.concat(ranges(splits, level) for splits in fitted)
        assert len(found) == 144
        assert coverage(found).inside / 144 == pytest.approx(level, abs=0.07)


def test_every_run_of_a_fold_is_there_once_with_its_row_and_what_was_predicted_without_it():
    runs = known_runs()
    splits = hold_out(EffectiveParams, runs, folds(runs, 3), starts=WarmStart((CHAPTER_002,)))
    found = held_out_runs(splits, np.arange(len(runs)) + 7).sort_values("row")
    assert found["row"].tolist() == list(range(7, len(runs) + 7))
    np.testing.assert_array_equal(found["measured"], runs.loss)
    for split in splits:
        own = found[found["split"] == split.name]
        np.testing.assert_allclose(own["predicted"], split.predicted, rtol=1e-12)
    half = np.log(found["high"] / found["predicted"])
    np.testing.assert_allclose(found["half_ranges"], np.log(found["measured"] / found["predicted"]) / half, rtol=1e-6)


def test_a_form_that_fails_beyond_its_runs_is_said_to_have_too_narrow_ranges():
    runs = sweep(CHAPTER_002, noise=0.002, count=60)
    split = largest(runs, "tokens")
    bent = dataclasses.replace(runs, loss=np.where(split.held_out, runs.loss * 0.9, runs.loss))
    found, right = (
        coverage(ranges(hold_out(EffectiveParams, table, [split], starts=WarmStart((CHAPTER_002,)))))
        for table in (bent, runs)
    )
    assert found.too_few
    assert "at such distances, are too narrow" in found.sentence
    assert not right.too_few
    assert found.ranged == right.ranged == split.held_out.sum()


def test_where_the_fitted_runs_do_not_determine_the_law_there_is_no_range_and_the_reason_is_said():
    runs = sweep(HOFFMANN_2022, noise=0.002, count=16)
    one_size = np.where(np.arange(16) < 12, runs.design.tokens[0], runs.design.tokens)
    runs = dataclasses.replace(runs, design=dataclasses.replace(runs.design, tokens=one_size))
    last_four = split_of(runs, "the last four", np.arange(16) >= 12)
    found = ranges(hold_out(Chinchilla, runs, [last_four], **NEAR))
    assert found["half_ranges"].isna().all()
    assert found["reason"].str.len().min() > 0
    assert coverage(found).sentence == "No held-out run has a prediction interval."
    assert all(one["low"] is None and one["reason"] for one in TestedRuns.of(found).to_json()["runs"])


def test_plain_data_give_the_table_back():
    runs = sweep(HOFFMANN_2022, noise=0.004, count=24)
    found = ranges(hold_out(Chinchilla, runs, folds(runs, 3), **NEAR))
    again = TestedRuns.from_json(TestedRuns.of(found).to_json())
    pd.testing.assert_frame_equal(again.runs, found[list(COLUMNS)], check_dtype=False)
    first, *_, last = again.farthest(24)["half_ranges"].abs()
    assert (first, last) == (found["half_ranges"].abs().max(), found["half_ranges"].abs().min())


LINE = formula_law("error = c + m*loss", signs={"c": "any", "m": "any"}, known={"error": "error", "loss": "loss"})


def errors_that_stop_falling():
    """Runs whose error falls on a line down to a loss of 2.5 and no further."""
    loss = np.linspace(2.2, 3.6, 30)
    chance = np.random.default_rng(0).normal(0, 0.02, 30)
    error = (np.maximum(0.5 * (loss - 2.5), 0) + 0.02) * np.exp(chance)
    return runs_from(design_from({"loss": loss}), error, output="error"), loss < 2.45


def test_what_is_held_out_does_not_move_the_fit_though_its_prediction_is_not_above_0():
    runs, low = errors_that_stop_falling()
    (found,) = hold_out(LINE, runs, [split_of(runs, "low losses", low)], penalty=Squared(residual="nats"))
    alone = fit_law(LINE, runs.where(~low), penalty=Squared(residual="nats"))
    assert found.fit.converged
    assert found.fit.coefficients == pytest.approx(alone.coefficients, rel=1e-5)


@pytest.mark.filterwarnings("error")
def test_a_run_of_which_the_law_predicts_nothing_above_0_has_no_range_and_a_reason():
    runs, low = errors_that_stop_falling()
    low[-1] = True
    splits = hold_out(LINE, runs, [split_of(runs, "low losses", low)], penalty=Squared(residual="nats"))
    found = ranges(splits)
    below = found["predicted"] <= 0
    assert below.any()
    assert all("a share of answers is between 0 and 1" in why for why in found["reason"][below])
    assert found["half_ranges"][below].isna().all()
    assert np.isfinite(found["half_ranges"][~below]).all()


def test_a_range_is_not_narrower_than_the_rounding_of_a_number():
    runs = sweep(HOFFMANN_2022, noise=0, count=24)
    found = ranges(hold_out(Chinchilla, runs, folds(runs, 3), **NEAR))
    assert coverage(found).ranged == 24
    away = np.log(found["measured"] / found["predicted"]).abs()
    assert (found["half_ranges"].abs() <= away / 1e-12).all()


def test_every_split_that_is_fitted_is_told_before_it_takes_its_time():
    runs, told = sweep(HOFFMANN_2022, noise=0.004, count=24), []
    hold_out(Chinchilla, runs, folds(runs, 3), progress=lambda *given: told.append(given), **NEAR)
    assert told == [("holding out", number, 3) for number in range(3)]
