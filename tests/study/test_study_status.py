"""How far a study is, and its table, from files that any engine wrote, here or in an object store."""

import dataclasses
import itertools
import json
import os
import random
import time

import fsspec
import pytest

from moejax import run_table
from moejax.__main__ import main
from moejax.architecture import Architecture
from moejax.config import dump
from moejax.data.config import DataConfig
from moejax.storage import open_storage
from moejax.stored import sealed
from moejax.study.run import fetch, materialize_at, write_table
from moejax.study.status import progress, run_statuses, seconds_left
from moejax.study.study import Study
from moejax.train.directory.attempts import (
    ATTEMPTS,
    COMPILING,
    DONE,
    FAILED,
    INTERRUPTED,
    OPENING_DATA,
    RUNNING,
    Attempt,
)
from moejax.train.optimizer import OptimizerConfig
from moejax.train.training import Recipe, phases

SHAPE = Architecture(
    vocab_size=257, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, dense_hidden=32
)
STUDY = Study(
    name="three",
    models={
        "a": SHAPE,
        "b": dataclasses.replace(SHAPE, dense_hidden=64),
        "c": dataclasses.replace(SHAPE, model_dim=24),
    },
    recipe=Recipe(
        budgets_tokens=(4_096, 8_192),
        batch_tokens=1_024,
        data=DataConfig(sequence_length=64, validation_tokens=1_024),
        optimizer=OptimizerConfig(learning_rate=1e-2),
    ),
)
STORES = itertools.count()


@pytest.fixture(params=["a folder", "an object store"])
def url(request, tmp_path):
    """Where engines write, as an address."""
    return str(tmp_path / "study") if request.param == "a folder" else f"memory://bucket-{next(STORES)}/study"


def write(url, path, text):
    system = open_storage(url)
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    system.pipe_file(path, text.encode())


def write_study(url):
    """The study's folder, without its corpus."""
    write(url, "study.json", sealed(STUDY.identity()))


def row(training, budget):
    sizes = {"params_active": training.architecture.model_dim, "params_total": training.architecture.dense_hidden}
    plain = {"model": training.name, "group": training.name, "tokens": budget, "loss": 3.0 - budget / 1e5, **sizes}
    return {**plain, "fingerprint": training.fingerprint()}


def finish(url, training, budgets=None):
    for budget in budgets or training.recipe.budgets_tokens:
        write(url, f"models/{training.name}/branch-{budget}.json", sealed(row(training, budget)))


def work_on(url, model, *attempts):
    write(url, f"models/{model}/{ATTEMPTS}", sealed(dump(attempts)))


def attempt(began, until, state=RUNNING, why=""):
    where = "Slurm job 7_1, restart 0 on node1"
    return Attempt(began=began, until=until, state=state, why=why, where=where, devices=4)


def of(url, model):
    return next(one for one in run_statuses(open_storage(url), STUDY.trainings()) if one.model == model)


def test_trainings_are_waiting_running_interrupted_failed_or_done(url):
    write_study(url)
    now, (first, second, third) = time.time(), STUDY.trainings()
    assert {one.state for one in run_statuses(open_storage(url), STUDY.trainings())} == {"waiting"}
    finish(url, first)
    work_on(url, second.name, attempt(now - 60, now - 50, FAILED, "No such corpus."))
    work_on(url, third.name, attempt(now - 60, now - 30, INTERRUPTED, "stopped by SIGTERM"))
    found = {one.model: one for one in run_statuses(open_storage(url), STUDY.trainings())}
    assert [found[one.name].state for one in (first, second, third)] == ["done", "failed", "interrupted"]
    assert found[second.name].why == "No such corpus."
    assert found[second.name].device_seconds == pytest.approx(4 * 10)
    work_on(url, third.name, attempt(now - 60, now - 30, INTERRUPTED), attempt(now - 5, now))
    assert of(url, third.name).state == "running"
    assert of(url, third.name).attempts == 2
    assert of(url, third.name).device_seconds == pytest.approx(4 * (30 + 5))


def test_a_training_that_has_been_silent_for_long_is_interrupted_and_that_is_said(url):
    write_study(url)
    work_on(url, "a", attempt(time.time() - 7200, time.time() - 3600))
    assert of(url, "a").state == "interrupted"
    assert "its last update was 60 minutes ago" in of(url, "a").why


def test_a_training_without_a_logged_step_says_what_it_does(url, capsys):
    write_study(url)
    now = time.time()
    compiling = dataclasses.replace(attempt(now - 10, now), activity=COMPILING)
    work_on(url, "a", compiling)
    # Nothing is recorded while a long text is prepared.
    work_on(url, "b", dataclasses.replace(compiling, began=now - 9000, until=now - 7800, activity=OPENING_DATA))
    work_on(url, "c", dataclasses.replace(compiling, began=now - 9000, until=now - 7800))
    text = progress(run_statuses(open_storage(url), STUDY.trainings()))[1]
    assert text == "0 of 3 models trained; b opening data, a compiling"
    assert "130 minutes ago, while compiling, before its first step" in of(url, "c").why
    assert main(["study", "status", url]) == 0
    assert "running, compiling" in " ".join(capsys.readouterr().out.split())


