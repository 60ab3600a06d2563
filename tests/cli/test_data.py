"""``moejax data``: three commands from one's own text to a training on it; mistakes as sentences."""

import json

import pytest

from moejax.__main__ import main
from moejax.data.config import DataConfig
from moejax.data.corpus import open_corpus


@pytest.fixture
def texts(tmp_path):
    """A folder of forty small documents."""
    folder = tmp_path / "texts"
    folder.mkdir()
    lines = [json.dumps({"text": f"document {i}: " + "some words of text, " * (i + 3)}) for i in range(40)]
    (folder / "web.jsonl").write_text("\n".join(lines) + "\n")
    return folder


CONFIG = """
from ml_collections import ConfigDict
def get_config():
    config = ConfigDict()
    config.name = "own"
    config.architecture = dict(vocab_size=320, model_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
                               num_experts=4, top_k=2, expert_hidden=16)
    config.recipe = dict(budgets_tokens=[2048], batch_tokens=512, mesh=dict(data=8),
                         data=dict(sequence_length=64, validation_tokens=512),
                         optimizer=dict(warmup_tokens=512))
    return config
"""


def said(capsys):
    return json.loads(capsys.readouterr().out)


def test_from_text_to_a_training_in_three_commands(texts, tmp_path, capsys):
    vocabulary, prepared, out = tmp_path / "tokenizer.json", tmp_path / "set", tmp_path / "run"
    (tmp_path / "own.py").write_text(CONFIG)
    assert main(["data", "tokenizer", str(texts), "--vocab-size", "300", "--out", str(vocabulary), "--json"]) == 0
    assert said(capsys)["vocab_size"] == 300
    words = ["--tokenizer", str(vocabulary), "--validation-share", ".3", "--workers", "1", "--json"]
    assert main(["data", "prepare", str(texts), "--out", str(prepared), *words]) == 0
    manifest = said(capsys)
    assert manifest["tokenizer"]["vocab_size"] == 300
    assert manifest["train"]["documents"] + manifest["validation"]["documents"] == 40
    data = [f"--config.recipe.data.source={prepared}", "--config.recipe.data.packing=documents"]
    assert main(["train", f"--config={tmp_path / 'own.py'}", *data, "--out", str(out), "--json"]) == 0
    (row,) = said(capsys)
    assert row["corpus"] == manifest["sha256"]
    assert 0 < row["bits_per_byte"] < row["loss"] / 0.69


def test_show_says_what_a_set_holds(texts, tmp_path, capsys):
    main(["data", "prepare", str(texts), "--out", str(tmp_path / "set"), "--validation-share", ".3"])
    first = capsys.readouterr().out
    assert "--config.recipe.data.source=" in first
    assert main(["data", "show", str(tmp_path / "set"), "--verify", "--sample", "20"]) == 0
    found = capsys.readouterr()
    assert "1 shards match their hashes" in found.err
    assert "tokenizer bytes, 257 tokens" in found.out
    assert "document " in found.out
    assert main(["data", "show", str(tmp_path / "set"), "--json"]) == 0
    assert said(capsys)["shards"] == 1


def test_a_damaged_set_is_found(texts, tmp_path, capsys):
    main(["data", "prepare", str(texts), "--out", str(tmp_path / "set"), "--validation-share", ".3"])
    path = next((tmp_path / "set" / "shards").glob("*.train.tokens"))
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    assert main(["data", "show", str(tmp_path / "set"), "--verify"]) == 2
    assert "were changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["prepare", "TEXTS", "--out", "OUT", "--tokenizer", "no.json"], "There is no tokenizer no.json"),
        (["prepare", "TEXTS", "--out", "OUT", "--tokenizer", "ids:9:1"], "cannot encode text"),
        (["prepare", "TEXTS", "--out", "OUT", "--text-field", "content"], "no text in its field 'content'"),
        (["prepare", "TEXTS", "--out", "TEXTS"], "is inside the source"),
        (["tokenizer", "TEXTS", "--out", "OUT", "--vocab-size", "256"], "give at least 257"),
    ],
)
def test_a_mistake_is_a_sentence(texts, tmp_path, capsys, words, sentence):
    named = {"TEXTS": str(texts), "OUT": str(tmp_path / "out")}
    assert main(["data", *(named.get(word, word) for word in words)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_what_is_skipped_of_a_folder_is_counted_and_named(texts, tmp_path, capsys):
    for name in ("lib.rs", "main.rs", "Makefile", ".secret.txt"):
        (texts / name).write_text("not read")
    words = ["--out", str(tmp_path / "set"), "--validation-share", ".3", "--workers", "1", "--json"]
    assert main(["data", "prepare", str(texts), *words]) == 0
    found = capsys.readouterr()
    assert "1 of 4 files are read" in found.err
    assert "2 .rs, 1 without a suffix (Makefile, lib.rs, main.rs)" in found.err
    assert "Hidden files are skipped: 1 (.secret.txt)" in found.err
    skipped = json.loads(found.out)["skipped"]
    assert (skipped["files"], skipped["by_suffix"], skipped["hidden"]) == (3, {".rs": 2, "none": 1}, 1)
    # The set lies in the source from now on.
    (tmp_path / "set").rename(texts / "set")
    (texts / "torn.jsonl").write_text('{"text": "whole"}\n{"text": ')
    assert main(["data", "tokenizer", str(texts), "--vocab-size", "300", "--out", str(tmp_path / "t.json")]) == 0
    said = capsys.readouterr().err
    assert "2 of 5 files are read" in said
    assert "Prepared sets are skipped: set" in said
    assert "1 documents could not be read and were skipped: torn.jsonl" in said


def test_a_folder_that_is_read_whole_says_nothing_of_skipping(texts, tmp_path, capsys):
    assert main(["data", "tokenizer", str(texts), "--vocab-size", "300", "--out", str(tmp_path / "t.json")]) == 0
    assert "kipped" not in capsys.readouterr().err


@pytest.mark.parametrize("out", ["src", "src/inner", "src/../src/inner"])
def test_a_set_in_its_own_source_is_refused_and_leaves_the_source_as_it_is(out, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.txt").write_text("words")
    assert main(["data", "prepare", "src", "--out", out]) == 2
    assert "name a folder outside it" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "src").iterdir()] == ["a.txt"]


def test_a_folder_of_others_is_refused_without_a_lock_in_it(tmp_path, capsys):
    for name in ("src", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("words")
    assert main(["data", "prepare", str(tmp_path / "src"), "--out", str(tmp_path / "mine")]) == 2
    assert "is not empty and does not hold a set" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["a.txt"]


@pytest.mark.parametrize("source", ["", "  "])
def test_an_empty_source_is_not_the_working_directory(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("words")
    assert main(["data", "prepare", source, "--out", "out"]) == 2
    assert "The data source is empty" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="The data source is empty"):
        open_corpus(DataConfig(source=source), tmp_path / "corpus")
