"""A disk that is full while a command writes its results: a sentence, and no half of a result under its name."""

import contextlib
import resource

import numpy as np
import pytest
from test_convert import SMALL, write

from moejax.__main__ import main
from moejax.fit.fit_result import FitResult
from moejax.folder import atomic_write, only_writer
from moejax.laws.dense.chinchilla import HOFFMANN_2022
from moejax.laws.design import Design

# JAX keeps what it compiled for these tests, and warns where it cannot.
pytestmark = pytest.mark.filterwarnings("ignore:Error writing persistent compilation cache")

BYTES = 600
"""The largest file that can be written; what is cut short has exactly that many."""


@contextlib.contextmanager
def full_disk(most_bytes=BYTES):
    """No file becomes larger than this, and writing more fails as it does on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A table of runs, a fit of them, texts and a checkpoint of Hugging Face's."""
    folder = tmp_path_factory.mktemp("given")
    active, tokens = np.exp(np.random.default_rng(0).uniform(np.log([1e7, 1e9]), np.log([1e9, 1e11]), (24, 2))).T
    loss = HOFFMANN_2022(Design(params_active=active, tokens=tokens))
    rows = [f"{a:.0f},{d:.0f},{x:.6f}" for a, d, x in zip(active, tokens, loss, strict=True)]
    (folder / "runs.csv").write_text("\n".join(["params_active,tokens,loss", *rows]) + "\n")
    (folder / "texts").mkdir()
    for number in range(40):
        (folder / "texts" / f"{number}.txt").write_text(f"Sentence {number} after another. " * 40)
    write(folder / "theirs", SMALL)
    fit = ["fit", str(folder / "runs.csv"), "--law", "hoffmann", "--starts", "1", "--out", str(folder / "fit")]
    assert main(fit) == 0
    return folder, fit[:-1]


COMMANDS = {
    "fit": None,
    "report": ["report", "fit/fit.json", "--out"],
    "design": ["design", "--law", "chinchilla", "--flops", "1e21", "--out"],
    "plot": ["plot", "abnar-2", "--format", "png,svg", "--out"],
    "convert": ["convert", "--from", "hf", "theirs", "--out"],
    "data prepare": ["data", "prepare", "texts", "--workers", "1", "--out"],
    "data tokenizer": ["data", "tokenizer", "texts", "--vocab-size", "300", "--out"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.matrix(1)
def test_a_full_disk_is_a_sentence_and_leaves_no_half_of_a_result(command, given, tmp_path, capsys, monkeypatch):
    folder, fit = given
    monkeypatch.chdir(folder)
    with full_disk():
        status = main([*(COMMANDS[command] or fit), str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert status == 2, said
    assert "Traceback" not in said
    assert "free disk space" in said or "raise the limit" in said
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in left if path.stat().st_size >= BYTES] == []
    assert [path for path in left if path.name.startswith(".") and path.name not in (".moejax-written", ".lock")] == []


def test_what_was_there_is_kept_where_its_successor_finds_no_room(given, tmp_path):
    path = tmp_path / "fit.json"
    path.write_bytes((given[0] / "fit" / "fit.json").read_bytes())
    with full_disk(), pytest.raises(OSError, match="File too large"):
        FitResult.load(path).save(path)
    assert FitResult.load(path).law == FitResult.load(given[0] / "fit" / "fit.json").law


def test_a_fit_that_finds_no_room_leaves_the_files_of_the_one_before(given, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(given[0])
    words = ["fit", "runs.csv", "--law", "chinchilla", "--out", str(tmp_path)]
    names = ("fit.json", "summary.txt", "predictions.csv")
    assert main(words) == 0
    before = [(tmp_path / name).read_bytes() for name in names]
    with full_disk(len(before[1]) + 500):
        assert main([*words, "--fix", "irreducible=1.5"]) == 2
    assert [(tmp_path / name).read_bytes() for name in names] == before
    with only_writer(tmp_path):
        assert main(words) == 2
    assert "Another process is writing" in capsys.readouterr().err


def _written_until(error, path, content):
    with atomic_write(path) as partial:
        partial.write_bytes(content)
        raise error


@pytest.mark.parametrize("error", [OSError("1 requested and 0 written"), RuntimeError("Rust's"), Exception("any")])
def test_what_libraries_say_of_a_full_disk_is_what_the_system_says_of_it(error, tmp_path):
    with full_disk(), pytest.raises(OSError, match="File too large") as found:
        _written_until(error, tmp_path / "file", b"x" * BYTES)
    assert found.value.__cause__ is error
    with pytest.raises(type(error), match=str(error)):
        _written_until(error, tmp_path / "file", b"x" * BYTES)
    assert not list(tmp_path.iterdir())
