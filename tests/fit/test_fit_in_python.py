"""``moejax.fit``: a table, a law and options in one call."""

import numpy as np
import pandas as pd
import pytest

import moejax
from moejax.fit.search.objective import Huber, Squared

SIZES = [(n, d) for n in (1e7, 2e7, 4e7, 8e7) for d in (2e8, 8e8, 3.2e9)]


def swept():
    """Twelve runs at three learning rates each, of which the middle one is the best."""
    chance = np.random.default_rng(0)
    return pd.DataFrame(
        {"n_params": n, "tokens": d, "lr": lr, "val_loss": (1.7 + 400 / n**0.34 + 410 / d**0.28) * worse * luck}
        for n, d in SIZES
        for lr, worse in ((5e-4, 1.03), (1e-3, 1.0), (2e-3, 1.02))
        for luck in np.exp(0.002 * chance.normal(size=1))
    )


def test_options_of_reading_and_of_the_fit_are_given_together_and_notes_are_said(capsys):
    found = moejax.fit(swept(), "chinchilla", best_by="lr", penalty="squared", starts=64)
    assert found.metrics.runs == len(SIZES)
    assert found.penalty == Squared()
    assert "24 of 36 rows, which are not the best over lr" in capsys.readouterr().err
    every = moejax.fit(swept(), "chinchilla", delta=0.01, starts=64)
    assert (every.metrics.runs, every.penalty) == (36, Huber(delta=0.01))
    assert 'pass best_by=["lr"]' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"best_bi": ["lr"]}, "option 'best_bi' is unknown; did you mean best_by"),
        ({"penalty": "squarred"}, "must be huber or squared; got squarred"),
        ({"penalty": "squared", "delta": 0.1}, 'penalty="squared" has no `delta`'),
        ({"penalty": Huber(), "delta": 0.1}, "residual and delta apply to a penalty given by name"),
        ({"penalty": 3}, "penalty is 3; give one of"),
        ({"seed": -1}, "seed must be a whole number of at least 0; got -1"),
        ({"starts": 0}, "starts must be at least 1; got 0"),
    ],
)
def test_options_that_cannot_be_are_sentences(options, says):
    with pytest.raises(ValueError, match=says):
        moejax.fit(swept(), "chinchilla", **options)


def test_runs_that_are_read_already_take_no_option_of_reading():
    read = moejax.read_runs(swept(), "chinchilla")
    with pytest.raises(ValueError, match=r"these runs have already been read\. Pass it to moejax\.read_runs"):
        moejax.fit(read, "chinchilla", best_by=["lr"])


def test_a_single_condition_needs_no_list():
    found = moejax.fit(swept(), "chinchilla", where="lr == 1e-3", starts=32)
    assert found.metrics.runs == len(SIZES)
