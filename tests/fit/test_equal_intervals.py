"""Every command and function gives the same interval for the same question about the same fit."""

import dataclasses
import json

import numpy as np
import pytest

import moejax as mj
from moejax.__main__ import main
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import runs_from
from moejax.fit.search.starts import Sobol
from moejax.fit.selection.metrics import predict
from moejax.laws.dense.chinchilla import HOFFMANN_2022
from moejax.laws.design import Design
from moejax.report import render
from moejax.report.figures.compute import compute_table
from moejax.report.fit_report import fitted_runs
from moejax.report.laws import interval_of
from moejax.run_table import write

FLOPS, LEVEL, RUN = 1e22, 0.8, {"params_active": 5e9, "tokens": 3e11}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    active, tokens = (a.ravel() for a in np.meshgrid(np.geomspace(1e8, 2e9, 6), np.geomspace(2e9, 4e10, 4)))
    noise = np.exp(0.002 * np.random.default_rng(0).normal(size=24))
    losses = predict(HOFFMANN_2022, runs_from(Design(params_active=active, tokens=tokens), np.ones(24))) * noise
    rows = [
        {"size": n / 1e6, "tokens": d, "val": loss, "width": i % 2, "kept": 1}
        for i, (n, d, loss) in enumerate(zip(active, tokens, losses, strict=True))
    ]
    rows.append({**rows[0], "val": 99.0, "kept": 0})
    return str(write(rows, tmp_path_factory.mktemp("table") / "runs.csv"))


