"""Reports of tables and fits that no study of ours wrote: any size, any columns, a useful page or a sentence."""

import json
import math
import shutil

import numpy as np
import pandas as pd
import pytest
from known_study import TRUTH, _fit
from test_report import Page

from moejax import run_table
from moejax.__main__ import main
from moejax.cli.command_line import DONE, USERS
from moejax.fit.runs import runs_from
from moejax.fit.selection.metrics import metrics
from moejax.folder import WRITTEN
from moejax.laws.dense.chinchilla import HOFFMANN_2022
from moejax.laws.design import Design
from moejax.quantities import format
from moejax.report import synthetic
from moejax.report.conclusions import conclusions, worth
from moejax.report.findings import is_mixture, read
from moejax.report.page import COMPUTE, DATA, PAGE, TEXT, write_report
from moejax.report.render import markdown
from moejax.stored import write_json
from moejax.study import run as study_run
from moejax.study.analysis import Analysed, limits
from moejax.study.compute_optimum import prices
from moejax.study.run import conclude_table


@pytest.fixture
def unfitted(monkeypatch):
    """Conclusions without any law."""

    def nothing(table, analysis, update):
        frame = study_run.run_table.read(table)
        return Analysed(runs=len(frame), laws=[], decisions=[], selection=None, limits=limits(frame, [], []))

    monkeypatch.setattr(study_run, "analyse", nothing)


def _page(table, folder, **options):
    concluded = conclude_table(table, "runs.csv", folder, lambda share, text: None, **options)
    text = write_report(concluded).read_text(encoding="utf-8")
    assert Page(text).open == []
    return text


def test_a_table_is_fitted_decided_and_reported(tmp_path):
    table = synthetic.runs(60)
    text = _page(table, tmp_path, laws=("chinchilla",), resamples=12)
    assert 'id="predicted_vs_actual"' in text
    assert "10 % more training FLOPs would change the lowest loss by" in text
    assert text.count("✓ algebra checked") == 2
    assert "confirmed by" not in text
    assert "expansion 1.00" not in text
    data = json.loads((tmp_path / DATA).read_text())
    assert len(data["runs"]) == 60
    off = data["laws"][0]["held_out"]["mae"]
    assert f"The law's mean error is {off:.4f} nats/token on held-out runs" in text
    assert data["decisions"][0]["flops"] == pytest.approx(10 * table["flops"].max())
    assert "| coefficient | symbol | fitted |" in (tmp_path / TEXT).read_text()


@pytest.mark.parametrize("count", [500, 10_000])
@pytest.mark.matrix(1)
def test_pages_of_many_runs_stay_small_and_hold_every_run(tmp_path, unfitted, count):
    text = _page(synthetic.runs(count), tmp_path)
    assert len(text.encode()) < 8e6
    assert f"{count:,} runs of {count // 4:,} models" in text
    assert len(json.loads((tmp_path / DATA).read_text())["runs"]) == count


def test_one_run_is_a_page_that_says_why_nothing_was_fitted(tmp_path):
    text = _page(synthetic.runs(1), tmp_path)
    assert "No law could be fitted to these runs" in text
    assert "chinchilla was not fitted: 1 run cannot determine the 5 free coefficients" in text


@pytest.mark.parametrize("columns", [["loss"], ["loss", "tokens"], ["loss", "flops", "params_active"]])
def test_a_table_of_few_columns_is_a_page(tmp_path, unfitted, columns):
    text = _page(synthetic.runs(12)[columns], tmp_path)
    assert "12 runs" in text
    concluded = conclude_table(synthetic.runs(12)[columns], "x", tmp_path, lambda *_: None)
    assert markdown(conclusions(read(concluded))).startswith("# x")


def test_a_run_is_a_mixture_by_its_experts_or_by_its_total_and_neither_if_both_are_unknown():
    table = pd.DataFrame({"params_active": [1e8, 1e8, 1e8], "params_total": [1e8, 4e8, np.nan]})
    assert is_mixture(table[:2]).tolist() == [False, True]
    assert is_mixture(table.assign(num_experts=[1, np.nan, 8])).tolist() == [False, True, True]
    assert is_mixture(table) is None
    assert is_mixture(table[["params_active"]]) is None


def test_names_that_no_two_rows_share_are_no_models(tmp_path, unfitted):
    table = synthetic.runs(12)
    models = table["model"].nunique()
    named = _page(table.assign(model=[f"run-{row}" for row in range(12)]), tmp_path)
    assert f"12 runs of {models} models" in named
    first = run_table.read(tmp_path / "runs.parquet").drop_duplicates("model")["model"]
    assert len(first) == models
    assert all(name.startswith("run-") for name in first), "a model has the name of its first run"


