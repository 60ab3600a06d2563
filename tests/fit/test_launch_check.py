"""A launch is advised only on a law that predicted what was kept from it."""

import numpy as np
import pytest
from known_fit import known_runs

from moejax.fit.holdout import largest
from moejax.fit.launch_check import launch_check
from moejax.fit.metrics import predict
from moejax.fit.runs import runs_from
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
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


def outcomes(law, exact, design, models):
    """What a launch check finds of runs that a law predicts, some to a model, with .1 % of noise."""
    count = len(design.tokens)
    noise = np.exp(0.001 * np.random.default_rng(0).normal(size=count))
    loss = predict(exact, runs_from(design, np.ones(count))) * noise
    runs = runs_from(design, loss, group=np.arange(count) % models)
    return {check.name: check for check in launch_check(law, runs, largest(runs, "tokens")).checks}


def test_budgets_of_one_model_are_one_proxy():
    active = np.tile(np.geomspace(1e7, 2e9, 7), 4)
    design = Design(params_active=active, tokens=active * np.repeat([5, 10, 20, 80], 7))
    found = outcomes(Chinchilla, HOFFMANN_2022, design, models=7)["at least 20 proxies"]
    assert (found.holds, found.outcome) == (False, "7 proxies")


@pytest.mark.slow
def test_proxies_are_counted_where_the_law_reads_no_active_parameters():
    total, tokens = np.exp(np.random.default_rng(0).uniform(np.log([[1e8], [1e9]]), np.log([[1e10], [1e11]]), (2, 40)))
    experts = np.tile([4.0, 16.0, 64.0, 256.0], 10)
    design = Design(params_total=total, tokens=tokens, num_experts=experts, top_k=np.ones(40))
    found = outcomes(LAWS["sparsity"], PUBLISHED["sparsity"]["abnar-2025"].law, design, models=40)
    assert found["at least 20 proxies"].holds
    assert found["active parameters span a factor of 100"].holds is None


def test_a_pilot_off_its_prediction_stops_the_launch():
    off = PILOT.where(np.ones(10, bool))
    off.loss[3] += 0.1
    found = launch_check(EffectiveParams, known_runs(0.001), HELD_OUT, pilot=off)
    assert not found.go
    assert "too low" in render.text(found.summary())
