"""Named figures: every one is in the table, draws from published laws or an example, and comes with its data."""

import collections
import csv
import dataclasses
import importlib
import inspect
import io
import itertools
import json
import pkgutil
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.lines import Line2D
from matplotlib.text import Text
from PIL import Image

from moejax import papers
from moejax.__main__ import main
from moejax.cli.command_line import DONE, USERS
from moejax.errors import UserError
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Squared
from moejax.fit.search.starts import Sobol, WarmStart
from moejax.fit.selection.metrics import predict
from moejax.fit.tables.column_names import with_derived
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.fit.uncertainty.estimands import decision_estimands, find
from moejax.fit.uncertainty.estimates import estimate
from moejax.fit.uncertainty.profile import curve, profile
from moejax.laws import PUBLISHED
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla, optimal_split
from moejax.laws.design import Design
from moejax.laws.predict import published
from moejax.papers.plots import ALL, DOCUMENTS
from moejax.report import figures, plots, sources, synthetic
from moejax.report.figures import evidence
from moejax.report.figures.compute import compute_table
from moejax.report.figures.figure import FigureInputs, evaluate, structured, with_labels, write_figure
from moejax.report.figures.isoflop import isoflop_table, leverage_table
from moejax.report.figures.panels import FLOPS, LOSS, Axis, Panel, Series, log_ticks
from moejax.report.figures.panels import draw as draw_panels
from moejax.report.figures.style import BLUE, MARKERS, ORANGE
from moejax.report.plots import PLOTS, PREDICTIONS, chosen, draw, example_of, inputs_of


@pytest.fixture(scope="module")
def drawn():
    return {name: draw(plot, example_of(plot)) for name, plot in ALL.items()}


def test_every_function_that_draws_a_named_figure_is_in_the_table():
    drawn = {plot.draw for plot in (*ALL.values(), PREDICTIONS)}
    for module in (
        module
        for folder in (figures, papers)
        for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}.")
    ):
        for name, function in inspect.getmembers(importlib.import_module(module.name), inspect.isfunction):
            own = function.__module__ == module.name and not name.startswith("_")
            if own and list(inspect.get_annotations(function).items()) == [
                ("inputs", "FigureInputs"),
                ("return", "Figure"),
            ]:
                assert function in drawn, f"{module.name}.{name} is missing from the tables"


@pytest.mark.parametrize("name", ALL)
def test_every_figure_draws_and_comes_with_its_data(drawn, name):
    figure = drawn[name]
    rows = list(csv.DictReader(io.StringIO(figure.csv())))
    assert len(rows) == len(figure.rows) > 3
    assert figure.title
    assert figure.caption.endswith(".")


@pytest.mark.parametrize("name", ALL)
def test_no_two_kinds_of_points_of_a_legend_differ_by_color_only(drawn, name):
    for legend in drawn[name].drawing.legends:
        entries = [one for one in legend.legend_handles if isinstance(one, Line2D) and one.get_linestyle() == "None"]
        kinds = {(one.get_marker(), one.get_markerfacecolor() == "none") for one in entries}
        assert len(kinds) >= min(len(entries), len(MARKERS)), [one.get_label() for one in entries]


def test_each_color_of_a_figure_has_a_marker_and_a_line_style():
    def handles(*series):
        drawing, _ = draw_panels([Panel(x=FLOPS, y=Axis("loss", "loss"), series=series)])
        return drawing.legends[0].legend_handles

    def line(label, color, mark):
        return Series(label=label, x=[1e20, 1e21], y=[3.0, 2.0], color=color, mark=mark)

    points = handles(line("dense", BLUE, "points"), line("E8", ORANGE, "points"), line("law of E8", ORANGE, "line"))
    assert [one.get_marker() for one in points[:2]] == [*MARKERS[:2]]
    assert points[2].get_linestyle() == "-"
    first, second = handles(line("dense", BLUE, "line"), line("E8", ORANGE, "line"))
    assert first.get_linestyle() != second.get_linestyle()
    # Dashed lines already have a meaning.
    *plain, _ = handles(line("dense", BLUE, "line"), line("E8", ORANGE, "line"), line("branch", BLUE, "dashed"))
    assert {one.get_linestyle() for one in plain} == {"-"}


@pytest.mark.parametrize("name", ALL)
def test_every_axis_says_what_it_is(drawn, name):
    panels = [axes for axes in drawn[name].drawing.axes if axes.get_visible()]
    whole = [drawn[name].drawing.get_supxlabel(), drawn[name].drawing.get_supylabel()]
    for axes in panels:
        named_rows = bool(axes.get_yticklabels()) and name in ("influence", "restarts", "plan", "held-out-ranges")
        shared = axes.get_shared_y_axes().joined(axes, panels[0]) and axes is not panels[0]
        assert axes.get_ylabel() or whole[1] or named_rows or shared
        assert axes.get_xlabel() or whole[0] or axes.get_label() == "<colorbar>"


def test_names_are_drawn_as_they_are_written_dollars_and_all(tmp_path):
    plot = ALL["held-out-ranges"]
    inputs = example_of(plot)
    table = inputs.table.assign(run=[rf"run {row} of $\foo$ at 5$" for row in range(len(inputs.table))])
    own = dataclasses.replace(inputs, table=table)
    write_figure(tmp_path, "named", lambda: plot.draw(own), ("svg",))
    assert r"$\foo$ at 5$" in (tmp_path / "named.svg").read_text()


def test_a_figure_with_synthetic_points_says_so_and_no_other(drawn):
    for name, figure in drawn.items():
        assert ("synthetic" in figure.caption) <= ALL[name].needs_table


def test_a_curve_is_the_law(drawn):
    row = next(row for row in drawn["zhao-3"].rows if row["series"] == "N = 496M" and row["panel"] == "D = 20B")
    sizes = {"params_active": 99e6, "params_total": 496e6, "tokens": 20e9}
    expected = evaluate(published("five_factor").law, **structured(row["active_experts"], 0.2, **sizes))
    assert row["loss_nats_per_token"] == pytest.approx(float(expected), rel=1e-12)


def test_zhao_s_figure_17_keeps_what_the_paper_holds(drawn):
    rows = pd.DataFrame(drawn["zhao-17"].rows).round()
    by_panel = [own for _, own in rows.groupby("panel", sort=False)]
    # Table 6 and Appendix H print sizes rounded up, which the shapes come to within a thousandth or two.
    assert [list(own["num_experts"]) for own in by_panel] == [[32, 64, 128], [66, 64, 62], [128, 62, 29], [16, 32, 64]]
    for own in by_panel[:3]:
        assert own["params_total_millions"].to_numpy() == pytest.approx(2404, rel=0.003)
    assert by_panel[2]["params_active_millions"].to_numpy() == pytest.approx([476, 819, 1507], rel=0.003)
    assert by_panel[3]["params_total_millions"].to_numpy() == pytest.approx([1301, 2404, 4604], rel=0.003)
    assert pd.concat([by_panel[0], by_panel[1], by_panel[3]])["params_active_millions"].nunique() == 1


