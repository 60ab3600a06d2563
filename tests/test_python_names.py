"""``import moejax as mj``: the few names that people need, imported when they are first used."""

import ast
import dataclasses
import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import moejax as mj
from moejax.errors import UserError
from moejax.fit.search.starts import Sobol
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.report.render import latex_text
from moejax.result import Column, Result, Table

STUB = ast.parse(Path(mj.__file__).with_suffix(".pyi").read_text())
OFFERED = {"read_runs", "fit", "FitResult", "laws", "Design", "design", "Architecture", "Training", "show"} | {
    *(
        "read_curves",
        "fit_curves",
        "compare",
        "decide",
        "leverage",
        "speedup",
        "predict",
        "next_runs",
        "plan",
        "plot",
        "report",
        "train",
        "Study",
    ),
}


@pytest.fixture(scope="module")
def table():
    """Twenty-four runs whose losses a law gives, but for a little noise."""
    active, tokens = (a.ravel() for a in np.meshgrid(np.geomspace(1e8, 1e9, 6), np.geomspace(2e9, 4e10, 4)))
    exact = [float(HOFFMANN_2022(mj.Design(params_active=n, tokens=d))) for n, d in zip(active, tokens, strict=True)]
    noise = np.exp(0.003 * np.random.default_rng(0).normal(size=len(exact)))
    return pd.DataFrame({"params_active": active, "tokens": tokens, "loss": np.asarray(exact) * noise})


