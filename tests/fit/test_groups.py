"""Groups of runs: which rows are one model, by what a table has, and the reason where groups give no interval."""

import numpy as np
import pandas as pd
import pytest

import moejax as mj
from moejax.fit.runs import runs_from
from moejax.fit.tables.read_runs import read_runs
from moejax.laws.design import Design

LADDER = pd.DataFrame({"flops": np.geomspace(1e18, 1e20, 5)}).assign(
    loss=lambda table: 1.6 + 90 * table.flops**-0.093 * np.array([1.003, 0.998, 1.001, 0.997, 1.002])
)


def groups(table, law="loss_compute", **options):
    return read_runs(table, law, **options).runs.group.tolist()


@pytest.mark.parametrize("columns", [{}, {"num_experts": 64}, {"num_experts": 64, "top_k": 8}, {"vocab_size": 50_000}])
def test_without_a_size_constant_columns_make_no_groups(columns):
    assert groups(LADDER.assign(**columns)) == [0, 1, 2, 3, 4]


def test_without_a_size_each_value_of_flops_is_a_group():
    assert groups(pd.concat([LADDER, LADDER.assign(loss=LADDER.loss + 0.001)])) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_without_a_size_rows_of_one_name_are_a_group():
    assert groups(LADDER.assign(model=["a", "a", "b", "b", "c"])) == [0, 0, 1, 1, 2]
    assert groups(LADDER.assign(model="the only one")) == [0, 1, 2, 3, 4]


def test_a_switch_in_a_formula_makes_no_two_groups():
    both = pd.concat([LADDER.assign(V=0), LADDER.assign(V=1, loss=LADDER.loss * 0.99)])
    formula = "loss = 1.6 + A*(flops*exp(g*V))^-b"
    assert len(set(groups(both, formula))) == 10
    # A size under a name of the user's own still groups the lengths of its trainings.
    sizes = both.assign(wide=np.repeat([256, 512, 768, 1024, 1280], 2))
    assert len(set(groups(sizes, "loss = 1.6 + A*(flops*wide^g)^-b"))) == 5


def test_with_a_size_runs_that_differ_in_tokens_alone_are_a_group():
    runs = runs_from(Design(params_active=np.repeat([1e8, 2e8], 3), tokens=np.tile([1e9, 2e9, 3e9], 2)), np.ones(6))
    assert runs.group.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("empty", [None, "", np.nan])
def test_a_row_without_a_label_is_a_group_of_its_own_and_said(empty):
    read = read_runs(LADDER.assign(family=["a", empty, "a", empty, "b"]), "loss_compute", group="family")
    assert read.runs.group.tolist() == [0, 1, 0, 2, 3]
    assert any("family is empty in 2 of 5 rows (rows 2, 4)" in note for note in read.notes)


def test_where_there_is_no_interval_the_reason_and_the_remedy_are_given():
    fit = mj.fit(LADDER.assign(family="a"), "loss_compute", group="family")
    (said,) = [one for one in fit.warnings if "There are no standard errors" in one]
    assert "all 5 runs are one group" in said
    assert 'group="COLUMN"' in said
    with pytest.raises(ValueError, match="all 5 runs are one group"):
        fit.conf_int()
    assert mj.fit(LADDER.assign(num_experts=64), "loss_compute").has_covariance