def test_of_synthetic_runs_every_step_from_equation_4_to_11_lowers_the_held_out_error(drawn):
    steps = [pd.DataFrame(drawn[f"zhao-{number}"].rows) for number in (6, 7, 9, 12)]
    held_out = [own[own["series"] == "held out"] for own in steps]
    missed = [(own["predicted"] - own["measured"]).abs().mean() for own in held_out]
    assert missed == sorted(missed, reverse=True)


def test_no_run_with_as_little_compute_beats_the_frontier_of_its_kind(drawn):
    rows, loss = drawn["chapter-002-runs"].rows, "loss_nats_per_token"
    for kind, mark in {"frontier of dense runs": "dense", "frontier of MoE runs": "expansion"}.items():
        own = [row for row in rows if row.get("series", "").startswith(mark)]
        best = [row for row in rows if row.get("series") == kind]
        assert 1 < len(best) <= len(own)
        for point in best:
            assert point[loss] == min(row[loss] for row in own if row["flops"] <= point["flops"])
    # Of synthetic runs of the chapter's law, the largest G of the grid is best at a budget.
    (star,) = [row for row in rows if row.get("series") == "least"]
    assert star["expansion"] == pytest.approx(max(row["expansion"] for row in rows if "expansion" in row))


def test_stars_of_a_slice_are_its_least_loss(drawn):
    rows = pd.DataFrame(drawn["abnar-2"].rows)
    stars = rows[rows["series"] == "least loss"]["loss_nats_per_token"]
    curves = rows[rows["series"] != "least loss"].groupby(["series"])["loss_nats_per_token"].min()
    assert len(stars) > 10
    assert all(np.isclose(star, curves).any() for star in stars)


def test_runs_of_a_table_stand_on_the_curve_they_belong_to():
    runs = pd.DataFrame(
        {
            "params_active": 99e6,
            "params_total": 496e6,
            "tokens": 20e9,
            "top_k": [4.0, 8.0],
            "num_shared_experts": [1.0, 2.0],
            "loss": [3.1, 3.2],
        }
    )
    rows = draw(ALL["zhao-3"], inputs_of(ALL["zhao-3"], table=runs)).rows
    own = [row for row in rows if row["series"] == "runs of the table"]
    assert [(row["active_experts"], row["loss_nats_per_token"]) for row in own] == [(5.0, 3.1), (10.0, 3.2)]


def test_a_fit_of_the_same_law_replaces_the_published_constants_and_another_law_is_refused():
    inputs = inputs_of(ALL["abnar-3"], law=published("sparsity").law, law_name="mine")
    assert "mine" in draw(ALL["abnar-3"], inputs).caption
    with pytest.raises(ValueError, match=r"abnar-3 draws a law of the form Sparsity, but the fit is a Chinchilla"):
        inputs_of(ALL["abnar-3"], law=HOFFMANN_2022)


def test_every_number_of_a_document_is_drawn():
    """Zhao's and Tian's figures end at 17, Abnar's at 15; the explainer names two, the chapter none."""
    for name, document in DOCUMENTS.items():
        digits = {int(n) for n in re.findall(r"\d+", " ".join(document.figures))}
        last = {"zhao": 17, "abnar": 15, "tian": 17}.get(name)
        assert last is None or digits == set(range(1, last + 1))


def test_a_paper_s_figures_are_drawn_or_why_not_is_said_by_number(tmp_path, capsys):
    assert main(["plot", "--paper", "chapter-002", "--out", str(tmp_path), "--format", "svg"]) == DONE
    said = capsys.readouterr().out
    assert "2 of 4 figures drawn" in said
    assert "chapter-002-runs (chapter 002, Listing 2, of runs) needs a table" in " ".join(said.split())
    assert main(["plot", "--paper", "zhoa", "--out", str(tmp_path)]) == USERS
    assert "did you mean zhao" in capsys.readouterr().err


@pytest.mark.parametrize("runs", [{"num_experts": [8, 5.0001]}, {"loss": ["?", 2.0]}, {"params_total": [1e9, -1.0]}])
def test_what_is_wrong_with_a_table_is_said_once_and_not_by_every_figure(tmp_path, capsys, runs):
    pd.DataFrame({"params_active": [1e8, 2e8], "tokens": 1e10, "loss": 3.0} | runs).to_csv(tmp_path / "runs.csv")
    assert main(["plot", "--paper", "zhao", "--runs", str(tmp_path / "runs.csv"), "--out", str(tmp_path)]) == USERS
    said = capsys.readouterr()
    assert said.err.count(f"column {next(iter(runs))} has") == 1
    assert not said.out
    assert "np.float64" not in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "runs", "status", "said"),
    [
        ("zhao-3", {"params_total": 5e11}, DONE, "no run with a loss has the fixed values of this figure's curves"),
        (
            "zhao-3",
            {"loss": np.nan},
            DONE,
            "no run with a loss has the fixed values of this figure's curves",
        ),
        ("zhao-3", {"params_total": 0.496}, USERS, "at least 1000 parameters"),
        ("runs", {"params_active": np.nan}, USERS, "runs has nothing to draw"),
        ("zhao-3", {}, DONE, ""),
    ],
)
def test_runs_that_are_not_drawn_are_no_silent_loss(tmp_path, capsys, name, runs, status, said):
    known = {"params_active": 99e6, "params_total": 496e6, "tokens": 20e9, "top_k": 4.0, "num_shared_experts": 1.0}
    pd.DataFrame({**known, "loss": 3.1, **runs}, index=[0, 1]).to_csv(tmp_path / "runs.csv")
    words = ["plot", name, "--runs", str(tmp_path / "runs.csv"), "--format", "svg", "--out", str(tmp_path)]
    assert main(words) == status
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown
    assert said or "only the law" not in shown


def test_figures_that_show_none_of_the_runs_say_so(tmp_path, capsys):
    runs = pd.DataFrame({"params_active": [1e8, 2e8], "params_total": 4e8, "tokens": 1e10, "loss": [3.0, 2.9]})
    runs.to_csv(tmp_path / "runs.csv")
    words = ["plot", "--paper", "chapter-002", "--runs", str(tmp_path / "runs.csv"), "--format", "svg"]
    assert main([*words, "--out", str(tmp_path), "--json"]) == DONE
    every = {one["number"]: one for one in json.loads(capsys.readouterr().out)["figures"]}
    assert every["widget"]["without_runs"].startswith("only the law is drawn")
    assert {"not_drawn"} == every["runs"].keys() - {"number"}


