"""moejax eval --text has the validation loss of training."""

import json

import jax
import pytest
from small_model import SMALL

from moejax.__main__ import main
from moejax.data.prepare import prepare
from moejax.data.train_tokenizer import train_tokenizer
from moejax.model import transformer
from moejax.train.loop import train
from moejax.train.optimizer import OptimizerConfig
from moejax.train.training import DataConfig, Recipe, Training
from moejax.weights.folder import save_weights


def losses(capsys, *words):
    assert main(["eval", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["texts"]


LENGTH = 27
"""Length of rows that cover the held-out text completely, because training omits an incomplete last row."""


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """A prepared set, and a folder with its validation text."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "all").mkdir()
    for i in range(40):
        (folder / "all" / f"{i:02}.txt").write_text("".join(f"{i} times {j} is {i * j}. " for j in range(10)))
    prepared = prepare(str(folder / "all"), folder / "set", validation_share=0.2)
    stream, start = prepared.split("validation"), 0
    (folder / "held-out").mkdir()
    for number, end in enumerate(end for ends in stream.ends() for end in ends.tolist()):
        text = prepared.tokenizer.decode(stream.read(start, end))
        (folder / "held-out" / f"{number:02}.txt").write_text(text)
        start = end
    assert (len(stream) - 1) % LENGTH == 0
    return folder


@pytest.mark.parametrize(
    ("packing", "architecture"),
    [("windows", SMALL), ("documents", SMALL.replace(capacity_factor=1.25))],
)
def test_the_loss_on_the_held_out_text_is_the_validation_loss(packing, architecture, held_out, tmp_path, capsys):
    training = Training(
        name="small",
        architecture=architecture,
        recipe=Recipe(
            budgets_tokens=(16 * LENGTH,),
            batch_tokens=8 * LENGTH,
            data=DataConfig(
                source=str(held_out / "set"), sequence_length=LENGTH, packing=packing, validation_tokens=16_384
            ),
            optimizer=OptimizerConfig(learning_rate=1e-2, warmup_tokens=8 * LENGTH),
        ),
    )
    (row,) = train(training, tmp_path / "run")
    (found,) = losses(capsys, tmp_path / "run", "--text", held_out / "held-out")
    assert found["loss"] == pytest.approx(row["loss"], rel=1e-6)
    assert found["bits_per_byte"] == pytest.approx(row["bits_per_byte"], rel=1e-6)
    # Rows of other batches have the same losses.
    if architecture.capacity_factor is None:
        (again,) = losses(capsys, tmp_path / "run", "--text", held_out / "held-out", "--batch-tokens", 4 * LENGTH)
        assert again["loss"] == pytest.approx(row["loss"], rel=1e-5)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights") / "small"
    save_weights(folder, SMALL, transformer.init(SMALL, jax.random.key(0)))
    return folder


def test_each_text_of_weights_has_a_loss_however_short_it_is(weights, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("a short text\n" * 40)
    (tmp_path / "records.jsonl").write_text('{"content": "one"}\n{"content": "another"}\n')
    both = tmp_path / "short.txt", tmp_path / "records.jsonl"
    words = weights, "--tokenizer", "bytes", "--text-field", "content", "--max-length", 16
    found = losses(capsys, *words, "--text", *both)
    assert [one["text"] for one in found] == [*map(str, both)]
    # All tokens except the first, with the end of each document. A file is one document.
    assert [one["tokens"] for one in found] == [520, 11]
    assert [one["bytes"] for one in found] == [519, 9]
    alone = [losses(capsys, *words, "--text", path)[0] for path in both]
    assert [one["loss"] for one in alone] == pytest.approx([one["loss"] for one in found], rel=1e-5)


def test_every_text_that_cannot_be_evaluated_is_named_in_one_sentence(weights, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("some text " * 50)
    train_tokenizer(str(tmp_path / "text.txt"), tmp_path / "tokenizer.json", vocab_size=257)
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    (tmp_path / "empty.txt").write_text("")
    names = ["latin.txt", "text.txt", "empty.txt", "missing.txt"]
    words = ["eval", str(weights), "--text", *(str(tmp_path / name) for name in names)]
    assert main([*words, "--tokenizer", str(tmp_path / "tokenizer.json")]) == 2
    said = capsys.readouterr().err
    assert "3 of 4 texts cannot be evaluated: " in said
    assert "latin.txt: it is not UTF-8 (at byte 3 of the document). Fix the records (text must be UTF-8)" in said
    assert "empty.txt has fewer than two tokens" in said
    assert f"There is no file or folder {tmp_path / 'missing.txt'}" in said
    assert "--corrupt-share" not in said
    # Tokens of the tokenizer bytes are the bytes of any text, as in training.
    assert main([*words[:4], "--tokenizer", "bytes"]) == 0


def test_records_that_are_skipped_are_named(weights, tmp_path, capsys):
    lines = ['{"text": "one"}'] * 200 + ["no JSON"]
    (tmp_path / "records.jsonl").write_text("\n".join(lines))
    words = ["eval", str(weights), "--text", str(tmp_path / "records.jsonl"), "--tokenizer", "bytes"]
    assert main([*words, "--max-length", "16"]) == 0
    assert "1 corrupt record skipped: records.jsonl" in capsys.readouterr().err


def test_text_that_cannot_be_evaluated_is_a_sentence(weights, tmp_path, capsys):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "text.txt").write_text("text")
    for words, said in [
        (["--text", str(tmp_path / "empty.txt"), "--tokenizer", "bytes"], "fewer than two tokens"),
        (["--text", str(tmp_path / "missing.txt"), "--tokenizer", "bytes"], "There is no file or folder"),
        (["--text", str(tmp_path / "text.txt")], "contains no tokenizer"),
        (["--text", str(tmp_path / "text.txt"), "--tasks", "piqa"], "exclude each other"),
        ([], "give --tasks, --suite or --text"),
    ]:
        assert main(["eval", str(weights), *words]) == 2
        assert said in capsys.readouterr().err
