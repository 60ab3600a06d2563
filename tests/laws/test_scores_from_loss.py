"""Laws of scores: what their authors' programs print comes out, their inverses agree, and runs give them back."""

import json

import numpy as np
import pandas as pd
import pytest

import moejax
from moejax.__main__ import main
from moejax.errors import UserError
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Squared
from moejax.laws.design import design_from
from moejax.laws.predict import predict, published
from moejax.laws.scores.accuracy_from_loss import REACH_ACCURACY, AccuracyFromLoss, loss_for_accuracy
from moejax.laws.scores.error_from_loss import REACH_ERROR, ErrorFromLoss, loss_for_error

GADRE_REDPAJAMA = np.array(
    [
        [5.3870209151, 0.8134857368],
        [3.8999429902, 0.7250451835],
        [3.5311474085, 0.6710080283],
        [3.1497694567, 0.6365529066],
        [4.5722926135, 0.7671019084],
        [2.7687566617, 0.5473253052],
    ]
)
"""Loss on C4 and mean error in 17 tasks of the six runs that Gadre et al. fit (mlfoundations/scaling, RedPajama)."""

LADDER = {
    "hellaswag": (0.6609338880, 0.8415671300),
    "mmlu": (0.7488274374, 0.5137559255),
    "arc-challenge": (0.7157248378, 0.6030242850),
    "piqa": (0.8987890244, 0.8074608283),
}
"""Loss of 13B parameters after 5T tokens, and the accuracy that the second step is printed to predict of it
(allenai/OLMo-ladder, figures/step2_main.csv)."""


def test_gadre_fit_is_the_least_squares_of_its_six_runs():
    loss, error = GADRE_REDPAJAMA.T
    found = fit_law(
        ErrorFromLoss,
        runs_from(design_from({"loss": loss}), error, output="error"),
        penalty=Squared(residual="nats"),
    )
    truth = published("error_from_loss", "gadre-2024-redpajama").law
    assert found.coefficients == pytest.approx(vars(truth), rel=2e-4)


@pytest.mark.parametrize("task", LADDER)
def test_the_ladder_predicts_the_accuracy_that_is_printed(task):
    loss, printed = LADDER[task]
    law = published("bhagia", f"bhagia-2024-{task}")
    assert predict(law, design_from({"loss": loss})).values["accuracy"] == pytest.approx(printed, rel=1e-5)


def test_a_loss_is_the_inverse_of_its_score_and_none_where_no_loss_has_it():
    error, accuracy = published("error_from_loss").law, published("accuracy_from_loss").law
    for loss in (0.7, 0.9, 1.1):
        at = design_from({"loss": loss})
        assert float(loss_for_error(error, error(at)["error"])) == pytest.approx(loss, rel=1e-4)
        assert float(loss_for_accuracy(accuracy, accuracy(at)["accuracy"])) == pytest.approx(loss, rel=1e-4)
    assert np.isnan(loss_for_error(error, 0.9))
    assert np.isnan([float(loss_for_accuracy(accuracy, wrong)) for wrong in (0.2, 0.999)]).all()


def test_a_score_that_no_loss_above_0_gives_needs_no_loss():
    flat = ErrorFromLoss(chance_error=0.6, gain_scale=0.4, gain_rate=0.5)
    early = AccuracyFromLoss(best_accuracy=0.9, lost_accuracy=0.7, slope=2.0, middle_loss=0.3)
    for rule, law, wanted in ((REACH_ERROR, flat, {"error": 0.1}), (REACH_ACCURACY, early, {"accuracy": 0.85})):
        assert np.isnan(rule.decide(law, **wanted)["needed_loss"])
        assert "at a loss of 0, and a loss cannot be below 0" in rule.why_none(law, wanted)
    assert "stays below 0.6" in REACH_ERROR.why_none(flat, {"error": 0.7})