def test_a_figure_of_made_up_points_is_said_to_be_one(tmp_path, capsys):
    assert main(["plot", "starts", "chinchilla", "--synthetic", "--format", "svg", "--out", str(tmp_path)]) == DONE
    starts, chinchilla, *_ = sorted(capsys.readouterr().out.splitlines(), reverse=True)
    assert starts.endswith("(its points are synthetic)")
    assert "synthetic" not in chinchilla


@pytest.mark.parametrize(("column", "usual", "other"), [("num_dense_layers", 0, 2), ("attention_share", 0.35, 0.5)])
def test_tian_s_figure_14_has_the_leverage_of_dense_layers_and_of_attention(column, usual, other):
    usually = {"num_dense_layers": 0, "attention_share": 0.35}
    rows = [
        {
            "flops": flops,
            **usually,
            column: value,
            "loss": 1.7 + 400 * (flops * (1.5 if value == other else 1)) ** -0.15,
        }
        for value in (usual, other)
        for flops in (1e18, 3e18, 1e19, 3e19, 1e20)
    ]
    plot = ALL["tian-14"]
    drawn = draw(plot, inputs_of(plot, table=pd.DataFrame(rows))).rows
    found = [row["efficiency_leverage"] for row in drawn if row.get("efficiency_leverage") is not None]
    assert len(found) == 5
    assert found == pytest.approx([1.5] * 5, rel=1e-4)


def test_a_missing_table_or_column_is_named():
    with pytest.raises(ValueError, match="the table is missing; give one as `table`"):
        inputs_of(ALL["tian-16"])
    with pytest.raises(ValueError, match="has no column num_heads"):
        inputs_of(ALL["tian-16"], table=pd.DataFrame({"params_total": [1.0], "loss": [2.0]}))


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_table_of_few_runs_draws(rows):
    assert draw(ALL["runs"], FigureInputs(table=with_derived(synthetic.runs(rows)))).rows


def test_ten_thousand_runs_are_drawn_as_a_sample_with_the_whole_frontier():
    figure = draw(ALL["runs"], FigureInputs(table=synthetic.runs(10_000)))
    assert "2,000 of 10,000 runs are drawn" in figure.caption
    assert len(figure.rows) < 3_000


def test_a_paper_s_name_is_all_of_its_figures_and_an_unknown_one_gets_the_nearest():
    assert chosen(["zhao", "zhao-1"], ALL) == [plot for name, plot in ALL.items() if name.startswith("zhao-")]
    with pytest.raises(ValueError, match=r"Unknown figure 'abnar-16'; did you mean abnar"):
        chosen(["abnar-16"], ALL)


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.4), (0.012, 1.0), (3e17, 1e21), (5e7, 4e9), (90.0, 110.0), (2.0, 64.0)]
)
@pytest.mark.parametrize("most", [3, 4, 6, 9])
def test_a_logarithmic_axis_has_ticks_and_not_too_many(low, high, most):
    ticks = log_ticks(low, high, most)
    assert 1 <= len(ticks) <= most + 3
    assert sorted(set(ticks)) == ticks


@pytest.mark.parametrize("limits", [(2.05, 3.7), (1.9, 5.1), (1.5, 2.1), (2.9, 3.01), (1.8, 4.1), (2.5, 2.5001)])
def test_a_narrow_logarithmic_axis_has_at_least_three_plain_ticks_in_view(limits):
    panel = Panel(x=FLOPS, y=Axis("loss", "loss, nats/token", "log"), series=[], ylim=limits)
    (axes,) = draw_panels([panel])[0].axes
    ticks = axes.get_yticks()
    texts = axes.yaxis.get_major_formatter().format_ticks(ticks)
    assert 3 <= len(ticks) <= 6
    assert limits[0] <= min(ticks) <= max(ticks) <= limits[1]
    assert [float(text) for text in texts] == list(ticks)
    assert len({len(text) for text in texts}) == 1


@pytest.fixture(scope="module")
def fitted():
    active, tokens = np.array([(n, d) for n in (1e7, 3e7, 1e8, 3e8) for d in (1e9, 3e9, 1e10)]).T
    design = Design(params_active=active, tokens=tokens)
    loss = evaluate(HOFFMANN_2022, params_active=active, tokens=tokens)
    runs = runs_from(design, loss * np.exp(np.random.default_rng(0).normal(0, 2e-3, 12)))
    return fit_law(Chinchilla, runs, penalty=Squared(), starts=WarmStart((HOFFMANN_2022,))), runs


def test_a_curve_of_loss_against_compute_is_the_optimum_of_every_budget_with_the_fit_s_interval(fitted):
    result, runs = fitted
    table = compute_table(with_uncertainty(result, runs, by="run"), runs.design, runs.loss, flops=1e22)
    curve = table[table["kind"] == "best"]
    best = [float(result.law(Design(**optimal_split(result.law, flops)))) for flops in curve["flops"]]
    assert curve["loss"].to_numpy() == pytest.approx(best, rel=1e-4)
    assert ((curve["low"] < curve["loss"]) & (curve["loss"] < curve["high"])).all()
    assert curve["flops"].iloc[-1] == pytest.approx(1e22)
    assert table.loc[table["kind"] == "run", "loss"].tolist() == runs.loss.tolist()
    figure = draw(PLOTS["loss-vs-compute"], inputs_of(PLOTS["loss-vs-compute"], table=table))
    assert "target, 1e22 FLOPs" in {row["series"] for row in figure.rows}
    assert "90%" in figure.caption


def test_a_design_is_a_point_with_its_interval_and_the_curve_of_its_ratio(fitted):
    result, runs = fitted
    fit = with_uncertainty(result, runs, by="run")
    tables = []
    for active, total in ((1e9, 8e9), (2e9, 3e9)):
        chosen = Design(params_active=active, params_total=total, tokens=1e22 / 6 / active)
        tables.append(compute_table(fit, runs.design, runs.loss, flops=1e22, chosen=chosen))
        (point,) = tables[-1].query("kind == 'design'").to_dict("records")
        assert point["loss"] == pytest.approx(float(result.law(chosen)))
        assert point["low"] < point["loss"] < point["high"]
        assert point["flops"] == pytest.approx(1e22)
    assert "expansion 8" in set(tables[0].query("kind == 'best'")["family"])
    assert not tables[0].equals(tables[1])
    figure = draw(PLOTS["loss-vs-compute"], inputs_of(PLOTS["loss-vs-compute"], table=tables[0]))
    (row,) = [row for row in figure.rows if row["series"] == "design: 1B active, 8B total"]
    assert row["loss_nats_per_token_low"] < row["loss_nats_per_token"]
    assert "The star is the design with its 90% interval" in figure.caption


