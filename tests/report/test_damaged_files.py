"""Every kind of stored file, damaged in every way: the command that reads it says so in a sentence."""

import json
import shutil

import jax
import numpy as np
import pandas as pd
import pytest
from known_study import STUDY
from small_model import SMALL

from moejax import run_table
from moejax.__main__ import main
from moejax.data.prepare import prepare
from moejax.errors import UserError
from moejax.model import transformer
from moejax.stored import Damaged, write_json
from moejax.study.status import LAUNCHES, launched, write_launch
from moejax.weights.folder import save_weights

MODEL = next(iter(STUDY.models))
BUDGET = STUDY.recipe.budgets_tokens[0]


def truncated(content):
    return content[: len(content) // 2]


def flipped(content):
    """A digit of a number, or else a byte in the middle."""
    for position in range(len(content) // 3, len(content)):
        if content[position : position + 1].isdigit():
            return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


DAMAGES = {
    "truncated": truncated,
    "a digit flipped": flipped,
    "empty": lambda content: b"",
    "null": lambda content: b"null",
    "a list": lambda content: b"[1, 2]",
    "a number": lambda content: b"7",
    "keys missing": lambda content: b"{}",
    "keys of another type": lambda content: json.dumps({key: [[]] for key in _keys(content)}).encode(),
    "NaN": lambda content: b'{"loss": NaN}',
    "another schema": lambda content: b'{"moejax": {"schema": 99, "sha256": ""}}',
    "no UTF-8": lambda content: b"\xff\xfe{\x00}\x00",
    "zeros": lambda content: bytes(len(content)),
}


def _keys(content):
    try:
        found = json.loads(content)
    except ValueError:
        return []
    return [key for key in found if key != "moejax"] if isinstance(found, dict) else []


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """One of every kind of stored file."""
    place = tmp_path_factory.mktemp("stored")
    study = place / "study"
    shutil.copytree(folder, study)
    write_launch(study, "slurm", {MODEL: "17"})
    write_json(study / "models" / MODEL / "history.json", [])
    write_json(study / "next.json", {})
    text = place / "text"
    text.mkdir()
    for number in range(30):
        (text / f"{number}.txt").write_text(f"Sentence {number} after another. " * 9)
    prepare(str(text), place / "set", validation_share=0.3)
    architecture = SMALL.replace(model_dim=8, num_layers=1, num_heads=1)
    save_weights(place / "weights", architecture, transformer.init(architecture, jax.random.key(0)))
    sizes, tokens = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 1e9, 4), np.geomspace(1e9, 1e11, 4)))
    loss = 1.7 + 400 / sizes**0.34 + 400 / tokens**0.28
    table = pd.DataFrame({"params_active": sizes, "tokens": tokens, "loss": loss})
    table.to_csv(place / "runs.csv", index=False)
    assert main(["fit", str(place / "runs.csv"), "--law", "chinchilla", "--out", str(place / "fit")]) == 0
    memory = ("limit", "parameters", "optimizer_state", "temporaries", "other_state", "batch", "program")
    plan = {"memory": dict.fromkeys(memory, 1), "mesh": {"data": 1}, "microbatches": 1, "remat": "none"}
    write_json(place / "plan.json", plan | {"roofline": None, "does_not_fit": ""})
    write_json(place / "verdicts.json", {"a": "exact"})
    return place


COMMANDS = {
    f"study/models/{MODEL}/training.json": ["status", "{}/study"],
    f"study/models/{MODEL}/attempts.json": ["status", "{}/study"],
    f"study/models/{MODEL}/branch-{BUDGET}.json": ["status", "{}/study"],
    "study/study.json": ["study", "status", "{}/study"],
    f"study/models/{MODEL}/history.json": ["study", "status", "{}/study"],
    "study/next.json": ["report", "{}/study"],
    "study/analysis.json": ["study", "status", "{}/study"],
    "study/data/corpus.json": ["report", "{}/study"],
    "study/runs.parquet": ["report", "{}/study"],
    "set/manifest.json": ["data", "show", "{}/set"],
    "weights/architecture.json": ["convert", "--to", "hf", "{}/weights", "--out", "{out}/hf"],
    "weights/weights.safetensors": ["convert", "--to", "hf", "{}/weights", "--out", "{out}/hf"],
    "fit/fit.json": ["predict", "--law", "{}/fit/fit.json", "--params-active", "1e9", "--tokens", "1e10"],
    "plan.json": ["plot", "plan", "--runs", "{}/plan.json", "--out", "{out}/plan.png"],
    "verdicts.json": ["reproduce", "--paper", "zhao", "--verdicts", "{}/verdicts.json"],
}


STANDS = {
    # All of an analysis has defaults, and a record of verdicts may hold none.
    ("study/analysis.json", "keys missing"),
    ("verdicts.json", "keys missing"),
}
CASES = [(name, how) for name in COMMANDS for how in DAMAGES if (name, how) not in STANDS]


@pytest.mark.matrix(10)
@pytest.mark.parametrize(("name", "how"), CASES)
def test_a_damaged_file_is_a_sentence_that_names_it(whole, tmp_path, capsys, name, how):
    file = whole / name
    content = file.read_bytes()
    try:
        file.write_bytes(DAMAGES[how](content))
        status = main([word.format(whole, out=tmp_path) for word in COMMANDS[name]])
    finally:
        file.write_bytes(content)
    said = capsys.readouterr().err
    assert status == 2, said
    assert name.rpartition("/")[2] in said
    assert "Traceback" not in said


def test_a_damaged_log_of_launches_is_a_sentence_that_names_its_line(whole, tmp_path):
    content = (whole / "study" / LAUNCHES).read_bytes()
    for how, damage in DAMAGES.items():
        damaged = damage(content)
        (tmp_path / LAUNCHES).write_bytes(damaged)
        if damaged:
            with pytest.raises(Damaged, match=f"Line 1 of .*{LAUNCHES} cannot be read"):
                pytest.fail(f"{how} is read as {launched(tmp_path, 'slurm')}")
        else:
            assert launched(tmp_path, "slurm") == {}


@pytest.mark.matrix(8)
@pytest.mark.parametrize("name", ["runs.csv", "runs.csv.gz", "runs.jsonl"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_table_of_text_is_read_or_a_sentence_that_names_it(whole, tmp_path, name, how):
    frame, file = pd.read_csv(whole / "runs.csv"), tmp_path / name
    if name.endswith("jsonl"):
        frame.to_json(file, orient="records", lines=True)
    else:
        frame.to_csv(file, index=False)
    file.write_bytes(DAMAGES[how](file.read_bytes()))
    try:
        read = run_table.read(file)
    except ValueError as error:
        said = str(error) if isinstance(error, UserError) else ""
    else:
        # Text keeps no hash: what is whole by the rules of its format is taken as it stands.
        said = "" if len(read) > len(frame) else f"{file} is read"
    assert str(file) in said
