"""A study that predicts annealed losses: what is refused before training, and the table that it writes after."""

import dataclasses
import json
import shutil

import numpy as np
import pandas as pd
import pytest

from moejax import run_table
from moejax.architecture import Architecture
from moejax.curves.loss_curves import losses_at
from moejax.data.config import DataConfig
from moejax.errors import UserError
from moejax.fit.tables.read_runs import read_runs
from moejax.laws.curves.momentum import Momentum
from moejax.laws.dense.chinchilla import Chinchilla
from moejax.stored import claim
from moejax.study.annealed import TABLE, conclude_annealed, curve_of
from moejax.study.run import train_study
from moejax.study.study import Analysis, Study
from moejax.train.optimizer import OptimizerConfig
from moejax.train.training import Recipe, phases

LAW = Momentum(irreducible=1.5, sum_scale=0.5, sum_exponent=0.4, drop_scale=20.0, memory_steps=12.0)
SHAPE = Architecture(
    vocab_size=257, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, dense_hidden=32
)
STEP = 1_024
RECIPE = Recipe(
    budgets_tokens=tuple(STEP * steps for steps in (160, 240, 320, 480)),
    batch_tokens=STEP,
    evaluate_tokens=8 * STEP,
    data=DataConfig(sequence_length=64, validation_tokens=1_024),
    optimizer=OptimizerConfig(learning_rate=1e-2, warmup_tokens=16 * STEP),
)
ASKED = (200 * STEP, 400 * STEP)
STUDY = Study(
    name="two",
    models={"a": SHAPE, "b": SHAPE.replace(dense_hidden=64)},
    recipe=RECIPE,
    analysis=Analysis(laws=(), anneal="predict", anneal_tokens=ASKED),
)


def study(recipe=None, **analysis):
    recipe = dict(recipe or {})
    optimizer = dataclasses.replace(RECIPE.optimizer, **recipe.pop("optimizer", {}))
    return dataclasses.replace(
        STUDY,
        recipe=dataclasses.replace(RECIPE, optimizer=optimizer, **recipe),
        analysis=dataclasses.replace(STUDY.analysis, **analysis),
    )