def test_flops_of_a_design_are_counted_as_those_of_the_runs(fitted):
    result, runs = fitted
    chosen = Design(params_active=1e9, params_total=1e9, tokens=1e12, flops=9e21)
    table = compute_table(result, runs.design, runs.loss, flops=9e21, chosen=chosen)
    figure = draw(PLOTS["loss-vs-compute"], inputs_of(PLOTS["loss-vs-compute"], table=table))
    assert "at 6·N·D = 6e21 FLOPs like the runs; counted layer by layer, it has 9e21." in figure.caption
    assert figure.drawing.axes[0].get_xlabel() == "training FLOPs, 6·N·D"
    assert {"design: 1B, dense", "target, 9e21 FLOPs"} <= {row["series"] for row in figure.rows}


@pytest.mark.parametrize("width", [3.3, 7.2])
@pytest.mark.parametrize(("low", "high"), [(3e18, 3e21), (1e17, 1e26), (2e9, 8e9), (3.5e8, 6.5e8)])
@pytest.mark.parametrize("scale", ["log", "quantity"])
def test_labels_of_a_logarithmic_axis_do_not_overlap_at_any_width(tmp_path, width, low, high, scale):
    series = [Series(label="", x=[low, high], y=[2.0, 3.0])]
    drawing, _ = draw_panels([Panel(x=Axis("x", "x", scale), y=LOSS, series=series)], columns=1)
    drawing.set_size_inches(width, 3.0)
    drawing.canvas.draw()
    low_view, high_view = drawing.axes[0].get_xlim()
    boxes = [
        label.get_window_extent()
        for tick, label in zip(drawing.axes[0].get_xticks(), drawing.axes[0].get_xticklabels(), strict=True)
        if low_view <= tick <= high_view
    ]
    assert len(boxes) > 1
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_ticks_over_more_than_a_decade_of_flops_are_powers_of_ten():
    drawing, _ = draw_panels([Panel(x=FLOPS, y=LOSS, series=[Series(label="", x=[3e18, 3e21], y=[2.0, 3.0])])])
    axis = drawing.axes[0].xaxis
    assert axis.get_major_formatter().format_ticks(axis.get_majorticklocs()) == ["10¹⁹", "10²⁰", "10²¹"]


def test_the_frontier_has_one_point_for_each_compute_budget_and_falls():
    jitter = np.random.default_rng(0).uniform(0.98, 1.02, 40)
    flops = np.repeat([1e19, 3e19, 1e20, 3e20], 10)
    loss = 4 - 0.1 * np.log10(flops) + np.random.default_rng(1).uniform(0, 0.1, 40)
    figure = draw(ALL["runs"], FigureInputs(table=pd.DataFrame({"flops": flops * jitter, "loss": loss})))
    best = [row["loss_nats_per_token"] for row in figure.rows if row["series"] == "frontier"]
    assert best == loss.reshape(4, 10).min(axis=1).tolist()
    assert best == sorted(best, reverse=True)


def test_a_curve_of_a_law_of_repeated_data_keeps_the_epochs_of_its_runs():
    law, active = published("data_constrained").law, np.geomspace(1e8, 1e9, 6)
    for epochs in (1.0, 4.0):
        design = Design(params_active=active, tokens=20 * active, unique_tokens=20 * active / epochs)
        end = compute_table(law, design, np.full(6, 3.0), flops=1e23).query("kind == 'best'").iloc[-1]
        sizes = np.geomspace(1e8, 1e12, 400)
        tokens = 1e23 / 6 / sizes
        each = evaluate(law, params_active=sizes, tokens=tokens, unique_tokens=tokens / epochs)
        assert end["loss"] == pytest.approx(each.min(), rel=1e-4)


def test_many_mixtures_are_a_few_families_each_with_its_curve():
    table, law = synthetic.runs(400), published("effective_params").law
    sizes = {name: table[name].to_numpy(float) for name in ("params_active", "params_total", "tokens", "flops")}
    drawn = compute_table(law, Design(**sizes), table["loss"].to_numpy(float))
    families = drawn.loc[drawn["kind"] == "best", "family"].unique()
    assert len(families) == 5
    assert families[0] == "dense"
    assert (drawn["kind"] == "run").sum() == 400
    assert drawn["low"].isna().all()
    ends = drawn[drawn["kind"] == "best"].groupby("family", sort=False)["loss"].last()
    assert (np.diff(ends) < 0).all()


def test_families_that_a_law_does_not_distinguish_share_one_curve_with_a_legend():
    active = np.geomspace(1e8, 1e9, 6)
    sizes = {"params_active": active, "params_total": active * np.array([1, 1, 1, 8, 8, 8]), "tokens": 20 * active}
    table = compute_table(HOFFMANN_2022, Design(**sizes), np.full(6, 3.0), flops=1e22)
    figure = draw(PLOTS["loss-vs-compute"], inputs_of(PLOTS["loss-vs-compute"], table=table))
    assert {row["series"] for row in figure.rows} >= {"dense", "expansion 8", "all families, lowest loss"}
    assert "all families the same line" in figure.caption
    (legend,) = figure.drawing.legends
    assert "lowest loss by the law" in [text.get_text() for text in legend.get_texts()]
    # The predicted loss at the target is printed once.
    (text,) = [text.get_text() for axes in figure.drawing.axes for text in axes.texts]
    assert text == f"{table[table['kind'] == 'target']['loss'].iloc[0]:.3f}"


def test_losses_over_tokens_have_a_legend_of_runs_and_lines():
    figure = draw(PLOTS["loss"], example_of(PLOTS["loss"]))
    (legend,) = figure.drawing.legends
    names = [text.get_text() for text in legend.get_texts()]
    validated = ["validation loss", "validation loss of a branch"]
    assert names[2:] == ["training loss, smoothed", "branch with decaying learning rate", *validated]
    assert figure.caption.startswith("Loss of 2 training runs over training tokens.")


def test_a_law_of_something_else_has_no_curve_of_loss_against_compute():
    with pytest.raises(ValueError, match="StepLaw does not"):
        compute_table(published("step_law").law, Design(params_total=np.ones(1), tokens=np.ones(1)), flops=1e20)


def test_a_figure_leaves_out_invalid_rows_if_asked(tmp_path, capsys):
    table = pd.DataFrame({"flops": np.geomspace(1e18, 1e20, 4), "params_active": 1e8, "params_total": [1e8, 4e8] * 2})
    table.assign(loss=[3.2, "diverged", 2.9, 2.8]).to_csv(tmp_path / "runs.csv", index=False)
    words = [
        "plot",
        "runs",
        "--runs",
        str(tmp_path / "runs.csv"),
        "--format",
        "svg",
        "--out",
        str(tmp_path / "figures"),
    ]
    assert main(words) == USERS
    assert "'diverged' in row 2" in capsys.readouterr().err
    assert main([*words, "--drop-invalid"]) == 0
    assert "1 row of" in capsys.readouterr().err


