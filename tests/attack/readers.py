"""Damaged files for every reader of users' files: whole files, ways to damage bytes, and the right reading of the rest.

A reader returns what it read, and whether it said that something is wrong. What it reads without such a word must be
right: the documents of the whole file, or those that another, plain reading finds in the damaged bytes.
"""

import dataclasses
import gzip
import io
import json
import sys
import tempfile
import unittest.mock
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from moejax import run_table
from moejax.data.shard import _check_ids
from moejax.data.source import Corrupt, SourceOptions
from moejax.data.sources import input_shards_of
from moejax.data.tokenizer import TokenIds
from moejax.errors import UserError
from moejax.run_sources import source

sys.path += [str(Path(__file__).parents[1] / "data"), str(Path(__file__).parents[1])]
from written import array_record, bare, big_endian_npy, llm_c, llm_c_of_llama_3, megatron, npy

VOCABULARY = TokenIds("ids:600:7")
DOCUMENTS = [np.random.default_rng(i).integers(8, 600, 5 + 11 * i % 30).tolist() for i in range(20)]
TEXTS = [f"Text {i}: naïve café, 多语言. " * (1 + i % 3) for i in range(20)]
LINES = "".join(json.dumps({"id": i, "text": text}, ensure_ascii=False) + "\n" for i, text in enumerate(TEXTS)).encode()
ROWS = pd.DataFrame({"params_active": [1e8, 2e8], "tokens": [1e9, 3e9], "loss": [3.5, 3.25], "model": ["a", "é"]})


@dataclasses.dataclass(frozen=True)
class Reader:
    """A format: a whole file, and what a file of any bytes holds."""

    files: dict[str, bytes]
    """Files by name; the first is damaged."""
    right: Callable[[bytes], Any]
    """What may be read of the damaged file without a word; raises if nothing may."""
    read: Callable[[Path, str], tuple[Any, bool]]
    kept: int = 0
    """Bytes at the end of the file that stay."""


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    """Bytes after an accident."""
    at, end = sorted(int(place) for place in random.integers(0, len(content) + 1, 2))
    match random.integers(8):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + content[end:]
        case 2:
            return content[:end] + content[at:]
        case 3:
            return content[:at] + bytes(end - at) + content[end:]
        case 4:
            return content[:at] + random.bytes(int(random.integers(1, 9))) + content[at:]
        case 5:
            size = 4 if random.integers(2) else 8
            extreme = [0, 1, 2 ** (8 * size - 1) - 1, 2 ** (8 * size) - 1][random.integers(4)]
            return content[:at] + extreme.to_bytes(size, "little") + content[at + size :]
        case 6:
            at = int(random.integers(len(content)))
            return content[:at] + random.bytes(1) + content[at + 1 :]
    at = int(random.integers(len(content)))
    return content[:at] + bytes([content[at] ^ (1 << int(random.integers(8)))]) + content[at + 1 :]


def fault(reader: Reader, content: bytes, folder: Path) -> str:
    """Return what is wrong with how a damaged file is read; empty if nothing is."""
    name = next(iter(reader.files))
    for other, whole in reader.files.items():
        (folder / other).parent.mkdir(parents=True, exist_ok=True)
        (folder / other).write_bytes(content if other == name else whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            got, warned = reader.read(folder, name)
        except UserError:
            return ""
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:300]
    if warned:
        return ""
    try:
        right = reader.right(content)
    except Exception as error:
        return f"read without a word, and {type(error).__name__}: {error}"[:300]
    return "" if got == right else "other content is read without a word"


def _documents(folder: Path, name: str) -> tuple[Any, bool]:
    got, warned = [], False
    for shard in input_shards_of(str(folder), SourceOptions(end_of_document=7, vocab_size=600)):
        for one in shard.documents():
            if isinstance(one, Corrupt):
                warned = True
            elif isinstance(one.content, bytes):
                # As the tokenizer refuses what is no UTF-8.
                try:
                    got.append(one.content.decode())
                except UnicodeDecodeError:
                    warned = True
            else:
                _check_ids(one, one.content, VOCABULARY)
                got.append(one.content.tolist())
    return got, warned


def _table(folder: Path, name: str) -> tuple[Any, bool]:
    frame = run_table.read_as_it_is(folder / name)
    return frame.to_dict("records"), False


def _runs(folder: Path, name: str) -> tuple[Any, bool]:
    frame = run_table.read_as_it_is(source.source(str(folder if "/" in name else folder / name)))
    return frame.to_dict("records"), bool(frame.attrs.get("notes"))


def _split(tokens: np.ndarray) -> list[list[int]]:
    ends = np.flatnonzero(tokens == 7)
    return [part[part != 7].tolist() for part in np.split(tokens, ends) if len(part[part != 7])]


def _written(write: Callable[..., Any], name: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, name), DOCUMENTS, 7)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir(), key=lambda p: p.name != name)}