def test_a_study_with_a_trunk_and_branches_may_ask_for_annealed_losses():
    STUDY.check()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (study(anneal="guess"), "analysis.anneal is 'guess'; choose from predict"),
        (study(anneal=""), "analysis.anneal is empty; set it to"),
        (study(anneal_tokens=()), r"analysis.anneal_tokens is \[\]; list each budget"),
        (study(anneal_tokens=(ASKED[1], ASKED[0])), "once, in ascending order"),
        (study(anneal_law="momentous"), "There is no loss-curve law 'momentous'"),
        (
            study(anneal_tokens=RECIPE.budgets_tokens[:1]),
            r"163,840, which is 160 steps of 1,024 tokens \(163,840 tokens\), but all",
        ),
        (
            study(anneal_tokens=(160 * STEP + 1, *ASKED)),
            r"163,841, which is 160 steps of 1,024 tokens \(163,840 tokens\), but all",
        ),
        (
            study(anneal_tokens=(200 * STEP + 1, 200 * STEP + 2)),
            "204,801 and 204,802, which are the same budget for b: 200",
        ),
        (study(anneal_tokens=(0, *ASKED)), "has 0, which is less than two steps of b with batches of 1,024"),
        (
            study({"budgets_tokens": (*RECIPE.budgets_tokens, 480 * STEP + 9)}),
            "both end at step 480, because a batch has",
        ),
        (study({"evaluate_tokens": 0}), "of b: recipe.evaluate_tokens is 0, so the trunk has no validation losses"),
        (study({"optimizer": {"decay_share": 1.0}}), "optimizer.decay_share is 1, .* as in a cosine"),
        (study({"optimizer": {"final_share": 1.0}}), "optimizer.final_share is 1, so the learning rate never falls"),
        (study({"budgets_tokens": RECIPE.budgets_tokens[:2]}), "recipe.budgets_tokens has 2 budgets; train at least 3"),
        (study(anneal_tokens=(600 * STEP,)), "has 614,400, but the longest budget of b is 491,520"),
        (
            study(anneal_tokens=(10**18,)),
            "the longest budget of b is 491,520, so its trunk ends before a branch to 1,000",
        ),
        (
            study(anneal_tokens=(30 * STEP,)),
            "at step 24. Between the end of the warm-up at step 16 .* has 2 measurements",
        ),
        (study(anneal_tokens=(22 * STEP,)), "at step 18. Between .* has 1 measurement, .*now 8 steps"),
    ],
)
def test_what_cannot_be_predicted_is_said_before_anything_is_trained(asked, said):
    with pytest.raises(ValueError, match=said):
        asked.check()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The files of a trained study, with validation losses of a known law."""
    folder, draws, rows = tmp_path_factory.mktemp("trained"), np.random.default_rng(0), []
    for training in STUDY.trainings():
        trunk, branches = phases(training)
        lines = []
        for phase in (trunk, *branches):
            for step in range(phase.start + 8 - phase.start % 8, phase.end + 1, 8):
                loss = truth(training, phase, step) * np.exp(5e-4 * draws.normal())
                line = {"phase": phase.name, "step": step, "tokens": step * STEP, "steps_done": step, "seconds": 1.0}
                lines.append({**line, "loss": loss, "validation_loss": loss})
            if phase is not trunk:
                loss = truth(training, phase, phase.end)
                sizes = {"params_active": 1e4, "params_total": 1e4, "batch_tokens": STEP, "sequence_length": 64}
                tokens = phase.end * STEP
                rows.append({"model": training.name, "tokens": tokens, "flops": 6e4 * tokens, "loss": loss, **sizes})
        path = folder / "models" / training.name
        path.mkdir(parents=True)
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_table.write(rows, folder / run_table.TABLE)
    return folder


def truth(training, phase, step):
    rates = curve_of(training, phase, {}).rates
    return float(losses_at(LAW, rates, np.array([step]))[0])


def conclude(folder, **changes):
    return conclude_annealed(STUDY.trainings(), dataclasses.replace(STUDY.analysis, **changes), folder)


@pytest.fixture(scope="module")
def concluded(trained, tmp_path_factory):
    """Their annealed losses, and the files with the table of these losses."""
    folder = tmp_path_factory.mktemp("concluded") / "out"
    shutil.copytree(trained, folder)
    return conclude(folder), folder


def test_predicted_losses_stand_in_a_table_of_their_own_beside_measured_rows(trained, concluded):
    found, folder = concluded
    assert (folder / run_table.TABLE).read_bytes() == (trained / run_table.TABLE).read_bytes()
    table = run_table.read(folder / TABLE)
    measured, predicted = table[table["is_predicted"] == 0], table[table["is_predicted"] == 1]
    pd.testing.assert_frame_equal(
        measured[["model", "tokens", "loss"]].reset_index(drop=True),
        run_table.read(trained / run_table.TABLE)[["model", "tokens", "loss"]],
    )
    assert list(zip(predicted["model"], predicted["tokens"], strict=True)) == [(n, t) for n in "ba" for t in ASKED]
    asked = dataclasses.replace(RECIPE, budgets_tokens=ASKED)
    for training in STUDY.trainings():
        _, branches = phases(dataclasses.replace(training, recipe=asked))
        own = predicted[predicted["model"] == training.name]
        for row, phase in zip(own.to_dict("records"), branches, strict=True):
            assert row["loss"] == pytest.approx(truth(training, phase, phase.end), rel=3e-3)
            assert row["loss_low"] < row["loss"] < row["loss_high"]
            assert row["decay_tokens"] == (phase.end - phase.start) * STEP
    assert found is not None
    assert set(found.to_json()["left_out"]) == {"a", "b"}
    assert all(len(one.left_out) == len(RECIPE.budgets_tokens) for one in found.models.values())


def test_a_fit_to_predicted_losses_says_so_and_weighs_them_by_their_standard_errors(concluded):
    _, folder = concluded
    read = read_runs(folder / TABLE, Chinchilla, trust_units=True)
    assert any("4 of 12 losses were predicted, not measured" in note for note in read.notes)
    guessed = read.frame["is_predicted"].to_numpy() == 1
    assert len(set(read.runs.weight[~guessed])) == 1
    assert (read.runs.weight[guessed] < read.runs.weight[~guessed][0]).all()
    alone = read_runs(folder / TABLE, Chinchilla, trust_units=True, where=["is_predicted == 0"])
    assert not any("not measured" in note for note in alone.notes)
    assert (alone.runs.weight == 1).all()
    with pytest.raises(ValueError, match=r"predicted losses .* need a standard error .*where=..is_predicted == 0"):
        read_runs(run_table.read(folder / TABLE).drop(columns="loss_standard_error"), Chinchilla, trust_units=True)


def test_the_table_goes_with_the_question_and_a_file_of_the_users_stays(concluded, tmp_path):
    folder = shutil.copytree(concluded[1], tmp_path / "copy")
    assert conclude(folder, anneal="", anneal_tokens=()) is None
    assert not (folder / TABLE).exists()
    (folder / TABLE).write_text("mine")
    assert conclude(folder, anneal="", anneal_tokens=()) is None
    with pytest.raises(ValueError, match="was changed after moejax wrote it"):
        conclude(folder)
    assert (folder / TABLE).read_text() == "mine"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"phase": "trunk", "step": 385}, "of trunk at step 385, but trunk has steps 1 to 384"),
        ({"phase": "trunk", "step": 0}, "of trunk at step 0, but trunk has steps 1 to 384"),
        (
            {"phase": "branch-163840", "step": 128},
            "of branch-163840 at step 128, but .* has steps 129 to",
        ),
        (
            {"phase": "branch-163840", "step": 10**9},
            "of branch-163840 at step 1,000,000,000, but",
        ),
    ],
)
def test_a_step_that_a_phase_does_not_have_is_named_with_its_file(trained, tmp_path, line, said):
    shutil.copytree(trained, tmp_path / "copy")
    path = tmp_path / "copy" / "models" / "a" / "metrics.jsonl"
    rest = {"tokens": 1, "steps_done": 1, "seconds": 1.0, "loss": 2.0, "validation_loss": 2.0}
    path.write_text(path.read_text() + json.dumps(line | rest) + "\n")
    with pytest.raises(UserError, match=rf"a/metrics\.jsonl has a validation loss {said}"):
        conclude(tmp_path / "copy")
    assert not (tmp_path / "copy" / TABLE).exists()


def test_a_loss_that_is_no_number_leaves_one_model_out_and_is_said(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "copy")
    path = tmp_path / "copy" / "models" / "a" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[4]["validation_loss"] = "nan"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = conclude(tmp_path / "copy")
    assert found is not None
    assert set(found.models) == {"b"}
    assert found.not_predicted == (
        "Annealed losses of a are not predicted: The loss of a/trunk at step 40 is nan; loss-curve laws need finite "
        "losses above 0. Leave this measurement or the curve out.",
    )


def test_a_table_that_was_changed_is_named_before_anything_is_fitted_or_trained(concluded, tmp_path, monkeypatch):
    shutil.copytree(concluded[1], tmp_path / "copy")
    (tmp_path / "copy" / TABLE).write_text("mine")
    monkeypatch.setattr("moejax.study.annealed.anneal", lambda *_, **__: pytest.fail("a curve was fitted"))
    with pytest.raises(UserError, match="was changed after moejax wrote it"):
        conclude(tmp_path / "copy")
    new = tmp_path / "new"
    claim(new, "study.json", STUDY.identity())
    (new / TABLE).write_text("mine")
    with pytest.raises(UserError, match="was not written by moejax"):
        train_study(STUDY, new, update=lambda share, text: pytest.fail("a training began"))
    assert not (new / "models").exists()
    assert (new / TABLE).read_text() == "mine"


def test_a_log_that_is_not_there_is_named_and_nothing_is_written(trained, tmp_path):
    (tmp_path / run_table.TABLE).write_bytes((trained / run_table.TABLE).read_bytes())
    with pytest.raises(ValueError, match=r"b/metrics\.jsonl has no validation losses of the trunk of b"):
        conclude(tmp_path)
    assert not (tmp_path / TABLE).exists()
