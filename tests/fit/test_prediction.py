"""A prediction's range holds what is measured as often as it says."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from known_fit import known_fit, known_resamples, known_runs, sweep

import moejax as mj
from moejax.fit.uncertainty.estimands import prediction_estimand
from moejax.fit.uncertainty.estimates import predict_run
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import CHAPTER_002, EffectiveParams


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
