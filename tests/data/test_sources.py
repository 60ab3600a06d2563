"""Every format gives the same documents, however it is cut into input shards; what cannot be read is named."""

import gzip
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from written import TEXTS, TOKEN_WRITERS, WRITERS, json_lines, parquet, text_files, zstd

from moejax.data import source, sources
from moejax.data.compression import inner_suffix
from moejax.data.source import Corrupt, Document, SourceOptions
from moejax.data.sources import FORMATS, input_shards_of, token_files
from moejax.data.sources import text_files as text_format

TEXT = SourceOptions()
TOKENS = SourceOptions(end_of_document=7)


def read(path, options=TEXT):
    shards = input_shards_of(str(path), options)
    assert pickle.loads(pickle.dumps(shards)) == shards
    return [found for shard in shards for found in shard.documents()]


def texts(found):
    return [document.content.decode() for document in found]


@pytest.fixture
def small_input_shards(monkeypatch):
    for module in (source, text_format, sources.json_lines, sources.parquet, sources.array_record, token_files):
        monkeypatch.setattr(module, "INPUT_SHARD_BYTES", 1000)
    monkeypatch.setattr(sources.megatron, "INPUT_SHARD_BYTES", 1000)


def test_every_format_has_a_writer_here():
    assert {inner_suffix(f"a{suffix}") for suffix in WRITERS} | {".bin", ".npy"} == set(FORMATS)


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_every_document_in_order(tmp_path, suffix):
    WRITERS[suffix](tmp_path, suffix)
    assert texts(read(tmp_path)) == TEXTS


@pytest.mark.parametrize("suffix", WRITERS)
def test_small_input_shards_give_the_same_documents(tmp_path, suffix, small_input_shards):
    WRITERS[suffix](tmp_path, suffix)
    found = texts(read(tmp_path))
    if suffix in (".txt", ".md"):
        assert "".join(found) == "".join(TEXTS)
    elif "txt" not in suffix:
        assert found == TEXTS
    if not suffix.endswith((".gz", ".zst")):
        assert len(input_shards_of(str(tmp_path), SourceOptions())) > 3


def test_a_large_text_is_cut_at_line_ends_and_loses_nothing(tmp_path, small_input_shards):
    text = "".join(f"line {i}\n" for i in range(2000))
    (tmp_path / "large.txt").write_text(text)
    pieces = texts(read(tmp_path))
    assert len(pieces) > 10
    assert "".join(pieces) == text
    assert all(piece.endswith("\n") for piece in pieces)


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_a_source_of_one_text_is_cut_into_documents_so_that_some_can_be_held_out(tmp_path, suffix):
    text = "".join(f"line {i}\n" for i in range(2000)) + "no line end"
    path = tmp_path / f"book{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
    for given in (path, tmp_path):
        pieces = texts(read(given))
        assert 200 < len(pieces) <= 256
        assert "".join(pieces) == text
        assert all(piece.endswith("\n") for piece in pieces[:-1])
    (tmp_path / "second.txt").write_text("another text\n" * 10)
    assert len(read(tmp_path)) == 2


def test_a_text_without_line_ends_is_cut_between_characters(tmp_path, small_input_shards, monkeypatch):
    monkeypatch.setattr(text_format, "_LONGEST_LINE", 10)
    (tmp_path / "large.txt").write_text("é多" * 3000)
    pieces = texts(read(tmp_path))
    assert len(pieces) > 10
    assert "".join(pieces) == "é多" * 3000


DOCUMENTS = [np.random.default_rng(i).integers(8, 500, 1 + 97 * i % 300).tolist() for i in range(50)]


@pytest.mark.parametrize("part_tokens", [64, 100, 2**20])
@pytest.mark.parametrize("name", TOKEN_WRITERS)
def test_files_of_tokens_give_every_document_once(tmp_path, name, part_tokens, monkeypatch):
    for module in (token_files, sources.megatron):
        monkeypatch.setattr(module, "INPUT_SHARD_BYTES", part_tokens * 4)
    TOKEN_WRITERS[name](tmp_path / name, DOCUMENTS, 7)
    found = read(tmp_path, TOKENS)
    assert [document.content.tolist() for document in found] == DOCUMENTS


