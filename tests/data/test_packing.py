"""Packed rows: whole documents, never mixed unsaid; every target once."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moejax.data import rows as row_cutting
from moejax.data.prepare import prepare
from moejax.data.prepared import PreparedSet
from moejax.data.rows import Packed, Windows, counted, plan


class Stream:
    """Documents in memory, in shards, as a token stream."""

    def __init__(self, lengths, shards=1):
        self.documents = [np.arange(n, dtype=np.int32) + 1000 * i for i, n in enumerate(lengths, 1)]
        for document in self.documents:
            document[-1] = END
        self.tokens = np.concatenate([*self.documents, np.zeros(0, np.int32)])
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._shards = shards

    def __len__(self):
        return len(self.tokens)

    def read(self, start, stop):
        return self.tokens[start:stop]

    def kept(self, name, make):
        return make()

    def ends(self):
        return [part for part in np.array_split(self._ends, self._shards) if len(part)]


END = 7
"""The token after the last one of a document."""

documents = st.lists(st.integers(1, 60), max_size=40)


@given(lengths=documents, length=st.integers(2, 25), shards=st.integers(1, 3))
def test_every_token_but_the_first_of_all_is_a_target_exactly_once_after_the_token_before_it(lengths, length, shards):
    stream = Stream(lengths, shards)
    rows = Packed(stream, length)
    found = []
    for number in range(len(rows)):
        row = rows[number]
        counts = counted(row)
        found += zip(row["tokens"][:-1][counts].tolist(), row["tokens"][1:][counts].tolist(), strict=True)
    assert sorted(found) == sorted(pairwise(stream.tokens.tolist()))


@given(lengths=documents, length=st.integers(2, 25))
def test_a_segment_is_a_stretch_of_one_document_which_begins_with_the_end_of_another(lengths, length):
    stream = Stream(lengths)
    begins = {document[0] for document in stream.documents[1:]} - {END}
    rows = Packed(stream, length)
    for number in range(len(rows)):
        tokens, segments = rows[number]["tokens"], rows[number]["segments"]
        assert tokens.shape == segments.shape == (length + 1,)
        assert segments.max() >= 1
        # From 1 upwards, then 0 where the row is filled up.
        used = segments[segments > 0]
        assert np.all(np.diff(used) >= 0)
        assert set(used) == set(range(1, segments.max() + 1))
        assert not segments[len(used) :].any()
        assert not tokens[len(used) :].any()
        for segment in range(1, segments.max() + 1):
            stretch = tokens[segments == segment]
            assert not begins & set(stretch[:1])
            inner = stretch[1:] if stretch[0] == END else stretch
            assert set(np.diff(inner[inner != END])) <= {1}
            assert END not in inner[:-1]


@given(lengths=st.lists(st.integers(2, 60), min_size=1, max_size=60), capacity=st.integers(3, 25))
def test_no_two_rows_of_a_block_could_be_one(lengths, capacity):
    _, pieces, rows = plan(Stream(lengths).ends(), capacity)
    filled = sorted(int(pieces[a:b].sum()) for a, b in pairwise(rows))
    assert filled[-1] <= capacity
    assert len(filled) < 2 or filled[0] + filled[1] > capacity


def test_blocks_lose_no_document(monkeypatch):
    monkeypatch.setattr(row_cutting, "BLOCK_PIECES", 7)
    lengths = np.random.default_rng(0).integers(2, 40, 100)
    starts, pieces, rows = plan(Stream(lengths, 3).ends(), 17)
    assert (pieces - 1).sum() == lengths.sum() - 1
    assert rows[-1] == len(starts) == len(np.unique(starts))


def test_rows_of_usual_documents_are_nearly_full():
    lengths = np.random.default_rng(0).lognormal(5.5, 1.2, 20_000).astype(int) + 2
    _, pieces, rows = plan(Stream(lengths).ends(), 1025)
    assert pieces.sum() / (len(rows) - 1) / 1025 > 0.99


@given(count=st.integers(0, 100), length=st.integers(2, 20))
def test_a_window_is_followed_by_its_next_token(count, length):
    stream = Stream([count] if count else [])
    rows = Windows(stream, length)
    assert len(rows) == max(0, count - 1) // length
    for number in range(len(rows)):
        start = number * length
        np.testing.assert_array_equal(rows[number]["tokens"], stream.tokens[start : start + length + 1])
        assert counted(rows[number]).all()


def documents_of_a_set(folder, monkeypatch):
    """Return the packed rows of a set that is opened anew, and how many layouts were made for it."""
    made, make = [], row_cutting.plan
    monkeypatch.setattr(row_cutting, "plan", lambda *given: [made.append(given), make(*given)][1])
    rows = Packed(PreparedSet(folder).split("train"), 64)
    monkeypatch.setattr(row_cutting, "plan", make)
    return [(row["tokens"].tolist(), row["segments"].tolist()) for row in map(rows.__getitem__, range(len(rows)))], len(
        made
    )


@pytest.fixture
def some_set(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(40):
        (tmp_path / "text" / f"{number}.txt").write_text(f"document {number} " * (1 + number % 7))
    prepare(str(tmp_path / "text"), tmp_path / "set", validation_share=0.2)
    return tmp_path / "set"


def test_a_prepared_set_keeps_the_layout_of_its_documents(some_set, monkeypatch):
    first, made = documents_of_a_set(some_set, monkeypatch)
    assert (made, len(first) > 1) == (1, True)
    again, made = documents_of_a_set(some_set, monkeypatch)
    assert (again, made) == (first, 0)
    # Another length has a layout of its own.
    assert len(Packed(PreparedSet(some_set).split("train"), 32)) > len(first)


@pytest.mark.parametrize("damage", ["a byte", "shorter", "gone", "the record"])
def test_a_layout_that_is_not_what_was_written_is_made_again(some_set, monkeypatch, damage):
    first, _ = documents_of_a_set(some_set, monkeypatch)
    path = next((some_set / "layouts").glob("*.json" if damage == "the record" else "*.0.npy"))
    content = path.read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1]) if damage == "a byte" else content[:-5]
    path.unlink() if damage == "gone" else path.write_bytes(changed)
    assert documents_of_a_set(some_set, monkeypatch) == (first, 1)
    assert documents_of_a_set(some_set, monkeypatch) == (first, 0)


def test_the_order_of_names_in_a_layouts_record_does_not_matter(some_set, monkeypatch):
    first, _ = documents_of_a_set(some_set, monkeypatch)
    (record,) = (some_set / "layouts").glob("*.json")
    record.write_text(json.dumps(dict(reversed(json.loads(record.read_text()).items()))))
    assert documents_of_a_set(some_set, monkeypatch) == (first, 0)


def test_where_no_layout_can_be_kept_every_process_makes_it(some_set, monkeypatch):
    (some_set / "layouts").write_text("in the way")
    first, made = documents_of_a_set(some_set, monkeypatch)
    assert made == 1
    assert documents_of_a_set(some_set, monkeypatch) == (first, 1)