def test_runs_that_are_groups_of_their_own_keep_their_names(tmp_path, unfitted):
    table = synthetic.runs(12)
    names = [f"run-{row}" for row in range(12)]
    page = _page(table.assign(model=names, group=names), tmp_path)
    assert "12 runs" in page
    assert "12 runs of" not in page
    assert sorted(run_table.read(tmp_path / "runs.parquet")["model"]) == sorted(names)


def test_names_of_runs_may_be_empty_or_no_names_of_folders(tmp_path, unfitted):
    names = [None, "n" * 500, "../../elsewhere", "/absolute", "<b>bold</b>"]
    text = _page(synthetic.runs(12).assign(model=[*names, *(f"run-{row}" for row in range(7))]), tmp_path)
    assert "row 1" in text
    assert "<b>bold</b>" not in text


def test_dense_models_with_no_expert_and_one_that_serves_are_a_page(tmp_path, unfitted):
    table = synthetic.runs(12).assign(num_experts=0, top_k=1, num_shared_experts=0)
    _page(table.drop(columns=["sparsity"], errors="ignore"), tmp_path)
    assert (run_table.read(tmp_path / "runs.parquet")["sparsity"] == 0).all()


def test_runs_without_a_loss_are_left_out_and_counted(tmp_path, unfitted):
    table = synthetic.runs(8)
    table.loc[2, "loss"] = np.nan
    assert "1 rows have no loss and are omitted." in _page(table, tmp_path)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--where", "tokens > 1B"], "--where"),
        (["--laws", "chinchilla", "--loss", "train_loss"], "--loss and --laws"),
        (["--flops", "1e20"], "--flops"),
        (["--best-by", "learning_rate", "--resamples", "10"], "--best-by and --resamples"),
        (["--out", "elsewhere"], "--out"),
    ],
)
def test_what_is_asked_of_a_table_alone_is_refused_of_a_study_and_of_a_fit(concluded, fit_file, capsys, words, named):
    assert main(["report", str(concluded.folder), *words]) == 2
    said = capsys.readouterr().err
    assert f"is a study, and its report does not use {named}. Leave" in said
    assert f"or give {concluded.folder / 'runs.parquet'} for a report of these runs" in said
    if named != "--out":
        assert main(["report", str(fit_file), *words]) == 2
        assert f"is a fit, and its report does not use {named}" in capsys.readouterr().err


def test_a_report_without_resamples_is_refused_by_the_name_of_the_option(capsys):
    assert main(["report", "runs.csv", "--resamples", "0"]) == USERS
    assert "--resamples is 0; give a whole number from 10 to 100,000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("loss\n", "has no rows"),
        ("entropy,tokens\n3,1e9\n", "has no column loss"),
        ("loss,tokens\n,1e9\n", "loss is empty"),
    ],
)
def test_a_table_that_holds_no_runs_is_a_sentence(tmp_path, capsys, content, sentence):
    (tmp_path / "runs.csv").write_text(content)
    assert main(["report", str(tmp_path / "runs.csv")]) == USERS
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_prices_are_what_solving_again_gives():
    found = prices("effective_params", TRUTH, 1e20, 8.0)
    from moejax.laws.mixtures.effective_params import compute_optimal

    def least(flops, expansion):
        claim = compute_optimal(TRUTH, flops, expansion)
        return float(claim.objective(claim.value))

    step = 1e-3
    flops = (least(1e20 * math.exp(step), 8.0) - least(1e20 * math.exp(-step), 8.0)) / (2 * step)
    expansion = (least(1e20, 8.0 * math.exp(step)) - least(1e20, 8.0 * math.exp(-step))) / (2 * step)
    assert found["flops"] == pytest.approx(flops, rel=1e-3)
    assert found["expansion"] == pytest.approx(expansion, rel=1e-3)
    assert found["flops"] < 0


def test_a_dense_decision_has_no_price_of_expansion(concluded):
    sentences = {decision.expansion > 1: len(worth(decision)) for decision in concluded.analysed.decisions}
    assert sentences == {True: 2, False: 1}


