"""Laws are compared on the same runs, and the one that made them wins."""

import dataclasses
import json

import numpy as np
import pytest
from test_fit_law import sweep

from moejax.__main__ import main
from moejax.fit.compare import compare, of_the_loss
from moejax.fit.holdout import Split, largest
from moejax.fit.objective import Squared
from moejax.laws import LAWS
from moejax.laws.effective_params import CHAPTER_002

RUNS = sweep(CHAPTER_002, noise=0.002)
NAMES = ["chinchilla", "effective_params", "sparsity"]


@pytest.fixture(scope="module")
def found():
    return compare(of_the_loss(LAWS, NAMES), RUNS, [largest(RUNS, "tokens")])


def test_the_law_that_made_the_runs_predicts_them_best(found):
    assert found.laws[0].name == "effective_params"
    assert found.laws[0].errors.rmse < 0.5 * found.laws[1].errors.rmse
    assert "effective_params predicts the held-out runs best" in found.verdict


def test_the_verdict_says_which_law_to_extrapolate_with_why_and_how_far_that_was_tested(found):
    fitted, held_out = (RUNS.design.tokens[kept] for kept in (~found.splits[0].held_out, found.splits[0].held_out))
    assert found.beyond["tokens"] == pytest.approx(held_out.max() / fitted.max())
    assert (
        "For extrapolation trust effective_params: it has the lowest error on held-out runs that reach beyond"
        in found.verdict
    )
    assert f"{found.beyond['tokens']:.3g} times in tokens" in found.verdict
    assert found.to_json()["trusted"] == "effective_params"


def test_a_law_as_good_with_fewer_coefficients_is_the_one_to_trust(found):
    best, other = found.laws
    plain = dataclasses.replace(other, held_out=best.held_out)
    tied = dataclasses.replace(found, laws=(best, plain))
    assert len(other.fit.coefficients) < len(best.fit.coefficients)
    assert tied.trusted.name == "chinchilla"
    assert "with 5 coefficients instead of 6" in tied.verdict


def test_the_law_that_fits_closest_is_not_trusted_for_that(found):
    best, other = found.laws
    proud = dataclasses.replace(other, fit=best.fit)
    swapped = dataclasses.replace(found, laws=(dataclasses.replace(best, fit=other.fit), proud))
    assert "chinchilla fits all runs closest" in swapped.verdict
    assert swapped.trusted.name == "effective_params"


def test_held_out_runs_inside_the_table_say_nothing_of_extrapolation():
    middle = np.argsort(RUNS.design.tokens)[40:60]
    inside = np.isin(np.arange(len(RUNS)), middle)
    inside &= RUNS.design.params_total < RUNS.design.params_total.max()
    inside &= RUNS.design.params_active < RUNS.design.params_active.max()
    found = compare(of_the_loss(LAWS, ["chinchilla"]), RUNS, [Split(name="the middle", held_out=inside)])
    assert found.beyond == {}
    assert "says nothing of extrapolation" in found.verdict
    assert "trust" not in found.verdict
    assert found.to_json()["trusted"] is None


def test_nothing_held_out_is_nothing_to_compare_by():
    with pytest.raises(ValueError, match="give at least one split"):
        compare(of_the_loss(LAWS, NAMES), RUNS, [])


def test_a_law_whose_columns_are_missing_is_left_out_with_the_reason(found):
    assert "num_experts" in found.left_out["sparsity"]
    assert "\n\n- sparsity is left out: " in found.table()


def test_every_law_of_the_loss_is_compared_unless_some_are_named():
    assert set(of_the_loss(LAWS)) == {n for n, law in LAWS.items() if "loss" in law.outputs}


def test_the_isoflop_surface_is_left_out_with_the_reason():
    found = compare(of_the_loss(LAWS, ["chinchilla", "isoflop_surface"]), RUNS, [largest(RUNS, "tokens")])
    assert "one budget" in found.left_out["isoflop_surface"]


def test_how_far_a_law_is_behind_the_best_has_an_interval_and_a_law_is_not_behind_itself(found):
    best, other = found.laws
    behind = found.behind(other)
    assert 0 < behind.low < other.errors.rmse - best.errors.rmse < behind.high
    assert (found.behind(best).low, found.behind(best).high) == (0.0, 0.0)
    assert found.as_good == ()
    assert found.to_json()["laws"][1]["behind"]["low"] == behind.low


def test_a_law_that_the_held_out_runs_cannot_tell_from_the_best_is_named(found):
    best, other = found.laws
    twin = dataclasses.replace(found, laws=(best, dataclasses.replace(other, held_out=best.held_out)))
    assert twin.as_good == ("chinchilla",)
    assert "cannot tell effective_params from chinchilla" in twin.verdict


@pytest.mark.slow
def test_a_given_coefficient_is_given_to_every_law_that_has_it():
    laws = of_the_loss(LAWS, ["chinchilla", "kaplan"])
    found = compare(laws, RUNS, [largest(RUNS, "tokens")], fixed={"irreducible": 1.6}, penalty=Squared())
    by_name = {law.name: law.fit for law in found.laws}
    assert by_name["chinchilla"].coefficients["irreducible"] == 1.6
    assert by_name["kaplan"].fixed == {}
    assert "Given: irreducible = 1.6; not in kaplan." in found.table()
    with pytest.raises(ValueError, match="None of the laws has a coefficient alpha"):
        compare(laws, RUNS, [largest(RUNS, "tokens")], fixed={"alpha": 1.0})


def test_when_no_law_can_be_fitted_every_reason_is_given():
    with pytest.raises(ValueError, match=r"No law can be fitted: sparsity: .*num_experts"):
        compare(of_the_loss(LAWS, ["sparsity"]), RUNS, [largest(RUNS, "tokens")])


def test_the_command_compares_a_file(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    d = RUNS.design
    rows = np.stack([d.params_active, d.params_total, d.tokens, RUNS.loss], axis=1)
    np.savetxt(path, rows, delimiter=",", header="params_active,params_total,tokens,loss", comments="")
    command = ["compare", str(path), "--laws", "hoffmann,effective_params", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["laws"][0]["name"] == "effective_params"
    page = (tmp_path / "out" / "compare.md").read_text()
    assert "\n\n| law |" in page
    assert plain["verdict"] in page
    assert "](predicted_vs_actual.png)" in page
    assert (tmp_path / "out" / "predicted_vs_actual.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out" / "predicted_vs_actual.svg").read_text()
    assert (tmp_path / "out" / "predicted_vs_actual.csv").read_text().count("held out") == 2 * 24
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == plain
    assert main(["compare", str(path), "--laws", "sparsty"]) == 2
    assert "sparsity" in capsys.readouterr().err
