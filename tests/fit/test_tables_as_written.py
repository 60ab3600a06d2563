"""Tables as people write them: numbers, dense rows, nested settings, columns that are exchanged or unread."""

import ast
import json
import re

import numpy as np
import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.cli.command_line import DONE
from moejax.fit.tables.read_runs import read_runs

ACTIVE, TOKENS = (values.ravel() for values in np.meshgrid([3e7, 6e7, 1.2e8, 2.5e8], [2e9, 8e9, 3.2e10]))
EXPERTS = np.resize([np.nan, 16.0, 64.0], 12)
MIXED = pd.DataFrame(
    {
        "params_active": ACTIVE,
        "params_total": ACTIVE * np.where(np.isnan(EXPERTS), 1.0, EXPERTS / 4),
        "num_experts": EXPERTS,
        "top_k": np.where(np.isnan(EXPERTS), np.nan, 2.0),
        "tokens": TOKENS,
        "loss": 1.7 + 400 / ACTIVE**0.34 + 410 / TOKENS**0.28,
    }
)
DENSE = np.isnan(EXPERTS)


@pytest.mark.parametrize("empty", [np.nan, None, "-", "dense", "None"])
@pytest.mark.parametrize("total", [True, False], ids=["with totals", "without"])
def test_dense_rows_with_empty_experts_and_totals_are_dense_and_said(empty, total):
    table = MIXED.astype({"num_experts": object})
    table.loc[DENSE, "num_experts"] = empty
    if not total:
        table.loc[DENSE, "params_total"] = np.nan
    read = read_runs(table, ("params_active", "params_total", "num_experts", "tokens"))
    assert (read.runs.design.num_experts[DENSE] == 0).all()
    assert (read.runs.design.params_total[DENSE] == ACTIVE[DENSE]).all()
    (said,) = [note for note in read.notes if "read as dense" in note]
    assert "in 4 of 12 rows (rows 1, 4, 7, 10)" in said
    assert not any("drop_invalid" in note for note in read.notes)
    # They are selected as dense, too.
    assert len(read_runs(table, "chinchilla", where=["num_experts == 0"]).runs) == 4
    renamed = table.rename(columns={"num_experts": "n_experts"})
    assert len(read_runs(renamed, "chinchilla", where=["n_experts == 0"]).runs) == 4


def test_dense_rows_are_said_by_the_names_of_their_models():
    names = np.where(DENSE, "dense-", "mixture-") + np.arange(12).astype(str).astype(object)
    read = read_runs(MIXED.assign(model=names), "chinchilla")
    (said,) = [note for note in read.notes if "read as dense" in note]
    assert "(rows 1, 4, 7, 10: dense-0, dense-3, dense-6 and 1 more)" in said


def test_experts_that_are_empty_where_totals_are_larger_are_not_dense():
    table = MIXED.assign(num_experts=np.where(EXPERTS == 64, np.nan, EXPERTS))
    table.loc[EXPERTS == 64, "top_k"] = np.nan
    with pytest.raises(ValueError, match="num_experts is empty or not finite in 4 of 12 rows"):
        read_runs(table, ("params_active", "params_total", "num_experts"))


def test_totals_that_are_empty_without_a_word_of_experts_have_a_remedy_that_works():
    table = MIXED.drop(columns=["num_experts", "top_k"]).rename(columns={"params_total": "N_total"})
    table.loc[DENSE, "N_total"] = np.nan
    with pytest.raises(ValueError, match="where") as error:
        read_runs(table, "effective_params")
    (mapping,) = re.findall(r"mapping=({.*?})", str(error.value))
    read = read_runs(table, "effective_params", mapping=ast.literal_eval(mapping))
    np.testing.assert_array_equal(read.runs.design.params_total, MIXED["params_total"])


@pytest.mark.parametrize(
    ("column", "field"),
    [("all_w_params", "params_total"), ("number_exp", "num_experts"), ("exp_count", "num_experts")],
)
def test_unread_columns_that_look_like_totals_or_experts_are_listed(column, field):
    table = MIXED[["params_active", "tokens", "loss"]].assign(**{column: 4e9})
    assert any(
        f"Column {column} is not read. If it is {field}" in note for note in read_runs(table, "chinchilla").notes
    )


