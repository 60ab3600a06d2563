"""A training belongs to the text and the tokenizer that it began with."""

import dataclasses
import shutil

import pytest
from interrupted import on_one_device

from moejax.data.corpus import read_summary
from moejax.data.prepare import prepare
from moejax.data.train_tokenizer import train_tokenizer
from moejax.train.loop import train


class Begun(Exception):
    """The training has looked at its data and goes on to compile."""


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"document {number} " * 50)
    return folder


@pytest.fixture
def on_set(training, texts, tmp_path, monkeypatch):
    """The training, on a set of bytes; it stops where its program would be made, as if it had logged a step."""

    def begin(*_):
        (tmp_path / "run" / "metrics.jsonl").touch()
        raise Begun

    monkeypatch.setattr("moejax.train.loop.make_program", begin)
    prepare(str(texts), tmp_path / "set", validation_share=0.2)
    data = dataclasses.replace(training.recipe.data, source=str(tmp_path / "set"))
    return dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, data=data))


def test_another_tokenizer_than_at_the_start_is_refused(on_set, texts, tmp_path):
    with pytest.raises(Begun):
        train(on_set, tmp_path / "run")
    train_tokenizer(str(texts), tmp_path / "t.json", vocab_size=257)
    shutil.rmtree(tmp_path / "set")
    prepare(str(texts), tmp_path / "set", tokenizer=str(tmp_path / "t.json"), validation_share=0.2)
    with pytest.raises(ValueError, match="was trained with a tokenizer of SHA-256"):
        train(on_set, tmp_path / "run")


def test_a_set_that_has_grown_since_the_start_is_refused(on_set, texts, tmp_path):
    """nanochat #541."""
    with pytest.raises(Begun):
        train(on_set, tmp_path / "run")
    (texts / "more.txt").write_text("one more")
    prepare(str(texts), tmp_path / "set", validation_share=0.2, again=True)
    with pytest.raises(ValueError, match="was trained on text with SHA-256"):
        train(on_set, tmp_path / "run")


def test_a_shard_of_as_many_other_bytes_is_refused(on_set, tmp_path):
    with pytest.raises(Begun):
        train(on_set, tmp_path / "run")
    (shard, *_) = (tmp_path / "set" / "shards").glob("*.train.tokens")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{shard.name}. Remove them and run moejax data prepare"):
        train(on_set, tmp_path / "run")


@pytest.mark.parametrize(("budget", "is_told"), [(4096, False), (2**20, True)])
def test_a_budget_that_repeats_the_text_many_times_says_how_often(on_set, tmp_path, budget, is_told):
    longer = dataclasses.replace(on_set, recipe=dataclasses.replace(on_set.recipe, budgets_tokens=(budget,)))
    said = []
    with pytest.raises(Begun):
        train(longer, tmp_path / "run", log=said.append)
    assert any("The longest budget reads" in text and "times" in text for text in said) == is_told


def test_a_small_validation_set_of_few_documents_is_said_with_their_number(training, tmp_path):
    (tmp_path / "texts").mkdir()
    for i in range(30):
        (tmp_path / "texts" / f"{i}.txt").write_text("".join(f"{i} times {j} is {i * j}. " for j in range(20)))
    data = dataclasses.replace(training.recipe.data, source=str(tmp_path / "texts"), validation_tokens=65_536)
    recipe = dataclasses.replace(training.recipe, data=data, budgets_tokens=(2048,))
    said = []
    train(on_one_device(dataclasses.replace(training, recipe=recipe)), tmp_path / "run", log=said.append)
    documents = read_summary(tmp_path / "run" / "data").validation.documents
    assert documents < 10
    assert any(f"They are from {documents} documents, so the loss depends on" in text for text in said)
