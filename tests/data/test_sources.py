"""Every format gives the same documents, however it is cut into input shards; what cannot be read is named."""

import gzip
import io
import json
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written import TEXTS, TOKEN_WRITERS, WRITERS, json_lines, parquet, text_files, zstd

from moejax import input_file
from moejax.data import source, sources
from moejax.data.source import Corrupt, Document, SourceOptions
from moejax.data.sources import FORMATS, input_shards_of, token_files
from moejax.data.sources import text_files as text_format
from moejax.errors import UserError
from moejax.input_file import inner_suffix

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
    with pytest.raises(ValueError, match="name the tokenizer that produced them"):
        read(tmp_path)


def test_a_folder_may_mix_formats_and_passes_over_what_it_does_not_know(tmp_path):
    (tmp_path / "b").mkdir()
    json_lines(tmp_path / "b")
    text_files(tmp_path, texts=TEXTS[:3])
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert texts(read(tmp_path)) == TEXTS[:3] + TEXTS


def test_damaged_lines_are_named_and_their_neighbors_read(tmp_path):
    json_lines(tmp_path, texts=TEXTS[:2])
    with (tmp_path / "web.jsonl").open("a") as file:
        file.write('{"text": "cut sho\n[1]\n{"text": 3}\n\n{"text": "\\ud800"}\n{"text": "last"}\n')
    found = read(tmp_path)
    assert texts(f for f in found if isinstance(f, Document)) == [*TEXTS[:2], "last"]
    wrong = [f for f in found if isinstance(f, Corrupt)]
    assert [w.name for w in wrong] == ["web.jsonl:3", "web.jsonl:4", "web.jsonl:5", "web.jsonl:7"]
    assert [w.why[:20] for w in wrong] == [
        "it is not JSON (json",
        "it is not a JSON obj",
        "it has no text in it",
        "it has an unpaired s",
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".jsonl", ".jsonl.zst", ".json"])
def test_text_in_another_encoding_is_refused_by_name(tmp_path, suffix, encoding):
    content = '{"text": "one"}\n'.encode(encoding)
    path = tmp_path / f"other{suffix}"
    pack = {".gz": lambda: path.write_bytes(gzip.compress(content)), ".zst": lambda: zstd(path, content)}
    pack.get(path.suffix, lambda: path.write_bytes(content))()
    with pytest.raises(UserError, match=f"other{suffix} is not UTF-8: .* Save it as UTF-8"):
        read(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_a_line_in_another_encoding_is_damaged_and_its_neighbors_are_read(tmp_path, encoding):
    lines = ['{"text": "first é"}\n'.encode("utf-8-sig"), '{"text": "ü"}\n'.encode(encoding), b'{"text": "last"}\n']
    # A line break of several bytes would begin the next line with the rest of it.
    (tmp_path / "web.jsonl").write_bytes(lines[0] + lines[1] + b"\n" + lines[2].decode().encode("utf-8-sig"))
    found = read(tmp_path)
    assert texts(f for f in found if isinstance(f, Document)) == ["first é", "last"]
    assert any(isinstance(f, Corrupt) and "not JSON" in f.why for f in found)


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


def _array(values, kind=np.uint16):
    written = io.BytesIO()
    np.save(written, np.array(values, kind))
    return written.getvalue()


def _zip():
    written = io.BytesIO()
    np.savez(written, tokens=np.arange(9))
    return written.getvalue()


def _llm_c(said, held):
    return np.array([20240520, 1, said] + [0] * 253, np.int32).tobytes() + bytes(2 * held)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npy", b"", "it is empty"),
        ("a.bin", b"", "it is empty"),
        ("a.npy", _zip(), "it is a zip archive written by np.savez"),
        ("a.npy", b"\x92" + _array([1, 7])[1:], "its np.save header is damaged"),
        ("a.npy", _array([1, 7])[:-1], "it is a damaged array"),
        ("a.npy", _array([1, 7]) + b"\0\0", "its header states 2 tokens of 2 bytes, but 6 bytes follow"),
        ("a.npy", _array([1, 7], float), "it holds float64 of shape (2,), not a one-dimensional array of integers"),
        ("a.npy", _array([[1, 7]]), "it holds uint16 of shape (1, 2), not a one-dimensional array of integers"),
        ("a.npy", b"no tokens", "its 9 bytes are not a whole number of tokens of 2 bytes"),
        ("a.npy", b"no tokens!", "it has no end-of-document token (7)"),
        ("a.bin", b"\1\0\7", "its 3 bytes are not a whole number of tokens of 2 bytes"),
        ("a.bin", b"\1" + _llm_c(8, 8)[1:], "it begins like a file of llm.c"),
        ("a.jsonl.gz", b"", "it is empty, but a compressed file has at least a header"),
        ("a.bin", _llm_c(8, 7), "its header states 8 tokens of 2 bytes, but 14 bytes follow"),
    ],
)
def test_a_file_that_holds_no_tokens_is_named_as_what_it_is(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    (lost,) = read(tmp_path, TOKENS)
    assert isinstance(lost, Corrupt)
    assert words in lost.why
    assert lost.lost_bytes == len(content)


def _with_index(tmp_path, change):
    """Megatron's files of ``DOCUMENTS``, with the lengths, pointers and documents of the index changed."""
    TOKEN_WRITERS["megatron.bin"](tmp_path / "a.bin", DOCUMENTS, 7)
    index = (tmp_path / "a.idx").read_bytes()
    sequences = 2 * len(DOCUMENTS)
    lengths = np.frombuffer(index, "<i4", sequences, 34).copy()
    pointers = np.frombuffer(index, "<i8", sequences, 34 + lengths.nbytes).copy()
    documents = np.frombuffer(index, "<i8", -1, 34 + lengths.nbytes + pointers.nbytes).copy()
    change(lengths, pointers, documents)
    (tmp_path / "a.idx").write_bytes(index[:34] + lengths.tobytes() + pointers.tobytes() + documents.tobytes())


@pytest.mark.parametrize(
    ("array", "place", "value"),
    [
        *((0, place, -1) for place in (0, 9, -1)),
        (0, 9, 2**31 - 1),
        *((1, place, value) for place in (0, 9, -1) for value in (-8, 4, 2**62)),
        *((2, place, value) for place in (0, 9, -1) for value in (-1, 1_000, 2**62)),
        (2, 9, 3),
    ],
)
def test_a_megatron_index_with_one_wrong_number_loses_its_file(tmp_path, array, place, value, monkeypatch):
    monkeypatch.setattr(sources.megatron, "_CHUNK", 7)
    _with_index(tmp_path, lambda *arrays: arrays[array].__setitem__(place, value))
    (lost,) = read(tmp_path, TOKENS)
    assert isinstance(lost, Corrupt)
    assert " in a.idx do" in lost.why
    assert lost.lost_bytes == (tmp_path / "a.bin").stat().st_size


@pytest.mark.parametrize("size", [0, 9, 20, 34, 200])
def test_a_megatron_index_that_is_cut_loses_its_file(tmp_path, size):
    TOKEN_WRITERS["megatron.bin"](tmp_path / "a.bin", DOCUMENTS, 7)
    index = (tmp_path / "a.idx").read_bytes()
    (tmp_path / "a.idx").write_bytes(index[:size])
    (lost,) = read(tmp_path, TOKENS)
    assert isinstance(lost, Corrupt)
    assert "cut short" in lost.why or "does not begin" in lost.why


def test_a_megatron_index_of_a_part_of_the_tokens_loses_its_file(tmp_path):
    TOKEN_WRITERS["megatron.bin"](tmp_path / "a.bin", DOCUMENTS, 7)
    with (tmp_path / "a.bin").open("ab") as file:
        file.write(bytes(8))
    (lost,) = read(tmp_path, TOKENS)
    assert re.search(r"a\.idx describes only [\d,]+ of [\d,]+ bytes", lost.why)


def test_documents_behind_the_end_of_a_megatron_file_are_lost(tmp_path):
    TOKEN_WRITERS["megatron.bin"](tmp_path / "a.bin", DOCUMENTS, 7)
    content = (tmp_path / "a.bin").read_bytes()
    for size in (len(content) - 3, 0):
        (tmp_path / "a.bin").write_bytes(content[:size])
        found = read(tmp_path, TOKENS)
        whole = len(DOCUMENTS) - 1 if size else 0
        assert [document.content.tolist() for document in found[:whole]] == DOCUMENTS[:whole]
        assert all("beyond the end" in lost.why for lost in found[whole:])
        assert len(found) == len(DOCUMENTS)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS, pa.string_view()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array([text.encode() for text in TEXTS], pa.binary_view()),
    ],
    ids=lambda column: str(column.type)[:16],
)
def test_a_parquet_column_may_hold_text_in_any_of_its_types(tmp_path, column):
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet", row_group_size=17)
    assert texts(read(tmp_path)) == TEXTS