def test_a_paper_none_of_whose_figures_is_drawn_is_a_mistake(fitted, tmp_path, capsys):
    result, _ = fitted
    result.save(tmp_path / "fit.json")
    words = ["plot", "--paper", "li", "--fit", str(tmp_path / "fit.json"), "--format", "svg", "--out", str(tmp_path)]
    assert main(words) == USERS
    assert "No figure of li can be drawn: li-1a draws a law of the form" in " ".join(capsys.readouterr().err.split())


def test_a_profile_curve_crosses_its_limit_where_the_interval_ends(fitted):
    result, runs = fitted
    ask = evidence.coefficients(result)["params_exponent"]
    found, interval = curve(result, runs, ask), profile(result, runs, ask)
    below = np.interp(interval.low, found.values, found.rises)
    above = np.interp(interval.high, found.values, found.rises)
    assert found.rises.min() == 0.0
    assert below == pytest.approx(found.limit, rel=0.1)
    assert above == pytest.approx(found.limit, rel=0.1)


def test_a_profile_is_titled_with_the_symbol_and_its_limit_is_labeled(fitted):
    result, runs = fitted
    wanted = {"tokens_exponent": evidence.coefficients(result)["tokens_exponent"]}
    table = evidence.profile_table(result, runs, wanted)
    (axes,) = draw(ALL["profile"], inputs_of(ALL["profile"], table=table)).drawing.axes
    assert axes.get_xlabel() == "β, tokens exponent"
    assert "90 %" in [text.get_text() for text in axes.texts]


def test_a_caption_says_what_areas_and_held_out_runs_are():
    runs = {"row": [0, 1, 1], "role": ["fitted", "fitted", "held out"], "measured": [3.0, 2.0, 2.0], "predicted": 2.5}
    table = pd.DataFrame({"law": "Chinchilla", "output": "loss", **runs})
    caption = draw(ALL["zhao-5"], inputs_of(ALL["zhao-5"], table=table)).caption
    assert "stars are the held-out runs among them" in caption
    assert "Areas" not in caption
    assert "Areas ∝ tokens" in draw(ALL["zhao-5"], inputs_of(ALL["zhao-5"], table=table.assign(tokens=1e9))).caption


def test_the_explainers_figures_draw_the_longest_run_of_each_model_of_a_table():
    sizes = {"params_total": [1e9, 1e9, 1e9], "params_active": [2e8, 2e8, 1e9], "params_embedding": [0.0, 0.0, 0.0]}
    shape = {"model_dim": 512, "num_layers": [4, 8, 8], "num_experts": [64, 64, 0], "num_shared_experts": 0.0}
    made = {
        "model": ["a", "b", "dense"],
        "tokens": [4e9, 3e9, 1e9],
        "flops": [6e18, 6e18, 6e18],
        "loss": [2.0, 2.1, 2.2],
    }
    runs = pd.DataFrame({**sizes, **shape, **made, "expert_hidden": 128})
    runs = pd.concat([runs, runs.assign(tokens=runs["tokens"] / 2, loss=9.0)])
    rates = draw(ALL["li-1a"], inputs_of(ALL["li-1a"], table=runs)).rows
    own = [row for row in rates if row["series"] == "runs"]
    assert {row["compute_ratio"] for row in own if "compute_ratio" in row} == {1 / 4, 1 / 3}
    assert {row["activation_rate"] for row in own} == {0.2}
    shapes = draw(ALL["li-7"], inputs_of(ALL["li-7"], table=runs)).rows
    drawn = {(row.get("width_over_layers"), row.get("loss_nats_per_token")) for row in shapes}
    assert drawn >= {(128.0, 2.0), (64.0, 2.1)}
    assert 9.0 not in {row.get("loss_nats_per_token") for row in (*rates, *shapes)}


def test_the_command_writes_the_formats_and_the_data(tmp_path, capsys):
    words = ["plot", "li-7", "tian-16", "--synthetic", "--out", str(tmp_path), "--format", "png,svg,pdf"]
    assert main(words) == DONE
    expected = {f"{name}.{end}" for name in ("li-7", "tian-16") for end in ("png", "svg", "pdf", "csv")}
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == expected
    printed = capsys.readouterr().out
    assert "li-7: Shape ratios." in printed
    caption = draw(ALL["li-7"], example_of(ALL["li-7"])).caption
    assert caption in printed
    assert Image.open(tmp_path / "li-7.png").text == {"Title": "Shape ratios", "Description": caption}


def test_a_saved_figure_has_the_width_that_is_given_and_its_legend_fits(tmp_path):
    figure = draw(PLOTS["loss-vs-compute"], example_of(PLOTS["loss-vs-compute"]))
    usual = Image.open(figure.save(tmp_path / "a.png"))
    narrow = Image.open(figure.save(tmp_path / "b.png", width=3.3))
    assert narrow.width == 660
    edge = np.asarray(narrow.convert("L"))[:, [0, -1]]
    assert edge.min() > 200
    assert Image.open(figure.save(tmp_path / "c.png")).tobytes() == usual.tobytes()
    with pytest.raises(ValueError, match=r"`width` is 0\.5 inches; give a number from 2 to 20"):
        figure.save(tmp_path / "d.png", width=0.5)


def test_a_narrow_figure_has_the_labels_of_curve_ends_in_its_legend():
    figure = draw(PLOTS["loss-vs-compute"], example_of(PLOTS["loss-vs-compute"]))
    (axes,), (usual,) = figure.drawing.axes, figure.drawing.legends
    words = {text.get_text() for text in axes.texts}
    assert words
    with figure._of_width(3.3):
        figure.drawing.draw_without_rendering()
        assert axes.get_position().width >= 0.7
        assert not any(text.get_visible() for text in axes.texts)
        assert words <= {text.get_text() for text in figure.drawing.legends[-1].get_texts()}
    assert figure.drawing.legends == [usual]
    assert all(text.get_visible() for text in axes.texts)
    with figure._of_width(5.0):
        assert all(text.get_visible() for text in axes.texts)


@pytest.mark.parametrize(
    ("names", "labels", "entries"),
    [
        (["dense", "best"], ["dense: 2.0"], ["dense: 2.0", "best"]),
        (["design: 1B active", "best"], ["design: 2.0"], ["design: 1B active", "design: 2.0", "best"]),
        (["dense", "best"], ["2.0"], ["dense", "best", "predicted: 2.0"]),
    ],
)
def test_a_label_of_a_curve_end_follows_the_legend_entry_of_its_curve(names, labels, entries):
    handles, found = with_labels([None] * len(names), names, [Text(text=label) for label in labels])
    assert found == entries
    assert len(handles) == len(found)


