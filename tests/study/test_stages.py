"""Stages of a study: the models of each are made from the rows of the one before, once, and kept with the folder."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from moejax import run_table
from moejax.__main__ import main
from moejax.config import build
from moejax.errors import UserError
from moejax.report.conclusions import stages_table
from moejax.report.findings import Findings
from moejax.storage import open_storage
from moejax.stored import write_json
from moejax.study.analysis import Analysed
from moejax.study.executor import Ended
from moejax.study.outcomes import try_outcomes
from moejax.study.run import Concluded, read_study, train_study
from moejax.study.stages import known_stages, later, results
from moejax.study.study import Stage, Study
from moejax.train.directory.row import OF_THE_CLOCK
from moejax.train.directory.row_file import row_file

SHAPE = {"vocab_size": 257, "model_dim": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
"""A model's settings."""
OPTIMIZER = {"learning_rate": 0.01, "warmup_tokens": 64}
LOSSES = {"narrow": 3.0, "wide": 2.0, "reference": 1.0, "deep-1": 2.5, "deep-2": 2.25, "last": 2.0}
"""By model, the loss that the executor of these tests gives it."""


def deeper(before):
    depths = {f"deep-{layers}": before.architecture | {"num_layers": layers} for layers in (1, 2)}
    again = {before.winner: before.architecture}
    return {
        "models": {**depths, **again},
        "notes": {"deep-1": "one layer"},
        "references": ["deep-1"],
        "expected": "deep-2",
    }


def last(before):
    # It reads the rows of one model, and not the winner's.
    return {"models": {"last": before.architecture_of("deep-1")}, "recipes": {"last": {"budgets_tokens": [2_048]}}}


@pytest.fixture
def study(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"document {n} of some length, and a word\n\n" for n in range(400)))
    data = {"source": str(tmp_path / "text.txt"), "sequence_length": 16, "validation_tokens": 64}
    recipe = {"budgets_tokens": [1_024, 4_096], "batch_tokens": 64, "data": data, "optimizer": OPTIMIZER}
    widths = {"narrow": 16, "wide": 32, "reference": 64}
    return build(
        Study,
        {
            "name": "staged",
            "models": {name: SHAPE | {"dense_hidden": width} for name, width in widths.items()},
            "recipe": recipe,
            "analysis": {"laws": []},
            "stages": [
                {"name": "width", "references": ["reference"], "expected": "narrow"},
                {"name": "depth", "make": deeper},
                {"name": "end", "make": last},
            ],
        },
    )


class WritesRows:
    """An executor whose trainings are rows of known losses."""

    def __init__(self, losses=LOSSES):
        self.losses, self.names, self._ended = losses, [], []

    def describe(self, tasks):
        return ""

    def check(self):
        pass

    def stop(self):
        pass

    def submit(self, tasks):
        self.names += [task.name for task in tasks]
        for task in tasks:
            why = "" if task.name in self.losses else f"{task.name} diverged."
            self._ended.append(Ended(task=task, why=why, users_mistake=bool(why)))
            for budget in () if why else task.training.recipe.budgets_tokens:
                row = {
                    "model": task.name,
                    "group": task.name,
                    "tokens": budget,
                    "loss": self.losses[task.name] + 1 / budget,
                }
                row |= {"fingerprint": "x", "params_active": 1_000, "params_total": 1_000}
                row |= {"architecture": json.dumps(task.training.as_json()["architecture"])}
                write_json(task.folder / row_file(budget), row)
        return {name: name for name in self.names}

    def ended(self):
        ended, self._ended = self._ended, []
        return ended


def trained(study, folder, losses=LOSSES):
    executor, said = WritesRows(losses), []
    train_study(study, folder, executor=executor, update=lambda share, text: None, log=said.append)
    return executor.names, said


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("moejax.study.executor.POLL_SECONDS", 0.0)


def test_stages_are_made_of_winners_trained_once_and_reported(study, tmp_path):
    folder = tmp_path / "out"
    names, said = trained(study, folder)
    # The reference has the least loss and does not win; the winner that is named again is not trained again.
    assert sorted(names[:3]) == ["narrow", "reference", "wide"]
    assert sorted(names[3:]) == ["deep-1", "deep-2", "last"]
    assert names[-1] == "last"
    assert said == [
        "stage depth: 3 models, made from width, where wide won (loss 2.0002)",
        "stage end: 1 model, made from depth, where wide won (loss 2.0002)",
    ]
    found = read_study(folder)
    assert found.unknown_stages == ()
    assert [found.models[name].num_layers for name in ("wide", "deep-1", "deep-2")] == [1, 1, 2]
    assert {found.models[name].dense_hidden for name in ("deep-1", "deep-2", "last")} == {32}
    table = run_table.read(folder / "runs.parquet")
    assert dict(zip(table["model"], table["stage"], strict=True)) == {
        **dict.fromkeys(("narrow", "wide", "reference"), "width"),
        **dict.fromkeys(("deep-1", "deep-2"), "depth"),
        "last": "end",
    }
    rows = table.to_dict("records")
    concluded = Concluded(found, folder, None, [], Analysed(runs=9, laws=[], decisions=[], limits=[]))
    concluded = dataclasses.replace(concluded, stages=tuple(results(found, rows)))
    (shown,) = stages_table(Findings(concluded, table, {}))
    assert [row[:3] for row in shown.rows] == [["width", 3, "wide"], ["depth", 3, "wide"], ["end", 1, "last"]]
    assert shown.rows[1][4] == "deep-2"
    # Given again, with its config or without, nothing is left to train.
    assert trained(study, folder)[0] == trained(found, folder)[0] == []