def test_tokens_without_an_end_are_cut_and_not_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "INPUT_SHARD_BYTES", 512)
    monkeypatch.setattr(token_files, "LONGEST_DOCUMENT", 300)
    np.arange(1000, 3000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    found = read(tmp_path, TOKENS)
    assert [len(document.content) for document in found] == [300] * 6 + [200]
    np.testing.assert_array_equal(np.concatenate([d.content for d in found]), np.arange(1000, 3000))


def test_tokens_need_the_tokenizer_they_were_made_with(tmp_path):
    TOKEN_WRITERS["nanogpt.bin"](tmp_path / "a.bin", DOCUMENTS, 7)
    with pytest.raises(ValueError, match="name the tokenizer that made them"):
        read(tmp_path)


def test_a_folder_may_mix_formats_and_passes_over_what_it_does_not_know(tmp_path):
    (tmp_path / "b").mkdir()
    json_lines(tmp_path / "b")
    text_files(tmp_path, texts=TEXTS[:3])
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert texts(read(tmp_path)) == TEXTS[:3] + TEXTS


def test_damaged_lines_are_named_and_their_neighbours_read(tmp_path):
    json_lines(tmp_path, texts=TEXTS[:2])
    with (tmp_path / "web.jsonl").open("a") as file:
        file.write('{"text": "cut sho\n[1]\n{"text": 3}\n\n{"text": "\\ud800"}\n{"text": "last"}\n')
    found = read(tmp_path)
    assert texts(f for f in found if isinstance(f, Document)) == [*TEXTS[:2], "last"]
    wrong = [f for f in found if isinstance(f, Corrupt)]
    assert [w.name for w in wrong] == ["web.jsonl:3", "web.jsonl:4", "web.jsonl:5", "web.jsonl:7"]
    assert [w.why[:12] for w in wrong] == ["no JSON (jso", "no JSON obje", "no text in i", "a surrogate "]


@pytest.mark.parametrize("how", [".gz", ".zst"])
def test_a_compressed_file_cut_short_loses_its_rest_and_says_so(tmp_path, how):
    lines = "".join(f'{{"text": "{i} {"xyz" * i}"}}\n' for i in np.random.default_rng(0).permutation(3000)).encode()
    path = tmp_path / f"a.jsonl{how}"
    path.write_bytes(gzip.compress(lines)) if how == ".gz" else zstd(path, lines)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    *read_before, last = read(tmp_path)
    assert isinstance(last, Corrupt)
    assert last.lost_bytes == path.stat().st_size
    assert all(isinstance(found, Document) for found in read_before)


@pytest.mark.parametrize("suffix", [".parquet", ".arrayrecord", ".npy"])
def test_a_file_that_is_no_such_file_is_lost_whole(tmp_path, suffix):
    (tmp_path / f"a{suffix}").write_bytes(b"not at all" * 100)
    (found,) = read(tmp_path, TOKENS)
    assert isinstance(found, Corrupt)
    assert found.lost_bytes == 1000


def test_a_megatron_index_that_is_none_loses_its_file(tmp_path):
    TOKEN_WRITERS["megatron.bin"](tmp_path / "a.bin", DOCUMENTS, 7)
    index = (tmp_path / "a.idx").read_bytes()
    (tmp_path / "a.idx").write_bytes(index[:200])
    (found,) = read(tmp_path, TOKENS)
    assert isinstance(found, Corrupt)
    assert "cut short" in found.why


def test_a_parquet_column_that_is_missing_or_no_text_is_refused(tmp_path):
    parquet(tmp_path)
    with pytest.raises(ValueError, match="has no column 'content', only text, id"):
        read(tmp_path, SourceOptions(text_field="content"))
    with pytest.raises(ValueError, match="holds int64, no text"):
        read(tmp_path, SourceOptions(text_field="id"))


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no file or folder .*nowhere.* known names are python_stdlib"):
        read(tmp_path / "nowhere")
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(ValueError, match=r"no file that can be read \(but 1 \.pdf\)"):
        read(tmp_path)


def test_the_standard_library_is_there_and_split_by_path():
    found = read("python_stdlib")
    names = {document.name for document in found}
    assert {"ast.py", "json/decoder.py"} <= names
    assert not any("site-packages" in name for name in names)
    assert all(document.key == document.name.encode() for document in found)


def test_a_damaged_record_does_not_cost_its_neighbours(tmp_path):
    WRITERS[".arrayrecord"](tmp_path)
    path = tmp_path / "web.arrayrecord"
    data = bytearray(path.read_bytes())
    place = data.find(b"Document 30")
    data[place : place + 4] = b"\0\0\0\0"
    path.write_bytes(data)
    found = read(tmp_path)
    assert texts(f for f in found if isinstance(f, Document)) == TEXTS[:30] + TEXTS[31:]
    assert [f.name for f in found if isinstance(f, Corrupt)] == ["web.arrayrecord:30"]


@pytest.mark.docs
def test_the_guide_names_every_format_and_source():
    table = Path("docs/data.md").read_text().split("## What can be read")[1].split("**Tokenizers**")[0]
    assert set(re.findall(r"`(\.\w+)`", table)) - {".gz", ".zst", ".idx"} == set(FORMATS)
    assert all(f"`{name}`" in table for name in sources.NAMED)
