"""Tokenized once, in any number of processes, stopped at any moment: always the same set."""

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import TEXTS, TOKEN_WRITERS, json_lines, text_files

from moejax.data import shard
from moejax.data.prepare import prepare
from moejax.data.prepared import PreparedSet
from moejax.data.shard import SPLITS, is_held_out
from moejax.data.sources import json_lines as json_lines_format
from moejax.errors import UserError


def documents(prepared):
    """Text of every document of each split."""
    found = {}
    for side in SPLITS:
        stream = prepared.split(side)
        ends = [0, *np.concatenate(stream.ends()).tolist()]
        spans = [stream.read(a, b) for a, b in itertools.pairwise(ends)]
        assert all(span[-1] == prepared.tokenizer.end_of_document for span in spans)
        found[side] = [prepared.tokenizer.decode(span) for span in spans]
    return found


@pytest.fixture
def many_input_shards(monkeypatch):
    """An input shard of JSON lines is a kilobyte."""
    monkeypatch.setattr(json_lines_format, "INPUT_SHARD_BYTES", 1000)


@given(st.binary(min_size=32, max_size=32), st.floats(0, 1), st.floats(0, 1))
def test_a_document_held_out_stays_held_out_when_the_share_grows(digest, one, other):
    less, more = sorted((one, other))
    assert is_held_out(digest, less) <= is_held_out(digest, more)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_every_document_is_kept_whole_on_one_side(text_folder, bpe, tmp_path, tokenizer):
    prepared = prepare(
        str(text_folder), tmp_path, tokenizer=str(bpe) if tokenizer == "bpe" else tokenizer, validation_share=0.3
    )
    sides = documents(prepared)
    assert sorted(sides["train"] + sides["validation"]) == sorted(TEXTS)
    assert not set(sides["train"]) & set(sides["validation"])
    for side, texts in sides.items():
        split = getattr(prepared.manifest, side)
        assert split.documents == len(texts) == sum(len(ends) for ends in prepared.split(side).ends())
        assert split.bytes == split.token_bytes == sum(len(text.encode()) for text in texts)
        assert split.tokens == len(prepared.split(side))
    assert prepared.verify() == []


def test_the_split_does_not_depend_on_the_order_or_the_format(tmp_path):
    (tmp_path / "lines").mkdir()
    (tmp_path / "files").mkdir()
    shuffled = random.Random(0).sample(TEXTS, len(TEXTS))
    json_lines(tmp_path / "lines")
    text_files(tmp_path / "files", texts=shuffled)
    lines, files = (
        documents(prepare(str(tmp_path / name), tmp_path / f"{name}-set", validation_share=0.3))
        for name in ("lines", "files")
    )
    assert set(lines["validation"]) == set(files["validation"])
    assert files["train"] == [text for text in shuffled if text in lines["train"]]


def test_equal_documents_lie_on_the_same_side(tmp_path):
    json_lines(tmp_path, texts=TEXTS * 5)
    sides = documents(prepare(str(tmp_path), tmp_path / "set", validation_share=0.5))
    assert not set(sides["train"]) & set(sides["validation"])


def test_the_unigram_entropy_is_that_of_the_frequencies(text_folder, tmp_path):
    prepared = prepare(str(text_folder), tmp_path, validation_share=0.3)
    joined = np.concatenate([prepared.split(side).read(0, len(prepared.split(side))) for side in SPLITS])
    costs = [-math.log(np.mean(joined == token)) for token in joined[::50]]
    assert prepared.manifest.unigram_entropy == pytest.approx(
        -sum(f * math.log(f) for f in np.bincount(joined) / len(joined) if f)
    )
    assert np.mean(costs) == pytest.approx(prepared.manifest.unigram_entropy, rel=0.1)