@pytest.mark.parametrize("chunk", [1, 7, 2**20])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_file_may_be_one_array_of_records(tmp_path, chunk, indent, monkeypatch):
    monkeypatch.setattr(sources.json_lines, "_CHUNK", chunk)
    text = json.dumps([{"id": 1, "text": text} for text in TEXTS], indent=indent, ensure_ascii=False)
    (tmp_path / "a.json").write_text(f"\ufeff {text}\n")
    assert texts(read(tmp_path)) == TEXTS
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.json").write_text(" [ ] ")
    assert texts(read(tmp_path)) == TEXTS * 2


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ('[{"text": "a"}, {"text": "b"', 1),
        ('[{"text": "a"} {"text": "b"}]', 1),
        ('[{"text": "a"}] {"text": "b"}', 1),
        ('[{"text": "a"}', 1),
        ("[" * 100_000, 0),
        ("[", 0),
    ],
)
def test_what_follows_damage_in_a_json_array_is_lost(tmp_path, text, whole):
    (tmp_path / "a.json").write_text(text)
    *documents, lost = read(tmp_path)
    assert texts(documents) == ["a"] * whole
    assert lost.name == f"a.json, after item {whole}"
    assert lost.lost_bytes == len(text)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_line_that_is_too_long_or_too_deep_is_named_and_its_neighbors_read(
    tmp_path, suffix, small_input_shards, monkeypatch
):
    monkeypatch.setattr(input_file, "MOST_LINE_BYTES", 2_000)
    lines = ['{"text": "a"}', f'{{"text": "{"x" * 9_000}"}}', '{"text": "b"}', "[" * 1_500, '{"text": "c"}']
    lines.insert(4, '{"a":' * 150 + "1" + "}" * 150)
    content = "\n".join(lines).encode()
    (tmp_path / f"a{suffix}").write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    found = read(tmp_path)
    assert texts(one for one in found if isinstance(one, Document)) == ["a", "b", "c"]
    long, deep, also_deep = [one.why for one in found if isinstance(one, Corrupt)]
    assert long == "a line of more than 2,000 bytes"
    assert deep == also_deep == "it is not JSON (it is nested more than 100 levels deep)"


