"""Step Law and DeepSeek's law of rates and batches against what is released and against each other."""

import numpy as np
import pandas as pd
import pytest

import moejax
from moejax.fit.search.starts import Sobol
from moejax.laws.budget.step_law import PUBLISHED
from moejax.laws.design import Design
from moejax.laws.predict import predict, published

DENSE = [
    (214_663_680, 4_000_000_000, 0.002762, 262_144),
    (214_663_680, 100_000_000_000, 0.007812, 2_097_152),
    (429_260_800, 22_700_000_000, 0.001950, 393_216),
    (536_872_960, 10_000_000_000, 0.000977, 262_144),
    (1_073_741_824, 56_900_000_000, 0.001381, 524_288),
]
"""Parameters, tokens, and the learning rate and batch of the best of about 120 runs (step-law/steplaw, dense)."""
MIXTURES = [
    (2_150_612_992, 187_973_632, 2_000_000_000, 0.000345, 131_072),
    (2_150_612_992, 232_579_072, 20_000_000_000, 0.000977, 524_288),
    (2_155_174_912, 590_436_352, 8_000_000_000, 0.000488, 262_144),
    (2_156_188_672, 1_241_270_272, 4_000_000_000, 0.000488, 131_072),
]
"""All and active parameters, tokens, and the same of the best of about 45 runs (mixtures)."""
LAW = PUBLISHED["step-law-2025"].law


@pytest.mark.parametrize("sweep", DENSE)
def test_the_best_of_released_dense_sweeps_lie_near_the_law(sweep):
    params, tokens, rate, batch = sweep
    found = predict("step_law", Design(params_total=params, tokens=tokens)).values
    assert 0.5 < rate / found["learning_rate"] < 2
    assert 0.5 < batch / found["batch_tokens"] < 2


def test_mixtures_follow_the_law_by_all_their_parameters_and_not_by_the_active_ones():
    def misses(which):
        sizes = [(sweep[which], *sweep[2:4]) for sweep in MIXTURES]
        return [np.log(rate / float(LAW(Design(params_total=n, tokens=d))["learning_rate"])) for n, d, rate in sizes]

    assert np.abs(misses(0)).max() < np.log(1.8)
    assert np.abs(misses(1)).mean() > 2 * np.abs(misses(0)).mean()


def test_embeddings_do_not_count():
    with_embeddings = Design(params_total=1.2e9, params_embedding=2e8, tokens=1e11)
    plain = Design(params_total=1e9, tokens=1e11)
    assert predict(LAW, with_embeddings).values == pytest.approx(predict(LAW, plain).values)


def test_deepseek_s_law_by_compute_is_near_step_law_s_where_both_were_fitted():
    """Two teams, two data sets: a 1B model on 20 tokens a parameter."""
    size = Design(params_total=1e9, params_active=1e9, tokens=2e10, flops=1.2e20)
    by_size = predict("step_law", size).values
    by_compute = predict(published("hyperparameters", "deepseek-2024"), size).values
    assert 0.5 < by_compute["learning_rate"] / by_size["learning_rate"] < 2
    assert 0.5 < by_compute["batch_tokens"] / by_size["batch_tokens"] < 4


def test_best_rates_give_the_law_back_within_its_intervals():
    chance, rows = np.random.default_rng(0), []
    for params in np.geomspace(6e7, 1e9, 6):
        for ratio in (5.0, 20.0, 80.0, 320.0):
            exact = LAW(Design(params_total=params, tokens=ratio * params))
            rate = float(exact["learning_rate"]) * np.exp(chance.normal(0, 0.1))
            rows.append({"params_total": params, "tokens": ratio * params, "learning_rate": rate})
    read = moejax.read_runs(pd.DataFrame(rows), "step_law", loss="learning_rate")
    found = moejax.fit(read, "step_law", fixed={"batch_scale": 0.58, "batch_exponent": 0.571}, starts=Sobol(256))
    intervals = found.conf_int(0.99)
    for name in ("learning_rate_scale", "params_exponent", "tokens_exponent"):
        assert intervals.loc[name, "low"] < getattr(LAW, name) < intervals.loc[name, "high"], name


def test_a_fit_must_say_which_of_the_two_it_is_of():
    table = pd.DataFrame({"params_total": [1e8, 2e8], "tokens": [1e9, 2e9], "learning_rate": [1e-3, 2e-3]})
    with pytest.raises(ValueError, match=r"but a fit has one output. Name its column, such as loss=.learning_rate"):
        moejax.read_runs(table, "step_law")
