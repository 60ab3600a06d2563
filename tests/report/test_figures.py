"""Figures: one for each name, its data beside it, nothing lost."""

import dataclasses
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from known_study import BUDGETS, MODELS, STUDY, TRUTH, conclude_without_fitting, write_study

from moejax.design.frontier import Landscape, Point
from moejax.laws.design import Design
from moejax.report.figures.figure import Figure
from moejax.report.figures.optima import along, draw_frontier, draw_landscape
from moejax.report.figures.panels import Axis, Panel, Series, draw
from moejax.report.figures.style import COLORS, WIDTH_INCHES, dark, ramp, spread
from moejax.report.findings import best_per_budget, read
from moejax.report.page import FIGURES, draw_all, inline


@pytest.fixture(scope="session")
def figures(concluded):
    return draw_all(read(concluded))


def test_a_study_has_every_figure(figures):
    assert list(figures) == list(FIGURES)


def test_a_study_of_dense_models_has_no_expert_loads(tmp_path):
    dense = {name: architecture for name, architecture in MODELS.items() if not architecture.is_moe}
    folder = write_study(tmp_path / "study", dataclasses.replace(STUDY, models=dense))
    drawn = draw_all(read(conclude_without_fitting(folder, spread=0.02)))
    assert set(FIGURES) - set(drawn) == {"expert_loads", "routing_health"}


def test_a_study_without_logs_has_no_training_curves(concluded):
    found = read(concluded)
    assert FIGURES["training_curves"](type(found)(concluded, found.runs, {name: [] for name in found.logs})) is None


def test_every_run_and_every_load_is_in_the_data(figures, concluded):
    assert len(figures["loss_vs_tokens"].rows) == len(MODELS) * len(BUDGETS)
    assert len(figures["predicted_vs_actual"].rows) == len(MODELS) * len(BUDGETS) * len(concluded.analysed.laws)
    loads = figures["expert_loads"].rows
    assert len(loads) == sum(a.num_experts * a.num_layers for a in MODELS.values())
    for name, architecture in MODELS.items():
        own = [row["load_over_balanced"] for row in loads if row["model"] == name and row["layer"] == 0]
        assert not own or np.isclose(sum(own), architecture.num_experts)


def test_ticks_of_a_frontier_and_a_landscape_are_numbers_as_people_write_them(tmp_path):
    def optimum(loss):
        sizes = {"params_active": loss * 5e8, "tokens": 1e11 / loss}
        return SimpleNamespace(
            values={"loss": loss, **sizes}, problem=SimpleNamespace(program=SimpleNamespace(output="loss"))
        )

    points = [Point(budget=flops, best=optimum(loss), dense=None) for flops, loss in ((1e20, 2.5), (1e22, 2.2))]
    draw_frontier(points, "flops", "a law", tmp_path / "frontier.svg")
    optima = [[optimum(2.0), optimum(2.1)], [optimum(2.2), optimum(2.3)]]
    over = Landscape(names=("params_active", "tokens"), values=([1e8, 1e9], [1e9, 1e11]), goal="loss", optima=optima)
    draw_landscape(over, "a law", tmp_path / "landscape.svg")
    for drawn in ("frontier.svg", "landscape.svg"):
        text = (tmp_path / drawn).read_text()
        assert "$" not in text
        assert ">1B<" in text


def _table(rows, **columns):
    names = ("tokens", "flops", "loss")
    return pd.DataFrame(rows, columns=names).assign(model=lambda table: [f"m{i}" for i in table.index], **columns)


def test_runs_of_equal_compute_are_compared_with_each_other_and_others_by_their_tokens():
    at_equal_compute = _table([(100, 1e10, 2.5), (140, 1.01e10, 2.4), (200, 0.98e10, 2.6), (300, 4e10, 2.0)])
    assert list(best_per_budget(at_equal_compute)["loss"]) == [2.4, 2.0]
    at_equal_tokens = _table([(100, 1e10, 2.5), (100, 2e10, 2.4), (200, 2e10, 2.3), (200, 4e10, 2.0)])
    assert list(best_per_budget(at_equal_tokens)["loss"]) == [2.4, 2.0]
    without_a_gap = _table([(100 + i, 1e10 * 1.05**i, 3 - i / 10) for i in range(5)])
    assert len(best_per_budget(without_a_gap)) == 5


