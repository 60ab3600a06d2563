"""Tables that anybody may have written are read as they are meant, or refused with a sentence and a remedy."""

import csv
import gzip
import io
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax import run_table, table_file
from moejax.errors import UserError
from moejax.quantities import parse
from moejax.report.render import markdown
from moejax.result import Column, Result, Table

ROWS = "params_active,tokens,loss\n1e8,1e9,3.5\n2e8,2e9,3.2\n"


def written(tmp_path, content, name="runs.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content", [ROWS.encode("utf-16"), ROWS.encode("utf-8-sig"), ROWS.replace("\n", "\r\n").encode()]
)
def test_text_that_says_its_encoding_is_read_in_it(tmp_path, content):
    assert run_table.read(written(tmp_path, content))["loss"].tolist() == [3.5, 3.2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("modèle,loss\na,3\n".encode("latin-1"), r"not valid UTF-8 \(first invalid byte at position 3\); save it as"),
        (ROWS.encode("utf-16-le"), "has a zero byte"),
        ("tokens;loss\n1e9;3,512\n", "'3,512' has a separator for either decimals or thousands"),
        ("tokens;loss\n1.234;3,5\n", "'1.234' has a separator for either decimals or thousands"),
        ("tokens;loss\n1,250M;3\n", "'1,250M' has a separator for either decimals or thousands"),
        ("tokens;loss\n1.250M;3,5\n", "'1.250M' has a separator for either decimals or thousands"),
        ("tokens;loss\n1,000,000;3,5\n", "'1,000,000' has a separator for either decimals or thousands"),
        ("a;b\n1;2;3\n", "line 2 has 3 cells, but the header has 2; give every row as many semicolons"),
        ('tokens,loss\n1e9,"3,5"\n', "'3,5' in row 1; it must be a number"),
        ("loss,loss\n1,2\n", "two columns named 'loss'"),
        (",".join(["a"] * 200_000), "200,000 columns"),
        ("a,b\n1,2,3,4\n1\n", "line 2 has 4 cells, but the header has 2"),
        ("a,b\n1,2\n1,2,3\n", "line 3 has 3 cells, but the header has 2"),
        (
            "tokens,params_active,loss\n1000000000,100000000,3.7,3.8\n2000000000,200000000,3.6,3.7\n",
            "line 2 has 4 cells",
        ),
        ("a,b\n1,2,3\n4,5,6\n", "line 2 has 3 cells"),
        ("a,b\n1,2,\n4,5,\n", "line 2 has 3 cells"),
        ("a,b,c\n\n1,3\n", "line 3 has 2 cells, but the header has 3"),
        ('a,b,c\n1,2,3\nx,"2,3\n4,5,6\n7,8",9\n10,11,12\n', "lines 3 to 5 form one row"),
        ('a,b\n"x"y,2\n', "line 2 has a quote that is not closed, or text after a closing quote"),
        ('"to\nkens",tokens,tokens\n1,2,3\n', "two columns named 'tokens'"),
        ("a\u2028,tokens,tokens\n1,2,3\n", "two columns named 'tokens'"),
        ('a,b\n1,"2\n', "a quote that is not closed"),
        ("", "it is empty"),
        (b"\x00" * 100, "zero byte"),
    ],
)
def test_a_csv_file_that_would_be_misread_is_refused(tmp_path, content, words):
    with pytest.raises(ValueError, match=words):
        run_table.read(written(tmp_path, content))


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ("tokens;loss\n1e9;3,5\n2000000;3,125\n", "runs.csv"),
        ("tokens;loss\n1e9;3.5\n2,000,000;3.125\n", "runs.csv"),
        ("tokens;loss\n1e9;3.5\n2e6;3.125\n", "runs.tsv"),
        ("tokens\tloss\n1e9\t3.5\n2,000,000\t3.125\n", "runs.tsv"),
        ("tokens\tloss\n1e9\t3,5\n2e6\t3,125\n", "runs.csv"),
        ("tokens;loss\n1,000B;3,5\n2,000 m;3,125\n", "runs.csv"),
        ("tokens;loss\n1,000×10^9;3,5\n0,002×10⁹;3,125\n", "runs.csv"),
        ("tokens;loss\n1,000,000K;3.5\n2,000k;3.125\n", "runs.csv"),
        ("tokens|loss\n1e9|3.5\n2e6|3.125\n", "runs.csv"),
        ('tokens,loss\n1e9,3.5\n"2,000,000",3.125\n', "runs.tsv"),
        ("\ntokens,a;b,loss\n1e9,x;y,3.5\n2e6,,3.125\n", "runs.csv"),
    ],
)
def test_what_separates_cells_and_decimals_is_seen(tmp_path, rows, name):
    for path in (written(tmp_path, rows, name), written(tmp_path, gzip.compress(rows.encode()), f"{name}.gz")):
        frame = run_table.read(path)
        assert run_table.numbers(frame["tokens"]).tolist() == [1e9, 2e6]
        assert frame["loss"].tolist() == [3.5, 3.125]