def test_totals_and_experts_under_short_names_are_read():
    table = MIXED[["params_active", "tokens", "loss"]].assign(tot_params_B=MIXED.params_total / 1e9, n_exp=EXPERTS)
    read = read_runs(table, ("params_active", "params_total", "num_experts"))
    np.testing.assert_allclose(read.runs.design.params_total, MIXED["params_total"])
    assert (read.runs.design.num_experts[DENSE] == 0).all()


def test_counts_as_people_write_them_are_read():
    flops = ["2.00×10¹⁹", "1.3*10^20", "7.2 × 10**20", "**1e21**", "2 000 000 000 000 000 000 000"]
    table = pd.DataFrame({"flops": flops, "loss": ["3.2", "2.9", "*2.8*", "2.75", "2.7"]})
    read = read_runs(table, "loss_compute")
    assert read.runs.design.flops == pytest.approx([2e19, 1.3e20, 7.2e20, 1e21, 2e21])
    assert read.runs.loss == pytest.approx([3.2, 2.9, 2.8, 2.75, 2.7])


def test_text_is_called_text_and_empty_cells_empty():
    table = MIXED.astype({"tokens": object})
    table.loc[0, "tokens"], table.loc[1, "tokens"] = "lots", np.nan
    with pytest.raises(
        ValueError, match=r"tokens is not a number \(such as 'lots' in row 1\) in 1 of 12 rows \(row 1\)"
    ) as error:
        read_runs(table, "chinchilla")
    assert "tokens is empty or not finite in 1 of 12 rows (row 2)" in str(error.value)


def test_two_commas_part_thousands_in_what_is_fitted_too():
    table = pd.DataFrame({"flops": [1e18, 1e19, 1e20], "best": ["110,678,115", "381,758,347", "950,000"]})
    assert read_runs(table, "best = k*flops^a", loss="best").runs.loss.tolist() == [110_678_115, 381_758_347, 950_000]


def test_a_formula_of_nested_settings_is_fitted_by_the_command(tmp_path, capsys):
    path = tmp_path / "runs.jsonl"
    rates = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]
    path.write_text(
        "".join(json.dumps({"train": {"rate": r}, "bpc": 1.5 + 0.02 * np.log(r / 6e-3) ** 2}) + "\n" for r in rates)
    )
    formula = "bpc = c + k*log(`train.rate`/best)^2"
    assert main(["fit", str(path), "--form", formula, "--positive", "c,k,best", "--starts", "64", "--json"]) == DONE
    assert json.loads(capsys.readouterr().out)["law"]["coefficients"]["best"] == pytest.approx(6e-3, rel=1e-4)


def test_sizes_and_tokens_that_are_exchanged_are_said_with_the_remedy():
    table = MIXED.rename(columns={"params_active": "D", "tokens": "N"})
    table = table.drop(columns=["params_total", "num_experts", "top_k"])
    read = read_runs(table, "chinchilla")
    (said,) = [note for note in read.notes if "tokens per parameter" in note]
    assert said.endswith('mapping={"params_active": "D", "tokens": "N"}.')
    assert not [note for note in read_runs(MIXED, "chinchilla").notes if "tokens per parameter" in note]


def test_a_law_of_repetition_without_a_repeated_token_is_said():
    table = MIXED.assign(unique_tokens=4e10)
    law = ("params_active", "tokens", "unique_tokens")
    (said,) = [note for note in read_runs(table, law).notes if "repeated tokens" in note]
    assert 'mapping={"tokens": "unique_tokens", "unique_tokens": "tokens"}' in said
    mended = read_runs(table, law, mapping={"tokens": "unique_tokens", "unique_tokens": "tokens"})
    assert not [note for note in mended.notes if "repeated tokens" in note]


@pytest.mark.parametrize(("cells", "count"), [(["30M", "60M", "120 m"], 3), (["30M", 60, "120"], 1)])
def test_a_unit_in_header_and_cell_counts_once_and_is_said(cells, count):
    table = pd.DataFrame({"Params (M)": cells, "tokens": [2e9, 8e9, 3.2e10], "loss": [3.5, 3.2, 3.0]})
    read = read_runs(table, "chinchilla")
    assert read.runs.design.params_active.tolist() == [3e7, 6e7, 1.2e8]
    assert any(f"{count} of 3 cells of Params (M) have their own unit, such as '30M'" in note for note in read.notes)
