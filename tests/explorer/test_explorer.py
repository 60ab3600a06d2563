"""The page of `moejax explore` without a browser: its JavaScript computes what Python computes."""

import json
import math
import os
import shlex
import shutil

import jax
import numpy as np
import pandas as pd
import pytest
from page_in_node import PageInNode

from moejax.__main__ import main
from moejax.cli.command_line import USERS
from moejax.errors import UserError
from moejax.explorer.available import default_fit, find_available
from moejax.explorer.javascript import javascript
from moejax.explorer.knobs import KNOBS, PRESETS, START, STRUCTURE, VALUES, design_of, of_architecture, preset
from moejax.explorer.page import LEVEL, WITHIN, opens_on, page
from moejax.fit.fit import fit
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.starts import Sobol, WarmStart
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.float64 import float64
from moejax.laws import PUBLISHED, accounting
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.design import FIELDS, Design
from moejax.laws.mixtures import effective_params
from moejax.laws.mixtures.five_factor import ZHAO_2025, active_experts_range, shared_share_range
from moejax.laws.predict import predict
from moejax.laws.search import argmin_between
from moejax.papers.chapter_002.records import BUDGET, CONFIGURATIONS
from moejax.report.laws import interval_of
from moejax.wording import in_command

CHAPTER, ZHAO, REPEATS = "effective_params:chapter-002", "five_factor:zhao-2025", "data_constrained:muennighoff-2023"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return PageInNode(page(find_available()), tmp_path_factory.mktemp("page"))


def draws(count):
    """Random values of the sliders."""
    random = np.random.default_rng(0)
    for _ in range(count):
        yield {
            "params_active": 10 ** random.uniform(7, 12),
            "expansion": 10 ** random.uniform(0, 2),
            "expert_expansion": 10 ** random.uniform(0.1, 2.5),
            "active_experts": 10 ** random.uniform(0.3, 1.5),
            "shared_share": random.uniform(0, 0.8),
            "granularity": 10 ** random.uniform(-0.3, 1.6),
            "flops": 10 ** random.uniform(18, 26),
            "unique_tokens": 10 ** random.uniform(9, 13),
            "embedding_share": random.uniform(0, 0.3),
        }


def design(values):
    """The design of values as ``predict`` takes it."""
    with float64():
        exact = design_of({**START, **values})
    return Design(**{name: float(value) for name in FIELDS if (value := getattr(exact, name)) is not None})


def test_every_published_law_of_the_page_predicts_what_python_predicts(published):
    laws = list(published.data["laws"])
    assert {law.partition(":")[0] for law in laws} > {"kaplan", "five_factor", "leverage", "step_law"}
    asked = [(law, values, ["answers"]) for law in laws for values in draws(8)]
    for (law, values, _), got in zip(asked, published.ask(*asked), strict=True):
        name, _, constants = law.partition(":")
        said = predict(PUBLISHED[name][constants], design(values))
        assert got["answers"] == pytest.approx(list(said.values.values()), rel=1e-9), law


@pytest.mark.parametrize("law", [CHAPTER, ZHAO, "sparsity:abnar-2025", REPEATS])
def test_the_best_value_of_a_slider_is_that_of_python(published, law):
    name, _, constants = law.partition(":")
    values = {**next(draws(1)), "flops": 1e22}
    (got,) = published.ask((law, values, ["optima"]))
    assert "params_active" in got["optima"]
    with float64():
        exact = jax.tree.map(np.float64, PUBLISHED[name][constants].law)
        for knob in (one for one in KNOBS if one.coordinate.name in got["optima"]):

            def height(z, knob=knob):
                return exact(design_of({**values, knob.coordinate.name: knob.coordinate.plain(z)}))

            low, high = map(knob.coordinate.scaled, knob.search or (knob.low, knob.high))
            best = argmin_between(height, low, high)
            seen = got["optima"][knob.coordinate.name]
            assert seen["least"] == pytest.approx(float(height(best)), rel=1e-9)
            assert seen["best"] == pytest.approx(float(knob.coordinate.plain(best)), rel=1e-6)