def test_a_function_that_changes_its_rows_changes_no_result(study, tmp_path):
    def careless(before):
        made = {"models": {"last": before.architecture}}
        before.rows[0]["loss"] = 0.5
        del before.rows[1:]
        return made

    staged = dataclasses.replace(study, stages=(study.stages[0], Stage(name="depth", make=careless)))
    assert try_outcomes(staged).tried == 2
    _, said = trained(staged, tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "stages" / "depth.json").read_text())
    assert kept["made_from"] == pytest.approx(
        {name: LOSSES[name] for name in ("narrow", "wide", "reference")}, rel=1e-3
    )
    assert "where wide won" in said[0]


def test_a_stage_is_not_made_of_rows_that_are_missing_or_of_other_rows(study, tmp_path):
    folder = tmp_path / "out"
    with pytest.raises(
        UserError, match=r"1 of 3 training runs failed: wide diverged. The stages depth and end have no"
    ):
        trained(study, folder, {name: loss for name, loss in LOSSES.items() if name != "wide"})
    assert not (folder / "stages").exists()
    assert read_study(folder).unknown_stages == ("depth", "end")
    assert later(read_study(folder)).startswith("The stages depth and end have no models yet. Each stage is made")
    # A folder has no functions: what is known is trained, and the rest needs the config.
    with pytest.raises(UserError, match=r"Run again with --config=FILE.py"):
        trained(read_study(folder), folder)
    trained(study, folder)
    other = dataclasses.replace(study.stages[1], make=lambda before: {"models": {"other": before.architecture}})
    with pytest.raises(UserError, match=r"The stage depth belongs to another run: models.deep-1"):
        trained(dataclasses.replace(study, stages=(study.stages[0], other, study.stages[2])), folder)
    path = folder / "models" / "wide" / row_file(4_096)
    row = {name: value for name, value in json.loads(path.read_text()).items() if name != "moejax"}
    write_json(path, {**row, "loss": 9.0})
    with pytest.raises(UserError, match="The stage depth belongs to another run"):
        known_stages(study, open_storage(folder))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"moejax": {}, "models": {}, "made_from": {}}'])
def test_a_damaged_stage_is_named_and_made_anew_once_it_is_removed(study, tmp_path, text):
    folder = tmp_path / "out"
    trained(study, folder)
    path, row = folder / "stages" / "depth.json", folder / "models" / "deep-1" / row_file(4_096)
    before = path.read_text(), row.read_text()
    path.write_text(text)
    for again in (lambda: trained(study, folder), lambda: read_study(folder)):
        with pytest.raises(UserError, match=r"stages/depth.json cannot be read: .*remove it and give --config=FILE.py"):
            again()
    assert path.read_text() == text
    path.unlink()
    assert trained(study, folder)[0] == []
    assert (path.read_text(), row.read_text()) == before


def test_a_dry_run_counts_the_stages_that_are_expected(study):
    found = try_outcomes(study).expected
    # The second stage expects deep-2, so the last one is known too.
    assert found.unknown_stages == ()
    assert found.models["deep-2"].dense_hidden == 16
    assert found.notes["deep-1"] == "one layer; stage depth, made as if narrow won width"
    first = dataclasses.replace(study.stages[0], expected="")
    unexpected = try_outcomes(dataclasses.replace(study, stages=(first, *study.stages[1:])))
    assert unexpected.expected.unknown_stages == ("depth", "end")
    assert unexpected.tried == 6