@pytest.mark.parametrize(("name", "written"), [("E4", True), ("E4-of-a-name-that-leaves-little-room" * 2, False)])
def test_loads_are_written_into_their_cells_where_there_is_room(concluded, name, written):
    found, loads = read(concluded), json.dumps([[1.5, 0.5] * 4])
    table = _table([(100, 1e10, 2.5)], expert_loads=loads).assign(model=name)
    figure = FIGURES["expert_loads"](type(found)(concluded, table, {}))
    assert (len(figure.drawing.axes[0].texts) == 8) is written


def test_no_point_of_a_slice_lies_below_its_optimum(figures, concluded):
    for decision in concluded.analysed.decisions:
        rows = [
            row
            for row in figures["isoflop_slice"].rows
            if row["law"] == decision.law and row["expansion"] == decision.expansion
        ]
        best = next(row["loss_nats_per_token"] for row in rows if row["point"] == "optimum")
        assert min(row["loss_nats_per_token"] for row in rows) == best
        assert {round(6 * row["params_active"] * row["tokens"] / decision.flops, 9) for row in rows} == {1.0}


def test_a_slice_is_the_law_where_tokens_pay_for_parameters():
    slice_ = along(TRUTH, 6e12, 4.0, np.array([1e5, 1e6]))
    point = TRUTH(Design(params_active=1e6, params_total=4e6, tokens=1e6))
    assert np.isclose(slice_[1], point, rtol=1e-12)


def test_figures_take_their_colors_from_the_page(figures):
    for name, figure in figures.items():
        text = inline(name, figure)
        for variable, color in COLORS.items():
            assert text.lower().count(color) == text.count(f"var(--{variable}, {color})")


@pytest.mark.slow
def test_figures_are_the_same_whenever_they_are_drawn(concluded):
    one, other = (inline("loss_vs_tokens", draw_all(read(concluded))["loss_vs_tokens"]) for _ in range(2))
    assert one == other


def test_labels_move_apart_and_keep_their_order():
    heights = [3.0, 1.0, 1.05, 1.1, 2.0]
    places = np.array(spread(heights, 0.5))
    assert np.all(np.diff(np.sort(places)) >= 0.5 - 1e-12)
    assert list(np.argsort(places)) == list(np.argsort(heights))
    assert places[0] == 3.0


def test_a_narrow_figure_has_the_scale_of_a_wide_one_and_less_of_the_page():
    line = Series(label="a", x=[1.0, 2.0], y=[1.0, 2.0])
    square = Panel(x=Axis("x", "x"), y=Axis("y", "y"), series=[line], diagonal=True)
    shares = []
    for columns in (1, 3):
        figure, rows = draw([square] * columns, columns=columns, height=2.5)
        drawn = inline("one", Figure("One", "It is.", figure, rows))
        (width,) = re.findall(r'viewBox="0 0 ([\d.]+)', drawn)
        (share,) = re.findall(r"--share: ([\d.]+)", drawn)
        shares.append(float(share))
        assert np.isclose(shares[-1], min(1.0, float(width) / (72 * WIDTH_INCHES)), atol=1e-3)
    assert shares[0] < 0.6 < shares[1] <= 1


def test_every_color_of_a_ramp_is_seen_on_the_dark_side_of_a_page():
    lines = [Series(label=str(i), x=[1, 2], y=[i, i], color=color) for i, color in enumerate(ramp(4))]
    figure, rows = draw([Panel(x=Axis("x", "x"), y=Axis("y", "y"), series=lines)], columns=1, height=2.5)
    drawn = inline("one", Figure("One", "It is.", figure, rows))
    darkest = ramp(4)[0]
    assert dark(darkest)
    assert drawn.count(darkest) == drawn.count(f"color-mix(in oklab, {darkest}, white var(--lift, 0%))") > 0