def test_proposed_runs_in_the_folder_are_on_the_page(tmp_path, unfitted):
    asked = "params_active at 1e24"
    proposed = {
        "runs": [
            {
                "label": None,
                "params_active": 3e8,
                "params_total": 2e9,
                "tokens": 6e9,
                "flops": 1.1e19,
                "variance_left": 0.4,
            }
        ],
        "flops": 1.1e19,
        "deviation_of_log_before": {asked: 0.2},
        "deviation_of_log_after": {asked: 0.12},
    }
    write_json(tmp_path / "next.json", proposed)
    text = _page(synthetic.runs(8), tmp_path)
    assert 'id="next"' in text
    assert "expected to reduce the standard deviation to 60.0% of its present value" in text


@pytest.fixture
def fit_file(tmp_path):
    table = synthetic.runs(20)
    design = Design(**{name: table[name].to_numpy() for name in TRUTH.inputs})
    fit = _fit(TRUTH, metrics(TRUTH, runs_from(design, table["loss"].to_numpy())))
    return fit.save(tmp_path / "fit.json")


def test_a_fit_is_a_page_with_the_figures_of_its_law(fit_file, tmp_path, capsys):
    assert main(["report", str(fit_file), "--out", str(tmp_path / "out")]) == DONE
    parsed = Page((tmp_path / "out" / PAGE).read_text())
    assert parsed.open == []
    assert {"figure-chapter-002-grid", "coefficients", "provenance"} <= set(parsed.names)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {PAGE, TEXT, DATA, WRITTEN, ".lock"}
    assert "report:" in capsys.readouterr().out


EVIDENCE = {f"figure-{name}" for name in ("loss-vs-compute", "fit", "profile", "influence", "starts")}
"""Figures that are drawn of the runs beside a fit."""


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """What ``moejax fit`` leaves, of a table whose columns have other names."""
    folder = tmp_path_factory.mktemp("fitted")
    design = Design(params_active=np.geomspace(1e7, 1e9, 8), tokens=np.tile([1e9, 2e9, 4e9, 8e9], 2))
    loss = HOFFMANN_2022(design) * np.exp(np.random.default_rng(0).normal(0, 3e-3, 8))
    table = pd.DataFrame({"N": design.params_active, "D": design.tokens, "entropy": np.asarray(loss, np.float64)})
    table.to_csv(folder / "runs.csv", index=False)
    words = ["--map", "params_active=N", "--map", "tokens=D", "--loss", "entropy", "--out", str(folder)]
    words += ["--decide", "flops=1e22", "--bootstrap", "12", "--hold-out", "params_active", "--influence", "N*"]
    words += ["--profile", "N*", "--predict", "params_active=2e9,tokens=1e10"]
    assert main(["fit", str(folder / "runs.csv"), "--law", "chinchilla", *words]) == DONE
    return folder


@pytest.fixture(scope="module")
def reported(fitted, tmp_path_factory):
    """The report of what ``moejax fit`` leaves."""
    folder = tmp_path_factory.mktemp("reported")
    assert main(["report", str(fitted), "--out", str(folder)]) == DONE
    return folder


def test_a_fit_beside_its_runs_is_a_page_with_what_it_rests_on(reported):
    text = (reported / PAGE).read_text()
    assert set(Page(text).names) >= {*EVIDENCE, "figure-held-out-ranges"}
    assert text.index("optimal_params_active (N*) at flops = 1e+22") < text.index('id="coefficients"')
    assert (reported / COMPUTE).read_bytes().startswith(b"%PDF")


def test_predictions_of_other_runs_are_not_taken_for_a_fit_s(fitted, tmp_path):
    shutil.copy(fitted / "fit.json", tmp_path)
    others = pd.read_csv(fitted / "predictions.csv").assign(entropy=2.0)
    others.to_csv(tmp_path / "predictions.csv", index=False)
    assert main(["report", str(tmp_path / "fit.json"), "--out", str(tmp_path / "out")]) == DONE
    assert not set(Page((tmp_path / "out" / PAGE).read_text()).names) & EVIDENCE


ANSWERS = ("held_out", "held_out_runs", "decisions", "predictions", "profiles", "influence", "bootstrap", "beyond")


