"""The explorer without a browser: states and links, what is seen and where it comes from, what is refused."""

import importlib.util
import json
import math
import re
import socket
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.cli.command_line import USERS
from moejax.config import build
from moejax.fit.fit_law import fit_law
from moejax.fit.runs import runs_from
from moejax.fit.starts import WarmStart
from moejax.laws import effective_params
from moejax.laws.accounting import design_of
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.claim import check
from moejax.laws.design import Design
from moejax.laws.five_factor import ZHAO_2025, active_experts_range, shared_share_range
from moejax.laws.predict import predict
from moejax.papers.chapter_002 import BUDGET, CONFIGURATIONS
from moejax.report.explorer import page, serve, vector
from moejax.report.explorer.available import find_available
from moejax.report.explorer.config import config
from moejax.report.explorer.curves import WITHIN
from moejax.report.explorer.state import KNOBS, PRESETS, ExplorerState, of_link
from moejax.report.explorer.vector import svg
from moejax.report.explorer.view import view
from moejax.report.figures.panels import Axis, Panel, Series

LAWS = tuple(find_available().laws)
REPEATS = "data_constrained:muennighoff-2023"
SEVERAL = ("effective_params:chapter-002", "five_factor:zhao-2025", "sparsity:abnar-2025", REPEATS)
"""Laws that are compiled here: each takes seconds."""


@pytest.fixture(scope="module")
def views():
    """Views of states, each made once."""
    made = {}

    def see(state):
        if state not in made:
            made[state] = view(state, find_available())
        return made[state]

    return see


def query(link):
    return dict(pair.split("=") for pair in link.lstrip("?").split("&") if pair)


@pytest.mark.parametrize("law", LAWS)
def test_a_link_brings_back_the_state_to_the_last_digit(law):
    start = find_available().start
    for state in (
        start,
        ExplorerState(law=law, params_active=1.23456789e9, flops=3.3e22, shared_share=0.123),
        ExplorerState(law=law).like("kimi-k2"),
        ExplorerState(law=law, unique_tokens=2.5e10).like("kimi-k2"),
        ExplorerState(law=law).like("kimi-k2").moved("tokens", 15.5e12),
        ExplorerState(law=law).like("deepseek-v3.1").moved("granularity", 4.0),
        *(ExplorerState(law=law).preset(name) for name in PRESETS),
    ):
        assert of_link(query(state.link(start)), find_available().laws, start) == (state, [])


def test_the_link_of_the_start_is_empty_and_other_names_of_a_query_are_left_alone():
    start = find_available().start
    assert start.link(start) == ""
    assert of_link({"session_id": "s_1", "utm": "x"}, find_available().laws, start) == (start, [])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"law": "five_factor:zhao-2052"}, "five_factor:zhao-2025"),
        ({"model": "deepseek-v9"}, "deepseek-v3.1"),
        ({"flops": "many"}, "flops=many"),
        ({"expansion": "0.5"}, "between 1 and"),
        ({"embedding_share": "nan"}, "between 0 and 1"),
        ({"unique_tokens": "0"}, "between 100000 and inf"),
    ],
)
def test_a_refused_value_of_a_link_is_named_and_leaves_the_other_values_alone(said, words):
    start = find_available().start
    state, refusals = of_link({**said, "params_active": "7B"}, find_available().laws, start)
    assert state == replace(start, params_active=7e9)
    assert len(refusals) == 1
    assert words in refusals[0]


def test_flops_are_held_when_the_size_moves_and_follow_when_tokens_do():
    state = ExplorerState()
    assert state.moved("params_active", 1e9).flops == state.flops
    more = state.moved("tokens", 2 * state.tokens)
    assert math.isclose(more.flops, 2 * state.flops)
    assert math.isclose(more.tokens, 2 * state.tokens)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_published_model_is_counted_as_accounting_counts_it(name):
    state = ExplorerState().like(name)
    exact = design_of(CATALOGUE[name].architecture, state.tokens)
    seen = state.values
    assert math.isclose(seen["params_active"], exact.params_active)
    assert math.isclose(seen["params_active"] * seen["expansion"], exact.params_total)
    assert math.isclose(seen["params_active"] * seen["embedding_share"], exact.params_embedding)
    assert math.isclose(seen["granularity"], exact.granularity, rel_tol=1e-6)
    assert state.moved("flops", 1e22).moved("unique_tokens", 1e9).model == name
    assert state.moved("expansion", 2.0).model == ""