def test_every_model_that_may_win_is_tried_and_one_from_whom_nothing_can_be_made_is_named(study):
    # Two may win the first stage, and after each two the second; the rest are references.
    found = try_outcomes(study)
    assert (found.tried, found.left) == (6, 0)
    some = try_outcomes(study, most_models=4)
    assert (some.tried, some.left) == (2, 2)
    assert some.expected.models == found.expected.models

    def shallower(before):
        return {"models": {"cut": before.architecture | {"num_layers": 2 - before.architecture["dense_hidden"] // 16}}}

    def by_columns(before):
        rows = {row["model"]: row for row in before.rows}
        best = min(rows, key=lambda name: rows[name]["bits_per_byte"] * rows[name]["params_total"])
        return {"models": {f"from-{best}": before.architecture | {"num_layers": {"narrow": 1}[before.winner]}}}

    for make, sentence in (
        (shallower, "The stage depth fails if wide wins width: .*num_layers"),
        (by_columns, "The stage depth fails if wide wins width: .*KeyError: 'wide'.*fix the stage.s function"),
    ):
        stages = (study.stages[0], Stage(name="depth", make=make))
        with pytest.raises(UserError, match=sentence):
            try_outcomes(dataclasses.replace(study, stages=stages))
        # A model that cannot win need not be made anything of.
        only = dataclasses.replace(study.stages[0], references=("wide", "reference"))
        assert try_outcomes(dataclasses.replace(study, stages=(only, stages[1]))).tried == 1

    def refuse(known):
        raise UserError(f"{len(known.models)} models are too many.")

    with pytest.raises(UserError, match="fails if narrow wins width: 5 models are too many"):
        try_outcomes(study, refuse)


def test_a_reference_is_not_expected_to_win(study):
    first = dataclasses.replace(study.stages[0], expected="reference")
    with pytest.raises(UserError, match="width expects reference, which is one of its references and cannot win"):
        dataclasses.replace(study, stages=(first, *study.stages[1:])).check()
    every = dataclasses.replace(study.stages[0], references=tuple(study.models), expected="")
    with pytest.raises(UserError, match="all models of width are references, so no model can win"):
        try_outcomes(dataclasses.replace(study, stages=(every, *study.stages[1:])))


@pytest.mark.parametrize("action", [["--dry-run"], ["--out", "out"]])
def test_the_command_refuses_a_stage_that_fails_for_a_winner_nobody_expected(
    staged_config_file, tmp_path, monkeypatch, capsys, action
):
    text = staged_config_file.read_text().replace(
        "before.architecture |", "[before.architecture][before.winner == 'wide-32'] |"
    )
    (tmp_path / "staged.py").write_text(text.replace('dict(name="width")', 'dict(name="width", expected="wide-16")'))
    monkeypatch.chdir(tmp_path)
    assert main(["study", "--config=staged.py", *action]) == 2
    said = capsys.readouterr().err
    assert "The stage depth fails if wide-32 wins width" in said
    assert "Traceback" not in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda before: before.rows["none"], "depth cannot be made from the rows of width, where wide won .Python"),
        (
            lambda before: sys.exit(0),
            "depth cannot be made from the rows of width, .*SystemExit.*fix the stage.s function",
        ),
        (
            lambda before: {"models": {"a": before.architecture}, "recipes": {"a": {"data": {"sequence_length": 8}}}},
            "recipes: a changes data",
        ),
        (lambda before: {"models": {}}, "the function of depth returned no models"),
        (lambda before: {"modles": {}}, "stages.depth.modles is unknown; did you mean models"),
        (
            lambda before: {"models": {"a": before.architecture}, "references": ["b"]},
            "stages.depth.references: model 'b'",
        ),
        (
            lambda before: {"models": {"wide": before.architecture_of("narrow")}},
            "model wide of depth has the same name as a model of an earlier stage",
        ),
        (None, "depth has no function make"),
    ],
)
def test_a_mistake_in_a_stage_is_a_sentence_and_nothing_is_written(study, tmp_path, make, sentence):
    folder = tmp_path / "out"
    stages = (study.stages[0], Stage(name="depth", make=make))
    with pytest.raises(UserError, match=sentence):
        trained(dataclasses.replace(study, stages=stages), folder)
    assert not (folder / "stages").exists()


@pytest.mark.slow
def test_a_staged_study_killed_in_each_stage_ends_with_the_same_table(staged_config_file, tmp_path):
    environment = os.environ | {"XLA_FLAGS": os.environ["MOEJAX_TEST_XLA_FLAGS"]}

    def command(out):
        words = ["study", f"--config={staged_config_file}", "--workers", "2", "--out", str(tmp_path / out)]
        return [sys.executable, "-m", "moejax", *words]

    done = subprocess.run(command("whole"), env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for first in ("models/wide-*/metrics.jsonl", "models/deep-*/metrics.jsonl"):
        process = subprocess.Popen(command("cut"), env=environment, stderr=subprocess.DEVNULL)
        while not list((tmp_path / "cut").glob(first)) and process.poll() is None:
            time.sleep(0.1)
        time.sleep(0.5)
        assert process.poll() is None, "the study ended before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
    resume = [*command("cut")[:4], "--resume", "--workers", "2", "--out", str(tmp_path / "cut")]
    last = subprocess.run(resume, env=environment, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    tables = [
        run_table.read(tmp_path / out / "runs.parquet").drop(columns=list(OF_THE_CLOCK)) for out in ("whole", "cut")
    ]
    assert tables[0].equals(tables[1])
    assert "Stages" in (tmp_path / "cut" / "report.md").read_text()
