"""Tasks that a study asks its checkpoints: each once, kept, in one table; and what is said where that cannot be."""

import dataclasses
import importlib.util
import json

import numpy as np
import pandas as pd
import pytest

from moejax import run_table
from moejax.__main__ import main
from moejax.cli.command_line import USERS
from moejax.config import build, check_fields, dump
from moejax.errors import UserError
from moejax.evaluation import validation_choices
from moejax.evaluation.language_model import Likelihood
from moejax.evaluation.suites import score_of
from moejax.interval import Interval
from moejax.json_text import json_text
from moejax.report.conclusions import downstream_tables
from moejax.report.findings import Findings
from moejax.stored import write_json
from moejax.study import downstream
from moejax.study.analysis import Analysed
from moejax.study.downstream import DownstreamScores, ask_checkpoints, conclude_downstream
from moejax.study.run import Concluded
from moejax.study.score_links import ScoreLink, score_links, with_fitted
from moejax.study.study import Downstream, Study
from moejax.train.directory.row_file import row_file
from moejax.wording import install_command

SHAPE = {"vocab_size": 257, "model_dim": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
BUDGETS = [1_024, 4_096]


def study_of(**asked):
    shapes = {"narrow": SHAPE | {"dense_hidden": 16}, "wide": SHAPE | {"dense_hidden": 32}}
    data = {"sequence_length": 16, "validation_tokens": 64}
    recipe = {"budgets_tokens": BUDGETS, "batch_tokens": 64, "data": data, "optimizer": {"learning_rate": 0.01}}
    config = {"name": "asked", "models": shapes, "recipe": recipe, "analysis": {"laws": []}, "downstream": asked}
    return build(Study, config)


@pytest.fixture
def trained(tmp_path):
    """A study's folder with the rows of its models, and without their checkpoints."""
    for number, model in enumerate(("narrow", "wide")):
        for budget in BUDGETS:
            row = {"model": model, "group": model, "tokens": budget, "loss": 3.0 - number - budget / 10_000}
            row |= {"fingerprint": model, "params_active": 1_000 + number, "params_total": 1_000 + number}
            folder = tmp_path / "models" / model
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / row_file(budget), row)
    return tmp_path


@pytest.fixture
def asks(monkeypatch):
    """What every checkpoint is asked, in order; a model's score is 10 % for each thousand tokens."""
    said = []

    def load(path):
        said.append(path.name)
        return type("Loaded", (), {"weights": None, "origin": {"phase": path.name}})()

    def tasks(study, folder, asked):
        def of(one):
            def ask(loaded, update):
                said.append(one.task)
                update(1.0, "done")
                return {"results": {"acc,none": int(loaded.origin["phase"][7:]) / 10_000}, "better": {"acc": True}}

            return ask

        return {one.task: of(one) for one in asked}

    monkeypatch.setattr(downstream, "load_model", load)
    monkeypatch.setattr(downstream, "fingerprint", lambda weights: "w")
    monkeypatch.setattr(downstream, "_check_there", lambda wanted: None)
    monkeypatch.setattr(downstream, "_load", tasks)
    return said


def asked_anew(study, folder, said):
    """What is asked if the study is run once more."""
    said.clear()
    new = ask_checkpoints(study, folder, lambda share, text: None)
    assert new == sum(not word.startswith("branch") for word in said)
    return [word for word in said if not word.startswith("branch")]


def test_every_checkpoint_is_asked_once_and_again_what_is_asked_otherwise(trained, asks, monkeypatch):
    one = study_of(tasks=["first"])
    monkeypatch.setattr(downstream, "fingerprint", lambda weights: 1 / (len(asks) < 5))
    with pytest.raises(ZeroDivisionError):
        ask_checkpoints(one, trained, lambda share, text: None)
    # Stopped at the third checkpoint: two scores are kept, and no table of a part is there.
    assert not (trained / downstream.TABLE).exists()
    monkeypatch.setattr(downstream, "fingerprint", lambda weights: "w")
    assert asked_anew(one, trained, asks) == ["first"] * 2
    assert asked_anew(one, trained, asks) == []
    both = study_of(tasks=["first", "second"])
    assert asked_anew(both, trained, asks) == ["second"] * 4
    table = run_table.read(trained / downstream.TABLE)
    assert len(table) == 8
    assert list(table["score"]) == pytest.approx(table["tokens"] / 100)
    assert list(table["error"]) == pytest.approx(100 - table["score"])
    assert dict(zip(zip(table["model"], table["tokens"], strict=True), table["loss"], strict=True)) == {
        (model, budget): 3.0 - number - budget / 10_000
        for number, model in enumerate(("narrow", "wide"))
        for budget in BUDGETS
    }
    # Shots of one's own are another question; a file that holds something else than was written is named.
    assert asked_anew(study_of(tasks=["first", "second"], num_fewshot=2), trained, asks) == ["first", "second"] * 4
    path = trained / "downstream" / "wide" / "4096.first.json"
    path.write_text(path.read_text().replace("0.4096", "0.9"))
    with pytest.raises(UserError, match=r"4096.first.json cannot be read.*remove it to evaluate the task again"):
        ask_checkpoints(both, trained, lambda share, text: None)