@pytest.mark.parametrize(
    ("law", "truth"),
    [
        ("error_from_loss", ErrorFromLoss(chance_error=0.85, gain_scale=2.1, gain_rate=0.75)),
        (
            "accuracy_from_loss",
            AccuracyFromLoss(best_accuracy=0.95, lost_accuracy=0.7, slope=2.5, middle_loss=3.0),
        ),
    ],
)
def test_a_law_of_scores_is_found_in_a_table_within_its_intervals(law, truth):
    chance = np.random.default_rng(1)
    loss = np.linspace(2.0, 4.5, 40)
    (output,) = truth.outputs
    exact = np.array([float(truth(design_from({"loss": one}))[output]) for one in loss])
    table = pd.DataFrame({"loss": loss, output: exact * np.exp(chance.normal(0, 0.004, 40))})
    found = moejax.fit(table, law)
    intervals = found.conf_int(0.99)
    for name, value in vars(truth).items():
        assert intervals.loc[name, "low"] < value < intervals.loc[name, "high"], name
    assert found.metrics.rmse_log < 0.006


def ladder(path, ideal=False):
    """Accuracies of a sigmoid that ends at 1, by a loss of another name; with the ideal run at loss 0, if asked."""
    truth = AccuracyFromLoss(best_accuracy=1.0, lost_accuracy=0.7, slope=4.0, middle_loss=1.2)
    loss = np.append(np.linspace(1.0, 2.0, 12), [0.0] * ideal)
    exact = [float(truth(design_from({"loss": one}))["accuracy"]) for one in loss]
    noise = np.exp(np.random.default_rng(3).normal(0, 0.004, len(loss)) * (loss > 0))
    pd.DataFrame({"bpb": loss, "accuracy": exact * noise}).to_csv(path, index=False)
    return str(path)


def test_the_loss_that_a_law_of_scores_reads_is_named_and_may_be_the_ideal_0(tmp_path, capsys):
    fits = []
    for ideal in (False, True):
        words = ["fit", ladder(tmp_path / "runs.csv", ideal), "--law", "accuracy_from_loss", "--loss", "bpb", "--json"]
        assert main(words) == 0
        fits.append(json.loads(capsys.readouterr().out))
    without, ideal = (one["standard_errors"]["intervals"]["best_accuracy"] for one in fits)
    assert ideal[0] < 1 < ideal[1]
    assert ideal[1] - ideal[0] < without[1] - without[0]
    assert main([*words, "--fix", "best_accuracy=1"]) == 0
    assert json.loads(capsys.readouterr().out)["law"]["coefficients"]["best_accuracy"] == 1
    assert fits[1]["read"]["loss"] == "accuracy"


def test_a_formula_of_scores_reads_the_loss_that_is_named(tmp_path, capsys):
    words = ["fit", ladder(tmp_path / "runs.csv"), "--form", "accuracy = 1 - a*sigmoid(k*(bpb - m))", "--loss", "bpb"]
    assert main([*words, "--positive", "a,k,m", "--predict", "bpb=0.9", "--json"]) == 0
    (predicted,) = json.loads(capsys.readouterr().out)["predictions"]
    assert predicted["low"] < predicted["accuracy"] < predicted["high"] < 1


def test_runs_of_one_model_are_one_group_though_their_losses_differ():
    design = design_from({"params_active": np.array([1e8, 1e8, 2e8]), "loss": np.array([3.0, 2.9, 2.8])})
    assert runs_from(design, np.array([0.7, 0.69, 0.68]), output="error").group.tolist() == [0, 0, 1]


def test_what_cannot_be_asked_of_scores_is_a_sentence(tmp_path, capsys):
    table = pd.DataFrame({"loss": [3.0, 2.9, 2.8, 2.7, 2.6], "N": 1e8})
    with pytest.raises(UserError, match="has no column error"):
        moejax.fit(table, "error_from_loss")
    with pytest.raises(UserError, match="reads loss; also give loss"):
        predict("error_from_loss", design_from({"tokens": 1e9}))
    assert main(["predict", "--law", "error_from_loss", "--column", "loss=2"]) == 2
    said = capsys.readouterr().err
    assert "--loss" in said or "--column applies only to fitted formulas" in said
    table.assign(error=[0.7, 0.69, 0.66, 0.64, 0.6]).to_csv(tmp_path / "runs.csv", index=False)
    asked = ["fit", str(tmp_path / "runs.csv"), "--law", "error_from_loss", "--decide", "flops=1e22"]
    assert main(asked) == 2
    assert "needed_loss" in capsys.readouterr().err


def test_a_published_law_of_scores_is_asked_by_a_loss(capsys):
    assert main(["predict", "--law", "error_from_loss", "--loss", "2.7", "--json"]) == 0
    assert '"error": 0.5' in capsys.readouterr().out
