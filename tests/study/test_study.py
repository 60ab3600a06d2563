"""A study from its config to its report, on a command line of its own; and what it says of bad input."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from moejax import run_table
from moejax.__main__ import main
from moejax.study.run import read_study, train_study
from moejax.train.directory.attempts import read_attempts
from moejax.train.directory.metrics import read
from moejax.train.directory.row import MEASURED, OF_THE_CLOCK, known_columns

SHORT = ["--workers", "2"]


def moejax(*words, **options):
    """Run the command line as a user does: no fake devices."""
    environment = os.environ | {"XLA_FLAGS": os.environ["MOEJAX_TEST_XLA_FLAGS"]}
    command = [sys.executable, "-m", "moejax", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)


@pytest.fixture(scope="module")
def finished(config_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "out"
    return folder, moejax("study", f"--config={config_file}", "--out", folder, "--json", *SHORT)


def lasting(folder):
    """The run table without what depends on the clock."""
    return run_table.read(folder / "runs.parquet").drop(columns=list(OF_THE_CLOCK))


def logged_steps(folder):
    """Steps in the logs of all models."""
    return sum(line["steps_done"] for path in folder.glob("models/*/metrics.jsonl") for line in list(read(path))[-1:])


def test_a_study_trains_fits_decides_and_reports(finished):
    folder, process = finished
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout)
    assert [check["holds"] for check in found["sanity_checks"]] == [True, True]
    assert len(found["runs"]) == 9
    assert [law["name"] for law in found["laws"]] == ["effective_params"]
    assert {decision["law"] for decision in found["decisions"]} == {"effective_params"}
    assert found["limits"]
    assert (folder / "report.html").stat().st_size > 10_000
    assert json.loads((folder / "report.json").read_text())["runs"] == found["runs"]
    assert json.loads((folder / "fits" / "effective_params.json").read_text())["law"]["class"] == "EffectiveParams"


def test_the_table_says_what_was_built(finished):
    folder, _ = finished
    table = run_table.read(folder / "runs.parquet")
    assert list(table["model"].unique()) == ["dense", "moe", "wide"]
    moe = table[table["model"] == "moe"].iloc[0]
    # Embedding, attention with 2 query and 1 key-value heads of 8, two norms and the final one, router, 4 experts.
    rest = 257 * 16 + (16 * 16 + 2 * 16 * 8 + 16 * 16) + 3 * 16 + 16 * 4
    expert = 3 * 16 * 16
    assert (moe["params_total"], moe["params_active"]) == (rest + 4 * expert, rest + 2 * expert)
    dense = table[table["model"] == "dense"]
    assert dense["num_experts"].eq(0).all()
    assert dense[["load_cv", "balance_loss", "num_dense_layers"]].isna().all(axis=None)
    assert moe["num_dense_layers"] == 0
    assert moe["balance_loss"] > 0.9
    assert json.loads(moe["versions"])["jax"]


def test_what_a_row_says_is_known_before_it_is_trained_but_for_what_is_measured(finished):
    folder, _ = finished
    trainings = {training.name: training for training in read_study(folder).trainings()}
    for path in folder.glob("models/*/branch-*.json"):
        row = json.loads(path.read_text())
        training, budget = trainings[row["model"]], int(path.stem.partition("-")[2])
        # Its parameters are counted on arrays, and here by what an architecture says.
        known = json.loads(json.dumps(known_columns(training, budget)))
        assert {name: row[name] for name in known} == known
        numbers = {name for name, value in row.items() if isinstance(value, int | float)}
        assert numbers - set(known) - {"num_devices"} <= set(MEASURED) <= set(row)


@pytest.mark.slow
def test_a_finished_study_is_concluded_again_without_training(finished):
    folder, _ = finished
    before = run_table.read(folder / "runs.parquet")
    rows = {path: path.stat().st_mtime_ns for path in folder.glob("models/*/branch-*.json")}
    assert main(["study", "--resume", "--out", str(folder), "--json"]) == 0
    assert len(rows) == 9
    assert {path: path.stat().st_mtime_ns for path in rows} == rows
    assert run_table.read(folder / "runs.parquet").equals(before)


@pytest.mark.slow
def test_a_row_that_was_cut_short_is_named_and_its_run_done_again(finished, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", os.environ["MOEJAX_TEST_XLA_FLAGS"])
    shutil.copytree(finished[0], tmp_path / "out")
    row = tmp_path / "out" / "models" / "moe" / "branch-49152.json"
    row.write_text(row.read_text()[:100])
    said = []
    train_study(read_study(tmp_path / "out"), tmp_path / "out", update=lambda share, text: None, log=said.append)
    (sentence,) = said
    assert sentence.startswith("moe, resuming: models/moe/branch-49152.json cannot be read: it is not JSON")
    assert sentence.endswith("; its run is trained again.")
    assert lasting(tmp_path / "out").equals(lasting(finished[0]))
    assert [attempt.state for attempt in read_attempts(tmp_path / "out" / "models" / "moe")] == ["done", "done"]


def test_a_folder_of_another_study_is_refused(finished, config_file, capsys):
    folder, _ = finished
    assert main(["study", f"--config={config_file}", "--config.seed=1", "--out", str(folder)]) == 2
    assert "belongs to another run: seed was 0, is 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_killed_at_three_moments_ends_with_the_same_table(finished, config_file, tmp_path):
    whole, _ = finished
    environment = os.environ | {"XLA_FLAGS": os.environ["MOEJAX_TEST_XLA_FLAGS"]}
    command = [
        sys.executable,
        "-m",
        "moejax",
        "study",
        f"--config={config_file}",
        "--out",
        str(tmp_path / "out"),
        *SHORT,
    ]
    dice = random.Random()
    for steps in (5, 100, 250):
        # Killed a moment after so many steps were logged, over all models, wherever that is.
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while logged_steps(tmp_path / "out") < steps and process.poll() is None:
            time.sleep(0.1)
        time.sleep(dice.uniform(0, 1))
        assert process.poll() is None, "the study ended before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
    last = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    assert lasting(tmp_path / "out").equals(lasting(whole))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--config.models.moe.top_k=9"], "moe: top_k is 9 and num_experts is 4"),
        (["--config.models.mo.top_k=1"], "config.models.mo is unknown; did you mean moe?"),
        (["--config.recipe.optimizer.warmup_tokens=1M"], "before the warm-up of 1,000,000 tokens"),
        (["--config.analysis.laws=chinchila"], "did you mean chinchilla?"),
        (["--config.analysis.resamples=1"], "resamples is 1; give a whole number from 10 to 100,000"),
        (["--config.name=../../x"], "it names a folder"),
        (["--config.recipe.budgets_tokens=64k"], "needs at least two"),
    ],
)
def test_a_mistake_in_a_study_is_a_sentence(config_file, tmp_path, capsys, words, sentence):
    from moejax.__main__ import main

    assert main(["study", f"--config={config_file}", "--out", str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