@pytest.fixture(scope="module", params=[0, 20], ids=["standard errors", "bootstrap"])
def fit(request, table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    given = ",".join(f"{name}={value:g}" for name, value in RUN.items())
    words = ["fit", table, "--law", "chinchilla", "--starts", "16", "--map", "params_active=size * 1e6", "--loss"]
    words += ["val", "--where", "kept == 1", "--seed", "3", "--level", str(LEVEL), "--decide", f"flops={FLOPS:g}"]
    words += ["--predict", given, *(["--bootstrap", str(request.param)] if request.param else []), "--out", str(folder)]
    assert main(words) == 0
    return folder / "fit.json"


def test_a_design_counts_flops_as_the_fitted_runs_do(fit, table):
    known = FitResult.load(fit)
    assert mj.design(known, flops=FLOPS).optimum.problem.assumptions.convention == "6-params-active"
    chosen = mj.design(known, flops=FLOPS, convention="exact")
    assert chosen.optimum.problem.assumptions.convention == "exact"
    said = render.text(chosen.summary())
    assert "the other columns follow the convention exact, and those of the fitted runs 6-params-active" in said
    other = {"params_active": "size * 1e6", "flops": "7 * size * 1e6 * tokens"}
    counted = mj.fit(table, "chinchilla", mapping=other, loss="val", where="kept == 1", starts=Sobol(count=16))
    assert mj.design(counted, flops=FLOPS).optimum.problem.assumptions.convention == "exact"


def test_a_figure_counts_the_target_s_flops_as_decisions_do_even_if_the_table_has_flops(fit):
    loaded = FitResult.load(fit)
    (decided,) = (one for one in mj.decide(loaded, level=LEVEL, flops=FLOPS).decisions if one.symbol == "L*")
    design = fitted_runs(loaded, fit).runs.design
    logged = 6 * design.params_active * design.tokens * np.linspace(1.02, 1.3, len(design.tokens))
    drawn = compute_table(loaded, dataclasses.replace(design, flops=logged), np.full(24, 3.0), flops=FLOPS, level=LEVEL)
    (target,) = drawn.query("kind == 'target'").itertuples()
    assert target.loss == pytest.approx(decided.value, rel=1e-6)
    assert ends(target._asdict()) == ends(decided.interval)


def ends(interval):
    """Return both ends of an interval as printed."""
    low, high = (interval[end] if isinstance(interval, dict) else getattr(interval, end) for end in ("low", "high"))
    return f"{low:.5g}", f"{high:.5g}"


def decided_by_the_command(fit):
    return {one["symbol"]: one["interval"] for one in json.loads(fit.read_text())["decisions"]}


def by_name(printed):
    return {name: ends(printed[symbol]) for symbol, name in (("N*", "params_active"), ("D*", "tokens"), ("L*", "loss"))}


def test_an_optimum_has_the_same_interval_by_every_command_and_function(fit, capsys):
    wanted = by_name(decided_by_the_command(fit))
    loaded = FitResult.load(fit)
    assert (
        by_name({one.symbol: one.interval for one in mj.decide(loaded, level=LEVEL, flops=FLOPS).decisions}) == wanted
    )
    in_python = mj.design(loaded, flops=FLOPS, level=LEVEL)
    assert {name: ends(one) for name, one in in_python.intervals.items()} == wanted
    capsys.readouterr()
    assert main(["design", "--law", str(fit), "--flops", f"{FLOPS:g}", "--level", str(LEVEL), "--json"]) == 0
    designed = json.loads(capsys.readouterr().out)["intervals"]
    assert {name: ends(one) for name, one in designed.items()} == wanted
    assert {one["by"] for one in designed.values()} == {loaded.method}
    read = fitted_runs(loaded, fit)
    drawn = compute_table(loaded, read.runs.design, read.runs.loss, flops=FLOPS, level=LEVEL)
    (best,) = drawn[(drawn["kind"] == "best") & (drawn["flops"] == drawn["flops"].max())].to_dict("records")
    assert ends(best) == wanted["loss"]
    assert (best["level"], best["method"]) == (LEVEL, loaded.method)


def test_a_predicted_run_has_the_same_range_by_every_command_and_function(fit):
    ((predicted),) = json.loads(fit.read_text())["predictions"]
    loaded = FitResult.load(fit)
    (row,) = loaded.predict(Design(**RUN), LEVEL).to_dict("records")
    assert ends(row) == ends(predicted)
    assert ends(interval_of(loaded, Design(**RUN), LEVEL).interval) == ends(predicted)


@pytest.mark.parametrize("fit", [20], ids=["bootstrap"], indirect=True)
def test_a_bootstrap_in_python_is_that_of_the_command_and_stays_with_the_fit(fit, table, tmp_path):
    reading = {"mapping": {"params_active": "size * 1e6"}, "loss": "val", "where": ["kept == 1"]}
    ours = mj.fit(table, "chinchilla", starts=16, seed=3, bootstrap=20, **reading)
    assert ours.method == FitResult.load(fit).method
    ours.save(tmp_path / "fit.json")
    for one in (ours, str(tmp_path / "fit.json")):
        decided = mj.decide(one, level=LEVEL, flops=FLOPS).decisions
        assert by_name({each.symbol: each.interval for each in decided}) == by_name(decided_by_the_command(fit))


@pytest.mark.parametrize("fit", [20], ids=["bootstrap"], indirect=True)
def test_resampling_again_with_the_table_reads_it_like_the_fit_and_draws_the_same_resamples(fit, table, capsys):
    loaded = FitResult.load(fit)
    wanted = by_name(decided_by_the_command(fit))
    again = mj.decide(loaded, table, bootstrap=20, level=LEVEL, flops=FLOPS)
    assert by_name({one.symbol: one.interval for one in again.decisions}) == wanted
    capsys.readouterr()
    words = ["design", "--law", str(fit), "--flops", f"{FLOPS:g}", "--level", str(LEVEL)]
    assert main([*words, "--runs", table, "--bootstrap", "20", "--json"]) == 0
    designed = json.loads(capsys.readouterr().out)["intervals"]
    assert {name: ends(one) for name, one in designed.items()} == wanted


def test_every_printed_interval_names_its_method(fit, capsys):
    loaded = FitResult.load(fit)
    method = loaded.method
    assert method in ("from standard errors", "bootstrap of 20 resamples by group")
    summary = " ".join((fit.parent / "summary.txt").read_text().split())
    assert summary.count(f"80% interval, {method}") >= 1
    assert f"] (intervals: {method})." in summary.split("Decisions")[0]
    capsys.readouterr()
    assert main(["predict", "--law", str(fit), "--params-active", "5e9", "--tokens", "3e11"]) == 0
    assert f", {method} and the scatter of the fitted runs" in " ".join(capsys.readouterr().out.split())
    drawn = mj.plot.loss_vs_compute(loaded, flops=FLOPS)
    assert f"90% intervals, {method}" in drawn.caption
