"""A launch is advised only on a law that predicted what was kept from it."""

import numpy as np
import pytest
from known_fit import known_runs

from moejax.fit.holdout import largest
from moejax.fit.launch_check import launch_check
from moejax.laws.effective_params import EffectiveParams
from moejax.report import render

HELD_OUT = largest(known_runs(0.001), "params_active", share=0.05)
PILOT = known_runs(0.001).where(np.arange(len(known_runs(0.001))) < 10)


def test_a_law_that_made_the_runs_may_be_launched_on():
    found = launch_check(EffectiveParams, known_runs(0.001), HELD_OUT, pilot=PILOT)
    assert found.go
    assert found.summary().title == "Launch check: go"


def test_without_a_pilot_nothing_is_launched():
    found = launch_check(EffectiveParams, known_runs(0.001), HELD_OUT)
    assert not found.go
    assert "no pilot was given" in render.text(found.summary())


@pytest.mark.parametrize(
    ("kept", "name"),
    [
        (np.arange(len(known_runs(0.001))) < 15, "at least 20 proxies"),
        (known_runs(0.001).design.params_active > 1e9, "active parameters span"),
    ],
)
def test_too_few_or_too_similar_proxies_are_named(kept, name):
    runs = known_runs(0.001).only(kept)
    found = launch_check(EffectiveParams, runs, largest(runs, "params_active", share=0.05), pilot=PILOT)
    assert [check.holds for check in found.checks if check.name.startswith(name)] == [False]


def test_a_pilot_off_its_prediction_stops_the_launch():
    off = PILOT.where(np.ones(10, bool))
    off.loss[3] += 0.1
    found = launch_check(EffectiveParams, known_runs(0.001), HELD_OUT, pilot=off)
    assert not found.go
    assert "too low" in render.text(found.summary())