def test_task_files_that_change_are_asked_again_and_may_be_elsewhere(trained, asks, tmp_path_factory):
    files = tmp_path_factory.mktemp("tasks")
    (files / "mine.yaml").write_text("task: mine\n")
    one = study_of(tasks=["mine", "theirs"], task_path=str(files))
    assert asked_anew(one, trained, asks) == ["mine", "theirs"] * 4
    (files / "mine.yaml").write_text("task: mine\noutput_type: multiple_choice\n")
    assert asked_anew(one, trained, asks) == ["mine"] * 4
    (files / "mine.yaml").rename(files.parent / "mine.yaml")
    files.rmdir()
    assert asked_anew(one, trained, asks) == []


def test_tasks_that_differ_in_punctuation_alone_have_a_score_each(trained, asks):
    both = study_of(tasks=["a/b", "a:b", "a-b"])
    assert asked_anew(both, trained, asks) == ["a/b", "a:b", "a-b"] * 4
    assert asked_anew(both, trained, asks) == []


def test_a_checkpoint_is_where_its_training_leaves_it(trained):
    """Also where a budget does not end on a step, and its row has fewer tokens."""
    (trained / "models" / "wide" / row_file(BUDGETS[1])).rename(trained / "models" / "wide" / row_file(4_150))
    config = dump(study_of(tasks=["first"])) | {"recipes": {"wide": {"budgets_tokens": [1_024, 4_150]}}}
    found = downstream._checkpoints(build(Study, config), trained)
    assert [f"{one.folder.parent.parent.name}/{one.folder.name}" for one in found] == [
        *("narrow/branch-1024", "narrow/branch-4096", "wide/branch-1024", "wide/branch-4150")
    ]


def test_tokens_without_text_and_a_changed_table_are_said_before_anything_is_trained(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(downstream, "has_harness", lambda: True)
    found = study_of(tasks=["piqa"])
    data = dataclasses.replace(found.recipe.data, tokenizer="ids:257:256")
    numbers = dataclasses.replace(found, recipe=dataclasses.replace(found.recipe, data=data))
    with pytest.raises(UserError, match="ids:257:256, which cannot encode text, so the tasks piqa cannot be evaluated"):
        downstream.check_tasks(numbers, tmp_path)
    own, table = study_of(tasks=[validation_choices.NAME]), trained / downstream.TABLE
    run_table.write([{"model": "a", "loss": 1.0}], table)
    downstream.check_tasks(own, trained)
    table.write_bytes(table.read_bytes() + b"x")
    with pytest.raises(UserError, match=r"scores.parquet differs from the file that moejax wrote"):
        downstream.check_tasks(own, trained)


def test_checkpoints_that_are_missing_are_named_and_nothing_is_written(trained):
    one = study_of(tasks=[validation_choices.NAME])
    with pytest.raises(UserError, match=r"4 of 4 checkpoints .* are missing in .*: narrow at 1,024 tokens, narrow"):
        ask_checkpoints(one, trained, lambda share, text: None)
    assert {path.name for path in trained.iterdir()} == {"models"}


def test_without_the_harness_its_tasks_are_refused_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "lm_eval" else real(name, *rest)
    )
    config = {"recipe": {"budgets_tokens": BUDGETS, "batch_tokens": 64, "data": {"sequence_length": 16}}}
    config |= {"name": "asked", "models": {"a": SHAPE | {"dense_hidden": 16}}, "analysis": {"laws": []}}
    config |= {"downstream": {"tasks": ["piqa"]}}
    text = (
        f"from ml_collections import ConfigDict\n\n\ndef get_config():\n    return ConfigDict({json.dumps(config)})\n"
    )
    (tmp_path / "study.py").write_text(text)
    assert main(["study", f"--config={tmp_path / 'study.py'}", "--out", str(tmp_path / "out")]) == USERS
    said = capsys.readouterr().err
    assert (
        "downstream tasks piqa need lm-evaluation-harness, which is not installed. Run " + install_command("eval")
        in said
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"tasks": ("a", "a")}, "name every task once"),
        ({"tasks": ("mmlu_*",)}, "which contains a pattern"),
        ({"suite": "abnar-2024"}, "did you mean abnar-2025"),
        ({"links": ("line",)}, r"downstream.links\[0\] is 'line'; choose from sigmoid, power"),
        ({"dtype": "float16"}, "did you mean bfloat16 or float32"),
        ({"limit": -1}, "downstream.limit is -1"),
    ],
)
def test_a_mistake_in_what_is_asked_is_a_sentence(asked, sentence):
    with pytest.raises(UserError, match=sentence):
        check_fields(Downstream(**asked), "downstream")


