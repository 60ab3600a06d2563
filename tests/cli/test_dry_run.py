"""``moejax study --dry-run``: what a study costs, before anything is spent."""

import json
from pathlib import Path

import pytest

from moejax.__main__ import main
from moejax.cli.config_file import load
from moejax.laws.accounting import flops_per_token
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.chips import CHIPS, find
from moejax.train.training import Training

STUDIES = Path(__file__).parent.parent.parent / "configs" / "studies"


def run(name, *words):
    return main(["study", f"--config={STUDIES / name}", "--dry-run", *words])


@pytest.mark.slow
def test_the_446_configurations_are_listed_with_what_they_cost_and_nothing_is_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("zhao.py", "--chip", "v5p", "--mfu", "0.5", "--price", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    totals = found["totals"]
    assert totals["runs"] == len(found["runs"]) == 419
    assert found["stated"][0]["value"] == 446
    peak = CHIPS["v5p"].flops_per_second
    counted = totals["flops"] / (peak * 0.5) / 3600
    # The MFU is of FLOPs without the masked half of the scores.
    assert 0.85 * counted < totals["chip_hours"] < 0.97 * counted
    assert totals["cost"] == pytest.approx(3 * totals["chip_hours"])
    assert not list(tmp_path.iterdir())


def test_a_training_by_itself_costs_what_a_study_of_it_does(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [f"--config={STUDIES.parent / 'tiny.py'}", "--config.vmap.seeds=0,1", "--json"]
    assert main(["study", *words, "--dry-run"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["model"] for one in found["trainings"]] == ["tiny-seed0", "tiny-seed1"]
    per_token = flops_per_token(load(Training, words[0].removeprefix("--config="), []).architecture, 128).training
    assert [run["flops"] for run in found["runs"]] == [per_token * tokens for tokens in 2 * [65_536, 131_072]]
    assert not list(tmp_path.iterdir())


def test_people_read_a_table_its_notes_and_its_totals(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run("zhao.py:G", "--chip", "h800") == 0
    printed = capsys.readouterr().out
    assert "NVIDIA H800 SXM" in printed
    assert "N907M-Na181M-G10-S20" in printed
    assert "half a shared one" in printed
    assert "chip hours" in printed
    assert "cost" not in printed


def test_a_pod_is_sized_by_memory(capsys):
    assert run("chapter_002.py:pilot", "--json") == 0
    (training,) = json.loads(capsys.readouterr().out)["trainings"]
    shape = CATALOGUE["deepseek-v3.1"].architecture
    # Float32 parameters, gradients and two moments.
    assert training["state_bytes"] == 16 * training["params_total"]
    assert training["chips_at_least"] * 0.9 * 80e9 > training["state_bytes"]
    per_token = flops_per_token(shape, 4096).training
    assert training["flops"] > per_token * max(training["budgets_tokens"])
    needed = training["flops"] * flops_per_token(shape, 4096).training_causal / per_token
    assert training["chip_hours"] == pytest.approx(needed / (CHIPS["h100"].flops_per_second * 0.4) / 3600)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--chip", "h8000"], "did you mean h800"),
        (["--chip", "cpu"], "An estimate needs a chip with a known peak speed, such as "),
    ],
)
def test_a_mistake_is_a_sentence(capsys, words, sentence):
    assert run("zhao.py:table-1", *words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_a_study_without_a_corpus_says_how_to_name_one(capsys, tmp_path):
    assert main(["study", f"--config={STUDIES / 'zhao.py:table-1'}", "--out", str(tmp_path / "out")]) == 2
    assert "--config.recipe.data.source=PATH" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_every_chip_has_a_source_and_is_found_in_any_case():
    assert all(chip.source and chip.flops_per_second > 1e14 and chip.memory_bytes > 1e10 for chip in CHIPS.values())
    assert find("V5P") is CHIPS["v5p"]


@pytest.mark.parametrize(
    ("name", "installed", "said"),
    [
        ("abnar.py:downstream", False, "14 tasks on 157 checkpoints, 2,198 scores. lm-evaluation-harness is not"),
        (
            "abnar.py:tiny-downstream",
            False,
            "1 task on 18 checkpoints, 18 scores. The FLOPs above do not include it",
        ),
        ("abnar.py:tiny-downstream", True, "18 scores. The FLOPs above do not include it"),
        ("zhao.py:table-1", True, None),
    ],
)
def test_what_will_be_asked_of_checkpoints_is_counted(capsys, monkeypatch, name, installed, said):
    monkeypatch.setattr("moejax.study.estimate.has_harness", lambda: installed)
    assert run(name, "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)["downstream"]
    if said is None:
        assert found is None
        assert "Downstream" not in printed.err
        return
    assert said in printed.err
    runs = json.loads(printed.out)["runs"]
    assert found["checkpoints"] == len(runs)
    # Laws read three forward passes of every token.
    forward = sum(run["flops"] / run["tokens"] / 3 for run in runs)
    assert found["flops_per_token"] == pytest.approx(forward)


def test_stages_that_nothing_expects_are_named_with_what_counts_them(capsys, tmp_path):
    text = (STUDIES / "quickstart.py").read_text()
    second = 'dict(name="second", make=lambda before: dict(models=dict(a=before.architecture)))'
    stages = f'    config.stages = [dict(name="first"), {second}]\n'
    (tmp_path / "mine.py").write_text(text.replace("    return config", f"{stages}    return config"))
    assert main(["study", f"--config={tmp_path / 'mine.py'}", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert "The stage second has no models yet. Each stage is made from the rows of the previous stage" in said
    assert "add the expected winner to the settings of first, as expected=NAME" in said
    assert "checked for every possible winner, 9 in all" in said