@pytest.mark.parametrize(("name", "columns"), [("fit", 2), ("plan", 1), ("isoflop", 2), ("expert-loads", 1)])
def test_panels_of_a_narrow_figure_are_stacked_inside_the_image_and_return_to_their_places(name, columns):
    figure = draw(PLOTS[name], example_of(PLOTS[name]))
    drawing = figure.drawing

    def layout():
        drawing.draw_without_rendering()
        return [*drawing.get_size_inches(), *(side for axes in drawing.axes for side in axes.get_position().bounds)]

    usual = layout()
    with figure._of_width(3.3):
        drawing.draw_without_rendering()
        whole = drawing.bbox
        panels = [axes for axes in drawing.axes if axes.get_visible() and axes.get_subplotspec() is not None]
        assert {axes.get_subplotspec().get_gridspec().ncols for axes in panels} == {columns}
        assert drawing.get_size_inches()[1] <= 8.5
        # Most of each column is axes, except for square ones.
        assert max(axes.get_position().width for axes in panels) * columns >= 0.45
        for axes in panels:
            box = axes.get_tightbbox()
            assert whole.x0 <= box.x0
            assert box.x1 <= whole.x1 + 2
            assert whole.y0 <= box.y0
            assert box.y1 <= whole.y1 + 2
    # The constrained layout begins at the previous positions, so that two drawings differ slightly.
    np.testing.assert_allclose(layout(), usual, atol=0.005)


def test_a_target_budget_has_an_isoflop_panel_without_runs(equal_compute):
    law, runs = equal_compute
    usual, table = isoflop_table(law, runs), isoflop_table(law, runs, flops=1e25)
    own = table[table["budget"] == 1e25]
    assert set(own["kind"]) == {"best", "minimum"}
    assert len(table) == len(usual) + len(own)
    for _, family in own.groupby("family"):
        assert family[family["kind"] == "minimum"]["loss"].item() <= family["loss"].min() + 1e-9
    drawing = draw(PLOTS["isoflop"], FigureInputs(table=table)).drawing
    assert [axes.get_title(loc="left") for axes in drawing.axes if axes.get_visible()][-1] == "1e25 FLOPs, target"
    assert len(isoflop_table(law, runs, flops=float(usual["budget"].min()))) == len(usual)


