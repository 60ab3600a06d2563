"""The same documents, written in every format that can be read."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TEXTS = [f"Document {i}: " + "naïve café, 多语言 text. " * (1 + 7 * i % 13) + "\nend" for i in range(60)]


def text_files(folder, suffix=".txt", texts=TEXTS):
    for number, text in enumerate(texts):
        (folder / f"{number:04d}{suffix}").write_text(text, encoding="utf-8")


def json_lines(folder, suffix=".jsonl", texts=TEXTS):
    lines = "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts))
    (folder / f"web{suffix}").write_text(lines)


def parquet(folder, suffix=".parquet", texts=TEXTS):
    pq.write_table(pa.table({"text": texts, "id": range(len(texts))}), folder / f"web{suffix}", row_group_size=17)


def array_record(folder, suffix=".arrayrecord", texts=TEXTS):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / f"web{suffix}"), "group_size:1")
    for text in texts:
        writer.write(text.encode())
    writer.close()


def zstd(path, data):
    """Two frames, as parallel compressors write them."""
    codec, half = pa.Codec("zstd"), len(data) // 2
    path.write_bytes(bytes(codec.compress(data[:half])) + bytes(codec.compress(data[half:])))


def compressed(write, how):
    """A writer of the same file, compressed."""

    def write_compressed(folder, suffix, texts=TEXTS):
        write(folder, suffix.removesuffix(how), texts)
        for path in list(folder.iterdir()):
            packed = path.with_name(path.name + how)
            if how == ".gz":
                packed.write_bytes(gzip.compress(path.read_bytes()))
            else:
                zstd(packed, path.read_bytes())
            path.unlink()

    return write_compressed


WRITERS = {
    **dict.fromkeys((".txt", ".text", ".md", ".rst", ".tex", ".html", ".py"), text_files),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), json_lines),
    ".parquet": parquet,
    **dict.fromkeys((".arrayrecord", ".array_record"), array_record),
    ".txt.gz": compressed(text_files, ".gz"),
    ".txt.zst": compressed(text_files, ".zst"),
    ".jsonl.gz": compressed(json_lines, ".gz"),
    ".jsonl.zst": compressed(json_lines, ".zst"),
}
"""How to write ``TEXTS`` with a suffix."""


def nanogpt(path, documents, end, first=False):
    """Bare uint16 tokens, with ``end`` after each document, or in front of it."""
    parts = [[end, *d] if first else [*d, end] for d in documents]
    np.array([token for part in parts for token in part], np.uint16).tofile(path)


def bare(kind):
    """A writer of tokens of a type without a header, as NumPy's ``tofile`` and ``memmap`` write them."""

    def write(path, documents, end):
        np.array([token for d in documents for token in [*d, end]], kind).tofile(path)

    return write


def llm_c(path, documents, end, magic=20240520, kind="<u2"):
    """A header of 256 int32, then the tokens, ``end`` in front of each document."""
    tokens = np.array([token for d in documents for token in [end, *d]], kind)
    header = np.zeros(256, np.int32)
    header[:3] = magic, 1, len(tokens)
    path.write_bytes(header.tobytes() + tokens.tobytes())


def llm_c_of_llama_3(path, documents, end):
    """The same with the number and the type that llm.c gives Llama 3's tokens."""
    llm_c(path, documents, end, magic=20240801, kind="<u4")


def npy(path, documents, end, kind="<i4"):
    """One row of int32, or of another type."""
    np.save(path, np.array([token for d in documents for token in [*d, end]], kind))


def big_endian_npy(path, documents, end):
    """One row of uint16 with the high byte first."""
    npy(path, documents, end, ">u2")


def megatron(path, documents, end):
    """Int32 tokens and their index, each document of two sequences."""
    sequences, boundaries = [], [0]
    for document in documents:
        half = len(document) // 2
        sequences += [document[:half], [*document[half:], end]]
        boundaries.append(len(sequences))
    lengths = np.array([len(s) for s in sequences], np.int32)
    np.array([token for s in sequences for token in s], np.int32).tofile(path)
    pointers = (np.cumsum(lengths, dtype=np.int64) - lengths) * 4
    head = b"MMIDIDX\0\0" + np.uint64(1).tobytes() + np.uint8(4).tobytes()
    counts = np.array([len(sequences), len(boundaries)], np.uint64).tobytes()
    index = head + counts + lengths.tobytes() + pointers.tobytes() + np.array(boundaries, np.int64).tobytes()
    path.with_suffix(".idx").write_bytes(index)


TOKEN_WRITERS = {
    "nanogpt.bin": nanogpt,
    "llm_c.bin": llm_c,
    "llama_3.bin": llm_c_of_llama_3,
    "wide.bin": bare("<i4"),
    "wider.bin": bare("<i8"),
    "tokens.npy": npy,
    "big_endian.npy": big_endian_npy,
    "olmo.npy": bare("<u2"),
    "nanotron.npy": bare("<u4"),
    "megatron.bin": megatron,
}
"""How to write documents of tokens to a file of this name."""
