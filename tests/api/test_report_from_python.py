"""``mj.report`` writes the page of runs or of a fit, like ``moejax report``."""

import json

import numpy as np
import pandas as pd
import pytest

import moejax as mj
from moejax.errors import UserError
from moejax.fit.search.starts import Sobol
from moejax.laws.dense.chinchilla import HOFFMANN_2022


@pytest.fixture(scope="module")
def table():
    active, tokens = (a.ravel() for a in np.meshgrid(np.geomspace(1e8, 1e9, 6), np.geomspace(2e9, 4e10, 4)))
    exact = np.asarray(HOFFMANN_2022(mj.Design(params_active=active, tokens=tokens)))
    noise = np.exp(0.003 * np.random.default_rng(0).normal(size=len(exact)))
    return pd.DataFrame({"params_active": active, "tokens": tokens, "loss": exact * noise})


@pytest.fixture(scope="module")
def fit(table):
    return mj.fit(table, "chinchilla", starts=Sobol(count=32))


def test_a_fit_is_reported_with_its_runs_and_decisions(table, fit, tmp_path):
    decided = mj.decide(fit, flops=1e22)
    written = mj.report(fit, tmp_path / "report", runs=table, decisions=decided)
    page = written.path.read_text(encoding="utf-8")
    assert written.path == tmp_path / "report" / "report.html"
    assert "Chinchilla" in page
    assert {"report.md", "report.json", "loss-vs-compute.pdf"} <= {
        file.name for file in (tmp_path / "report").iterdir()
    }
    data = json.loads((tmp_path / "report" / "report.json").read_text())
    assert len(data["decisions"]) == len(decided.decisions)
    (where,) = {one.where for one in decided.decisions if one.given}
    assert written.summary().lead[0].startswith(f"At {where}: ")
    assert written.to_frame("Coefficients")["value"].to_list() == list(fit.coefficients.values())
    file = fit.save(tmp_path / "fit.json")
    assert mj.report(file).path == tmp_path / "fit-report" / "report.html"


@pytest.mark.slow
def test_a_table_is_fitted_and_reported(table, tmp_path):
    written = mj.report(table, tmp_path, laws="chinchilla", resamples=10, flops=1e22)
    assert "chinchilla" in written.path.read_text(encoding="utf-8")
    assert json.loads((tmp_path / "report.json").read_text())["decisions"][0]["flops"] == 1e22


def test_an_argument_that_does_not_apply_is_named(table, fit, tmp_path):
    for source, given, said in (
        (fit, {"laws": "chinchilla"}, "report of a fit does not use laws"),
        (fit, {"where": ["tokens > 1"]}, "report of a fit does not use where"),
        (table, {"runs": table}, "report of a table does not use runs"),
        (tmp_path, {"flops": 1e22}, "report of a study does not use flops"),
        (fit, {"runs": table.head(10)}, "made to other runs"),
        (table, {"resamples": 2}, "resamples is 2"),
        (table, {"weight": "tokens"}, "fits laws without `weight`; leave it out"),
    ):
        with pytest.raises(UserError, match=said):
            mj.report(source, None if source is tmp_path else tmp_path / "report", **given)


def test_a_file_of_the_user_is_not_replaced(fit, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(UserError, match="was not written by moejax"):
        mj.report(fit, tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
