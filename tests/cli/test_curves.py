"""``moejax curves``: fit, hold out, predict, best schedule; files, and mistakes in sentences."""

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.cli.commands.curves import CurvesCommand
from moejax.cli.options import flag_of
from moejax.fit.fit_result import FitResult

sys.path.insert(0, str(Path(__file__).parents[1] / "curves"))
from known_curves import WARMUP, curves, table


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("curves") / "curves.csv"
    made = table(curves(("constant", "cosine", "drop", "wsd"), noise=5e-4, every=80))
    made.rename(columns={"step": "iteration"}).to_csv(path, index=False)
    return path


def test_a_table_is_fitted_held_out_asked_and_written(file, tmp_path, capsys):
    asked = ["--predict", "steps=8K,decay_share=.2", "--best", "1K", "--hold-out", "w*"]
    asked += ["--predict", "steps=4K,peak=1e-20", "--predict", "steps=8K,peak=1", "--level", ".995"]
    words = ["curves", str(file), "--warmup", str(WARMUP), "--out", str(tmp_path), "--json", *asked]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["curves"] == ["constant", "cosine", "drop"]
    (held,) = found["held_out"]
    assert held["name"] == "wsd"
    assert held["max_relative_error"] < 0.01
    predicted = found["predictions"]["steps=8K,decay_share=.2"]
    assert predicted["low"] < predicted["loss"] < predicted["high"]
    assert found["predictions"]["steps=4K,peak=1e-20"]["beyond"] < 1e-10
    assert all(gain["gain"] > 0 for gain in found["best"]["gains"].values())
    names = {"fit.json", "summary.txt", "predictions.csv", "curves.png", "curves.svg", "curves.csv", "schedule.csv"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    assert FitResult.load(tmp_path / "fit.json").coefficients == found["law"]["coefficients"]
    rates = pd.read_csv(tmp_path / "schedule.csv")["lr"]
    assert len(rates) == 1000
    assert (rates.iloc[WARMUP:].diff().iloc[1:] <= 0).all()
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    assert set(predictions.query("run == 'wsd'")["role"]) == {"held out"}
    said = " ".join((tmp_path / "summary.txt").read_text().split())
    assert "It is an extrapolation" in said
    assert "more than the highest measured loss" in said
    assert "steps=4K,peak=1e-20: peak_rate" in said
    assert "below the fitted ones; steps=8K,peak=1: " in said
    assert "99.5% interval" in said
    assert "100%" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.csv"], "nowhere.csv does not exist"),
        (["FILE", "--law", "chinchila"], "no loss-curve law 'chinchila'"),
        (["FILE", "--hold-out", "*"], "leaves no curve to fit"),
        (["FILE", "--predict", "steps=1K,shape=cosine"], "a schedule has no 'shape'"),
        (["FILE", "--predict", "decay_share=.2"], "has no length"),
        (["FILE", "--predict", "steps=100,warmup=200"], "must end before the last step"),
        (["FILE", "--predict", "steps=1e12"], "steps must be at most 5,000,000"),
        (["FILE", "--predict", "steps=1000.7"], "'1000.7' is not a whole number"),
        (["FILE", "--predict", "steps=8K,peak=-1"], "the peak learning rate is -1"),
        (["FILE", "--best", "1T"], "--best is 1,000,000,000,000 steps; give at most 5,000,000"),
        (["FILE", "--predict", "steps=8K,peak=1e59"], "the peak learning rate is 1e+59; give one above 0 and at most"),
        (
            ["FILE", "--best", "10", "--warmup", str(WARMUP)],
            f"after the warm-up of {WARMUP}; give {WARMUP + 10} steps or more",
        ),
        (["FILE", "--map", "lr=rate"], "lr=rate cannot be computed"),
        (["FILE", "--only", "constant", "--best", "1000"], "determine how much the loss falls"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence_and_before_anything_is_fitted(words, said, file, capsys, monkeypatch):
    if "--law" not in words:
        monkeypatch.setattr("moejax.curves.loss_curves.fit_curves", None)
    assert main(["curves", *[str(file) if word == "FILE" else word for word in words]]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_every_option_that_is_named_where_a_loss_is_out_of_family_is_one_of_the_command(tmp_path, capsys):
    made = table(curves(noise=5e-4, every=80))
    made.loc[len(made) // 2, "loss"] *= 1.2
    made.to_csv(tmp_path / "curves.csv", index=False)
    assert main(["curves", str(tmp_path / "curves.csv"), "--warmup", str(WARMUP)]) == 0
    said = capsys.readouterr()
    assert "Outliers: " in said.out
    options = {flag_of(CurvesCommand, field.name) for field in dataclasses.fields(CurvesCommand) if field.metadata}
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", said.out + said.err)) <= options


def test_a_fit_that_was_written_is_asked_again_and_predicts_what_it_was_not_fitted_to(file, tmp_path, capsys):
    fitted = ["curves", str(file), "--warmup", str(WARMUP), "--hold-out", "w*", "--out", str(tmp_path / "fit")]
    asked = ["--predict", "steps=8K,decay_share=.2"]
    assert main([*fitted, *asked, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    again = ["curves", str(file), "--warmup", str(WARMUP), "--law", str(tmp_path / "fit"), *asked, "--json"]
    assert main([*again, "--out", str(tmp_path / "again")]) == 0
    found = json.loads(capsys.readouterr().out)
    for part in ("law", "held_out", "predictions", "curves"):
        assert found[part] == before[part]
    assert "fitted before to 3 curves" in " ".join((tmp_path / "again/summary.txt").read_text().split())
    assert main([*again, "--fix", "irreducible=2"]) == 2
    assert "is already fitted" in capsys.readouterr().err
    # Other curves under the same names are none of those that it was fitted to.
    other = pd.read_csv(file)
    other.assign(loss=other["loss"] + 0.5).to_csv(tmp_path / "other.csv", index=False)
    assert main(["curves", str(tmp_path / "other.csv"), *again[2:]]) == 0
    assert {one["name"] for one in json.loads(capsys.readouterr().out)["held_out"]} == set(other["run"])


ASK_OF_RUNS = ("predict --law FIT --tokens 1e10", "design --law FIT --flops 1e21", "plot fit --fit FIT", "report FIT")


@pytest.fixture(scope="module")
def fit(file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    assert main(["curves", str(file), "--warmup", str(WARMUP), "--law", "momentum", "--out", str(folder)]) == 0
    return folder / "fit.json"


@pytest.mark.parametrize("words", ASK_OF_RUNS)
def test_a_fit_of_curves_is_not_asked_of_runs(words, fit, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words.replace("FIT", str(fit)).split()) == 2
    assert f"{fit} is a fit of loss curves" in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_a_folder_called_as_a_law_is_not_taken_for_it(file, fit, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(fit.parent, "momentum")
    assert main(["curves", str(file), "--warmup", str(WARMUP), "--law", "momentum"]) == 0
    assert "Momentum, fitted to 4 curves" in capsys.readouterr().out
