"""Laws are compared on the same runs, and the one that made them wins."""

import json

import numpy as np
import pytest
from test_fit_law import sweep

from moejax.__main__ import main
from moejax.fit.compare import compare, of_the_loss
from moejax.fit.holdout import largest
from moejax.laws import LAWS
from moejax.laws.effective_params import CHAPTER_002

RUNS = sweep(CHAPTER_002, noise=0.002)
NAMES = ["chinchilla", "effective_params", "sparsity"]


@pytest.fixture(scope="module")
def found():
    return compare(of_the_loss(LAWS, NAMES), RUNS, [largest(RUNS, "tokens")])


def test_the_law_that_made_the_runs_predicts_them_best(found):
    assert found.laws[0].name == "effective_params"
    assert found.laws[0].errors["rmse"] < 0.5 * found.laws[1].errors["rmse"]
    assert "effective_params predicts the held-out runs best" in found.verdict


def test_a_law_whose_columns_are_missing_is_left_out_with_the_reason(found):
    assert "num_experts" in found.left_out["sparsity"]
    assert "sparsity is left out" in found.table()


def test_every_law_of_the_loss_is_compared_unless_some_are_named():
    assert set(of_the_loss(LAWS)) == {n for n, law in LAWS.items() if "loss" in law.outputs} - {"isoflop_surface"}


def test_when_no_law_can_be_fitted_every_reason_is_given():
    with pytest.raises(ValueError, match=r"No law can be fitted: sparsity: .*num_experts"):
        compare(of_the_loss(LAWS, ["sparsity"]), RUNS, [])


def test_the_command_compares_a_file(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    d = RUNS.design
    rows = np.stack([d.params_active, d.params_total, d.tokens, RUNS.loss], axis=1)
    np.savetxt(path, rows, delimiter=",", header="params_active,params_total,tokens,loss", comments="")
    command = ["compare", str(path), "--laws", "hoffmann,effective_params", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["laws"][0]["name"] == "effective_params"
    assert "| law |" in (tmp_path / "out" / "compare.md").read_text()
    assert main(["compare", str(path), "--laws", "sparsty"]) == 2
    assert "sparsity" in capsys.readouterr().err
