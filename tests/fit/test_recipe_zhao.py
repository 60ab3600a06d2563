"""Zhao's procedure finds Zhao's law in runs that follow it."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from test_recovery import zhao_sweep

from moejax.__main__ import main
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import runs_from
from moejax.fit.search.starts import Sobol
from moejax.fit.selection.holdout import split_of
from moejax.fit.selection.metrics import predict
from moejax.laws.design import FIELDS, Design
from moejax.laws.mixtures.fewer_factors import TwoFactor
from moejax.laws.mixtures.five_factor import ZHAO_2025, FiveFactor, best_active_experts, best_shared_share, with_experts
from moejax.laws.mixtures.marginal import margin_of_shared
from moejax.laws.mixtures.sparsity import ABNAR_2025, Sparsity
from moejax.papers.zhao.margins import FACTORS, margins_of
from moejax.papers.zhao.recipe import NESTED, RIVALS, zhao
from moejax.report import render
from moejax.stored import write_json


def small_sweep(noise):
    """Every factor varied alone around one architecture, at two sizes and two token counts."""
    rows = []
    for total, tokens in ((1.2e9, 1e10), (1.2e9, 5e10), (4e9, 2e10)):
        base = (total, total / 5, 10.0, 0.2, tokens)
        rows += [(total, share * total, *base[2:]) for share in (0.05, 0.1, 0.2, 0.4, 0.7, 0.9)]
        rows += [(*base[:2], experts, 0.2, tokens) for experts in (2.5, 5.0, 7.5, 15.0, 20.0)]
        rows += [(*base[:3], shared, tokens) for shared in (0.0, 0.1, 0.3, 0.4, 0.5, 0.7)]
    rows += [(total, total / 8, 5.0, 0.2, 2e10) for total in np.geomspace(2e8, 8e9, 8)]
    total, active, experts, shared, tokens = np.array(rows).T
    design = Design(
        params_total=total,
        params_active=active,
        tokens=tokens,
        top_k=experts * (1 - shared),
        num_shared_experts=experts * shared,
    )
    return noisy(runs_from(design, np.ones(len(rows))), noise)


def noisy(sweep, noise, seed=0):
    exact = predict(ZHAO_2025, sweep)
    return dataclasses.replace(sweep, loss=exact * np.exp(noise * np.random.default_rng(seed).normal(size=len(exact))))


RUNS = small_sweep(0.0005)
HELD_OUT = split_of(RUNS, "the largest", RUNS.design.params_total >= 4e9)


@pytest.fixture(scope="module")
def found():
    return zhao(RUNS, HELD_OUT, starts=Sobol(32))


@pytest.mark.parametrize(
    ("number", "truth"),
    [
        pytest.param(1, best_active_experts(ZHAO_2025), id="G", marks=pytest.mark.slow),
        pytest.param(2, best_shared_share(ZHAO_2025), id="S"),
    ],
)
def test_margins_have_their_optima_where_the_joint_law_has_them(number, truth):
    margins = margins_of(FACTORS[number], RUNS)
    best = [margin.best for margin in margins if margin.inside]
    assert len(best) >= 2
    assert np.median(best) == pytest.approx(truth, rel=0.25)
    for margin in margins if number == 2 else ():
        held = dict(zip(("params_total", "tokens", "params_active"), margin.held.values(), strict=False))
        expected = margin_of_shared(ZHAO_2025, with_experts(margin.held["G"], 0.2, **held))
        assert margin.coefficients["offset"] == pytest.approx(float(expected.offset), rel=0.002)


@pytest.mark.slow
def test_every_factor_lowers_the_error_and_the_last_brings_it_to_the_noise(found):
    errors = [law.error for law in found.nested]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 5 * errors[-1]
    assert found.nested[-1].held_out_error < 0.005


@pytest.mark.slow
def test_a_rival_whose_columns_are_missing_is_named_with_them(found):
    assert "num_experts" in found.left_out["Abnar"]


@pytest.mark.slow
def test_the_page_and_the_json_hold_the_same_decisions(found):
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["decisions"] == found.decisions
    assert f"{found.decisions['G*']:.4g}" in render.text(found.summary())
    assert len(plain["margins"]) == len(found.margins)


def with_rival_columns(runs):
    """The same runs with what the rivals read: routed experts in the ratio of total to active sizes, and widths."""
    design = runs.design
    experts = design.top_k * design.params_total / design.params_active
    widths = {"model_dim": np.full(len(runs), 1024.0), "expert_hidden": 4096.0 / design.active_experts}
    return dataclasses.replace(runs, design=dataclasses.replace(design, num_experts=experts, **widths))


@pytest.mark.slow
def test_a_rival_whose_columns_are_there_is_fitted_and_is_best_on_runs_that_follow_it():
    """Losses of Abnar's published law: its refit is at the noise, where Zhao's and the other rivals are not."""
    runs = with_rival_columns(RUNS)
    exact = predict(ABNAR_2025, runs)
    noise = 5e-5
    losses = exact * np.exp(noise * np.random.default_rng(0).normal(size=len(exact)))
    fifth = split_of(runs, "every fifth", np.arange(len(runs)) % 5 == 0)
    found = zhao(dataclasses.replace(runs, loss=losses), fifth, starts=Sobol(256))
    assert not found.left_out
    held_out = {one.name: one.held_out_error for one in (*found.nested, *found.rivals)}
    assert set(held_out) == {*NESTED, *RIVALS}
    first, second = sorted(held_out, key=held_out.get)[:2]
    assert first == "Abnar"
    assert held_out[second] > 3 * held_out["Abnar"]
    assert held_out["Abnar"] < noise * np.mean(losses)
    page = render.text(found.summary())
    assert all(type(one.fit.law).__name__ in page for one in found.rivals)


@pytest.mark.slow
def test_the_command_runs_the_whole_procedure(tmp_path, capsys):
    runs = with_rival_columns(RUNS)
    fields = {f: getattr(runs.design, f) for f in FIELDS if getattr(runs.design, f) is not None}
    table, out = tmp_path / "runs.csv", tmp_path / "zhao"
    pd.DataFrame({**fields, "val": runs.loss, "kept": HELD_OUT.held_out.astype(int)}).to_csv(table, index=False)
    options = ["--loss", "val", "--hold-out", "kept=1", "--starts", "32", "--bootstrap", "20", "--out", str(out)]
    assert main(["fit", str(table), "--recipe", "zhao", *options]) == 0
    page = capsys.readouterr().out
    assert page == (out / "zhao.txt").read_text()
    assert "held out: kept = 1" in page
    plain = json.loads((out / "zhao.json").read_text())
    assert [one["name"] for one in plain["rivals"]] == list(RIVALS)
    assert plain["decisions"]["G*"] == pytest.approx(best_active_experts(ZHAO_2025), rel=0.3)
    # G varies at one N_a/N alone, which says nothing of a, c and h apart.
    assert plain["hooks"] is None
    assert "No hooks of Eq. 7: The runs do not determine a, c and h" in " ".join(page.split())
    assert plain["intervals"]["G*"]["low"] < plain["intervals"]["G*"]["high"]
    assert FitResult.load(_fit_alone(plain["nested"][-1]["fit"], tmp_path)).law.irreducible > 0
    for name, law in {"five_factor": FiveFactor, "two_factor": TwoFactor, "sparsity": Sparsity}.items():
        assert type(FitResult.load(out / "fits" / f"{name}.json").law) is law
    assert FitResult.load(out / "fit.json").law == FitResult.load(out / "fits" / "five_factor.json").law
    predictions = pd.read_csv(out / "predicted_vs_actual.csv")
    assert set(predictions["law"]) == {*NESTED, *RIVALS}
    own = predictions[(predictions["law"] == "Eq. 11") & (predictions["role"] == "held out")]
    missed = (own["predicted"] - own["measured"]).abs().mean()
    assert missed == pytest.approx(plain["nested"][-1]["held_out_error"])
    for number in range(5, 14):
        assert (out / "figures" / f"zhao-{number}.svg").is_file()
    capsys.readouterr()
    assert main(["ranges", "deepseek-v3.1", "--law", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["optimal_active_experts"] == pytest.approx(plain["decisions"]["G*"])
    # What it wrote is what the figures are drawn from again.
    drawn = ["plot", "zhao-8", "--runs", str(out / "marginal_coefficients.csv"), "--fit", str(out / "fit.json")]
    assert main([*drawn, "--out", str(tmp_path), "--format", "svg"]) == 0
    assert (tmp_path / "zhao-8.csv").read_text() == (out / "figures" / "zhao-8.csv").read_text()


def _fit_alone(plain, folder):
    """A fit out of the recipe's JSON, as a file that is loaded again."""
    path = folder / "fit.json"
    write_json(path, plain)
    return path


def test_runs_without_shared_experts_are_asked_for_them():
    known = dataclasses.replace(RUNS, design=dataclasses.replace(RUNS.design, num_shared_experts=None))
    with pytest.raises(ValueError, match="no num_shared_experts"):
        zhao(known, HELD_OUT)


@pytest.mark.slow
def test_the_446_configurations_of_the_paper_give_its_optima_with_intervals():
    sweep, validation = zhao_sweep()
    runs = noisy(sweep, 0.003)
    found = zhao(runs, split_of(runs, "validation", validation), resamples=200)
    assert len(found.margins) > 50
    assert found.decisions["G*"] == pytest.approx(6.78, rel=0.15)
    assert found.decisions["S*"] == pytest.approx(0.315, rel=0.15)
    assert found.intervals["G*"].low < 6.78 < found.intervals["G*"].high
    level = 0.003 * np.sqrt(2 / np.pi) * np.mean(runs.loss[validation])
    assert found.nested[-1].held_out_error == pytest.approx(level, rel=0.2)