def _tokens(write: Callable[..., Any], name: str, kind: str, begins: int) -> Reader:
    """Behind ``begins`` bytes of a header there are tokens of a type; without the header they are bare tokens."""
    files = _written(write, name)
    magic = next(iter(files.values()))[: min(begins, 4)]

    def right(content: bytes) -> Any:
        return _split(np.frombuffer(content[begins if content.startswith(magic) else 0 :], kind))

    return Reader(files, right, _documents)


def _tokens_of_documents(folder: Path, name: str) -> tuple[Any, bool]:
    """All tokens in order: where one document ends and the next begins, no sum in Megatron's index says."""
    documents, warned = _documents(folder, name)
    return [token for document in documents for token in document if token != 7], warned


def _index() -> Reader:
    files = dict(sorted(_written(megatron, "a.bin").items(), key=lambda item: item[0] != "a.idx"))
    return Reader(files, lambda content: [token for one in DOCUMENTS for token in one], _tokens_of_documents)


def _lines(content: bytes) -> list[str]:
    return [json.loads(line)["text"] for line in content.split(b"\n") if line.strip()]


def _records(content: str) -> list[str]:
    # A .json file that does not begin with an array has lines of JSON; an empty one has none.
    return [one["text"] for one in json.loads(content)] if content.lstrip()[:1] == "[" else _lines(content.encode())


def _record_file() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        array_record(Path(folder), texts=TEXTS)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _parquet(frame: Any) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(frame) if isinstance(frame, pd.DataFrame) else frame, written)
    return written.getvalue()


def _texts(content: bytes) -> list[str]:
    """The texts of a Parquet file; one bit of its footer makes them UTF-8 in binary, which are texts too."""
    texts = pq.read_table(io.BytesIO(content))["text"].to_pylist()
    return [text.decode() if isinstance(text, bytes) else text for text in texts]


def _anything(content: bytes) -> Any:
    """Equal to whatever is read: of formats without a sum, any bytes of values are values."""
    return unittest.mock.ANY


def _wide(content: bytes) -> Any:
    """Without a header nothing but the tokens says how wide they are: a few, or two bytes too many, say something
    else."""
    wide = np.frombuffer(content, "<u4") if len(content) % 4 == 0 else np.zeros(0, "<u4")
    return _split(wide if np.count_nonzero(wide) >= 16 else np.frombuffer(content, "<u2"))


TABLE = _parquet(ROWS)

READERS = {
    "bare.bin": _tokens(bare("<u2"), "a.bin", "<u2", 0),
    "wide.bin": Reader(_written(bare("<i4"), "a.bin"), _wide, _documents),
    "olmo.npy": _tokens(bare("<u2"), "a.npy", "<u2", 0),
    "llm_c.bin": _tokens(llm_c, "a.bin", "<u2", 1024),
    "llama_3.bin": _tokens(llm_c_of_llama_3, "a.bin", "<u4", 1024),
    "npy": _tokens(npy, "a.npy", "<i4", 128),
    "big_endian.npy": _tokens(big_endian_npy, "a.npy", ">u2", 128),
    "megatron.idx": _index(),
    "jsonl": Reader({"a.jsonl": LINES}, _lines, _documents),
    "jsonl.gz": Reader(
        {"a.jsonl.gz": gzip.compress(LINES, mtime=0)}, lambda content: _lines(gzip.decompress(content)), _documents
    ),
    "json": Reader(
        {"a.json": json.dumps([{"text": text} for text in TEXTS], ensure_ascii=False).encode()},
        lambda content: _records(content.decode("utf-8-sig")),
        _documents,
    ),
    "parquet": Reader(
        {"a.parquet": _parquet(pa.table({"text": pa.array(TEXTS, pa.string_view())}))},
        _texts,
        _documents,
    ),
    "arrayrecord": Reader(_record_file(), lambda content: TEXTS, _documents),
    "csv": Reader({"a.csv": ROWS.to_csv(index=False).encode()}, _anything, _table),
    "semicolons": Reader({"a.csv": ROWS.to_csv(index=False, sep=";", decimal=",").encode()}, _anything, _table),
    "tsv.gz": Reader(
        {"a.tsv.gz": gzip.compress(ROWS.to_csv(index=False, sep="\t").encode(), mtime=0)},
        lambda content: pd.read_csv(io.BytesIO(gzip.decompress(content)), sep="\t").to_dict("records"),
        _table,
    ),
    "table.jsonl": Reader({"a.jsonl": ROWS.to_json(orient="records", lines=True).encode()}, _anything, _table),
    # PyArrow 26 ends the process on some footers (statistics of a column that do not fit its type).
    "table.parquet": Reader({"a.parquet": TABLE}, _anything, _table, kept=8 + int.from_bytes(TABLE[-8:-4], "little")),
}
"""Readers by format."""