@pytest.mark.parametrize("name", ["runs.csv", "runs.csv.gz", "runs.tsv", "runs.jsonl", "runs.parquet"])
def test_what_is_no_file_with_an_end_is_refused_without_being_read(tmp_path, name):
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises(UserError, match=f"^.*{name} is a pipe, not a regular file; copy its content to a file.$"):
        run_table.read(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=f"{name} is a device"):
        run_table.read(path)
    path.unlink()
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(UserError, match=f"{name} is a Git LFS pointer.* git lfs pull"):
        run_table.read(path)
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(UserError, match="There is no run table at"):
        run_table.read(path)


def test_a_table_that_does_not_fit_into_memory_is_named_with_its_size(tmp_path):
    path = written(tmp_path, ROWS)
    code = (
        "import resource, sys, pandas; from moejax import run_table\n"
        "with open('/proc/self/statm') as file: pages = int(file.read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**27,) * 2)\n"
        "run_table.read(sys.argv[1])"
    )
    path = written(tmp_path, gzip.compress(b"loss\n" + b"3.0\n" * 40_000_000, 1), "runs.csv.gz")
    ended = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert f"runs.csv.gz ({path.stat().st_size:,} bytes) does not fit in the memory" in ended.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"a": 1}\n[1]\n', "line 2 is not a JSON object"),
        ('{"a": 1}\n{"a"', "line 2"),
        ("[" * 100_000, "line 1: it is nested more than 100 levels deep"),
        ('{"a":' * 150 + "1" + "}" * 150, "line 1: it is nested more than 100 levels deep"),
        ('{"a": 1}\n{"loss": 3, "loss": 4}', "line 2: it has the name 'loss' twice; rename or remove one"),
        ('{"model": "\\ud800"}', "line 1 has an unpaired surrogate"),
        ('{"model": {"\\ud83d": 1}}', "line 1 has an unpaired surrogate"),
        ('{"loss": %s}' % ("9" * 400), "in row 1; it must be a number"),
    ],
)
def test_a_line_that_is_no_object_is_named(tmp_path, content, words):
    with pytest.raises(ValueError, match=words):
        run_table.read(written(tmp_path, content, "runs.jsonl"))


def test_a_cell_may_hold_line_breaks_and_half_of_a_pair_of_surrogates_is_a_character(tmp_path):
    frame = run_table.read(written(tmp_path, 'model,loss,"lo\nad"\n"a\nb\u2028, ""c""",3,"[1 2\n 3]"\n\n"",4,\n'))
    assert frame.columns.tolist() == ["model", "loss", "lo\nad"]
    assert frame["loss"].tolist() == [3, 4]
    assert frame["model"][0] == 'a\nb\u2028, "c"'
    assert run_table.read(written(tmp_path, '{"model": "\\ud83d\\ude00"}', "a.jsonl"))["model"].tolist() == ["😀"]


@settings(max_examples=300, derandomize=True)
@given(st.text(st.sampled_from('xy ",\n\r;\u2028'), max_size=20))
def test_a_csv_file_is_read_cell_by_cell_as_the_csv_module_reads_it_or_is_refused(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "rows.csv"
    path.write_bytes(f"a,b\n{rows}".encode())
    try:
        frame = table_file.read_csv(path)
    except ValueError:
        return
    kept = [row for row in csv.reader(io.StringIO(f"a,b\n{rows}", newline=""), strict=True) if len(row) > 1]
    assert frame.columns.tolist() == kept[0]
    assert [["" if cell != cell else cell for cell in row] for row in frame.to_numpy()] == kept[1:]


def test_a_short_file_that_would_be_a_large_table_is_refused_before_it_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(table_file, "MOST_CELLS", 1_000)
    monkeypatch.setattr(pd, "DataFrame", None)
    monkeypatch.setattr(pd, "read_csv", None)
    with pytest.raises(ValueError, match=r"more than 1,000 cells \(32 columns\)"):
        run_table.read(written(tmp_path, "".join(f'{{"n{i}": 1}}\n' for i in range(100)), "runs.jsonl"))
    with pytest.raises(ValueError, match=r"more than 1,000 cells \(2 columns\)"):
        run_table.read(written(tmp_path, "a,b\n" + ",\n" * 501))
    monkeypatch.setattr(table_file, "MOST_COLUMNS", 10)
    with pytest.raises(ValueError, match="11 columns"):
        run_table.read(written(tmp_path, "".join(f'{{"n{i}": 1}}\n' for i in range(100)), "runs.jsonl"))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 200 + b"PAR1", ROWS.encode()])
def test_a_damaged_parquet_file_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match="is not a Parquet file, or is damaged"):
        run_table.read(written(tmp_path, content, "runs.parquet"))


