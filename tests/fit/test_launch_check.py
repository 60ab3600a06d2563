"""A launch is advised only on a law that predicted what was kept from it."""

import dataclasses

import numpy as np
import pytest
from known_fit import sweep

from moejax.errors import UserError
from moejax.fit.runs import runs_from
from moejax.fit.selection.holdout import largest
from moejax.fit.selection.metrics import predict
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import CHAPTER_002, EffectiveParams
from moejax.papers.chapter_002.launch_check import correct, launch_check
from moejax.papers.chapter_002.runs import chapter_002_runs
from moejax.report import render

RUNS = sweep(CHAPTER_002, noise=0.001, doublings=8)
"""In which active parameters and G span two orders of magnitude."""
HELD_OUT = largest(RUNS, "params_active", share=0.05)


def trained_again(runs):
    """The same sizes with other noise."""
    return dataclasses.replace(runs, loss=runs.loss * 1.0005)


PILOT = trained_again(RUNS.where(np.arange(len(RUNS)) < 10))


def test_a_law_that_made_the_runs_may_be_launched_on():
    found = launch_check(EffectiveParams, RUNS, HELD_OUT, pilot=PILOT)
    assert found.go
    assert found.summary().title == "Launch check: go"


def test_the_synthetic_protocol_passes_and_gives_back_the_gamma_of_its_larger_runs():
    table = chapter_002_runs(noise=1e-4, gamma_of_larger=0.25)
    design = Design(**{name: table[name].to_numpy() for name in EffectiveParams.inputs})
    runs, pilot = runs_from(design, table["loss"].to_numpy()), table["part"].to_numpy() == "pilot"
    tried = runs.where(~pilot)
    larger = largest(tried, "params_active", above=1e10)
    found = launch_check(EffectiveParams, tried, larger, pilot=runs.where(pilot), correction="gamma")
    assert found.go
    assert found.correction is not None
    assert found.correction.before == pytest.approx(0.35, abs=0.005)
    assert found.correction.after == pytest.approx(0.25, abs=0.01)


def test_the_synthetic_domains_have_the_betas_that_they_were_given():
    exact = chapter_002_runs(noise=0.0, gamma_of_larger=0.35, betas={"web": 0.2, "math": 0.4})
    assert np.allclose(exact["loss"], (exact["loss_web"] + exact["loss_math"]) / 2)
    smallest = exact[exact["params_active"] == exact["params_active"].min()].groupby("params_total").head(2)
    for name, beta in {"web": 0.2, "math": 0.4}.items():
        terms = smallest[f"loss_{name}"] - CHAPTER_002(
            Design(params_active=smallest["params_active"], params_total=smallest["params_total"], tokens=np.inf)
        )
        assert np.allclose(-np.log2(terms.to_numpy()[1::2] / terms.to_numpy()[::2]), beta)


def test_without_a_pilot_nothing_is_launched():
    found = launch_check(EffectiveParams, RUNS, HELD_OUT)
    assert not found.go
    assert "no pilot was given" in render.text(found.summary())


def test_one_coefficient_is_refitted_to_the_larger_runs_and_predicts_the_pilot():
    """Larger runs of a law with another gamma: the proxies' law misses them, and with gamma refitted it does not."""
    drifted = dataclasses.replace(CHAPTER_002, expansion_exponent=0.25)
    runs, large = RUNS, HELD_OUT.held_out & (RUNS.design.params_total > RUNS.design.params_active)
    loss = np.where(large, predict(drifted, RUNS) * 1.0002, RUNS.loss)
    runs, split = dataclasses.replace(RUNS, loss=loss), dataclasses.replace(HELD_OUT, held_out=large)
    found = launch_check(EffectiveParams, runs, split, pilot=trained_again(runs.where(large)), correction="gamma")
    refit = found.correction
    assert refit is not None
    assert refit.low < 0.25 < refit.high < refit.before
    assert abs(refit.miss_after) < 0.1 * abs(refit.miss_before)
    by_name = {check.name: check.holds for check in found.checks}
    assert by_name["the pilot's early curve (gamma refitted) within 0.02 nats of the prediction"]
    assert {"corrected", "proxies"} == {*found.fits()}
    row = found.best.predict(runs.design, 0.9)[large].iloc[0]
    assert row["low"] < row["loss"] < row["high"]
    with pytest.raises(UserError, match="effective_params has no coefficient 'gama' to refit; did you mean"):
        correct(found.fit, runs, "gama")
    dense = runs.where(runs.design.params_total == runs.design.params_active)
    with pytest.raises(UserError, match="expansion_exponent does not affect the loss of any of the"):
        correct(found.fit, dense, "expansion_exponent")


@pytest.mark.parametrize(
    ("kept", "names"),
    [
        (np.arange(len(RUNS)) < 15, {"at least 20 proxies"}),
        (
            (RUNS.design.params_active > 1e9) & (RUNS.design.params_total < 50 * RUNS.design.params_active),
            {"active parameters span a factor of 100", "G, total / active parameters, spans a factor of 100"},
        ),
    ],
)
def test_too_few_or_too_similar_proxies_are_named(kept, names):
    runs = RUNS.only(kept)
    found = launch_check(EffectiveParams, runs, largest(runs, "params_active", share=0.05), pilot=PILOT)
    failed = {check.name: check.outcome for check in found.checks if check.holds is False}
    assert names <= set(failed)
    for name in names:
        assert (
            not name.startswith("G,") or "a factor of 32; if the chapter means only active parameters" in failed[name]
        )


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
    every = outcomes(Chinchilla, HOFFMANN_2022, design, models=7)
    found = every["at least 20 proxies"]
    assert (found.holds, found.outcome) == (False, "7 proxies")
    assert not any(name.startswith("G,") for name in every), "a dense law has no G"


@pytest.mark.slow
def test_proxies_are_counted_where_the_law_reads_no_active_parameters():
    total, tokens = np.exp(np.random.default_rng(0).uniform(np.log([[1e8], [1e9]]), np.log([[1e10], [1e11]]), (2, 40)))
    experts = np.tile([4.0, 16.0, 64.0, 256.0], 10)
    design = Design(params_total=total, tokens=tokens, num_experts=experts, top_k=np.ones(40))
    found = outcomes(LAWS["sparsity"], PUBLISHED["sparsity"]["abnar-2025"].law, design, models=40)
    assert found["at least 20 proxies"].holds
    assert found["active parameters span a factor of 100"].holds is None


def test_runs_of_the_table_are_no_pilot():
    for known in (~HELD_OUT.held_out, HELD_OUT.held_out):
        with pytest.raises(UserError, match=r"of the run table .run .*equal sizes and loss.*Give --pilot"):
            launch_check(EffectiveParams, RUNS, HELD_OUT, pilot=RUNS.where(known))


def test_a_pilot_off_its_prediction_stops_the_launch():
    off = PILOT.where(np.ones(10, bool))
    off.loss[3] += 0.1
    found = launch_check(EffectiveParams, RUNS, HELD_OUT, pilot=off)
    assert not found.go
    assert "too low" in render.text(found.summary())
