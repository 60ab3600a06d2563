"""What moejax keeps in files is read by one reader, which returns what was written or says what is wrong."""

import ast
import contextlib
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from moejax import stored
from moejax.stored import Damaged, Missing, Unreadable, foreign_json, parse_json, read_json, sealed, write_json

ROOT = Path(stored.__file__).parent

FOREIGN = {
    "stored.py": "the reader itself",
    "folder.py": "lines that name what moejax wrote; one that is torn names nothing",
    "json_text.py": "the parser of all origins, which refuses what is nested too deep",
    "plan/process.py": "a pipe to a process of ours, and its end",
    "train/processes.py": "what processes tell each other through JAX",
}
"""Where else JSON may be parsed, and why."""


@dataclass(frozen=True)
class Inner:
    size: int


@dataclass(frozen=True)
class Kept:
    name: str
    loss: float
    inner: Inner
    sizes: dict[str, int]
    best: float | None = None


KEPT = {"name": "small", "loss": 2.5, "inner": {"size": 3}, "sizes": {"a": 1}, "best": None}
REMEDY = "write it again"


@pytest.fixture
def file(tmp_path):
    write_json(tmp_path / "kept.json", KEPT)
    return tmp_path / "kept.json"


def refusal(file, shape=Kept):
    """The sentence with which a file is refused: it names the file, and ends with the remedy."""
    with pytest.raises(Damaged) as refused:
        read_json(file, shape, remedy=REMEDY)
    said = str(refused.value)
    assert str(file) in said
    assert said.endswith(f"; {REMEDY}.")
    return said


@pytest.mark.parametrize("value", [KEPT, [], [1, 2.5, None, "x"], {"a": {"b": [True]}}])
def test_what_is_written_is_read(tmp_path, value):
    write_json(tmp_path / "kept.json", value)
    assert read_json(tmp_path / "kept.json", dict if isinstance(value, dict) else list, remedy=REMEDY) == value


def test_it_is_read_as_its_type(file):
    assert read_json(file, Kept, remedy=REMEDY) == Kept("small", 2.5, Inner(3), {"a": 1})
    assert read_json(file, {"loss": float}, remedy=REMEDY) == KEPT


def test_what_is_no_number_is_written_as_null(tmp_path):
    write_json(tmp_path / "kept.json", {"a": math.nan, "b": (math.nan, 1)})
    assert read_json(tmp_path / "kept.json", dict, remedy=REMEDY) == {"a": None, "b": [None, 1]}


@pytest.mark.parametrize("content", [json.dumps(KEPT), "{}", "null", "[1]", '"x"', "3"])
def test_what_has_no_seal_is_refused(file, content):
    file.write_text(content)
    assert "it has no entry 'moejax' with the hash of its content" in refusal(file)
    assert foreign_json(content, file, remedy=REMEDY) == json.loads(content)


def test_a_line_is_sealed_as_a_file_is():
    line = sealed(KEPT, indent=None)
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert parse_json(line, Kept, "A line", remedy=REMEDY).loss == 2.5
    with pytest.raises(Damaged, match="changed by hand"):
        parse_json(line.replace("2.5", "1.5"), Kept, "A line", remedy=REMEDY)


def test_however_much_of_a_file_is_missing_it_is_refused(file):
    whole = file.read_bytes()
    for length in range(len(whole) - 2):
        file.write_bytes(whole[:length])
        refusal(file)


def test_whatever_byte_is_flipped_it_is_refused_or_nothing_in_it_changed(file):
    whole = file.read_bytes()
    for position in range(len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with contextlib.suppress(Damaged):
            # A space may have become a tab, or so.
            assert read_json(file, dict, remedy=REMEDY) == KEPT


DAMAGES = {
    "empty": ("", "it is empty"),
    "a list": (sealed([1]), "must be a group of settings"),
    "NaN": (json.dumps({**KEPT, "loss": math.nan}), "it contains NaN, which is not a finite number"),
    "infinity": (json.dumps({**KEPT, "loss": -math.inf}), "it contains -Infinity, which is not a finite number"),
    "a number too large": (json.dumps(KEPT).replace("2.5", "1e999"), "it contains 1e999, which is not a finite number"),
    "a key missing": (sealed({"name": "small"}), "lacks loss, inner, sizes"),
    "another key": (sealed({**KEPT, "sise": 1}), "sise is unknown; did you mean"),
    "another type": (sealed({**KEPT, "loss": "2.5"}), "content.loss is '2.5'; it must be a number"),
    "another type inside": (sealed({**KEPT, "inner": {"size": [3]}}), r"content.inner.size is \[3\]"),
    "a value of another type": (sealed({**KEPT, "sizes": {"a": None}}), "content.sizes.a is None"),
    "another schema": (json.dumps({**KEPT, "moejax": {"schema": 9, "sha256": ""}}), "it has schema 9"),
    "a broken seal": (json.dumps({**KEPT, "moejax": 3}), "its entry 'moejax' is 3"),
    "nested too deeply": ("[" * 100_000, "it is nested more than 100 levels deep"),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_each_damage_has_its_sentence(file, how):
    content, words = DAMAGES[how]
    file.write_text(content)
    said = refusal(file)
    assert re.search(words, said), said


def test_bytes_that_are_no_text_are_refused(file):
    file.write_bytes(json.dumps(KEPT).encode("utf-16"))
    assert "is not UTF-8 text (at byte 0)" in refusal(file)


def test_a_number_changed_by_hand_is_noticed(file):
    file.write_text(file.read_text().replace("2.5", "1.5"))
    assert "content differs from what moejax wrote: it was damaged, or changed by hand" in refusal(file)


def test_a_file_that_is_not_there_and_a_folder_are_sentences(tmp_path):
    with pytest.raises(Missing, match="does not exist; write it again"):
        read_json(tmp_path / "none.json", dict, remedy=REMEDY)
    refusal(tmp_path)


def test_json_is_parsed_in_one_place_and_in_a_few_with_a_reason():
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            by_name = isinstance(node, ast.Attribute) and node.attr in ("load", "loads")
            if by_name and isinstance(node.value, ast.Name) and node.value.id == "json":
                found.add(path.relative_to(ROOT).as_posix())
            if isinstance(node, ast.ImportFrom) and node.module == "json":
                found.add(path.relative_to(ROOT).as_posix())
    assert found == set(FOREIGN)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(Unreadable, match="it is not a regular file"):
        read_json(tmp_path / "a.json", dict, remedy="remove it")