class Knows:
    """A language model that has read a text: the next token there is likely, and any other is not."""

    def __init__(self, tokens, knows):
        self.rows = {tuple(row[:-1]): row for row in tokens.tolist()}
        self.knows = knows

    def log_likelihoods(self, pairs, progress):
        return [Likelihood(self._of(*pair), True) for pair in pairs]

    def _of(self, context, choice):
        row = next(row for start, row in self.rows.items() if list(start[: len(context)]) == list(context))
        return float(self.knows and list(choice) == row[len(context) : len(context) + len(choice)])


def test_the_studys_own_text_is_a_task_of_its_next_tokens():
    tokens = np.random.default_rng(0).integers(0, 257, (40, 65))
    asked = validation_choices.documents(tokens, limit=12)
    assert len(asked) == 12
    rows = {tuple(row[:32]): row[32:40].tolist() for row in tokens}
    for context, choices in asked:
        assert choices[0] == rows[tuple(context)]
        assert len({tuple(choice) for choice in choices}) == 4
    assert validation_choices.results(Knows(tokens, True).log_likelihoods, asked)["acc,none"] == 1.0
    # Who finds all choices equally likely has answered nothing.
    assert validation_choices.results(Knows(tokens, False).log_likelihoods, asked)["acc,none"] == 0.0
    padded = np.ones((40, 64), bool)
    padded[:38, 30] = False
    with pytest.raises(UserError, match=r"needs at least 4 rows of held-out text .* but there are 2 rows of 65"):
        validation_choices.documents(tokens, padded)


def test_one_score_of_a_task_is_a_share_and_its_error_is_what_is_left():
    found = {
        "alias": "x",
        "acc,none": 0.25,
        "acc_stderr,none": 0.01,
        "acc_norm,none": 0.5,
        "acc_norm_stderr,none": "N/A",
    }
    score = score_of(found, {"acc": True, "acc_norm": True}, "x")
    assert (score.metric, score.score, score.deviation, score.error) == ("acc_norm,none", 50.0, None, 50.0)
    named = score_of(found, {}, "x", "acc,none")
    assert (named.score, named.deviation, named.error) == (25.0, 1.0, 75.0)
    perplexity = {"perplexity,none": 7.0, "f1,none": 0.5}
    assert score_of(perplexity, {"perplexity": False, "f1": True}, "x").error == 7.0
    assert score_of(perplexity, {"perplexity": False, "f1": True}, "x", "f1,none").error is None
    with pytest.raises(UserError, match="Task x has no score em,none; its scores are perplexity,none, f1,none"):
        score_of(perplexity, {}, "x", "em,none")


def test_a_report_has_every_task_with_its_verdict_and_the_scores_of_the_largest_budgets(trained, asks):
    one = study_of(tasks=["first"])
    ask_checkpoints(one, trained, lambda share, text: None)
    scores = run_table.read(trained / downstream.TABLE)
    below, above = (
        Interval(low=low, middle=low + 0.1, high=low + 0.2, deviation=0.1, undefined=0.0) for low in (-0.3, 0.1)
    )
    links = [ScoreLink(task="first", link="", fit=None, transfer=found, left_out=("why.",)) for found in (below, above)]
    found = DownstreamScores(scores=scores, links=[*links, dataclasses.replace(links[0], transfer=None)], missing=3)
    concluded = Concluded(one, trained, None, [], Analysed(runs=4, laws=[], decisions=[], limits=[]), downstream=found)
    by_loss, largest = downstream_tables(Findings(concluded, scores, {}))
    assert [row[-1] for row in by_loss.rows] == ["sparser models err less", "sparser models err more", "not determined"]
    assert "3 scores are missing; run the study again." in by_loss.notes
    assert [row[:2] for row in largest.rows] == [["narrow", 4_096], ["wide", 4_096]]
    assert json.loads(json_text(found))["missing"] == 3
    assert conclude_downstream(study_of(), trained) is None


@pytest.mark.slow
@pytest.mark.parametrize("transfer", [0.0, 0.05])
def test_what_sparsity_moves_at_equal_loss_is_found(transfer):
    random, rows = np.random.default_rng(0), []
    for number, sparsity in enumerate((0.0, 0.5, 0.9, 0.95)):
        for i, loss in enumerate(np.linspace(1.9, 3.3, 8)):
            exact = 70 / (1 + np.exp(-2.0 * (loss - transfer * np.log(1 - sparsity) - 2.4)))
            error = exact * np.exp(random.normal(0.0, 0.003))
            rows.append({"task": "t", "model": f"{number}-{i}", "sparsity": sparsity, "loss": loss, "error": error})
    table = pd.DataFrame(rows)
    (found,) = score_links(table)
    assert found.link == "sigmoid"
    assert found.transfer.low <= transfer <= found.transfer.high
    assert found.verdict == ("no difference seen" if transfer == 0 else "sparser models err more")
    fitted = with_fitted(table, [found])
    assert (fitted["fitted_error"] / fitted["error"]).between(0.8, 1.25).all()
    # Two runs set no form of two or three coefficients and its error; no error above 0 has no form.
    assert score_links(table[:1])[0].fit is None
    assert score_links(table.assign(error=0.0))[0].verdict == "not determined"