def test_every_name_is_offered_and_typed():
    imported = {alias.asname for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == OFFERED
    # A name that the stub defines itself hides the package of that name from the documentation's parser.
    assert not [node for node in STUB.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert set(dir(mj)) == OFFERED | {"__version__"}
    for name in OFFERED:
        assert getattr(mj, name) is not None


def test_a_name_that_is_not_offered_is_none():
    with pytest.raises(AttributeError, match="has no attribute 'fitt'"):
        getattr(mj, "fitt")  # noqa: B009


def test_a_package_can_be_called_and_imported_from():
    for name in ("fit", "design", "plan", "report", "train"):
        package = importlib.import_module(f"moejax.{name}")
        assert getattr(mj, name) is package
        assert callable(package)
        assert inspect.getdoc(package.__wrapped__)
        assert "self" not in inspect.signature(package).parameters
        assert f"{name}{inspect.signature(package)}" in pydoc.render_doc(package)
        assert inspect.ismodule(package)


def test_looking_at_what_there_is_imports_no_jax():
    code = "import sys, moejax as mj; dir(mj); mj.__version__; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def _entry(design, number):
    return mj.Design(params_active=design.params_active[number], tokens=design.tokens[number])


def test_from_a_table_to_a_design_in_three_calls(table, tmp_path, capsys):
    read = mj.read_runs(table, "chinchilla")
    few = {"starts": Sobol(count=32), "seed": 1}
    fit = mj.fit(read, "hoffmann", **few)
    assert isinstance(fit, mj.FitResult)
    assert isinstance(fit.law, Chinchilla)
    assert fit.coefficients == mj.fit(table, Chinchilla, **few).coefficients
    frame = fit.conf_int()
    assert list(frame.index) == list(fit.coefficients)
    assert ((frame["low"] < frame["value"]) & (frame["value"] < frame["high"])).all()
    wider = fit.conf_int(0.99)
    assert (wider["low"] < frame["low"]).all()
    new = mj.Design(params_active=np.asarray([3e8, 7e10]), tokens=np.asarray([1e10, 1e12]))
    predicted = fit.predict(new)
    assert predicted["loss"].to_numpy() == pytest.approx([float(fit.law(_entry(new, i))) for i in range(2)], rel=1e-5)
    assert ((predicted["low"] < predicted["loss"]) & (predicted["loss"] < predicted["high"])).all()
    assert predicted["beyond"][0] == ""
    assert predicted["beyond"][1] == "flops 1.75e+03×; params_active 70×; tokens 25×"
    back = mj.FitResult.load(fit.save(tmp_path / "fit.json"))
    assert back.predict(new).equals(predicted)
    assert back.to_latex() == fit.to_latex()
    assert rf"$\alpha$ & ${fit.coefficients['params_exponent']:.4g}$ & $[" in fit.to_latex()
    with pytest.raises(ValueError, match=r"The law Chinchilla reads .*; also give tokens"):
        fit.predict(mj.Design(params_active=1e9))
    found = mj.design(fit, flops=1e22)
    assert found.optimum.values["flops"] == pytest.approx(1e22, rel=1e-6)
    assert found.optimum.values["loss"] < float(table["loss"].min())
    for answer, words in ((fit, "Chinchilla, fitted to 24 runs"), (found, "law: Chinchilla; constraints: flops")):
        mj.show(answer)
        assert words in capsys.readouterr().out


def test_the_help_of_every_function_lists_arguments_and_an_example():
    for where, names in ((mj, OFFERED), (mj.plot, {name for name in vars(mj.plot) if name.islower()})):
        for name in names - {"laws", "plot"}:
            one = getattr(getattr(where, name), "__wrapped__", getattr(where, name))
            if not inspect.isfunction(one) or one.__module__.startswith("moejax.papers") or name.startswith("_"):
                continue
            if where is mj.plot and (one.__module__ != "moejax.api.plot" or name == "figure_of"):
                continue
            text = inspect.getdoc(one) or ""
            assert ("Args:" in text) == bool(inspect.signature(one).parameters), name
            assert "Example:\n  >>> " in text, name
            described = text.partition("Args:")[2]
            for given in inspect.signature(one).parameters:
                assert re.search(rf"^ *{given}: |^ *{given}, |, {given}: ", described, re.MULTILINE), f"{name}: {given}"


def test_a_repr_is_a_few_lines_with_the_main_table():
    found = mj.predict("chinchilla", params_active=7e9, tokens=2e12)
    assert repr(found).splitlines() == [
        "Prediction",
        "output   value   unit",
        f"loss     {found.loss:.4g}   nats per token",
        "mj.show(…) prints everything; .summary() .to_frame() .to_latex()",
    ]
    rows = [[number, "x" * 70, "y" * 70] for number in range(9)]
    columns = [Column("row"), Column("x"), Column("y")]
    shown = repr(Result("Many", ["One. " * 60, "Two."], [Table("Rows", columns, rows)]))
    assert "… 3 more rows" in shown
    assert "y" * 70 not in shown
    assert "(1 more warning)" not in shown.splitlines()[0]
    assert len(shown.splitlines()) == 11


def test_a_repr_shows_stored_numbers_and_computes_no_summary(table, monkeypatch):
    fit = mj.fit(table, "chinchilla", starts=Sobol(count=32))
    compared = mj.compare(table, "chinchilla")

    def refuse(*_):
        raise AssertionError("a repr computes a summary")

    for cls in (type(fit), type(compared)):
        monkeypatch.setattr(cls, "summary", refuse)
    first, heads, *rows, _ = repr(fit).splitlines()
    assert first == "FitResult: Chinchilla, fitted to 24 runs – Coefficients"
    assert heads.split() == ["coefficient", "symbol", "value", "meaning"]
    assert [row.split()[0] for row in rows] == [*fit.coefficients]
    assert "chinchilla" in repr(compared)


NUMBER = re.compile(r"\[?[-+]?\d+(\.\d+)?(e[-+]?\d+)?\b")


def test_every_number_of_a_frame_is_a_number(table):
    read = mj.read_runs(table, ("params_active", "tokens"))
    fit = mj.fit(read, "chinchilla", starts=Sobol(count=32))
    decided = mj.decide(fit, flops=1e22)
    answers = {
        "fit": fit,
        "decisions": decided,
        "comparison": mj.compare(read, ["chinchilla", "loss = E + A/N^alpha"]),
        "design": mj.design(fit, flops=1e22),
        "speedup": mj.leverage({"expansion": 16}, {"expansion": 1}, law="effective_params", flops=1e24),
        "prediction": mj.predict("chinchilla", params_active=7e9, tokens=2e12),
        "runs": read.summary(),
    }
    for name, answer in answers.items():
        for shown in answer.summary().tables:
            if not shown.columns:
                continue
            frame = answer.to_frame(shown.title)
            texts = frame.select_dtypes(exclude="number")
            numbers = {column: one for column in texts for one in texts[column] if NUMBER.match(str(one))}
            assert not numbers, (name, shown.title)
    frame = fit.to_frame()
    assert frame[["low", "high"]].to_numpy() == pytest.approx(fit.conf_int()[["low", "high"]].to_numpy(), nan_ok=True)
    row = decided.to_frame().set_index("decided").iloc[0]
    assert (row["low"], row["high"]) == (decided.decisions[0].interval.low, decided.decisions[0].interval.high)
    assert {"behind", "low", "high"} <= {*answers["comparison"].to_frame()}
    assert {"flat_low", "flat_high", "low", "high"} <= {*answers["design"].to_frame()}


def test_a_prediction_takes_a_design_or_its_fields():
    assert mj.predict("chinchilla", params_active=7e9, tokens=2e12).loss == pytest.approx(
        mj.predict("chinchilla", mj.Design(params_active=7e9, tokens=2e12)).loss
    )
    with pytest.raises(UserError, match="no field 'params_activ'; did you mean params_active"):
        mj.predict("chinchilla", params_activ=7e9, tokens=2e12)
    with pytest.raises(UserError, match="Both a design and tokens are given"):
        mj.predict("chinchilla", mj.Design(params_active=7e9), tokens=2e12)


def test_runs_are_read_for_every_law_at_once_with_their_notes(table):
    read = mj.read_runs(table.assign(num_expert=8))
    assert [*read.summary().to_frame()["column"]] == ["params_active", "tokens", "loss"]
    assert read.to_frame().equals(read.frame)
    assert read.notes == (
        'Column num_expert is not read. If it is num_experts, pass mapping={"num_experts": "num_expert"}.',
    )
    assert repr(read).splitlines()[0] == "ReadRuns: 24 runs, 1 note – Columns"
    few = {"starts": Sobol(count=32), "seed": 1}
    one_law = mj.read_runs(table, "chinchilla")
    assert mj.fit(read, "chinchilla", **few).coefficients == mj.fit(one_law, "chinchilla", **few).coefficients


def test_an_answer_writes_itself_from_its_summary():
    found = mj.predict(HOFFMANN_2022, mj.Design(params_active=7e9, tokens=2e12))
    (row,) = found.to_frame().to_dict("records")
    assert row == {"output": "loss", "value": found.loss, "unit": "nats per token"}
    assert found.to_latex().splitlines()[2:5] == [r"\toprule", r"output & value & unit \\", r"\midrule"]
    shown = Result("a < b", ["x & y"], [Table("Rates", [Column("µ_s", ".2f", unit="%")], [[1.0]])], ["50 %"])
    assert shown._repr_html_() == "\n".join(
        [
            '<div class="moejax"><style>.moejax td:first-child, .moejax .words {text-align: left}</style>',
            "<h3>a &lt; b</h3>",
            "<p><strong>! x &amp; y</strong></p>",
            "<h4>Rates</h4>",
            "<table>\n<thead><tr><th>µ_s, %</th></tr></thead>\n<tbody>\n<tr><td>1.00</td></tr>\n</tbody>\n</table>",
            "<p>50 %</p>",
            "</div>",
        ]
    )
    assert shown._repr_mimebundle_()["text/plain"].splitlines()[0] == "a < b"
    assert r"µ\_s, \% \\" in shown.to_latex()
    with pytest.raises(UserError, match="no table 'Rate'; give one of its tables: Rates") as mistake:
        shown.to_frame("Rate")
    assert mistake.value._render_traceback_() == [f"UserError: {mistake.value}"]


def test_laws_are_compared_and_drawn_from_a_table(table, tmp_path):
    read = mj.read_runs(table, ("params_active", "tokens"))
    compared = mj.compare(read, ["chinchilla", "loss = E + A/N^alpha"])
    assert list(compared.to_frame()["law"]) == ["chinchilla", "loss = E + A/N^alpha"]
    assert "Laws compared" in compared._repr_html_()
    assert all(latex_text(reason) in compared.to_latex() for reason in compared.reasons)
    assert compared.plot().save(tmp_path / "compared.pdf").read_bytes().startswith(b"%PDF")
    assert compared.plot(read).rows == compared.plot().rows
    with pytest.raises(UserError, match=r"give the result of moejax\.read_runs"):
        dataclasses.replace(compared, read=None).plot()
    with pytest.raises(UserError, match="is not a figure file name"):
        mj.plot.runs(table.assign(flops=1e18)).save(tmp_path / "runs.bmp")


def test_a_leverage_is_of_two_tables_or_of_a_law_and_has_its_earlier_name(table):
    assert mj.speedup is mj.leverage
    ours = table.assign(flops=6 * table["params_active"] * table["tokens"])
    found = mj.leverage(ours, ours.assign(loss=1.01 * ours["loss"]), flops=1e20)
    assert found.rows[0].leverage > 1
    by_law = mj.leverage({"expansion": 16}, {"expansion": 1}, law="effective_params", flops=1e24)
    assert by_law.rows[0].leverage > 1
    assert by_law.families == ("expansion=16", "expansion=1")
    with pytest.raises(UserError, match="With a law, flops is required"):
        mj.leverage({"expansion": 16}, {"expansion": 1}, law="effective_params")
    with pytest.raises(UserError, match="where applies to tables of runs"):
        mj.leverage("glm-4.5", "kimi-k2", law="zhao", flops=1e24, where=["tokens>1"])


def test_a_fit_with_held_out_runs_shows_and_stores_their_errors(table, tmp_path):
    fit = mj.fit(table, "chinchilla", starts=Sobol(count=32), hold_out="tokens")
    errors = fit.to_frame("Errors on runs that were not fitted, nats/token")
    compared = mj.compare(table, "chinchilla", hold_out="tokens").laws[0]
    assert errors["RMSE"].iloc[0] == pytest.approx(compared.rmse, rel=0.05)
    loaded = mj.FitResult.load(fit.save(tmp_path / "fit.json"))
    assert str(loaded.summary()) == str(fit.summary())
    assert loaded.to_json() == fit.to_json()
    with pytest.raises(UserError, match="hold_out selects rows of a table"):
        mj.fit(mj.read_runs(table).runs, "chinchilla", hold_out="tokens")


def test_completion_offers_public_names_of_a_fit_only(table):
    fit = mj.fit(table, "chinchilla", starts=Sobol(count=32))
    assert len(dir(fit)) < 35
    assert {"summary", "predict", "plot", "save", "coefficients"} <= {*dir(fit)}
    assert all(hasattr(fit, name) for name in dir(fit))


def test_a_fit_decides_with_intervals(table):
    read = mj.read_runs(table, "chinchilla")
    fit = mj.fit(read, "chinchilla", starts=Sobol(count=32))
    asked = mj.decide(fit, read, flops=1e22)
    size = next(one for one in asked.decisions if one.name == "optimal_params_active")
    assert size.interval.low < size.value < size.interval.high
    assert [one.times["flops"] for one in asked.beyond] == pytest.approx([1e22 / (6 * 1e9 * 4e10)])
    assert list(asked.to_frame()["value"]) == [one.value for one in asked.decisions]
    assert any(f"{asked.beyond[0].times['flops']:.3g} times in flops" in one for one in asked.summary().warnings)
    resampled = mj.decide(fit, read, flops=1e22, bootstrap=20)
    assert "df" in asked.to_frame()
    assert resampled.to_frame().notna().all(axis=None)
    assert [one.times for one in mj.decide(fit, flops=1e22).beyond] == [one.times for one in asked.beyond]
    with pytest.raises(UserError, match="bootstrap resamples the fitted runs"):
        mj.decide(fit, flops=1e22, bootstrap=10)
    with pytest.raises(UserError, match="has no decision for expansion"):
        mj.decide(fit, read, expansion=16)


def test_a_fit_of_few_groups_decides_and_designs_without_intervals_and_says_what_to_do(table):
    sizes = sorted(table["params_active"].unique())
    few = table[table["params_active"].isin(sizes[::2])]
    fit = mj.fit(few, "chinchilla", starts=Sobol(count=32))
    said = "3 groups cannot determine the errors of 5 coefficients"
    asked = mj.decide(fit, flops=1e22)
    assert all(one.few == said and one.interval is None for one in asked.decisions)
    (warning,) = (one for one in asked.summary().warnings if one.startswith(said))
    assert "Train more groups" in warning
    assert 'group="COLUMN"' in warning
    designed = mj.design(fit, flops=1e22)
    assert designed.intervals == {}
    assert warning in designed.summary().warnings
    figure = mj.plot.loss_vs_compute(fit, few, flops=1e22)
    assert "There are no intervals: lines are dashed." in figure.caption
    assert "Bands are" not in figure.caption


def test_a_figure_of_loss_against_compute_reads_a_table_and_has_the_level_that_is_given(table, tmp_path):
    fit = mj.fit(table, "chinchilla", starts=Sobol(count=32))
    table.to_csv(tmp_path / "runs.csv", index=False)
    by_read, *others = (
        mj.plot.loss_vs_compute(fit, runs, flops=1e22).rows
        for runs in (mj.read_runs(table, "chinchilla"), table, tmp_path / "runs.csv")
    )
    assert all(rows == by_read for rows in others)
    for runs in (table, None):
        assert "Bands are 50% intervals" in mj.plot.loss_vs_compute(fit, runs, flops=1e22, level=0.5).caption


def test_a_figure_marks_the_model_of_a_decision(table):
    fit = mj.fit(table, "chinchilla", starts=Sobol(count=32))
    (best,) = (one for one in mj.decide(fit, flops=1e22).decisions if one.name == "optimal_loss")
    rows = mj.plot.loss_vs_compute(fit, table, decide={"flops": 1e22}).rows
    (marked,) = [row for row in rows if row["series"].startswith("design")]
    drawn = [marked[f"loss_nats_per_token{end}"] for end in ("", "_low", "_high")]
    assert drawn == pytest.approx([best.value, best.interval.low, best.interval.high], rel=1e-6)
    assert marked["flops"] == pytest.approx(1e22, rel=1e-6)
    with pytest.raises(UserError, match="decide needs a fit and no design"):
        mj.plot.loss_vs_compute(fit.law, table, decide={"flops": 1e22})


def test_a_named_figure_asks_for_arguments_of_python(table):
    with pytest.raises(UserError, match=r"mj\.plot\.named\('loss-vs-compute', runs, law=fit\), or synthetic=True"):
        mj.plot.named("loss-vs-compute")
    with pytest.raises(UserError, match=r"give one as `table`, or synthetic=True"):
        mj.plot.named("restarts")
    with pytest.raises(UserError, match=r"mj\.plot\.names\(\) lists all"):
        mj.plot.named("los-vs-compute")
    fit = mj.fit(table, "chinchilla", starts=Sobol(count=32))
    assert mj.plot.named("loss-vs-compute", table, law=fit).rows == mj.plot.loss_vs_compute(fit, table).rows
    assert mj.plot.influence(fit, table, "params_exponent").rows
    assert "loss-vs-compute" in [*mj.plot.names().to_frame()["name"]]


@pytest.mark.slow
def test_the_next_runs_are_proposed_for_an_answer(table):
    to_know = {"loss": {"params_active": 7e9, "tokens": 2e12}}
    found = mj.next_runs(table, "chinchilla", to_know, flops=1e20, most=3, reading={"where": ["tokens>1"]})
    assert 1 <= len(found.to_frame()) <= 3
    assert len(found.titles) == 1
    with pytest.raises(UserError, match="no law"):
        mj.next_runs(table, "chinchila", to_know, flops=1e20)
    with pytest.raises(UserError, match="give a larger budget or `reach`"):
        mj.next_runs(table, "chinchilla", to_know, flops=1e10)


def test_the_next_runs_are_chosen_from_a_table_of_candidates(table, tmp_path):
    to_know = {"loss": {"params_active": 7e9, "tokens": 2e12}}
    possible = pd.DataFrame({"model": ["a", "b", "c"], "params_active": [1e8, 1e9, 2e9], "tokens": [4e9, 4e10, 8e11]})
    possible.to_csv(tmp_path / "mine.csv", index=False)
    how = {"flops": 1e21, "around": "hoffmann-2022", "noise": 0.003}
    found = mj.next_runs(table, "chinchilla", to_know, candidates=possible, **how).to_frame()
    assert {*found["run"]} <= {"a", "b"}, "c is above the budget"
    again = mj.next_runs(table, "chinchilla", to_know, candidates=tmp_path / "mine.csv", **how).to_frame()
    pd.testing.assert_frame_equal(found, again)
    small = mj.next_runs(table, "chinchilla", to_know, candidates=possible, largest=1e19, **how).to_frame()
    assert [*small["run"]] == ["a"]
    with pytest.raises(UserError, match="every row has more than 1e\\+18 FLOPs"):
        mj.next_runs(table, "chinchilla", to_know, candidates=possible, largest=1e18, **how)
    with pytest.raises(UserError, match="leave out `like`"):
        mj.next_runs(table, "chinchilla", to_know, candidates=possible, like="dense-6.1b", **how)


@pytest.mark.slow
def test_a_design_holds_what_it_is_told():
    found = mj.design("zhao", flops=1e24, params_total=1e12, hold={"active_experts": 5})
    assert found.optimum.values["active_experts"] == pytest.approx(5)
    assert "active_experts = 5" in found.config().splitlines()[0]
    with pytest.raises(ValueError, match="Nothing constrains the design"):
        mj.design("zhao")
    with pytest.raises(ValueError, match=r"There is no law 'zaho'; did you mean zhao"):
        mj.design("zaho", flops=1e24)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "moe-mini"])