@pytest.mark.parametrize("law", SEVERAL)
@pytest.mark.matrix(2)
def test_the_loss_of_a_published_model_is_what_predict_says_of_it(law, views):
    state = ExplorerState(law=law).like("deepseek-v3.1")
    exact = replace(design_of(CATALOGUE["deepseek-v3.1"].architecture, state.tokens), unique_tokens=state.tokens)
    assert math.isclose(views(state).prediction.loss, predict(law.split(":")[0], exact).loss, rel_tol=1e-7)


@pytest.mark.parametrize("law", SEVERAL)
@pytest.mark.matrix(2)
def test_the_command_of_the_page_prints_its_numbers(law, views, capsys):
    seen = views(ExplorerState(law=law).like("deepseek-v3.1"))
    program, command, *words = seen.command.split()
    assert (program, main([command, *words, "--json"])) == ("moejax", 0)
    (answer,) = json.loads(capsys.readouterr().out)["predictions"]
    assert math.isclose(answer["values"]["loss"], seen.prediction.loss, rel_tol=1e-9)
    assert math.isclose(answer["values"]["loss"], seen.every[law]["loss"], rel_tol=1e-9)


@pytest.mark.slow
def test_curves_pass_through_the_point_that_predict_gives(views):
    seen = views(ExplorerState(law="five_factor:zhao-2025").like("deepseek-v3.1"))
    loss = seen.prediction.loss
    for name in ("params_active", "active_experts", "compute"):
        here = next(s for s in seen.panels[name].series if s.label == "here")
        curve = next(s for s in seen.panels[name].series if s.label == "this structure")
        assert math.isclose(here.y[0], loss, rel_tol=1e-9)
        assert math.isclose(np.interp(np.log(here.x[0]), np.log(curve.x), curve.y), loss, abs_tol=2e-3)


def test_presets_have_the_numbers_of_the_chapter_and_the_losses_of_its_law(views):
    for name, (active, expansion, *_) in CONFIGURATIONS.items():
        seen = views(ExplorerState().preset(name))
        design = Design(params_active=active, params_total=active * expansion, tokens=BUDGET / (6 * active))
        assert math.isclose(seen.prediction.loss, predict("chapter_002", design).loss, rel_tol=1e-12)


def test_the_three_movements_of_the_chapter(views):
    dense, deepseek, switch = (views(ExplorerState().preset(name)) for name in PRESETS)

    def curves(seen, name="compute"):
        by = {s.label: np.asarray(s.y) for s in seen.panels[name].series}
        return by["this structure"], by["dense, equal active"]

    for merged in (dense, views(ExplorerState().preset(list(PRESETS)[1]).dense())):
        np.testing.assert_allclose(*curves(merged), rtol=1e-12)
        assert merged.dense == merged.prediction.loss
    mixture, beside = curves(deepseek)
    assert (mixture < beside).all()
    # At equal active parameters G can only help: it is the dense 70B that Switch is worse than.
    mixture, beside = curves(switch)
    assert (mixture < beside).all()
    assert mixture[-1] > curves(dense)[0][-1]
    assert mixture[0] < curves(dense)[0][0]


def test_optimum_and_range_are_those_of_the_closed_forms(views):
    seen = views(ExplorerState())
    size = seen.ranges[0]
    claim = effective_params.compute_optimal(effective_params.CHAPTER_002, BUDGET, 18.1)
    assert check(claim).holds
    assert math.isclose(size.best, claim.value["params_active"], rel_tol=1e-6)
    for end in (size.low, size.high):
        risen = view(ExplorerState().moved("params_active", end), find_available()).prediction.loss
        assert math.isclose(
            risen - views(ExplorerState().moved("params_active", size.best)).prediction.loss, WITHIN, rel_tol=1e-5
        )


def test_ranges_of_zhao_are_those_of_its_table(views):
    seen = views(ExplorerState(law="five_factor:zhao-2025"))
    found = {r.name: r for r in seen.ranges}
    design = seen.design
    for name, closed in (("active_experts", active_experts_range), ("shared_share", shared_share_range)):
        # The closed form holds N, N_a and the other of the two.
        low, high = (float(end) for end in closed(ZHAO_2025, design, tolerance=WITHIN))
        assert math.isclose(found[name].low, low, rel_tol=1e-5)
        assert math.isclose(found[name].high, high, rel_tol=1e-5)


def test_a_law_that_gains_for_ever_has_no_best_expansion_and_says_so(views):
    seen = views(ExplorerState())
    expansion = next(r for r in seen.ranges if r.name == "expansion")
    assert expansion.endless
    assert "no end: higher is better" in page.optimum(seen)


def test_only_what_a_law_reads_has_a_slice(views):
    assert {r.name for r in views(ExplorerState()).ranges} == {"params_active", "expansion"}
    zhao = {r.name for r in views(ExplorerState(law="five_factor:zhao-2025")).ranges}
    assert zhao == {"params_active", "expansion", "active_experts", "shared_share"}