def test_optimum_and_range_are_those_of_the_closed_forms(published):
    (got,) = published.ask((CHAPTER, START | {"unique_tokens": None}, ["optima"]))
    size = got["optima"]["params_active"]
    claim = effective_params.compute_optimal(effective_params.CHAPTER_002, BUDGET, 18.1)
    assert size["best"] == pytest.approx(claim.value["params_active"], rel=1e-6)
    for end in (size["low"], size["high"]):
        risen = float(effective_params.CHAPTER_002(design({"params_active": end})))
        assert risen - size["least"] == pytest.approx(WITHIN, rel=1e-3)
    assert got["optima"]["expansion"]["endless"]
    (zhao,) = published.ask((ZHAO, {"unique_tokens": None}, ["optima"]))
    assert set(zhao["optima"]) == {"params_active", "expansion", "active_experts", "shared_share"}
    for name, closed in (("active_experts", active_experts_range), ("shared_share", shared_share_range)):
        low, high = (float(end) for end in closed(ZHAO_2025, design({}), tolerance=WITHIN))
        assert zhao["optima"][name]["low"] == pytest.approx(low, rel=1e-5)
        assert zhao["optima"][name]["high"] == pytest.approx(high, rel=1e-5)


def test_the_three_movements_of_chapter_002(published):
    budgets = np.geomspace(3.4e21, 3.4e27, 7)

    def curve(name, **changes):
        values = [{**preset(name), **changes, "flops": flops, "unique_tokens": None} for flops in budgets]
        return np.array(
            [(one["loss"], one["dense"]) for one in published.ask(*[(CHAPTER, v, ["loss", "dense"]) for v in values])]
        ).T

    dense, deepseek, switch = (curve(name) for name in PRESETS)
    merged = curve("DeepSeek 671B / 37B", expansion=1.0, expert_expansion=1.0)
    assert (dense[0] == dense[1]).all()
    assert (merged[0] == merged[1]).all()
    assert (deepseek[0] < deepseek[1]).all()
    assert (switch[0] < switch[1]).all()
    # At equal active parameters a larger G only helps: Switch is worse than the dense 70B, at large budgets.
    assert switch[0][-1] > dense[0][-1]
    assert switch[0][0] < dense[0][0]


def test_presets_have_the_numbers_of_the_chapter_and_the_losses_of_its_law(published):
    for name, (active, expansion, *_) in CONFIGURATIONS.items():
        (got,) = published.ask((CHAPTER, {**preset(name), "unique_tokens": None}, ["loss"]))
        exact = Design(params_active=active, params_total=active * expansion, tokens=BUDGET / (6 * active))
        assert got["loss"] == pytest.approx(predict("chapter_002", exact).loss, rel=1e-12)


@pytest.mark.parametrize("law", [CHAPTER, ZHAO, REPEATS])
def test_the_command_of_the_page_prints_its_loss(published, law, capsys):
    values = {**preset("DeepSeek 671B / 37B"), "unique_tokens": 2e12}
    (got,) = published.ask((law, values, ["command", "loss"]))
    program, *words = shlex.split(got["command"])
    assert (program, main([*words, "--json"])) == ("moejax", 0)
    (answer,) = json.loads(capsys.readouterr().out)["predictions"]
    assert answer["values"]["loss"] == pytest.approx(got["loss"], rel=1e-9)


