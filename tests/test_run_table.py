"""A run table keeps its types and units through every file format, and refuses what cannot be true."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest

from moejax import run_table
from moejax.fit.tables.read_runs import read_runs
from moejax.folder import WRITTEN, outputs_of

ROWS = [
    {"model": "a", "params_total": 10**12 + 1, "tokens": 10**9, "loss": 2.5, "config": {"x": 1}, "extra": "kept"},
    {"model": "b", "params_total": 5 * 10**6, "tokens": 10**8, "loss": 3.25, "config": {"x": 2}, "mfu": None},
]


@pytest.mark.parametrize("name", ["runs.parquet", "runs.csv", "runs.jsonl"])
def test_a_written_table_reads_back_the_same_in_every_format(tmp_path, name):
    path = run_table.write(ROWS, tmp_path / name)
    frame = run_table.read(path)
    assert list(frame["params_total"]) == [10**12 + 1, 5 * 10**6]
    assert list(frame["loss"]) == [2.5, 3.25]
    assert list(frame["model"]) == ["a", "b"]
    assert frame["extra"][0] == "kept"
    assert json.loads(frame["config"][1]) == {"x": 2}
    assert frame["mfu"].isna().all()


@pytest.mark.parametrize("flops", [1e-308, 1e61])
def test_flops_whose_products_no_number_holds_are_refused_in_every_reader(flops):
    frame = pd.DataFrame({"flops": [1e18, flops, 2e18], "loss": [3.0, 2.9, 2.8]})
    with pytest.raises(ValueError, match=r"flops has .* in row 2; .* must be from 1e-60 to 1e\+60"):
        run_table.check(frame)
    with pytest.raises(ValueError, match=r"flops is not from 1e-60 to 1e\+60 in 1 of 3 rows \(row 2\)"):
        read_runs(frame, ("flops",))
    assert len(read_runs(frame, ("flops",), drop_invalid=True).runs.loss) == 2


@pytest.mark.parametrize("law", [("flops",), ("flops", "loss")])
def test_a_loss_whose_powers_underflow_is_refused_whether_it_is_fitted_or_read(law):
    frame = pd.DataFrame({"flops": [1e18, 1e19, 2e19], "loss": [3.0, 1e-299, 2.8], "score": [0.5, 0.6, 0.7]})
    with pytest.raises(ValueError, match=r"loss is not from 1e-60 to 1e\+60 in 1 of 3 rows \(row 2\)"):
        read_runs(frame, law, loss="score" if "loss" in law else "loss")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = run_table.write(ROWS, tmp_path / "runs.parquet")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="tokens"):
        run_table.write([{"tokens": -1}], path)
    assert path.read_bytes() == before
    assert set(os.listdir(tmp_path)) == {"runs.parquet", WRITTEN}


def test_whatever_byte_of_a_table_of_ours_is_flipped_it_is_refused_and_without_a_note_it_is_as_anybodys(tmp_path):
    path = run_table.write(ROWS, tmp_path / "runs.parquet")
    content = path.read_bytes()
    for place in range(0, len(content), 97):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ValueError, match="differs from the file that moejax wrote"):
            run_table.read(path)
    path.write_bytes(content)
    assert len(run_table.read(path)) == len(ROWS)
    pd.DataFrame([{"tokens": 7, "loss": 2.0}]).to_parquet(tmp_path / "mine.parquet")
    assert run_table.read(tmp_path / "mine.parquet").tokens.item() == 7


def test_a_table_in_text_is_read_as_it_stands_whoever_changed_it(tmp_path):
    with outputs_of(tmp_path):
        path = run_table.write(ROWS, tmp_path / "runs.csv")
    path.write_text("tokens,loss\n7,2.0\n")
    assert run_table.read(path).tokens.item() == 7


def test_a_table_that_is_written_again_is_read(tmp_path):
    for rows in (ROWS, ROWS[:1], ROWS):
        assert len(run_table.read(run_table.write(rows, tmp_path / "runs.parquet"))) == len(rows)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tokens": 0}, ["tokens", "above 0", "row 1"]),
        (
            {"num_experts": 2.5},
            ["num_experts has 2.5", "whole number", 'mapping={"num_experts": "round('],
        ),
        ({"load_cv": -0.1}, ["load_cv", "at least 0"]),
        ({"params_total": "many"}, ["params_total", "many", "a number"]),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_row_and_rule(tmp_path, row, words):
    with pytest.raises(ValueError, match="column") as caught:
        run_table.write([row], tmp_path / "runs.csv")
    assert all(word in str(caught.value) for word in words)


def test_a_count_that_arithmetic_left_a_rounding_error_off_is_the_whole_number():
    counts = run_table.check(pd.DataFrame({"num_experts": [8 - 1e-12, 0.0, 3.0 * (1 / 3)]})).num_experts
    assert list(counts) == [8, 0, 1]


def test_numbers_are_read_as_people_write_them(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("params_active,tokens,loss\n48M,10B,2.5\n1e9,1.5T,\n")
    frame = run_table.read(path)
    assert list(frame["params_active"]) == [48e6, 1e9]
    assert list(frame["tokens"]) == [10e9, 1.5e12]
    assert frame["loss"].isna().tolist() == [False, True]


@pytest.mark.parametrize("name", ["nowhere.csv", "runs.xlsx"])
def test_a_file_that_is_not_there_or_of_no_known_kind_is_a_sentence(tmp_path, name):
    with pytest.raises(ValueError, match=r"run table"):
        run_table.read(tmp_path / name)


def test_every_column_says_what_it_means():
    for name, column in run_table.COLUMNS.items():
        assert column.kind in ("text", "integer", "number", "json"), name
        assert len(column.meaning) > 10, name


def test_importing_the_run_table_loads_neither_jax_nor_pandas():
    code = "import sys, moejax.run_table; print('jax' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
