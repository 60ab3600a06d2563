"""Any column of a table can say which runs test a law."""

import numpy as np
import pandas as pd
import pytest

from moejax.errors import UserError
from moejax.fit.selection.holdout import each_value, split_by
from moejax.fit.tables.read_runs import read_runs
from moejax.laws.mixtures.sparsity import Sparsity

EXPERTS = np.array([8, 16, 50, 50, 64, 8])
FRAME = pd.DataFrame(
    {
        "params_total": np.linspace(1e9, 6e9, 6),
        "tokens": [1e9, 2e9, 3e9, 4e9, 5e9, 5e9],
        "num_experts": EXPERTS,
        "top_k": 1,
        "num_shared_experts": 0,
        "router_type": ["S-Base", "Hash", "S-Base", "RL-R", "Hash", "RL-R"],
        "EL": ["2", "3.5", "6", "7", "8", "5.9"],
        "split": ["fit", "fit", "fit", "validation", "fit", "validation"],
        "note": ["", None, "a", "b", "c", "d"],
        "loss": [3.0, 2.9, 2.8, 2.7, 2.6, 2.5],
    }
)
READ = read_runs(FRAME, Sparsity)


@pytest.mark.parametrize(
    ("text", "held_out"),
    [
        ("tokens", [0, 0, 0, 0, 1, 1]),
        ("tokens:3B", [0, 0, 1, 1, 1, 1]),
        ("EL:6", [0, 0, 1, 1, 1, 0]),
        ("sparsity:0.98", [0, 0, 1, 1, 1, 0]),
        ("sparsity=0.98", [0, 0, 1, 1, 0, 0]),
        ("num_experts=50", [0, 0, 1, 1, 0, 0]),
        ("router_type=S-Base", [1, 0, 1, 0, 0, 0]),
        ("split=validation", [0, 0, 0, 1, 0, 1]),
    ],
)
def test_a_column_or_a_quantity_of_the_design_says_what_is_held_out(text, held_out):
    assert split_by(READ, text).held_out.astype(int).tolist() == held_out


def test_every_value_of_a_column_is_held_out_once():
    splits = list(each_value(READ, "router_type"))
    assert [split.name for split in splits] == ["router_type = S-Base", "router_type = Hash", "router_type = RL-R"]
    assert (np.sum([split.held_out for split in splits], axis=0) == 1).all()


def test_every_architecture_is_held_out_once():
    splits = list(each_value(READ, "group"))
    assert len(splits) == len(set(READ.runs.group)) > 1
    assert (np.sum([split.held_out for split in splits], axis=0) == 1).all()


def test_rows_without_weight_have_no_split_of_their_own():
    read = read_runs(FRAME.assign(count=[1, 0, 1, 1, 0, 1]), Sparsity, weight="count")
    assert [split.name for split in each_value(read, "router_type")] == ["router_type = S-Base", "router_type = RL-R"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("router_typ=Hash", "no router_typ to hold out by; did you mean router_type"),
        ("sparcity:0.9", "did you mean sparsity"),
        ("flops", "no flops to hold out by"),
        ("router_type=Bush", "No run has router_type = Bush; router_type has S-Base, Hash, RL-R"),
        ("router_type", "it must be a number"),
        ("note:1", "it must be a number"),
        ("tokens:many", "'many' is not a number"),
        ("tokens:1", "leaves no runs on one side"),
        ("top_k=1", "leaves no runs on one side"),
        ("sparsity=0.5", "leaves no runs on one side"),
    ],
)
def test_a_split_that_cannot_be_is_a_sentence(text, words):
    with pytest.raises(ValueError, match=words):
        split_by(READ, text)


@pytest.mark.parametrize(("column", "words"), [("top_k", "no runs on one side"), ("rooter_type", "router_type")])
def test_values_that_cannot_be_taken_in_turn_are_a_sentence(column, words):
    with pytest.raises(ValueError, match=words):
        list(each_value(READ, column))


def test_a_run_without_a_value_cannot_be_held_out_by_it():
    with pytest.raises(UserError, match=r"note is empty in 1 row; hold out by a column that is full"):
        list(each_value(READ, "note"))
