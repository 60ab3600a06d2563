"""``moejax curves``: fit, hold out, predict, best schedule; files, and mistakes in sentences."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.fit.fit_result import FitResult

sys.path.insert(0, str(Path(__file__).parents[1] / "fit"))
from known_curves import WARMUP, curves, table


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("curves") / "curves.csv"
    made = table(curves(("constant", "cosine", "drop", "wsd"), noise=5e-4))
    made.rename(columns={"step": "iteration"}).to_csv(path, index=False)
    return path


def test_a_table_is_fitted_held_out_asked_and_written(file, tmp_path, capsys):
    asked = ["--predict", "steps=8K,decay_share=.2", "--best", "1K", "--hold-out", "w*"]
    words = ["curves", str(file), "--warmup", str(WARMUP), "--out", str(tmp_path), "--json", *asked]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["curves"] == ["constant", "cosine", "drop"]
    (held,) = found["held_out"]
    assert held["name"] == "wsd"
    assert held["max_relative_error"] < 0.01
    predicted = found["predictions"]["steps=8K,decay_share=.2"]
    assert predicted["low"] < predicted["loss"] < predicted["high"]
    assert all(gain["gain"] > 0 for gain in found["best"]["gains"].values())
    names = {"fit.json", "summary.txt", "predictions.csv", "curves.png", "curves.svg", "curves.csv", "schedule.csv"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    assert FitResult.load(tmp_path / "fit.json").coefficients == found["law"]["coefficients"]
    rates = pd.read_csv(tmp_path / "schedule.csv")["lr"]
    assert len(rates) == 1000
    assert (rates.iloc[WARMUP:].diff().iloc[1:] <= 0).all()
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    assert set(predictions.query("run == 'wsd'")["role"]) == {"held out"}
    said = (tmp_path / "summary.txt").read_text()
    assert "It is an extrapolation" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.csv"], "There is no nowhere.csv"),
        (["FILE", "--law", "chinchila"], "no law of loss curves 'chinchila'"),
        (["FILE", "--hold-out", "*"], "leaves no curve to fit"),
        (["FILE", "--predict", "steps=1K,shape=cosine"], "a schedule has no 'shape'"),
        (["FILE", "--predict", "decay_share=.2"], "does not say how long"),
        (["FILE", "--predict", "steps=100,warmup=200"], "ends before the training"),
        (["FILE", "--predict", "steps=1e12"], "steps are at most 5,000,000"),
        (["FILE", "--predict", "steps=1000.7"], "'1000.7' is not a whole number"),
        (["FILE", "--predict", "steps=8K,peak=-1"], "the peak learning rate is -1"),
        (["FILE", "--best", "1T"], "--best is 1,000,000,000,000 steps; they are at most 5,000,000"),
        (["FILE", "--map", "lr=rate"], "lr=rate cannot be computed"),
        (["FILE", "--only", "constant", "--best", "1000"], "rests on what a drop of the rate takes off"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(words, said, file, capsys):
    assert main(["curves", *[str(file) if word == "FILE" else word for word in words]]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