def repeated(**changes):
    one = ExplorerState(law=REPEATS, params_active=7.03e9, expansion=1.0, expert_expansion=1.0, flops=1e22)
    return replace(one, **{"unique_tokens": 25e9, **changes})


def test_repeated_tokens_cost_what_predict_says(views, capsys):
    seen = views(repeated())
    program, command, *words = seen.command.split()
    assert (program, main([command, *words, "--json"])) == ("moejax", 0)
    (answer,) = json.loads(capsys.readouterr().out)["predictions"]
    assert words[words.index("--unique-tokens") + 1] == "25000000000"
    assert math.isclose(answer["values"]["loss"], seen.prediction.loss, rel_tol=1e-9)
    unlimited = views(repeated(unique_tokens=math.inf))
    assert seen.unrepeated == unlimited.prediction.loss < seen.prediction.loss
    assert math.isclose(seen.prediction.loss, seen.every[REPEATS]["loss"], rel_tol=1e-9)
    assert "9.48 epochs of 25B unique tokens" in page.headline(seen)
    assert "epochs" not in page.headline(unlimited)


@pytest.mark.slow
def test_the_best_size_of_so_many_unique_tokens_is_that_of_design(views, capsys):
    words = ["--law", "data_constrained", "--flops", "1e22", "--unique-tokens", "25e9", "--json"]
    assert main(["design", *words]) == 0
    best = json.loads(capsys.readouterr().out)["optimum"]["values"]["params_active"]
    assert math.isclose(views(repeated()).ranges[0].best, best, rel_tol=1e-5)


def test_the_curve_along_unique_tokens_ends_at_tokens_that_are_all_different(views):
    seen = views(repeated())
    curve = next(s for s in seen.panels["unique_tokens"].series if s.label == "this structure")
    assert curve.y[-1] == seen.unrepeated
    assert (np.diff(curve.y) <= 0).all()
    here = next(s for s in seen.panels["unique_tokens"].series if s.label == "here")
    assert math.isclose(np.interp(np.log(here.x[0]), np.log(curve.x), curve.y), here.y[0], abs_tol=2e-3)


def test_a_law_that_does_not_price_repeats_says_so_and_its_loss_stays(views):
    limited, free = views(ExplorerState(unique_tokens=1e12)), views(ExplorerState())
    assert limited.prediction.loss == free.prediction.loss
    assert "unique_tokens" not in limited.panels
    assert "takes a repeated token for a new one" in page.headline(limited)


def test_steps_of_a_slider_hold_the_value_exactly_and_stay_between_its_ends():
    for name, knob in KNOBS.items():
        value = getattr(ExplorerState(), name)
        steps, at = knob.steps(value)
        assert steps[at] == value
        assert steps == sorted(set(steps))
        assert (steps[0], steps[-1]) == (knob.low, knob.most)
        assert knob.steps(math.inf)[1] == len(knob.steps(math.inf)[0]) - 1


def test_drawings_are_well_formed_and_say_what_they_show(views):
    from xml.etree import ElementTree

    seen = views(ExplorerState(law="five_factor:zhao-2025").like("deepseek-v3.1"))
    for name, panel in seen.panels.items():
        root = ElementTree.fromstring(svg(panel))
        assert panel.title in root.attrib["aria-label"], name
        assert "nan" not in svg(panel).lower().replace("nanmin", "")


def test_a_tick_is_where_its_number_says():
    for high in (0.07, 0.3, 0.75, 0.9, 2.3, 47.0):
        line = Series(label="a", x=[0.0, high], y=[1.0, 2.0])
        drawn = svg(Panel(x=Axis("x", "x"), y=Axis("y", "y", "log"), series=[line]))
        ticks = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle">([\d.]+)</text>', drawn)
        left, right = float(ticks[0][0]), vector.WIDTH - vector.RIGHT
        assert len(ticks) > 2
        for place, number in ticks:
            assert math.isclose(float(number), high * (float(place) - left) / (right - left), abs_tol=high * 2e-3)


def test_a_drawing_of_almost_nothing_is_a_drawing():
    one = Panel(x=Axis("x", "x", "log"), y=Axis("y", "y"), series=[Series(label="a", x=[2.0], y=[1.0], mark="points")])
    assert "<circle" in svg(one)


