"""Abnar's procedure finds in tables of Abnar's law what that law says is optimal."""

import json

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
from known_isoflops import BUDGETS, CONVENTION, SPARSITIES, abnar_runs

from moejax.__main__ import main
from moejax.fit.search.starts import Sobol
from moejax.float64 import float64
from moejax.laws.design import Design
from moejax.laws.mixtures.sparsity import ABNAR_2025
from moejax.papers.abnar.isoflop_analysis import analyse, direction
from moejax.papers.abnar.isoflop_budgets import isoflop_budgets
from moejax.papers.abnar.recipe import abnar, sparsest
from moejax.report import render

NOISE = 0.001
RUNS = abnar_runs(NOISE, span=2.5)


def loss_of(total, flops, sparsity):
    """Eq. 6 at a budget, in NumPy."""
    tokens = flops / (6 * CONVENTION(total, sparsity))
    return float(
        ABNAR_2025(Design(params_total=total, tokens=tokens, num_experts=np.float64(1 / (1 - sparsity)), top_k=1.0))
    )


def true_size(flops, sparsity):
    """N* of Eq. 6 by SciPy's search: a path that shares nothing with the recipe."""
    with float64():
        found = scipy.optimize.minimize_scalar(
            lambda log: loss_of(np.exp(log), flops, sparsity), bounds=(np.log(1e7), np.log(1e12)), method="bounded"
        )
    return float(np.exp(found.x))


@pytest.fixture(scope="module")
def found():
    return abnar(RUNS, starts=Sobol(256))


@pytest.fixture(scope="module")
def total():
    """The surfaces over N alone, of two budgets and few resamples."""
    runs = abnar_runs(NOISE, span=2.5, budgets=BUDGETS[1:3])
    return analyse("N", isoflop_budgets(runs)[0], sparsities=True, resamples=20)


def test_parabolas_and_surfaces_have_the_best_sizes_of_the_law(total):
    for method, within in ((total.curves, 0.08), (total.sizes, 0.12)):
        assert len(method) == 2 * len(SPARSITIES)
        for one in method:
            assert one.value == pytest.approx(true_size(one.flops, one.held["sparsity"]), rel=within), one


def test_the_trends_of_the_paper_are_found(total):
    """Figure 2: N* rises with S, the loss at it falls, S* rises with N."""
    assert direction(total.sizes, "sparsity") == (2, 0, 2)
    assert direction(total.sizes, "sparsity", "loss") == (0, 2, 2)
    assert direction(total.sparsities, "params_total") == (2, 0, 2)


def test_a_loss_that_falls_with_sparsity_has_no_joint_optimum(total):
    """Section 2: sparser is better at a budget, so Eq. 2 has no optimum among the sparsities trained."""
    for pair in total.pairs:
        assert [one.value for one in pair] == [None, None]
        assert "falls up to a sparsity of 0.98" in pair[0].why


@pytest.mark.slow
def test_the_law_is_recovered_with_the_sparsest_runs_held_out(found):
    assert found.split == "sparsity ≥ 0.98"
    assert found.held_out.runs == 8 * len(BUDGETS)
    assert found.held_out.rmse_log == pytest.approx(NOISE, rel=0.5)
    intervals = found.resampled.coefficients()
    for name in ("tokens_exponent", "coupling_params_exponent"):
        assert intervals[name].low <= getattr(ABNAR_2025, name) <= intervals[name].high, name


@pytest.mark.slow
def test_active_parameters_fall_with_sparsity_while_total_ones_rise(found):
    assert direction(found.total.sizes, "sparsity") == (5, 0, 5)
    assert direction(found.active.sizes, "sparsity") == (0, 5, 5)
    for one in found.active.curves:
        truth = float(CONVENTION(true_size(one.flops, one.held["sparsity"]), one.held["sparsity"]))
        assert one.value == pytest.approx(truth, rel=0.08)


@pytest.mark.slow
def test_the_fitted_law_has_the_best_sizes_of_the_true_one(found):
    assert len(found.total.by_law) == 35
    for one in found.total.by_law:
        assert one.value == pytest.approx(true_size(one.flops, one.held["sparsity"]), rel=0.04)