def test_time_left_follows_from_the_speed_of_the_last_steps(url):
    write_study(url)
    training = STUDY.trainings()[0]
    at = [{"step": step, "steps_done": step, "tokens": 64 * step, "seconds": 2.0 * step} for step in (1, 2, 3)]
    lines = [{"phase": "trunk", "loss": 3.0, **one} for one in at]
    work_on(url, training.name, attempt(time.time() - 10, time.time()))
    write(url, f"models/{training.name}/metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines) + '{"phase"')
    one = of(url, training.name)
    assert one.seconds_left == pytest.approx(2 * (training.recipe.total_steps - 3))
    found = run_statuses(open_storage(url), STUDY.trainings())
    # The other trainings follow at the same pace.
    assert seconds_left(found) > one.seconds_left
    share, text = progress(found)
    assert 0 < share < 1
    count = len(training.recipe.budgets_tokens)
    assert text == f"0 of 3 models trained; {training.name} loss 3.00 (trunk of {count} budgets)"
    branch = {**lines[-1], "phase": phases(training)[1][-1].name, "steps_done": training.recipe.total_steps - 1}
    write(url, f"models/{training.name}/metrics.jsonl", f"{json.dumps(lines[-1])}\n{json.dumps(branch)}\n")
    text = progress(run_statuses(open_storage(url), STUDY.trainings()))[1]
    assert text == f"0 of 3 models trained; {training.name} loss 3.00 (budget {count} of {count})"


def test_a_last_loss_that_is_not_finite_is_no_end_of_the_status(url, capsys):
    write_study(url)
    training = STUDY.trainings()[0]
    work_on(url, training.name, attempt(time.time() - 10, time.time()))
    line = {"phase": "trunk", "step": 1, "steps_done": 1, "tokens": 64, "seconds": 1.0, "loss": "nan"}
    before = {**line, "step": 0, "steps_done": 0}
    write(url, f"models/{training.name}/metrics.jsonl", "".join(f"{json.dumps(one)}\n" for one in (before, line)))
    assert f"{training.name} loss nan" in progress(run_statuses(open_storage(url), STUDY.trainings()))[1]
    assert main(["study", "status", url]) == 0
    assert "nan" in capsys.readouterr().out
    assert main(["study", "status", url, "--json"]) == 0


def test_a_row_that_was_cut_short_is_named_and_its_run_counts_as_not_done(url):
    write_study(url)
    training = STUDY.trainings()[0]
    finish(url, training)
    path = f"models/{training.name}/branch-8192.json"
    write(url, path, json.dumps(row(training, 8_192))[:40])
    one = of(url, training.name)
    assert (one.state, len(one.rows)) == ("waiting", 1)
    assert one.why.startswith(f"{path} cannot be read: it is not JSON, or only a part of it")
    assert one.why.endswith("; its run is trained again.")


def test_a_row_of_another_model_or_without_a_loss_is_named_and_does_not_count(url):
    write_study(url)
    first, second = STUDY.trainings()[:2]
    path = f"models/{first.name}/branch-8192.json"
    write(url, path, sealed(row(second, 8_192)))
    one = of(url, first.name)
    assert one.rows == ()
    assert f"{path} holds the row of {second.name} at 8,192 tokens" in one.why
    write(url, path, json.dumps({**row(first, 8_192), "loss": float("nan")}))
    assert of(url, first.name).rows == ()
    assert "it contains NaN, which is not a finite number; its run is trained again." in of(url, first.name).why


def test_the_table_is_the_same_whatever_the_place_and_the_order_in_which_rows_came(tmp_path):
    tables = []
    for number, seed in enumerate((0, 1, 2)):
        url = f"memory://order-{next(STORES)}/study" if number else str(tmp_path / "here")
        write_study(url)
        trainings = STUDY.trainings()
        random.Random(seed).shuffle(trainings)
        for training in trainings:
            finish(url, training, sorted(training.recipe.budgets_tokens, reverse=bool(number)))
        fetch(url, tmp_path / f"table-{number}")
        tables.append(run_table.read(write_table(STUDY, tmp_path / f"table-{number}")))
    assert len(tables[0]) == 6
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def test_what_is_done_is_gathered_before_all_is(url, tmp_path, capsys):
    write_study(url)
    finish(url, STUDY.trainings()[0])
    assert main(["study", "gather", url, "--out", str(tmp_path / "table")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("2 of 6 runs: ")
    assert "not done: " in said.err
    assert len(run_table.read(tmp_path / "table" / "runs.parquet")) == 2


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("{")])
def test_a_table_is_not_replaced_by_one_that_lacks_a_run(tmp_path, capsys, damage):
    folder, first = tmp_path / "study", STUDY.trainings()[0]
    write_study(str(folder))
    finish(str(folder), first)
    assert main(["study", "gather", str(folder)]) == 0
    lost, table = folder / "models" / first.name / "branch-8192.json", folder / "runs.parquet"
    damage(lost)
    capsys.readouterr()
    assert main(["study", "gather", str(folder)]) == 2
    said = capsys.readouterr().err
    assert f"has 1 run without a complete row in {folder}: models/{first.name}/branch-8192.json" in said
    assert len(run_table.read(table)) == 2
    # Without the table, what is left is gathered, and a damaged file is named.
    table.unlink()
    assert main(["study", "gather", str(folder)]) == 0
    assert ("branch-8192.json" in capsys.readouterr().err) == lost.exists()
    assert len(run_table.read(table)) == 1


def test_a_table_that_was_changed_by_hand_is_not_replaced(tmp_path, capsys):
    url = str(tmp_path / "study")
    write_study(url)
    finish(url, STUDY.trainings()[0])
    for _ in range(2):
        assert main(["study", "gather", url]) == 0
    table = tmp_path / "study" / "runs.parquet"
    run_table.read(table).assign(mine="a note").to_parquet(table)
    assert main(["study", "gather", url]) == 2
    assert "runs.parquet differs from the file that moejax wrote" in capsys.readouterr().err
    # One that was removed is written again.
    table.unlink()
    assert main(["study", "gather", url]) == 0


def test_gathering_replaces_what_was_gathered_and_no_row_that_was_trained_there(url, tmp_path, capsys):
    write_study(url)
    first, second, _ = STUDY.trainings()
    for training in (first, second):
        finish(url, training)
        work_on(url, first.name, attempt(0.0, time.time()))
        assert main(["study", "gather", url, "--out", str(tmp_path / "gathered")]) == 0
    write_study(str(tmp_path / "mine"))
    path, mine = f"models/{first.name}/branch-8192.json", sealed({**row(first, 8_192), "loss": 9.0})
    write(str(tmp_path / "mine"), path, mine)
    assert main(["study", "gather", url, "--out", str(tmp_path / "mine")]) == 2
    assert f"{path} was not gathered from {url} or was changed since" in capsys.readouterr().err
    assert (tmp_path / "mine" / path).read_text() == mine
    assert not (tmp_path / "mine" / f"models/{second.name}").exists()


def test_a_pipe_in_a_files_place_is_named(tmp_path, capsys):
    write_study(str(tmp_path))
    folder = tmp_path / "models" / STUDY.trainings()[0].name
    folder.mkdir(parents=True)
    for name in ("branch-4096.json", "attempts.json", "metrics.jsonl"):
        os.mkfifo(folder / name)
        assert main(["study", "status", str(tmp_path)]) == 2
        assert f"{name} is not a regular file" in capsys.readouterr().err
        (folder / name).unlink()


def test_status_says_all_this_to_people_and_machines(url, capsys):
    write_study(url)
    now, (first, second, _) = time.time(), STUDY.trainings()
    finish(url, first)
    work_on(url, first.name, attempt(now - 3600, now, DONE))
    work_on(url, second.name, attempt(now - 60, now - 60, FAILED, "The disk is full."))
    assert main(["study", "status", url, "--price", "2"]) == 0
    said = capsys.readouterr().out
    assert f"{second.name} failed: The disk is full." in said
    assert "2 of 6 runs; models: 1 done, 1 failed, 1 waiting; spent 4 device-hours, 8.00" in said
    assert main(["study", "status", url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["states"] == {"done": 1, "running": 0, "interrupted": 0, "failed": 1, "waiting": 1}
    assert found["device_hours"] == pytest.approx(4, rel=1e-3)


def test_an_object_store_gets_the_study_with_its_corpus_and_refuses_another(tmp_path):
    url = f"memory://laid-{next(STORES)}/study"
    text = tmp_path / "texts"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text(f"Sentence {number} after another. " * 40)
    recipe = dataclasses.replace(STUDY.recipe, data=dataclasses.replace(STUDY.recipe.data, source=str(text)))
    study = dataclasses.replace(STUDY, recipe=recipe)
    materialize_at(study, url)
    system = open_storage(url)
    assert json.loads(system.cat_file("models/a/training.json"))["name"] == "a"
    assert json.loads(system.cat_file("data/corpus.json"))["source"] == str(text)
    materialize_at(study, url)
    with pytest.raises(ValueError, match=r"belongs to another run: seed was 0, is 1"):
        materialize_at(dataclasses.replace(study, seed=1), url)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["study", "stats", "DIR"], "write moejax study status DIR or moejax study gather DIR"),
        (["study", "status"], "arguments are required: DIR"),
        (["study", "status", "DIR"], "DIR holds no study"),
        (["study", "status", "nowhere://a/b"], "nowhere://a/b cannot be reached"),
        (["study", "gather", "memory://none/study"], "memory://none/study holds no study"),
    ],
)
def test_a_mistake_is_a_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.fixture(autouse=True)
def no_objects_left():
    """What a test put into the memory of this process does not reach the next."""
    yield
    fsspec.filesystem("memory").store.clear()