def test_a_design_follows_a_published_model_with_windows_or_without_and_a_convention(name):
    designed = mj.design("effective_params", flops=1e22, params_total=30e9, like=name, convention="6-params-active")
    assert designed.built is not None
    measures = designed.built.measures
    assert measures["flops"] == pytest.approx(6 * measures["params_active"] * measures["tokens"])
    with pytest.raises(UserError, match="did you mean moe-mini"):
        mj.design("effective_params", flops=1e22, like="moe-mino")
    with pytest.raises(UserError, match=r'convention="6-params" is unknown; did you mean 6-params-active'):
        mj.design("effective_params", flops=1e22, convention="6-params")


def test_a_design_says_if_a_published_model_is_better_under_the_same_constraints():
    # The default proportions are those of a large model.
    designed = mj.design("effective_params", flops=1e22, params_total=30e9)
    (said,) = (one for one in designed.summary().warnings if "is better under the same constraints" in one)
    name = re.search(r"The published model (\S+) is better", said)[1]
    assert f'like="{name}"' in said
    loss = {key: one.prediction.values["loss"] for key, one in designed.published.items() if not one.broken}
    assert name == min(loss, key=loss.get)
    assert loss[name] < designed.built.prediction.values["loss"]


def test_the_model_to_train_has_the_prediction_interval_of_a_new_run(table):
    fit = mj.fit(table, "chinchilla", starts=Sobol(count=32))
    designed = mj.design(fit, flops=1e22)
    built = designed.built
    (row,) = fit.predict(Design(params_active=built.measures["params_active"], tokens=built.tokens)).to_dict("records")
    assert designed.built_interval == pytest.approx((row["low"], row["high"]))
    said = designed.summary()
    assert f"prediction interval [{row['low']:.4f}, {row['high']:.4f}]" in str(said.tables[0].notes)
    # The runs are far smaller.
    assert any("The optimum over sizes lies outside the law's fitted range: flops" in one for one in said.warnings)


def test_a_public_class_name_stands_for_one_thing():
    places: dict[str, list[str]] = {}
    for path in sorted(Path(mj.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.name)
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_a_test_files_name_stands_once_because_pytest_imports_files_by_their_names():
    places: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        if path.name not in ("conftest.py", "__init__.py"):
            places.setdefault(path.name, []).append(str(path))
    assert not {name: where for name, where in places.items() if len(where) > 1}