def test_what_was_asked_of_a_fit_is_in_its_report(fitted, reported):
    page, text = (reported / PAGE).read_text(), (reported / TEXT).read_text()
    data, found = json.loads((reported / DATA).read_text()), json.loads((fitted / "fit.json").read_text())
    assert {name: data[name] for name in ANSWERS} == {name: found[name] for name in ANSWERS}
    sections = ["decisions", "fit", "coefficients", "held-out", "held-out-runs", "resamples", "predictions"]
    sections += ["profiles", "decisive"]
    assert [name for name in Page(page).names if name in sections] == sections
    missed, optimum = found["held_out"][0], found["decisions"][0]
    for shown in (page, text):
        assert f"{missed['errors']['rmse']:.5f}" in shown
        assert f"{missed['fitted']['rmse']:.5f}" in shown
        assert f"[{format(optimum['interval']['low'])}, {format(optimum['interval']['high'])}]" in shown
        assert format(found["profiles"][0]["low"], 5) in shown
        assert f"{found['beyond'][0]['times']['flops']:.3g} times in flops" in shown
    assert f'<p class="big">{missed["errors"]["rmse"]:.4f} nats/token</p>' in page


def _changed(fitted, folder, **parts):
    found = json.loads((fitted / "fit.json").read_text()) | parts
    write_json(folder / "fit.json", found)
    assert main(["report", str(folder / "fit.json"), "--out", str(folder / "out")]) == DONE
    return (folder / "out" / PAGE).read_text(), (folder / "out" / TEXT).read_text()


@pytest.mark.parametrize("open_ones", [0, 1])
def test_what_the_resamples_do_not_determine_is_marked(fitted, tmp_path, open_ones):
    narrow = {"low": 1.0, "middle": 1.1, "high": 1.2, "deviation": 0.1, "undefined": 0.0, "uninformative": False}
    names = json.loads((fitted / "fit.json").read_text())["law"]["coefficients"]
    intervals = dict.fromkeys(names, narrow) | {"params_scale": narrow | {"high": 100.0 if open_ones else 1.2}}
    found = json.loads((fitted / "fit.json").read_text())["bootstrap"] | {"coefficients": intervals}
    page, text = _changed(fitted, tmp_path, bootstrap=found, decisions=[])
    assert page.count('<span class="badge open">not determined</span>') == open_ones
    assert text.count("not determined") == open_ones


@pytest.mark.parametrize(("far", "warned"), [(0.0149, False), (0.0151, True)])
def test_a_law_that_misses_the_runs_held_out_is_a_warning_with_both_errors(fitted, tmp_path, far, warned):
    found = json.loads((fitted / "fit.json").read_text())
    split, tested = found["held_out"][0], found["held_out_runs"]
    split["errors"]["rmse"], split["fitted"]["rmse"] = far, 0.01
    outside = {**tested, "runs": [{**run, "half_ranges": 3.0} for run in tested["runs"]]}
    for shown in _changed(fitted, tmp_path, held_out=[split], held_out_runs=outside):
        assert (f"Held-out RMSE {far:.5f} nats/token (" in shown) == warned
        assert ("times the fitted 0.01000" in shown) == warned
    data = json.loads((tmp_path / "out" / DATA).read_text())
    assert any("Held-out RMSE" in warning for warning in data["warnings"]) == warned


def test_a_fit_without_answers_has_none_of_their_sections(fit_file, tmp_path):
    assert main(["report", str(fit_file), "--out", str(tmp_path / "out")]) == DONE
    names, text = Page((tmp_path / "out" / PAGE).read_text()).names, (tmp_path / "out" / TEXT).read_text()
    assert "| coefficient | symbol | value | meaning |\n" in text
    assert not {"held-out", "resamples", "decisions", "predictions", "profiles", "decisive"} & set(names)


def test_columns_that_no_run_has_are_left_out_of_the_tables(tmp_path, unfitted):
    whole, few = synthetic.runs(12), ["loss", "tokens", "flops", "params_active"]
    full, bare = _page(whole, tmp_path / "whole"), _page(whole[few], tmp_path / "few")
    assert [page.count(">total</th>") for page in (full, bare)] == [2, 0]
    assert [page.count(">active</th>") for page in (full, bare)] == [2, 2]
    assert "of – parameters" not in bare
    assert ">–</td>" not in bare


def test_a_long_name_breaks_at_its_separators(tmp_path, unfitted):
    name = "dense-512x8_lr=3e-4_wd=0.1/seed=0_second-attempt-after-<crash>"
    text = _page(synthetic.runs(8).assign(model=name), tmp_path)
    broken = (
        "dense-<wbr>512x8_<wbr>lr=<wbr>3e-4_<wbr>wd=<wbr>0.1/<wbr>seed=<wbr>0_<wbr>second-<wbr>attempt-<wbr>after-<wbr>"
    )
    assert f'<p class="big long">{broken}&lt;crash&gt;</p>' in text