def test_text_of_a_parquet_file_that_is_no_utf_8_is_refused(tmp_path):
    path = tmp_path / "runs.parquet"
    pq.write_table(pa.table({"model": pa.array([b"\xff"], pa.binary()).view(pa.string()), "loss": [3.0]}), path)
    with pytest.raises(ValueError, match="or is damaged"):
        run_table.read_as_it_is(path)


def test_a_parquet_file_of_a_billion_equal_cells_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(table_file, "MOST_CELLS", 1_000)
    path = tmp_path / "runs.parquet"
    pd.DataFrame({"loss": np.ones(2_000)}).to_parquet(path)
    with pytest.raises(ValueError, match="2,000 cells"):
        run_table.read(path)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x" * 1_000] * 300),
        pa.array(["x" * 1_000] * 300, pa.large_string()),
        pa.array([b"x" * 1_000] * 300),
        pa.array([["x" * 500] * 2] * 300),
        pa.array([{"a": "x" * 1_000}] * 300),
        pa.array([[("k", "x" * 1_000)]] * 300, pa.map_(pa.string(), pa.string())),
        pa.array([b"x" * 1_000] * 300, pa.binary(1_000)),
    ],
    ids=lambda column: str(column.type),
)
def test_a_text_that_parquet_holds_once_counts_in_every_row(tmp_path, monkeypatch, column):
    path = tmp_path / "runs.parquet"
    pq.write_table(pa.table({"model": column}), path)
    assert path.stat().st_size < 10_000
    assert len(run_table.read_as_it_is(path)) == 300
    monkeypatch.setattr(table_file, "MOST_BYTES", 300_000 - 1)
    with pytest.raises(ValueError, match=r"cells in 30\d,\d\d\d bytes"):
        run_table.read_as_it_is(path)


def test_the_items_of_lists_count_as_cells(tmp_path, monkeypatch):
    path = tmp_path / "runs.parquet"
    pq.write_table(pa.table({"a": [[1.0] * 1_000] * 2}), path)
    monkeypatch.setattr(table_file, "MOST_CELLS", 1_000)
    with pytest.raises(ValueError, match="2,000 cells"):
        run_table.read_as_it_is(path)


def test_a_parquet_file_keeps_its_types(tmp_path):
    frame = pd.DataFrame(
        {
            "text": ["a", None, "a"],
            "category": pd.Categorical(["a", "b", "a"]),
            "number": [1.5, None, 2.0],
            "whole": [1, 2, 3],
            "done": [True, False, True],
            "when": pd.to_datetime(["2024-01-01"] * 3),
            "nothing": [None] * 3,
        },
    )
    path = tmp_path / "runs.parquet"
    frame.to_parquet(path)
    pd.testing.assert_frame_equal(run_table.read_as_it_is(path), pd.read_parquet(path))
    pq.write_table(pa.table({"model": pa.array(["a", None], pa.string_view()), "loss": [3.0, 2.0]}), path)
    pd.testing.assert_frame_equal(run_table.read_as_it_is(path), pd.read_parquet(path))


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(table_file, "MOST_BYTES", 10_000)
    packed = gzip.compress(b"loss\n" + b"3.0\n" * 10_000)
    assert len(packed) < 1_000
    with pytest.raises(ValueError, match="more than 10,000 bytes, unpacked"):
        run_table.read(written(tmp_path, packed, "runs.csv.gz"))


@pytest.mark.parametrize(
    "content", [b"", b"no gzip", gzip.compress(ROWS.encode())[:-9]], ids=["empty", "no gzip", "cut short"]
)
def test_what_gzip_did_not_write_whole_is_refused(tmp_path, content):
    with pytest.raises(ValueError, match=r"not a complete gzip file|is empty"):
        run_table.read(written(tmp_path, content, "runs.csv.gz"))


def test_a_spreadsheet_runs_nothing_of_what_is_written(tmp_path):
    frame = pd.DataFrame({"model": ["=cmd|' /C calc'!A0", "@x", "plain", None], "=sum(A1)": [-1.0, 2.0, 3.0, 4.0]})
    cells = pd.read_csv(io.StringIO(table_file.csv_text(frame)))
    assert cells["model"].tolist()[:3] == ["'=cmd|' /C calc'!A0", "'@x", "plain"]
    assert cells["'=sum(A1)"].tolist() == [-1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("text", ["1,23", "1,2345", "12,34,567", "١٢"])
def test_a_decimal_comma_is_not_read_as_one_between_thousands(text):
    with pytest.raises(ValueError, match="not a number"):
        parse(text)
    assert parse("1,234,567.5") == 1_234_567.5


def test_names_in_markdown_open_no_element_and_no_row():
    table = Table("", (Column("model"),), [["<script>alert(1)</script>"], ["a|b\n| c |"]])
    text = markdown(Result(tables=[table]))
    assert "<" not in text
    assert len(text.splitlines()) == 4