def contents(folder):
    """Every file of a set but its lock and what tells of the clock."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name not in (".checked.json", ".lock")]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def test_processes_write_what_one_writes(text_folder, bpe, tmp_path, many_input_shards):
    for workers, name in ((1, "alone"), (2, "shared")):
        prepare(str(text_folder), tmp_path / name, tokenizer=str(bpe), validation_share=0.3, workers=workers)
    alone, shared = contents(tmp_path / "alone"), contents(tmp_path / "shared")
    assert len([name for name in alone if name.endswith(".json")]) > 10
    assert alone == shared


def test_a_set_is_prepared_once_and_changed_input_shards_anew(tmp_path, many_input_shards, monkeypatch):
    json_lines(tmp_path)
    done = []
    monkeypatch.setattr("moejax.data.prepare.write_shard", lambda *a: done.append(a[1]) or shard.write_shard(*a))
    first = prepare(str(tmp_path), tmp_path / "set", validation_share=0.3)
    parts = len(done)
    assert prepare(str(tmp_path), tmp_path / "set", validation_share=0.3, again=True).manifest == first.manifest
    assert len(done) == parts
    (tmp_path / "zzz.jsonl").write_text('{"text": "one more"}\n')
    assert prepare(str(tmp_path), tmp_path / "set", validation_share=0.3).manifest == first.manifest
    more = prepare(str(tmp_path), tmp_path / "set", validation_share=0.3, again=True)
    assert len(done) == parts + 1
    assert more.manifest.train.documents + more.manifest.validation.documents == len(TEXTS) + 1
    (tmp_path / "zzz.jsonl").unlink()
    prepare(str(tmp_path), tmp_path / "set", validation_share=0.3, again=True)
    assert {path.name.partition(".")[0] for path in (tmp_path / "set" / "shards").iterdir()} == {
        s.stem for s in first.manifest.shards
    }


def test_other_choices_are_refused(text_folder, tmp_path):
    prepare(str(text_folder), tmp_path, validation_share=0.3)
    with pytest.raises(ValueError, match=r"validation_share was 0\.3, is 0\.4"):
        prepare(str(text_folder), tmp_path, validation_share=0.4)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "diary.txt").touch()
    with pytest.raises(ValueError, match="is not empty and does not hold a set"):
        prepare(str(text_folder), tmp_path / "other")


def test_a_mistaken_source_leaves_the_folder_free(text_folder, tmp_path):
    with pytest.raises(ValueError, match="no file or folder nowhere"):
        prepare("nowhere", tmp_path / "set")
    prepare(str(text_folder), tmp_path / "set", validation_share=0.3)


def test_a_shard_that_is_missing_or_cut_is_found_and_made_again(text_folder, tmp_path):
    first = prepare(str(text_folder), tmp_path, validation_share=0.3)
    before = contents(tmp_path)
    path = next((tmp_path / "shards").glob("*.train.tokens"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"bytes instead of .* repair the set by running moejax data prepare"):
        PreparedSet(tmp_path).split("train")
    path.unlink()
    with pytest.raises(ValueError, match="is missing"):
        PreparedSet(tmp_path).split("train")
    assert prepare(str(text_folder), tmp_path, validation_share=0.3, again=True).manifest == first.manifest
    assert contents(tmp_path) == before


def test_a_changed_byte_is_found_by_its_hash(text_folder, tmp_path):
    prepared = prepare(str(text_folder), tmp_path, validation_share=0.3)
    path = next((tmp_path / "shards").glob("*.validation.tokens"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    assert prepared.verify() == [path.name]


def corrupted(folder, wrong, right=100):
    """JSON lines of which some are none."""
    lines = [json.dumps({"text": f"document {i}"}) for i in range(right)] + ["{"] * wrong
    (folder / "web.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder)


def test_corrupt_records_are_named_and_counted(tmp_path):
    manifest = prepare(corrupted(tmp_path, 30), tmp_path / "set", validation_share=0.3, corrupt_share=0.25).manifest
    assert manifest.corrupt.records == 30
    assert len(manifest.corrupt.named) == shard.NAMED_CORRUPT
    assert manifest.corrupt.named[0].startswith("web.jsonl:101: it is not JSON")
    assert manifest.train.documents + manifest.validation.documents == 100


def test_more_corrupt_records_than_allowed_are_refused_and_allowed_later(tmp_path):
    source = corrupted(tmp_path, 3)
    with pytest.raises(ValueError, match=r"3 of 103 records .* are corrupt \(2\.91%; at most 1\.00% is allowed\): web"):
        prepare(source, tmp_path / "set", validation_share=0.3)
    assert not (tmp_path / "set" / "manifest.json").exists()
    assert prepare(source, tmp_path / "set", validation_share=0.3, corrupt_share=0.03).manifest.corrupt.records == 3


def test_one_lost_file_weighs_by_its_bytes(tmp_path):
    source = corrupted(tmp_path, 0, right=1000)
    (tmp_path / "large.parquet").write_bytes(b"?" * 100_000)
    with pytest.raises(ValueError, match=r"1 of 1,001 records .* are corrupt \(8\d\.\d\d%; "):
        prepare(source, tmp_path / "set", validation_share=0.3)


def test_no_utf8_is_corrupt_for_a_tokenizer_of_text_and_not_for_bytes(bpe, tmp_path):
    text_files(tmp_path)
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    kept = {"validation_share": 0.3, "corrupt_share": 0.1}
    assert prepare(str(tmp_path), tmp_path / "bytes", **kept).manifest.corrupt.records == 0
    refused = prepare(str(tmp_path), tmp_path / "bpe", tokenizer=str(bpe), **kept).manifest.corrupt
    assert refused.named == ("latin.txt: it is not UTF-8 (at byte 3 of the document)",)


@pytest.mark.parametrize("name", TOKEN_WRITERS)
def test_tokens_are_taken_over_as_they_are(tmp_path, name):
    given = [np.random.default_rng(i).integers(8, 500, 50 + i).tolist() for i in range(40)]
    TOKEN_WRITERS[name](tmp_path / name, given, 7)
    prepared = prepare(str(tmp_path), tmp_path / "set", tokenizer="ids:500:7", validation_share=0.3)
    sides = documents(prepared)
    assert sorted(sides["train"] + sides["validation"]) == sorted(" ".join(map(str, [*d, 7])) for d in given)
    assert prepared.bytes_of(np.array([1, 2])) is None


def test_tokens_of_a_larger_vocabulary_are_refused(tmp_path):
    TOKEN_WRITERS["tokens.npy"](tmp_path / "a.npy", [[8, 9, 600]] * 10, 7)
    with pytest.raises(ValueError, match="holds the token 600, but the tokenizer ids:500:7 has tokens from 0 to 499"):
        prepare(str(tmp_path), tmp_path / "set", tokenizer="ids:500:7")


def test_a_side_without_documents_is_refused(tmp_path):
    json_lines(tmp_path, texts=TEXTS[:1])
    with pytest.raises(ValueError, match=r"split of .* has no document; the source has 1 and"):
        prepare(str(tmp_path), tmp_path / "set", validation_share=0.5)


def test_a_vocabulary_beyond_two_bytes_is_stored_in_four(tmp_path):
    tokens = [[70_000, 69_999, 3]] * 3 + [[5, i] for i in range(8, 48)]
    np.save(tmp_path / "a.npy", np.array([t for d in tokens for t in [*d, 7]], np.int32))
    prepared = prepare(str(tmp_path), tmp_path / "set", tokenizer="ids:70001:7", validation_share=0.3)
    assert prepared.manifest.train.tokens + prepared.manifest.validation.tokens == 3 * 4 + 40 * 3
    assert any("70000 69999 3 7" in text for side in documents(prepared).values() for text in side)


KILLED = """
import sys
from moejax.data import shard
from moejax.data.sources import json_lines
json_lines.INPUT_SHARD_BYTES = 1000
from moejax.data.prepare import prepare
print("ready", flush=True)
prepare(sys.argv[1], __import__("pathlib").Path(sys.argv[2]), tokenizer=sys.argv[3], validation_share=0.3)
"""


def records(folder):
    """Finished shards, and when each was."""
    return {p: p.stat().st_mtime_ns for p in folder.glob("shards/*.json") if not p.name.startswith(".")}


def test_killed_at_any_moment_it_goes_on_and_ends_the_same(text_folder, bpe, tmp_path, many_input_shards):
    expected = prepare(str(text_folder), tmp_path / "whole", tokenizer=str(bpe), validation_share=0.3)
    folder, draws, done = tmp_path / "killed", random.Random(0), {}
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(text_folder), str(folder), str(bpe)], stdout=subprocess.PIPE
        )
        process.stdout.readline()
        while process.poll() is None and len(records(folder)) <= len(done):
            time.sleep(0.001)
        time.sleep(draws.uniform(0, 0.01))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert done.items() <= records(folder).items()
        done = records(folder)
    assert 6 <= len(done) < len(expected.manifest.shards)
    again = prepare(str(text_folder), folder, tokenizer=str(bpe), validation_share=0.3)
    assert done.items() <= records(folder).items()
    assert again.manifest == expected.manifest
    assert contents(folder) == contents(tmp_path / "whole")


WAITING = """
import time
from moejax.data.workers import in_processes

def wait(number, tick):
    time.sleep(600)

def look(done):
    print("working", flush=True)

if __name__ == "__main__":
    list(in_processes(wait, [(1,), (2,)], 2, common=(), look=look))
"""


def test_a_killed_parent_takes_its_workers_with_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WAITING)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    process.stdout.readline()
    children = children_of(process.pid)
    assert len(children) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{child}") for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(os.path.exists(f"/proc/{child}") for child in children)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_a_sentence_raised_by_a_worker_arrives(tmp_path, many_input_shards):
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.array([600] * 40, np.int32))
    with pytest.raises(UserError, match="holds the token 600"):
        prepare(str(tmp_path), tmp_path / "set", tokenizer="ids:500:7", workers=2)