def test_a_long_line_of_compressed_text_is_cut_between_characters(tmp_path, small_input_shards, monkeypatch):
    monkeypatch.setattr(text_format, "_LONGEST_LINE", 10)
    text = "é多x" * 3_000
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"\x80" * 5_000))
    pieces = [document.content for document in read(tmp_path)]
    assert max(map(len, pieces)) < 1_020
    assert b"".join(pieces) == text.encode() + b"\x80" * 5_000
    assert "".join(piece.decode() for piece in pieces if b"\x80\x80" not in piece) == text


@pytest.mark.parametrize("suffix", [*FORMATS, ".jsonl.gz", ".txt.zst"])
def test_what_is_no_file_with_an_end_is_refused_without_being_read(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    os.mkfifo(path)
    with pytest.raises(UserError, match=f"a{suffix} is a pipe, not a regular file"):
        read(tmp_path, TOKENS)
    with pytest.raises(UserError, match=f"a{suffix} is a pipe, not a regular file"):
        read(path, TOKENS)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=f"a{suffix} is a device, not a regular file"):
        read(tmp_path, TOKENS)
    path.unlink()
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(UserError, match=f"a{suffix} is a Git LFS pointer.* git lfs pull"):
        read(tmp_path, TOKENS)
    path.unlink()
    path.symlink_to(path)
    (lost,) = read(tmp_path, TOKENS)
    assert lost.why == "unreadable (system error: Too many levels of symbolic links)"


def test_a_parquet_column_that_is_missing_or_no_text_is_refused(tmp_path):
    parquet(tmp_path)
    with pytest.raises(ValueError, match="has no column 'content', only text, id"):
        read(tmp_path, SourceOptions(text_field="content"))
    with pytest.raises(ValueError, match="holds int64, not text"):
        read(tmp_path, SourceOptions(text_field="id"))


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no file or folder .*nowhere.* Give an existing one, python_stdlib"):
        read(tmp_path / "nowhere")
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(ValueError, match=r"no readable file \(only 1 \.pdf\)"):
        read(tmp_path)


def test_the_standard_library_is_there_and_split_by_path():
    found = read("python_stdlib")
    names = {document.name for document in found}
    assert {"ast.py", "json/decoder.py"} <= names
    assert not any("site-packages" in name for name in names)
    assert all(document.key == document.name.encode() for document in found)


def test_a_damaged_record_does_not_cost_its_neighbors(tmp_path):
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
