"""What cannot be trained is a sentence with its remedy, status 2, before anything is written or compiled."""

import os

import numpy as np
import pytest
from command import WORDS, write_config

from moejax.__main__ import main
from moejax.data.prepare import prepare
from moejax.data.train_tokenizer import train_tokenizer
from moejax.stored import Damaged
from moejax.train.directory import metrics
from moejax.train.directory.row_file import read_row, row_file


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A config of 8 sequences a batch and 4 experts; texts that are missing, empty or short; sets of other tokens."""
    place = tmp_path_factory.mktemp("bad")
    write_config(place)
    for name, texts in (("empty", []), ("blank", [""]), ("words", [f"{word}{n}" for word in WORDS for n in range(4)])):
        (place / name).mkdir()
        for number, text in enumerate(texts):
            (place / name / f"{number}.txt").write_text(text)
    train_tokenizer(str(place / "text"), place / "other.json", vocab_size=257)
    prepare(str(place / "text"), place / "bytes")
    np.save(place / "large.npy", np.random.default_rng(0).integers(0, 600, 30_000))
    prepare(str(place / "large.npy"), place / "large", tokenizer="ids:600:7", validation_share=0.2)
    return place


MESH = {
    "devices": (["mesh.data=3"], "does not fit 8 devices; the axes must multiply to 8 (use -1 on one axis to fill it)"),
    "a batch": (
        ["batch_tokens=384"],
        "12 sequences, which is not divisible by the 8 token shards (data x fsdp x expert)",
    ),
}
DATA = {
    "nothing there": (["data.source={place}/nowhere"], "There is no file or folder"),
    "a named mixture whose parts are not there": (
        ["data.named_mixture=li-2026", "data.source={place}/words"],
        "data.named_mixture li-2026 has 6 parts, and {place}/words lacks WebData-en, Code, Wikipedia, Book, arXiv",
    ),
    "fewer unique tokens than one batch has": (
        ["data.unique_tokens=64", "batch_tokens=1024"],
        "data.unique_tokens is 64, fewer than the 1,024 tokens of one batch",
    ),
    "weights for the decay of parts that there are not": (
        ["data.decay_mixture={{'math': 0.5}}"],
        "data.decay_mixture is {{'math': 0.5}}, but data.mixture has no parts; list all parts",
    ),
    "an empty folder": (["data.source={place}/empty"], "contains no readable file"),
    "an empty file": (["data.source={place}/blank"], "split of {place}/blank has no document; the source has 1 and"),
    "too little to measure on": (
        ["data.source={place}/words", "data.validation_share=0.05"],
        "The validation text is shorter than one row; lower sequence_length or give more text",
    ),
    "too little for a batch": (
        ["data.source={place}/words", "batch_tokens=1024"],
        "rows of this sequence_length, fewer than the 32 rows that one batch needs",
    ),
    "a tokenizer that is not there": (["data.tokenizer=nowhere.json"], "nowhere.json"),
    "another tokenizer than a set's": (
        ["data.source={place}/bytes", "data.tokenizer={place}/other.json"],
        "(257 tokens). Remove data.tokenizer, or prepare the set again with",
    ),
    "tokens beyond the vocabulary": (
        ["data.source={place}/large"],
        "vocab_size is 257, but {place}/large.npy has tokens up to 599; set vocab_size to at least 600",
    ),
}
FOUND_IN_THE_TEXT = {
    "an empty file",
    "too little to measure on",
    "too little for a batch",
    "another tokenizer than a set's",
    "tokens beyond the vocabulary",
}
BUDGETS = {
    "of nothing": (
        ["budgets_tokens=0"],
        "The budget of 0 tokens is shorter than two steps of 256 tokens; raise the budget",
    ),
    "below nothing": (["budgets_tokens=-4096"], "budgets_tokens[0] is -4096; give a whole number from 0"),
}


@pytest.mark.parametrize("case", MESH | DATA | BUDGETS)
def test_it_is_a_sentence_with_its_remedy(place, tmp_path, capsys, case):
    changes, sentence = (MESH | DATA | BUDGETS)[case]
    words = [f"--config.recipe.{change.format(place=place)}" for change in changes]
    assert main(["train", f"--config={place / 'small.py'}", "--out", str(tmp_path / "out"), *words]) == 2
    said = capsys.readouterr().err
    assert sentence.format(place=place) in said
    assert said.startswith("moejax: ")
    assert said.count("\n") == 1
    assert case in FOUND_IN_THE_TEXT or not (tmp_path / "out").exists()


def test_a_router_that_the_loss_would_not_train_is_refused_with_its_remedy(place, tmp_path, capsys):
    words = ["train", f"--config={place / 'small.py'}", "--out", str(tmp_path / "out"), "--config.architecture.top_k=1"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "the loss gives the router no gradient. Set norm_topk_prob to False" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_start_that_is_refused_leaves_its_folder_to_the_next(place, tmp_path, capsys):
    start = ["train", f"--config={place / 'small.py'}", "--out", str(tmp_path / "out")]
    other = [f"--config.recipe.data.source={place}/words", "--config.recipe.batch_tokens=1024"]
    for words, sentence in (
        (["--config.architecture.vocab_size=200"], "set vocab_size to at least 257"),
        (["--config.architecture.vocab_size=201"], "set vocab_size to at least 257"),
        (other, "fewer than the 32 rows that one batch needs"),
        ([*other, "--config.recipe.data.validation_share=0.3"], "fewer than the 32 rows that one batch needs"),
    ):
        assert main([*start, *words]) == 2
        assert sentence in capsys.readouterr().err


def test_the_tokens_of_a_refused_start_are_kept_for_the_next(place, tmp_path, capsys):
    def start(batch_tokens):
        words = [f"--config.recipe.data.source={place}/words", f"--config.recipe.batch_tokens={batch_tokens}"]
        assert main(["train", f"--config={place / 'small.py'}", "--out", str(tmp_path / "out"), *words]) == 2
        assert "rows that one batch needs" in capsys.readouterr().err
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "data").rglob("*.npy")}

    first = start(1024)
    assert first
    assert start(2048) == first


def test_a_text_is_not_prepared_for_a_vocabulary_that_it_exceeds(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("moejax.data.corpus.prepare", lambda *_, **__: pytest.fail("the text was prepared"))
    words = ["train", f"--config={place / 'small.py'}", "--out", str(tmp_path / "out")]
    assert main([*words, "--config.architecture.vocab_size=200"]) == 2
    assert "set vocab_size to at least 257" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["out", "data", "programs"])
def test_a_store_in_a_folders_place_is_refused_with_how_to_mount_it(place, tmp_path, capsys, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"--config={place / 'small.py'}", f"--{option}", "gs://bucket/run"]) == 2
    assert (
        f"--{option} is gs://bucket/run, but a training run needs a local folder: mount the bucket"
        in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_a_pipe_in_a_logs_or_a_rows_place_is_not_waited_for(tmp_path):
    for name in ("metrics.jsonl", row_file(4096)):
        os.mkfifo(tmp_path / name)
    for use in (
        lambda: metrics.read(tmp_path / "metrics.jsonl"),
        lambda: metrics.last_lines(tmp_path / "metrics.jsonl", 1),
        lambda: metrics.MetricsLog(tmp_path / "metrics.jsonl").rewind("trunk", 0, 0),
        lambda: read_row(tmp_path, 4096),
    ):
        with pytest.raises(Damaged, match="is not a regular file"):
            use()