def test_a_figure_includes_its_file_and_caption_in_latex():
    figure = draw(PLOTS["plan"], example_of(PLOTS["plan"]))
    lines = figure.to_latex("figures/plan.pdf").splitlines()
    assert r"  \includegraphics[width=\linewidth]{figures/plan.pdf}" in lines
    assert any(line.startswith(r"  \caption{Plans, part by part. Memory and time") for line in lines)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["zhao-18"], "Unknown figure 'zhao-18'; did you mean"),
        (["zhao-16", "--format", ""], "--format '' names no format; choose from png, svg, pdf."),
        (["zhao-16", "--format", ","], "--format ',' names no format; choose from png, svg, pdf."),
        (["loss"], "Add the folder of a training run or a study"),
        (["loss", "nowhere/nope"], "nowhere/nope has no metrics.jsonl of a training"),
        (["loss", "nowhere", "--runs", "runs.csv"], "so --runs runs.csv would not be used"),
        (["nowhere", "loss"], "Unknown figure 'nowhere'"),
        (["zhao-16", "--format", "gif"], "Unknown figure format 'gif'; choose from png, svg, pdf."),
        ([], "A required option is missing; give NAME, --paper, --list or --gallery"),
        (["tian-16"], "give one as --runs"),
        (["zhao-1", "--fit", "nowhere.json"], "There is no fit nowhere.json"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(words, sentence, tmp_path, capsys):
    assert main(["plot", *words, "--out", str(tmp_path)]) == USERS
    assert sentence in capsys.readouterr().err


def test_a_figure_over_what_no_two_runs_differ_in_is_refused_and_nothing_is_written(tmp_path, capsys):
    table = pd.DataFrame({"params_total": [1e9, 1e9], "num_heads": [8, 8], "loss": [2.5, 2.6]})
    table.to_csv(tmp_path / "runs.csv", index=False)
    words = ["plot", "tian-16", "--runs", str(tmp_path / "runs.csv"), "--out", str(tmp_path / "out")]
    assert main(words) == USERS
    assert (
        "The table has no two runs with equal size and different num_heads; add such runs." in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_figures_are_drawn_in_a_given_width_also_if_another_lacks_columns(tmp_path, capsys):
    names = {"params_active": "active_params", "params_total": "total_params"}
    table = synthetic.runs(8)[[*names, "tokens", "loss"]].rename(columns=names)
    table.to_csv(tmp_path / "runs.csv", index=False)
    words = ["--runs", str(tmp_path / "runs.csv"), "--out", str(tmp_path / "out"), "--format", "png"]
    assert main(["plot", "zhao-5", "runs", *words, "--width", "3.3"]) == USERS
    said = capsys.readouterr().err
    assert said.count("Columns under other names") == 1
    assert "zhao-5 is not drawn: zhao-5 needs runs with " in said
    assert "all of its columns are read already, so add " in said
    assert "--map" not in said
    with Image.open(tmp_path / "out" / "runs.png") as image:
        assert image.width == 660
    assert main(["plot", "runs", *words, "--width", "100"]) == USERS
    assert "--width is 100; give a number from 2 to 20." in capsys.readouterr().err


@pytest.mark.slow
def test_of_a_paper_s_figures_those_that_a_table_does_not_serve_are_left_out_and_named(tmp_path, capsys):
    table = synthetic.runs(8)
    table.to_csv(tmp_path / "runs.csv", index=False)
    words = ["plot", "zhao", "--runs", str(tmp_path / "runs.csv"), "--out", str(tmp_path / "out"), "--format", "svg"]
    assert main(words) == DONE
    assert "Left out: zhao-5, zhao-8, zhao-9, zhao-10, zhao-12, zhao-13;" in capsys.readouterr().err
    assert (tmp_path / "out" / "zhao-3.svg").exists()
    assert main([*words[:1], "zhao-5", *words[2:]]) == USERS


@pytest.mark.parametrize("name", ["chinchilla", "sparsity", "leverage"])
@pytest.mark.matrix(1)
def test_any_law_is_drawn_through_its_runs(name):
    law = next(iter(PUBLISHED[name].values())).law
    random = np.random.default_rng(0)
    active, tokens = np.exp(random.uniform(np.log([1e8, 1e10]), np.log([1e9, 1e11]), (12, 2))).T
    many = dict.fromkeys(law.inputs, 4.0) | {"params_active": active, "params_total": 4 * active, "tokens": tokens}
    design = Design(**many | {"flops": 6 * active * tokens})
    output = next(iter(law.outputs))
    runs = runs_from(design, predict(law, runs_from(design, np.ones(12)), output), output=output)
    result = fit_law(law, runs, starts=WarmStart((law,)), penalty=Squared())
    figure = draw(ALL["fit"], inputs_of(ALL["fit"], table=evidence.fit_table(result, runs)))
    rows = pd.DataFrame(figure.rows)
    on_the_line = rows[rows["series"] == "runs"]
    np.testing.assert_allclose(on_the_line["predicted"], on_the_line["measured"], rtol=1e-3)
    varying = [n for n in law.inputs if np.ptp(np.asarray(getattr(runs.design, n))) > 0]
    assert {f"Over {n}" for n in varying} <= {f"Over {n}" for n in rows.columns}


def test_a_pdf_embeds_truetype(tmp_path):
    write_figure(tmp_path, "fit", lambda: draw(ALL["fit"], example_of(ALL["fit"])), ("pdf",))
    content = (tmp_path / "fit.pdf").read_bytes()
    assert b"FontFile2" in content
    assert b"/Type3" not in content


def test_the_gallery_page_shows_every_figure_and_says_which_are_synthetic():
    page = (plots.Path(__file__).parents[2] / "docs" / plots.GALLERY_PAGE).read_text()
    images = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert images == [f"gallery/{name}.png" for name in ALL]
    folder = plots.Path(__file__).parents[2] / "docs"
    assert all((folder / image).stat().st_size < 60_000 for image in images)


def test_the_list_has_a_short_line_for_every_figure_by_paper(capsys):
    assert main(["plot", "--list"]) == DONE
    lines = capsys.readouterr().out.splitlines()
    named = [line[2:].split()[0] for line in lines if line[:2] in ("* ", "  ")]
    assert named[: len(ALL)] == list(ALL)
    assert max(map(len, lines[:-1])) <= 80


def test_axes_of_predictions_say_what_was_predicted_in_its_unit():
    table = synthetic.predictions()
    for output, words in (("loss", "measured loss, nats/token"), ("learning_rate", "measured learning rate")):
        figure = draw(PREDICTIONS, inputs_of(PREDICTIONS, table=table.assign(output=output)))
        assert figure.drawing.axes[0].get_xlabel() == words


def test_runs_of_one_nominal_expansion_have_one_color_and_dense_runs_their_own():
    expansion = np.repeat([1.0, 3.98, 5.99, 6.01, 8.99], 2)
    table = pd.DataFrame({"flops": np.geomspace(1e18, 1e20, 10), "loss": np.linspace(3, 2, 10), "expansion": expansion})
    drawn = draw(PLOTS["runs"], inputs_of(PLOTS["runs"], table=table))
    labels = [row["series"] for row in drawn.rows if row["series"] != "frontier"]
    assert {label: labels.count(label) for label in labels} == {
        "dense": 2,
        "expansion 3.98": 2,
        "expansion 6": 4,
        "expansion 8.99": 2,
    }


@pytest.fixture(scope="module")
def equal_compute():
    """Return a law, and runs of three expansions and five sizes at four budgets, whose FLOPs differ a little."""
    law = published("effective_params").law
    flops, expansion, ratio = (
        one.ravel() for one in np.meshgrid([1e19, 4e19, 1.6e20, 6.4e20], [1.0, 4.0, 10.3], np.geomspace(0.3, 3, 5))
    )
    active = ratio * np.sqrt(flops / 120)
    flops = flops * np.random.default_rng(0).uniform(0.98, 1.02, len(flops))
    sizes = {"params_active": active, "params_total": active * expansion, "tokens": flops / 6 / active}
    loss = evaluate(law, **sizes) * np.exp(0.002 * np.random.default_rng(1).normal(size=len(flops)))
    return law, runs_from(Design(**sizes, flops=flops), loss)


def test_residuals_of_a_fit_are_drawn_over_each_input_flops_and_expansion(equal_compute):
    law, runs = equal_compute
    fit = fit_law(type(law), runs, starts=Sobol(count=32))
    figure = draw(PLOTS["fit"], inputs_of(PLOTS["fit"], table=evidence.fit_table(fit, runs)))
    over = [f"Over {name}" for name in ("total parameters", "active parameters", "training tokens", "training FLOPs")]
    assert [axes.get_title(loc="left") for axes in figure.drawing.axes][1:6] == [*over, "Over expansion"]
    residual = runs.loss - predict(fit.law, runs)
    for title in (*over, "Over expansion"):
        assert sorted(row["residual"] for row in figure.rows if row["panel"] == title) == pytest.approx(
            sorted(residual)
        )


def test_every_figure_gives_groups_of_runs_the_same_names_and_colors(equal_compute):
    law, runs = equal_compute
    sizes = {name: getattr(runs.design, name) for name in ("params_active", "params_total", "tokens", "flops")}
    table = pd.DataFrame(sizes | {"loss": runs.loss})
    fitted = pd.DataFrame({"law": "own", "output": "loss", "measured": runs.loss, "predicted": runs.loss})
    tables = {
        "runs": table,
        "loss-vs-compute": compute_table(law, runs.design, runs.loss, flops=1e22),
        "isoflop": isoflop_table(law, runs),
        "leverage": leverage_table(law, runs),
        "fit": fitted.assign(expansion=runs.design.expansion),
        "chapter-002-runs": ALL["chapter-002-runs"].from_runs.table(runs, None, law),
    }
    found = {}
    for name, one in tables.items():
        (legend,) = draw(ALL[name], inputs_of(ALL[name], table=one)).drawing.legends
        for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
            if re.match("dense|expansion", text.get_text()):
                found.setdefault(name, []).append((text.get_text(), handle.get_color(), handle.get_marker()))
    groups = found["runs"]
    assert [label for label, *_ in groups] == ["dense", "expansion 4", "expansion 10.3"]
    assert found == dict.fromkeys(tables, groups)


def test_a_target_has_the_predicted_loss_of_each_group_with_its_interval(equal_compute):
    law, runs = equal_compute
    fit = with_uncertainty(fit_law(type(law), runs, starts=Sobol(count=32)), runs)
    table = compute_table(fit, runs.design, runs.loss, flops=1e22)
    target, curves = (table[table["kind"] == kind].groupby("family").last() for kind in ("target", "best"))
    for name in ("loss", "low", "high"):
        assert target[name].to_numpy() == pytest.approx(curves[name].to_numpy())
    figure = draw(PLOTS["loss-vs-compute"], inputs_of(PLOTS["loss-vs-compute"], table=table))
    texts = {text.get_text() for axes in figure.drawing.axes for text in axes.texts}
    assert texts == {f"{one.Index}: {one.loss:#.4g} [{one.low:#.4g}, {one.high:#.4g}]" for one in target.itertuples()}


def test_a_design_s_curve_has_a_color_of_its_own(equal_compute):
    law, runs = equal_compute
    chosen = Design(params_active=1e9, params_total=2e10, tokens=1e21 / 6e9)
    table = compute_table(law, runs.design, runs.loss, flops=1e21, chosen=chosen)
    (legend,) = draw(PLOTS["loss-vs-compute"], inputs_of(PLOTS["loss-vs-compute"], table=table)).drawing.legends
    names = zip(legend.get_texts(), legend.legend_handles, strict=True)
    colors = [handle.get_color() for text, handle in names if re.match("dense|expansion", text.get_text())]
    assert len(colors) == len(set(colors)) == 4
    # Within 5 % of a group's expansion, the curve would hide the group's.
    alike = compute_table(
        law,
        runs.design,
        runs.loss,
        flops=1e21,
        chosen=Design(params_active=1e9, params_total=1.01e10, tokens=1e21 / 6e9),
    )
    assert alike.query("kind == 'best'")["family"].nunique() == 3


def test_the_frontier_of_dense_runs_has_one_point_per_budget_and_the_law_s_panel_the_runs_of_its_budget(equal_compute):
    law, runs = equal_compute
    figure = draw(ALL["chapter-002-runs"], FigureInputs(table=ALL["chapter-002-runs"].from_runs.table(runs, None, law)))
    count = collections.Counter(row.get("series") for row in figure.rows)
    assert count["frontier of dense runs"] == count["frontier of MoE runs"] == 4
    assert count["runs at C"] == 15


def test_an_isoflop_curve_is_the_law_and_its_minimum_the_lowest_point(equal_compute):
    law, runs = equal_compute
    table = isoflop_table(law, runs)
    assert table["budget"].nunique() == 4
    for (family, budget), own in table.groupby(["family", "budget"]):
        curve, minimum = own[own["kind"] == "best"], own[own["kind"] == "minimum"].iloc[0]
        expansion = 1.0 if family == "dense" else float(family.split()[-1])
        active = curve["params_active"].to_numpy()
        exact = evaluate(law, params_active=active, params_total=expansion * active, tokens=budget / 6 / active)
        assert curve["loss"].to_numpy() == pytest.approx(exact, rel=1e-4)
        assert minimum["loss"] == pytest.approx(curve["loss"].min(), rel=1e-4)
        assert (own["kind"] == "run").sum() == 5
    alone = runs.where(np.isclose(runs.design.params_active, runs.design.params_active[2]))
    with pytest.raises(UserError, match="No compute budget has two sizes"):
        isoflop_table(law, alone)


def test_the_leverage_of_a_group_is_the_law_s_with_its_interval(equal_compute):
    law, runs = equal_compute
    fit = with_uncertainty(fit_law(type(law), runs, starts=Sobol(count=32)), runs)
    end = leverage_table(fit, runs, flops=1e22, level=0.8).query("family == 'expansion 4'").iloc[-1]
    estimands = decision_estimands(type(law), {"flops": 1e22, "expansion": 4.0})
    (exact,) = estimate(fit, find("EL", estimands, type(law)), level=0.8)
    expected = [exact.value, exact.interval.low, exact.interval.high]
    assert [end[name] for name in ("leverage", "low", "high")] == pytest.approx(expected, rel=1e-3)
    with pytest.raises(UserError, match="does not distinguish models by expansion"):
        leverage_table(HOFFMANN_2022, runs)


def test_influence_is_drawn_for_a_decision_and_a_predicted_loss(fitted):
    fit, runs = fitted
    read = SimpleNamespace(runs=runs, frame=pd.DataFrame(index=range(len(runs))), rows=np.arange(len(runs)))
    at = {"flops": 1e22}
    table = evidence.influence_table(fit, read, "L*", decide=[at])
    assert table["estimand"].iloc[0] == "optimal_loss (L*) at flops = 1e+22"
    (exact,) = find("L*", decision_estimands(type(fit.law), at), type(fit.law))
    assert table["estimate"].iloc[0] == pytest.approx(float(exact.functional(fit.law)), rel=1e-6)
    predicted = evidence.influence_table(fit, read, "loss", predict=[{"params_active": 1e9, "tokens": 2e10}])
    assert predicted["estimate"].iloc[0] == pytest.approx(
        float(fit.law(Design(params_active=1e9, tokens=2e10))), rel=1e-6
    )
    with pytest.raises(UserError, match=r"has no coefficient or decision L\*"):
        evidence.influence_table(fit, read, "L*")


def test_a_smoothed_loss_has_no_kinks_at_additional_lines_of_a_log():
    tokens = np.arange(1.0, 201.0)
    loss = 2 + tokens**-0.5 + 0.1 * (-1) ** tokens
    usual = sources._smoothed(tokens, loss)
    more, others = np.append(tokens, tokens[9::10] + 0.01), np.append(loss, np.full(20, 5.0))
    order = np.argsort(more)
    smoothed = sources._smoothed(more[order], others[order])[np.isin(more[order], tokens)]
    assert np.abs(smoothed - usual)[20:].max() < 0.02


def test_validation_losses_are_connected_and_those_of_a_branch_are_filled(drawn):
    figure = drawn["loss"]
    lines = [line for line in figure.drawing.axes[0].lines if line.get_marker() not in ("None", "|", "")]
    assert all(line.get_linestyle() != "None" for line in lines)
    assert {str(line.get_markerfacecolor()) == "none" for line in lines} == {True, False}
    (legend,) = figure.drawing.legends
    assert "validation loss of a branch" in [text.get_text() for text in legend.get_texts()]


def test_losses_outside_the_axis_are_noted_in_the_picture():
    table = synthetic.losses()
    table.loc[0, "smoothed"] = 11.0
    figure = draw(PLOTS["loss"], inputs_of(PLOTS["loss"], table=table))
    (text,) = figure.drawing.axes[0].texts
    assert text.get_text().endswith("up to 11.00, are outside the axis.")
    assert text.get_text() in figure.caption


def test_an_interval_that_excludes_its_point_is_drawn():
    table = pd.DataFrame({"kind": ["best", "best", "target"], "family": "dense", "flops": [1e20, 1e21, 1e21]})
    table = table.assign(loss=[3.0, 2.5, 2.5], low=[2.9, 2.6, 2.6], high=[3.1, 2.7, 2.7], level=0.9, method="bootstrap")
    figure = draw(PLOTS["loss-vs-compute"], inputs_of(PLOTS["loss-vs-compute"], table=table))
    assert "2.500 [2.600, 2.700]" in "".join(text.get_text() for axes in figure.drawing.axes for text in axes.texts)