@pytest.fixture(scope="module")
def own_fit(tmp_path_factory):
    rows = [
        {"params_active": n, "params_total": n * g, "tokens": d}
        for n in (1e6, 3e6, 1e7, 3e7)
        for g in (1.0, 4.0, 16.0)
        for d in (1e8, 1e9)
    ]
    frame = pd.DataFrame(rows)
    designs = [Design(**row) for row in rows]
    frame["loss"] = [float(effective_params.CHAPTER_002(d)) for d in designs]
    folder = tmp_path_factory.mktemp("own")
    frame.to_csv(folder / "runs.csv", index=False)
    names = ("params_active", "params_total", "tokens")
    runs = runs_from(Design(**{name: frame[name].to_numpy() for name in names}), frame["loss"].to_numpy())
    fit = fit_law(effective_params.EffectiveParams, runs, starts=WarmStart((effective_params.CHAPTER_002,)))
    fit.save(folder / "fit.json")
    return folder


def test_a_fit_of_ones_own_comes_first_and_starts_at_the_largest_run(own_fit, capsys):
    found = find_available(str(own_fit))
    key = next(iter(found.laws))
    assert key == f"fit:{own_fit.name}"
    assert found.start.law == key
    assert found.start.params_active == 3e7
    seen = view(found.start, found)
    runs = next(s for s in seen.panels["compute"].series if s.label == "your runs")
    assert len(runs.x) == 24
    assert abs(seen.prediction.loss - float(effective_params.CHAPTER_002(seen.design))) < 1e-3
    program, command, *words = seen.command.split()
    assert (program, main([command, *words, "--json"])) == ("moejax", 0)
    (answer,) = json.loads(capsys.readouterr().out)["predictions"]
    assert math.isclose(answer["values"]["loss"], seen.prediction.loss, rel_tol=1e-9)
    alone = find_available(str(own_fit / "fit.json"))
    assert alone.start.law == key
    assert alone.runs is None


def test_a_table_alone_shows_its_runs_beside_the_published_laws(own_fit):
    found = find_available(str(own_fit / "runs.csv"))
    assert next(iter(found.laws)) == LAWS[0]
    assert len(found.runs) == 24


def test_the_file_of_a_published_model_is_that_model(tmp_path):
    from moejax.architecture import Architecture
    from moejax.cli.commands.config import read

    path = tmp_path / "config.py"
    path.write_text(config(ExplorerState().like("qwen3-30b-a3b")))
    settings = read(str(path)).to_dict()
    assert build(Architecture, settings["architecture"]) == CATALOGUE["qwen3-30b-a3b"].architecture
    assert settings["recipe"]["budgets_tokens"] == [
        pytest.approx(ExplorerState().like("qwen3-30b-a3b").tokens, rel=1e-6)
    ]


@pytest.mark.parametrize("state", [ExplorerState(), *(ExplorerState().preset(name) for name in list(PRESETS)[::2])])
@pytest.mark.matrix(1)
@pytest.mark.slow
def test_the_file_of_sliders_is_a_model_near_them(state, tmp_path, capsys):
    path = tmp_path / "config.py"
    path.write_text(config(state))
    assert main(["count", f"--config={path}", "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    total, active = counted["params_total"], counted["params_active"]
    assert math.isclose(active, state.params_active, rel_tol=0.06)
    assert math.isclose(total, state.params_active * state.expansion, rel_tol=0.16)


def complaint(capsys, *words):
    assert main(["explore", *words]) == USERS
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


@pytest.fixture
def with_marimo(monkeypatch):
    """As if marimo were there; whatever is refused is refused before it is used."""
    monkeypatch.setattr(serve, "check_marimo", lambda: None)


def test_without_marimo_the_extra_is_named(capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "marimo" else found(name, *rest)
    )
    assert "pip install 'moejax[explore]'" in complaint(capsys)


def test_a_port_in_use_is_a_sentence(capsys, with_marimo):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"Port {port} is in use" in complaint(capsys, "--port", str(port))
    assert "from 0 (any free one) to 65535" in complaint(capsys, "--port", "70000")


def test_folders_and_files_that_hold_nothing_are_refused_in_a_sentence(capsys, with_marimo, tmp_path):
    assert "There is no" in complaint(capsys, str(tmp_path / "nowhere"), "--port", "0")
    assert "holds neither fit.json" in complaint(capsys, str(tmp_path), "--port", "0")
    (tmp_path / "fit.json").write_text("{}")
    assert "fit anew with moejax fit" in complaint(capsys, str(tmp_path), "--port", "0")
    (tmp_path / "runs.csv").write_text("loss,width\n2.0,3\n")
    assert "nothing to draw" in complaint(capsys, str(tmp_path / "runs.csv"), "--port", "0")


def test_without_a_display_the_address_is_printed_and_no_browser_of_the_terminal_starts(monkeypatch):
    monkeypatch.setattr(serve.sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert not serve.has_display()
    monkeypatch.setenv("DISPLAY", ":1")
    assert serve.has_display()
