"""A study's analysis of a table: what it asks of the runs, how far few models determine an answer, sanity checks."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

from moejax.architecture import Architecture
from moejax.config import check_fields
from moejax.data.config import DataConfig
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.laws.dense.chinchilla import HOFFMANN_2022, optimal_split
from moejax.laws.design import Design
from moejax.report import render
from moejax.report.conclusions import decision_table
from moejax.result import Result
from moejax.study import analysis
from moejax.study.analysis import Analysis, analyse, best_settings, limits, sanity_checks, tuning, warnings
from moejax.study.study import Study
from moejax.train.training import Recipe

LAWS = Analysis(laws=("chinchilla",), resamples=20, decision_flops=1e20)


def table(folder, sizes, tokens, noise=0.002):
    rows = [
        {"group": f"m{size:g}", "model": f"m{size:g}", "params_active": size, "tokens": amount, "seed": 0}
        for size in sizes
        for amount in tokens
    ]
    frame = pd.DataFrame(rows)
    law = HOFFMANN_2022(Design(params_active=frame["params_active"].to_numpy(), tokens=frame["tokens"].to_numpy()))
    frame["loss"] = np.asarray(law) + np.random.default_rng(0).normal(0, noise, len(frame))
    path = folder / "runs.csv"
    frame.to_csv(path, index=False)
    return path


def test_with_fewer_models_than_coefficients_an_optimum_has_no_interval_and_says_why(tmp_path):
    path = table(tmp_path, sizes=(1e7, 3e7, 1e8, 3e8), tokens=(1e9, 3e9, 1e10, 3e10))
    found = analyse(path, LAWS)
    few = "4 groups cannot determine the errors of 5 coefficients"
    assert any(few in sentence for sentence in found.limits)
    assert not any("not determined by these runs" in sentence for sentence in found.limits)
    (decision,) = found.decisions
    assert decision.few == few
    assert np.isnan([one.low for one in decision.intervals.values()]).all()
    said = render.text(Result(tables=[decision_table(decision)]))
    assert f"! {few}: intervals would be too small" in said
    assert "not determined" not in said


def test_runs_of_one_model_give_no_interval():
    laws = jax.tree.map(lambda value: value * np.ones(20), HOFFMANN_2022)
    alone = Bootstrap(laws=laws, values=np.zeros(20), unfinished=0, by="group", draws=1)
    optimum = alone.interval(lambda law: optimal_split(law, 1e20))
    for interval in (*alone.coefficients().values(), *optimum.values()):
        assert interval.uninformative
        assert interval.undefined == 1
    frame = pd.DataFrame({"model": ["a", "a"], "group": ["a", "a"], "params_active": [1e8, 1e8], "tokens": [1e9, 2e9]})
    assert any("intervals are unknown" in sentence for sentence in limits(frame, [], []))
    assert limits(frame, [], [])[0].startswith("2 runs of 1 model span")
    # Two models of one architecture, as of two recipes, are one group.
    frame["model"] = ["a", "b"]
    assert limits(frame, [], [])[0].startswith("2 runs in 1 group with the same architecture or trunk span")


def test_a_law_that_the_other_runs_cannot_set_costs_no_resamples(tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "bootstrap", lambda *_, **__: pytest.fail("resampled"))
    path = table(tmp_path, sizes=(1e7, 3e7, 1e8), tokens=(1e9, 1e10))
    found = analyse(path, LAWS)
    assert not found.laws
    assert "chinchilla was not fitted: With tokens ≥ 1e+10 held out" in found.limits[-1]


@pytest.mark.filterwarnings("error")
def test_a_study_that_sweeps_its_learning_rate_says_so_and_fits_the_best_if_asked(tmp_path):
    path = table(tmp_path, sizes=(1e7, 3e7, 1e8, 3e8, 1e9), tokens=(1e9, 3e9, 1e10, 3e10))
    best = pd.read_csv(path).assign(learning_rate=1e-3)
    worse = [best.assign(learning_rate=rate, loss=best["loss"] + by) for rate, by in ((1e-4, 0.4), (1e-2, 0.9))]
    frame = pd.concat([worse[0], best, worse[1]], ignore_index=True)
    frame["model"] += "-lr" + frame["learning_rate"].map("{:g}".format)
    frame.to_csv(path, index=False)
    tuned = dataclasses.replace(LAWS, best_by=("learning_rate",))

    (untuned,) = tuning(frame, LAWS)
    assert "40 of 60 rows have the sizes of an earlier row but a different learning_rate. They look like" in untuned
    assert "pass --config.analysis.best_by=learning_rate." in untuned
    assert "40 of 60 rows, which are not the best over learning_rate" in tuning(frame, tuned)[0]
    assert tuning(best, LAWS) == ()
    assert tuning(frame, dataclasses.replace(LAWS, laws=())) == ()

    (every,), (law,) = analyse(path, LAWS).laws, analyse(path, tuned).laws
    assert every.rows == list(range(60))
    assert law.rows == list(range(20, 40))
    assert len(law.predicted) == 20
    assert law.fit.metrics.mae < 0.01 < every.fit.metrics.mae


def test_the_best_settings_of_a_sweep_have_the_minimum_of_a_quadratic_where_it_exists():
    rates, lowest = [2e-3, 4e-3, 8e-3], {8: 4e-3, 16: 1.0}
    frame = pd.DataFrame(
        {"model": f"e{experts}-lr{rate:g}", "num_experts": experts, "top_k": 2, "tokens": 1e6, "learning_rate": rate}
        | {"loss": 3 + 0.01 * np.log(rate / lowest[experts]) ** 2}
        for experts in lowest
        for rate in rates
    )
    frame.loc[len(frame)] = frame.loc[1].to_dict() | {"loss": np.nan}
    inside, at_end = best_settings(frame, ["learning_rate"])
    assert (inside["model"], inside["best"], inside["tried"], inside["end"]) == ("e8-lr0.004", 4e-3, 3, "")
    assert inside["minimum"] == pytest.approx(4e-3)
    assert inside["minimum_loss"] == pytest.approx(3)
    assert (at_end["model"], at_end["best"], at_end["end"]) == ("e16-lr0.008", 8e-3, "largest")
    assert at_end["minimum"] is None
    assert at_end["no_minimum"] == "learning_rate above the tried values"
    without_laws = Analysis(laws=(), best_by=("learning_rate",))
    assert tuning(frame, without_laws) == (
        "The best learning_rate, 0.008, is the largest tried in 1 of 2 sweeps; try larger values.",
    )
    named = frame.assign(schedule=np.where(frame["learning_rate"] > 3e-3, "wsd", "cosine"))
    assert {(one["best"], one["tried"], one["end"]) for one in best_settings(named, ["schedule"])} == {("wsd", 2, "")}
    assert best_settings(frame, []) == []


def test_only_settings_can_be_swept():
    with pytest.raises(ValueError, match=r"analysis\.best_by\[0\] is 'lr'; choose from learning_rate"):
        check_fields(dataclasses.replace(LAWS, best_by=("lr",)), "analysis")


SHAPE = Architecture(
    vocab_size=257, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, dense_hidden=32
)
RECIPE = Recipe(
    budgets_tokens=(4_096, 8_192), batch_tokens=1_024, data=DataConfig(sequence_length=64, validation_tokens=1_024)
)
STUDY = Study(
    name="two",
    models={"a": SHAPE, "b": SHAPE, "large": SHAPE.replace(dense_hidden=64)},
    recipe=RECIPE,
    analysis=Analysis(laws=("chinchilla",)),
)


@pytest.mark.parametrize(
    ("changes", "left", "runs"),
    [
        ({}, 3, 6),
        ({"hold_out": "params_active"}, 4, 6),
        ({"hold_out_models": ("a", "b")}, 2, 6),
        ({"best_by": ("learning_rate",)}, 2, 4),
    ],
)
def test_too_few_runs_for_a_law_are_said_before_they_are_trained(changes, left, runs):
    asked = dataclasses.replace(STUDY, analysis=dataclasses.replace(STUDY.analysis, **changes))
    assert warnings(asked) == [
        f"Without the held-out runs, {left} of {runs} runs remain for the 5 coefficients of chinchilla, so it "
        "will not be fitted. Give more models or budgets_tokens, hold out other runs (analysis.hold_out_models), or "
        "name a smaller law in analysis.laws."
    ]


def test_enough_runs_are_not_warned_of_and_a_hold_out_of_everything_is():
    enough = dataclasses.replace(STUDY, recipe=dataclasses.replace(RECIPE, budgets_tokens=(2_048, 4_096, 6_144, 8_192)))
    assert warnings(enough) == []
    everything = dataclasses.replace(STUDY.analysis, hold_out="num_layers")
    (sentence,) = warnings(dataclasses.replace(STUDY, analysis=everything))
    assert "Holding out num_layers" in sentence
    assert "leaves no run to fit" in sentence


def rows(*losses):
    return [
        {"model": "m", "tokens": 10 * (i + 1), "loss": loss, "unigram_entropy": 3.0} for i, loss in enumerate(losses)
    ]


def test_falling_losses_below_the_unigram_entropy_hold():
    assert all(check.holds for check in sanity_checks(rows(2.9, 2.5, 2.0)))


def test_a_loss_at_the_unigram_entropy_does_not():
    below, falling = sanity_checks(rows(3.0, 2.5))
    assert not below.holds
    assert falling.holds


def test_losses_that_rise_do_not():
    below, falling = sanity_checks(rows(2.0, 2.5, 2.4))
    assert below.holds
    assert not falling.holds
    assert falling.found == "1 of 2"


def test_a_loss_may_rise_where_text_is_read_again():
    once, again = rows(2.0, 2.5, 2.4), [{**row, "unique_tokens": 15} for row in rows(2.0, 2.5, 2.4)]
    assert sanity_checks(once)[1].holds is False
    assert sanity_checks(again)[1].holds is None


def test_of_models_with_one_budget_none_can_tell_whether_loss_falls():
    assert [check.holds for check in sanity_checks(rows(2.9))] == [True, None]