@pytest.mark.slow
def test_held_out_losses_are_predicted_by_every_surface(found):
    for one in (*found.total.surfaces, *found.active.surfaces):
        assert one.correlation.low > 0.99
        assert one.held_out_rmse.middle > one.rmse


@pytest.mark.slow
def test_optima_over_budgets_are_the_power_laws_of_the_law(found):
    line = {(one.what, one.held.get("sparsity")): one for one in found.total.trends if "sparsity" in one.held}
    assert len(line) == 3 * len(SPARSITIES)
    for (_, sparsity), one in line.items():
        exponent = np.polyfit(np.log(BUDGETS), np.log([true_size(c, sparsity) for c in BUDGETS]), 1)[0]
        assert one.exponent == pytest.approx(exponent, abs=0.04)
        assert one.budgets == 5
    for one in found.total.trends:
        if one.what == "1-S*":
            assert one.exponent > 0, "D.2: the best sparsity falls with the budget at a fixed size"


@pytest.mark.slow
def test_the_page_and_the_json_hold_the_same_optima(found):
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    page = render.text(found.summary())
    assert len(plain["total"]["sizes"]) == len(plain["active"]["curves"]) == 35
    for one in plain["total"]["sizes"]:
        assert f"{one['value']:.4g}" in page
    assert f"degrees {found.total.degrees.best}" in page


def test_without_runs_at_98_per_cent_the_sparsest_are_held_out():
    runs = abnar_runs(sparsities=(0.0, 0.5, 0.9), budgets=(1e20,))
    assert sparsest(runs).held_out.sum() == 8
    assert (runs.design.num_experts[sparsest(runs).held_out] > 9).all()


def written(runs, path, **columns):
    """The table in their letters, but for C: a column of that name is FLOPs without a word."""
    design = runs.design
    table = {"N": design.params_total, "Na": design.params_active, "D": design.tokens, "isoflop": design.flops}
    frame = pd.DataFrame({**table, "S": 1 - 1 / design.num_experts, "loss": runs.loss, **columns})
    frame.to_csv(path, index=False)
    return str(path)


MAPPED = ["--map", "params_total=N", "--map", "params_active=Na", "--map", "tokens=D", "--map", "flops=isoflop"]
MAPPED += ["--map", "num_experts=1 / (1 - S)", "--map", "top_k=1"]


@pytest.mark.slow
def test_the_command_runs_the_whole_procedure_from_the_published_grid(tmp_path, capsys):
    table = written(RUNS, tmp_path / "abnar.csv")
    assert main(["fit", table, "--recipe", "abnar", *MAPPED, "--out", str(tmp_path / "out"), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["fit"]["starts"] == 437_400
    assert plain["intervals"]["resamples"] == 100
    assert plain == json.loads((tmp_path / "out" / "abnar.json").read_text())
    assert "N_a* by the surface" in (tmp_path / "out" / "abnar.txt").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (MAPPED[:-2], "no column top_k"),
        ([*MAPPED[:6], *MAPPED[8:]], "no column flops"),
        ([*MAPPED, "--where", "S < 0.4"], "3 sparsities (1 - top_k / num_experts) with 3 sizes (params_total) each"),
        (
            [*MAPPED[:6], "--map", "flops=N * 1e11", "--trust-units", *MAPPED[8:]],
            "No budget has enough runs for an IsoFLOP surface",
        ),
        ([*MAPPED, "--hold-out", "S:0.99"], "No run is held out by S ≥ 0.99"),
        ([*MAPPED, "--level", "90"], "above 0 and at most 0.9999"),
        ([*MAPPED, "--starts", "hoffmann"], "grid of initial guesses has no values for"),
    ],
)
def test_what_the_recipe_cannot_use_is_a_sentence_and_exit_status_2(tmp_path, capsys, options, words):
    table = written(abnar_runs(budgets=(1e20,)), tmp_path / "abnar.csv")
    assert main(["fit", table, "--recipe", "abnar", *options]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert "Traceback" not in shown.err
    assert not shown.out