@pytest.mark.slow
def test_the_second_command_of_the_page_writes_a_model(published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (got,) = published.ask((CHAPTER, {"unique_tokens": None}, ["build"]))
    assert main(shlex.split(got["build"])[1:]) == 0
    assert main(["count", "--config=design/config.py", "--json"]) == 0


def test_a_link_brings_back_the_state_to_the_last_digit(published):
    laws = [key for key, law in published.data["laws"].items() if "loss" in law["outputs"]]
    asked = [(law, values, ["back", "array"]) for law in laws for values in draws(2)]
    for (law, _, _), got in zip(asked, published.ask(*asked), strict=True):
        assert got["back"] == [law, got["array"]]


def test_numbers_of_a_link_are_read_as_people_write_them(published):
    (got,) = published.ask((CHAPTER, {}, ["numbers"]))
    assert got["numbers"] == [7e9, 1.5e12, 3.4e24, 1000.0, None, None, None], "NaN and Infinity are null in JSON"


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_published_model_is_counted_as_accounting_counts_it(name):
    values = of_architecture(CATALOGUE[name].architecture)
    exact = accounting.design_of(CATALOGUE[name].architecture, 1.0)
    assert values["params_active"] == pytest.approx(exact.params_active)
    assert values["params_active"] * values["expansion"] == pytest.approx(exact.params_total)
    assert values["params_active"] * values["embedding_share"] == pytest.approx(exact.params_embedding)
    assert values["granularity"] == pytest.approx(exact.granularity, rel=1e-6)
    assert set(values) | {"flops", "unique_tokens"} == set(VALUES)
    assert set(STRUCTURE) < set(values)


@pytest.fixture(scope="module")
def own_fit(tmp_path_factory):
    """A folder with 36 noisy runs and a fit of the chapter's law to them."""
    rows = [
        {"params_active": n, "params_total": n * g, "tokens": d}
        for n in (1e6, 3e6, 1e7, 3e7)
        for g in (1.0, 4.0, 16.0)
        for d in (1e8, 4e8, 2e9)
    ]
    frame = pd.DataFrame(rows)
    noise = np.exp(0.003 * np.random.default_rng(0).normal(size=len(rows)))
    frame["loss"] = [float(effective_params.CHAPTER_002(Design(**row))) for row in rows] * noise
    folder = tmp_path_factory.mktemp("own")
    frame.to_csv(folder / "runs.csv", index=False)
    names = ("params_active", "params_total", "tokens")
    runs = runs_from(Design(**{name: frame[name].to_numpy() for name in names}), frame["loss"].to_numpy())
    fit = fit_law(effective_params.EffectiveParams, runs, starts=WarmStart((effective_params.CHAPTER_002,)))
    with_uncertainty(fit, runs).save(folder / "fit.json")
    return folder


def test_a_fit_of_ones_own_comes_first_with_its_runs_and_the_ranges_of_predict(own_fit, tmp_path):
    available = find_available(str(own_fit))
    seen = PageInNode(page(available), tmp_path)
    key = f"fit:{own_fit.name}"
    assert seen.data["start"]["law"] == key
    assert seen.data["start"]["values"][0] == 3e7
    assert len(seen.data["runs"]) == 36
    fit = available.laws[key].fit
    places = [
        {"params_active": 1e7 * n, "flops": 6e16 * n**2, "expansion": g, "unique_tokens": None}
        for n in (1, 30)
        for g in (1.0, 8.0)
    ]
    asked = [(key, {**START, **place}, ["range", "loss", "beyond"]) for place in places]
    for place, got in zip(places, seen.ask(*asked), strict=True):
        point = design({**place, "unique_tokens": math.inf})
        assert got["loss"] == pytest.approx(predict(fit, point).loss, rel=1e-9)
        known = interval_of(fit, point, LEVEL)
        assert known.interval is not None
        assert got["range"] == pytest.approx([known.interval["low"], known.interval["high"]], rel=1e-6)
        assert bool(got["beyond"]) == bool(predict(fit, point).extrapolated)


def test_the_page_opens_on_the_law_asked_for_or_on_a_fit_here_and_says_which(own_fit, tmp_path, monkeypatch, capsys):
    assert opens_on(find_available(str(own_fit), "hoffmann")) == "chinchilla:hoffmann-2022"
    by_file = find_available(str(own_fit / "runs.csv"), str(own_fit / "fit.json"))
    assert opens_on(by_file) == f"fit:{own_fit.name}"
    with pytest.raises(UserError, match="step_law:step-law-2025 predicts no loss"):
        opens_on(find_available("", "step_law"))
    monkeypatch.chdir(own_fit)
    assert main(["explore", "--export", str(tmp_path / "page.html")]) == 0
    assert "Opens on your fit fit.json." in capsys.readouterr().out


def test_a_file_that_is_no_fit_is_skipped_with_a_note_and_not_read_if_a_law_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "fit.json").write_text('{"mine": 1}')
    monkeypatch.chdir(tmp_path)
    assert default_fit() == ""
    assert "Not opened: fit.json" in capsys.readouterr().err
    assert main(["explore", "--export", "page.html", "--law", "zhao"]) == 0
    shown = capsys.readouterr()
    assert "Opens on five_factor" in shown.out
    assert "Not opened" not in shown.err


def test_a_fit_to_runs_of_accepted_units_is_drawn_with_them_and_a_table_is_asked_for_its_mapping(own_fit, tmp_path):
    runs = pd.read_csv(own_fit / "runs.csv").assign(tokens=lambda frame: frame["tokens"] / 1e9)
    for name in ("predictions.csv", "runs.csv"):
        runs.to_csv(tmp_path / name, index=False)
    shutil.copy(own_fit / "fit.json", tmp_path)
    assert len(find_available(str(tmp_path / "fit.json")).runs) == 36
    with (
        in_command(),
        pytest.raises(
            UserError, match=r"runs.csv: .*pass --trust-units. moejax explore does not have .* --save-mapping"
        ),
    ):
        find_available(str(tmp_path / "runs.csv"))


