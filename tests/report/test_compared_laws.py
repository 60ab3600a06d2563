"""The figure of compared laws shows every run, and its data say what was predicted by which fit."""

import dataclasses

import numpy as np
import pytest
from matplotlib import rc_context

from moejax.fit.runs import runs_from
from moejax.fit.selection.comparison import compare, of_the_loss
from moejax.fit.selection.holdout import largest
from moejax.fit.selection.metrics import predict
from moejax.laws import LAWS
from moejax.laws.dense.chinchilla import HOFFMANN_2022
from moejax.laws.design import Design
from moejax.report.figures.predictions import compared_laws
from moejax.report.figures.style import RC

ACTIVE, TOKENS = np.array([(n, d) for n in (1e7, 3e7, 1e8, 3e8) for d in (1e9, 3e9, 1e10, 3e10)]).T
DESIGN = Design(params_active=ACTIVE, tokens=TOKENS)
LOSS = predict(HOFFMANN_2022, runs_from(DESIGN, np.ones(16)))
RUNS = runs_from(DESIGN, LOSS, weight=np.where(np.arange(16) == 0, 0.0, 1.0))
ROWS = list(range(101, 117))


@pytest.fixture(scope="module")
def found():
    return compare(of_the_loss(LAWS, ["chinchilla"]), RUNS, [largest(RUNS, "tokens"), largest(RUNS, "params_active")])


@pytest.fixture(scope="module")
def figure(found):
    with rc_context(RC):
        return compared_laws(found, RUNS, ROWS)


def test_every_run_that_counts_is_a_row_once_fitted_and_once_per_split_that_holds_it_out(figure):
    roles = [row["role"] for row in figure.rows]
    assert roles.count("fitted") == 15
    assert roles.count("held out") == 8
    assert {row["row"] for row in figure.rows} == set(ROWS[1:])


def test_held_out_runs_are_predicted_by_the_fit_that_did_not_see_them(figure, found):
    expected = predict(found.laws[0].held_out[0].fit.law, RUNS)
    own = [row for row in figure.rows if row["split"] == found.splits[0].name]
    assert [row["predicted"] for row in own] == expected[found.splits[0].held_out].tolist()


def test_each_law_has_its_panel(figure, found):
    assert [axes.get_title(loc="left").split("\n")[0] for axes in figure.drawing.axes] == [
        law.name for law in found.laws
    ]


def test_a_prediction_beyond_the_frame_is_a_triangle_at_its_edge(found):
    high = dataclasses.replace(found.laws[0].fit.law, irreducible=50.0)
    off = dataclasses.replace(found.laws[0], fit=dataclasses.replace(found.laws[0].fit, law=high))
    drawn = compared_laws(dataclasses.replace(found, laws=(off,)), RUNS, ROWS).drawing.axes[0]
    (edge,) = [line for line in drawn.lines if line.get_marker() == "^"]
    assert len(np.asarray(edge.get_xdata())) == 15
    assert set(np.asarray(edge.get_ydata())) == {drawn.get_ylim()[1]}
