"""The door of a fit says every doubt and lets no row vanish."""

import numpy as np
import pandas as pd
import pytest

from moejax.fit.read_runs import read_runs
from moejax.laws.chinchilla import Chinchilla
from moejax.laws.effective_params import EffectiveParams

FRAME = pd.DataFrame(
    {
        "params_active": [1e8, 2e8, 4e8, 8e8],
        "params_total": [1e8, 4e8, 8e8, 9e8],
        "tokens": [1e9, 2e9, 3e9, 4e9],
        "loss": [3.5, 3.2, 3.0, 2.8],
    }
)


def with_cell(row, column, value):
    frame = FRAME.astype(object)
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (with_cell(1, "loss", np.nan), r"loss is empty or not finite in 1 of 4 rows \(row 2\)"),
        (with_cell(1, "loss", np.inf), r"loss is empty or not finite in 1 of 4 rows \(row 2\)"),
        (with_cell(0, "loss", -1.0), r"loss is not above 0 in 1 of 4 rows \(row 1\)"),
        (with_cell(2, "params_active", 0), r"params_active is not above 0 in 1 of 4 rows \(row 3\)"),
        (with_cell(3, "params_active", 1e9), r"params_active exceeds params_total in 1 of 4 rows \(row 4\)"),
        (with_cell(3, "tokens", "lots"), r"tokens is empty or not finite \(it holds 'lots' in row 4\) in 1 of 4 rows"),
        (FRAME.assign(loss=np.nan), r"loss is empty or not finite in 4 of 4 rows \(rows 1, 2, 3, 4\)"),
        (FRAME.rename(columns={"params_active": "param_active"}), "nearest are param_active.*--map params_active="),
        (FRAME.drop(columns="params_active"), "no column params_active"),
    ],
)
def test_a_row_that_cannot_be_is_named_and_counted(frame, words):
    with pytest.raises(ValueError, match=words):
        read_runs(frame, EffectiveParams)


def test_rows_that_cannot_be_are_dropped_when_asked_and_the_others_keep_their_numbers():
    read = read_runs(with_cell(1, "loss", np.nan), EffectiveParams, drop_invalid=True)
    assert read.rows.tolist() == [1, 3, 4]
    assert any("Dropped" in note and "row 2" in note for note in read.notes)


def test_text_among_numbers_is_named_by_its_row_in_the_file_and_dropped_when_asked():
    frame = with_cell(2, "tokens", "lots")
    with pytest.raises(ValueError, match=r"it holds 'lots' in row 3"):
        read_runs(frame, EffectiveParams, where=["params_active > 150000000"])
    read = read_runs(frame, EffectiveParams, drop_invalid=True)
    assert read.rows.tolist() == [1, 2, 4]


def test_text_in_a_column_that_the_law_does_not_read_leaves_the_column_unread():
    read = read_runs(FRAME.assign(top_k=["n/a", "2", "2", "4"]), EffectiveParams)
    assert read.runs.design.top_k is None
    assert read.notes == ("Column top_k is not read: it holds 'n/a' in row 1.",)


def test_when_no_row_can_be_there_is_no_table():
    with pytest.raises(ValueError, match="No row is left"):
        read_runs(FRAME.assign(loss=np.nan), EffectiveParams, drop_invalid=True)


def test_exact_duplicates_are_kept_and_named():
    read = read_runs(pd.concat([FRAME, FRAME[:1]]), Chinchilla)
    assert len(read.runs) == 5
    assert any("Row 5 (1 in all) repeat an earlier row's sizes and loss exactly" in note for note in read.notes)


def test_exact_duplicates_are_dropped_when_asked_and_named():
    read = read_runs(pd.concat([FRAME, FRAME[:1]]), Chinchilla, drop_duplicates=True)
    assert read.rows.tolist() == [1, 2, 3, 4]
    assert read.notes == ("Dropped: row 5 (1 in all), which repeat an earlier row's sizes and loss exactly.",)
    assert not read_runs(FRAME, Chinchilla, drop_duplicates=True).notes


def test_two_losses_of_one_configuration_are_replicates():
    read = read_runs(pd.concat([FRAME, FRAME[:2].assign(loss=3.3)]), Chinchilla)
    assert len(read.runs) == 6
    assert any("Rows 5, 6 (2 in all)" in note and "replicates" in note for note in read.notes)


def test_columns_that_never_vary_are_named():
    notes = read_runs(FRAME.assign(tokens=1e9), Chinchilla).notes
    assert any(note.startswith("The same in all rows: tokens.") for note in notes)
    assert not read_runs(FRAME, Chinchilla).notes


def test_a_column_whose_name_is_nearly_ours_is_pointed_out():
    notes = read_runs(FRAME.assign(num_expert=8, remark="x"), Chinchilla).notes
    assert notes == ("Column num_expert is not read. If it is num_experts, say --map num_experts=num_expert.",)


def test_numbers_as_people_write_them_are_numbers_in_arithmetic_and_conditions():
    frame = FRAME.drop(columns="params_active").assign(Na=["100M", "200M", "0.4B", "8e8"])
    read = read_runs(frame, Chinchilla, mapping={"params_active": "Na / 2"}, where=["Na > 150000000"])
    assert read.runs.design.params_active.tolist() == [1e8, 2e8, 4e8]
    assert len(read.frame) == 3


def test_text_is_compared_as_text():
    frame = FRAME.assign(name=["1e5", "100000", "b", "c"])
    assert len(read_runs(frame, Chinchilla, where=["name == '1e5'"]).runs) == 1


def test_a_weight_comes_from_a_column():
    read = read_runs(FRAME.assign(count=[1, 2, 0, "3"]), Chinchilla, weight="count")
    assert read.runs.weight.tolist() == [1, 2, 0, 3]
    assert read.notes == ("1 of 4 rows have a count of 0 and take no part.",)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1, -1, 1, 1], r"the weight count is below 0 in 1 of 4 rows \(row 2\)"),
        ([1, np.nan, 1, 1], r"count is empty or not finite in 1 of 4 rows \(row 2\)"),
        ([0, 0, 0, 0], "count is 0 in every row"),
    ],
)
def test_a_weight_that_cannot_be_is_a_sentence(weights, words):
    with pytest.raises(ValueError, match=words):
        read_runs(FRAME.assign(count=weights), Chinchilla, weight="count")


def test_a_weight_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"no column cuont .*nearest are count"):
        read_runs(FRAME.assign(count=1), Chinchilla, weight="cuont")


def test_all_columns_that_are_missing_are_named_at_once():
    frame = pd.DataFrame({"n": [1e7], "d": [1e9], "val_loss": [3.0]})
    with pytest.raises(ValueError, match=r"--map params_active=COLUMN --map tokens=COLUMN --map loss=COLUMN"):
        read_runs(frame, Chinchilla)


def test_a_table_of_losses_alone_is_read_without_doubts_about_repeats():
    frame = pd.DataFrame({"loss": [3.0, 3.0, 2.5]})
    read = read_runs(frame, (), drop_duplicates=True)
    assert len(read.runs) == 3


@pytest.mark.parametrize(("share", "said"), [(1.0, False), (0.9, True)])
def test_flops_that_are_counted_otherwise_than_decisions_count_them_are_said(share, said):
    frame = pd.DataFrame({"params_active": [1e7, 2e7], "tokens": [1e9, 3e9], "loss": [3.0, 2.8]})
    frame["flops"] = 6 * share * frame["params_active"] * frame["tokens"]
    assert any("0.90 to 0.90 times 6" in note for note in read_runs(frame, Chinchilla).notes) == said