def test_a_table_alone_shows_its_runs_beside_the_published_laws(own_fit):
    available = find_available(str(own_fit / "runs.csv"))
    assert not available.own
    assert len(available.runs) == 36


def test_the_page_starts_at_the_largest_run_whose_numbers_are_known(tmp_path):
    runs = pd.DataFrame({"params_active": [1e8, None, 1e9], "flops": [1e18, 1e20, None], "loss": [3.0, 2.8, 2.6]})
    runs.to_csv(tmp_path / "runs.csv")
    assert find_available(str(tmp_path / "runs.csv")).start["flops"] == 1e18
    runs.assign(flops=math.nan).to_csv(tmp_path / "none.csv")
    assert find_available(str(tmp_path / "none.csv")).start == START


def test_a_table_in_its_own_words_is_read_as_fit_reads_it_and_starts_at_its_largest_run(tmp_path):
    rows = [f"run{i},{2 + i}e18,{10 * 2**i}M,{3.5 - 0.1 * i:.2f}" for i in range(4)]
    (tmp_path / "lab.csv").write_text("\n".join(["name,FLOPs,active params,loss", *rows]))
    available = find_available(str(tmp_path / "lab.csv"))
    assert {"flops", "params_active", "loss"} <= set(available.runs)
    start = available.start
    assert (start["flops"], start["params_active"]) == (5e18, 80e6)
    assert (start["expansion"], start["expert_expansion"]) == (1.0, 1.0), "a dense run starts as a dense model"


def test_names_of_files_stay_names(own_fit, tmp_path):
    folder = tmp_path / "a<script>alert(1)<" / "fits"
    folder.mkdir(parents=True)
    for name in ("<!--<script>.json", "@PAGE@.json"):
        shutil.copy(own_fit / "fit.json", folder / name)
    text = page(find_available(str(folder.parent)))
    assert "<script>alert" not in text
    assert "<!--<script>" not in text
    seen = PageInNode(text, tmp_path)
    (got,) = seen.ask(("fit:@PAGE@", START | {"unique_tokens": None}, ["loss"]))
    assert got["loss"] > 0


def test_a_fit_that_the_sliders_do_not_ask_is_named(tmp_path, own_fit):
    frame = pd.read_csv(own_fit / "runs.csv").rename(columns={"params_active": "width", "tokens": "words"})
    few = {"starts": Sobol(count=8), "seed": 0}
    fit_by_formula = fit(frame[["width", "words", "loss"]], "loss = E + A/width^a + B/words^b", **few)
    fit_by_formula.save(tmp_path / "fit.json")
    with pytest.raises(ValueError, match="it reads width, words"):
        page(find_available(str(tmp_path / "fit.json")))


def test_a_page_needs_no_other_file_and_is_small():
    text = page(find_available())
    assert len(text.encode()) < 1.5e6
    assert "@" not in text.split("<style>")[0]
    assert "src=" not in text.split("<script>")[0]


def test_the_page_is_written_and_nothing_else_is_replaced(tmp_path, capsys):
    path = tmp_path / "explorer.html"
    for _ in range(2):
        assert main(["explore", "--export", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    path.write_text("mine")
    (tmp_path / "link.html").symlink_to("nowhere.html")
    os.mkfifo(tmp_path / "pipe.html")
    for other in (path, tmp_path / "link.html", tmp_path / "pipe.html", tmp_path, "/dev/zero"):
        assert "is not a page of moejax explore" in complaint(capsys, "--export", str(other))
    assert path.read_text() == "mine"
    assert os.readlink(tmp_path / "link.html") == "nowhere.html"


def complaint(capsys, *words):
    assert main(["explore", *words]) == USERS
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    return said


def test_folders_and_files_that_hold_nothing_are_refused_in_a_sentence(capsys, tmp_path):
    assert "nowhere does not exist" in complaint(capsys, str(tmp_path / "nowhere"))
    assert "contains neither fit.json" in complaint(capsys, str(tmp_path))
    (tmp_path / "fit.json").write_text("{}")
    assert "fit again with moejax fit" in complaint(capsys, str(tmp_path))
    (tmp_path / "runs.csv").write_text("loss,width\n2.0,3\n")
    assert "no run can be drawn" in complaint(capsys, str(tmp_path / "runs.csv"))


def test_what_has_no_javascript_is_refused():
    with pytest.raises(ValueError, match="cannot compute erf"):
        javascript(lambda x: jax.lax.erf(x), 1.0)
    with pytest.raises(ValueError, match="array"):
        javascript(lambda x: jax.numpy.arange(3.0).sum() * x, 1.0)
