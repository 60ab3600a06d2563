"""A law by formula is fitted, saved, read again and asked like a law of the catalogue."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest

import moejax
from moejax.cli.command_line import run
from moejax.fit.fit_result import FitResult
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import FitObjective, Squared, data_of, describes_its_dimensions, outputs
from moejax.fit.search.starts import Sobol
from moejax.fit.tables.column_names import law_of_formula
from moejax.fit.tables.read_runs import read_runs
from moejax.fit.uncertainty.covariance import FAR_FROM_0, with_uncertainty
from moejax.float64 import float64
from moejax.laws.design import Design
from moejax.wording import in_command

LR = "lr = k*N^a*width^-c"


def table():
    """Runs of a known law of the best learning rate, in a column of another name, with a column of its own."""
    chance = np.random.default_rng(0)
    n, width = 10 ** chance.uniform(7, 10, 24), 2.0 ** chance.integers(8, 13, 24)
    tokens = 20 * n
    return pd.DataFrame({"params": n, "tokens": tokens, "width": width, "lr": 30 * n**-0.25 * width**-0.5})


def test_a_formula_of_any_target_and_column_is_fitted_saved_and_asked(tmp_path, capsys):
    table().to_csv(tmp_path / "runs.csv", index=False)
    out = str(tmp_path / "fit")
    assert (
        run(["fit", str(tmp_path / "runs.csv"), "--form", LR, "--starts", "64", "--hold-out", "width", "--out", out])
        == 0
    )
    said = capsys.readouterr()
    assert "columns lr, N (params_active), width. Its coefficients are k, c (positive); a (any sign)." in said.err
    assert LR in said.out
    assert "Errors on runs that were not fitted, units of lr" in said.out
    again = FitResult.load(f"{out}/fit.json")
    assert again.coefficients == pytest.approx({"k": 30, "a": -0.25, "c": 0.5}, rel=1e-6)
    read = read_runs(tmp_path / "runs.csv", LR)
    assert type(again.law) is law_of_formula(LR, table())
    assert moejax.fit(read, again.law, starts=Sobol(64)).coefficients == pytest.approx(again.coefficients, rel=1e-6)
    asked = again.predict(Design(params_active=1e9, columns={"width": 1024.0}))
    assert asked["lr"][0] == pytest.approx(30 * 1e9**-0.25 / 32, rel=1e-6)
    assert run(["predict", "--law", out, "--params-active", "1B", "--column", "width=1024", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["predictions"][0]
    assert answer["values"]["lr"] == pytest.approx(asked["lr"][0])
    for wrong in ("widht=1024", "tokens=9e9"):
        assert run(["predict", "--law", out, "--params-active", "1B", "--column", "width=1024", "--column", wrong]) == 2
    said = capsys.readouterr().err
    assert "reads no column widht; did you mean width" in said
    assert "--column tokens=… has its own option; give --tokens" in said
    with pytest.raises(ValueError, match=r"lr = k.*reads params_active and width; also give width"):
        again.predict(Design(params_active=1e9))


@pytest.mark.parametrize("names", [("N", "D", "L"), ("params", "tokens_b", "val_loss"), ("model_size", "D", "loss")])
def test_a_table_under_any_names_is_fitted_in_one_call_read_for_the_formula_or_not(names):
    chance, loss = np.random.default_rng(0), "E + A/N^alpha + B/D^beta"
    n, d = 10 ** chance.uniform(7, 9, 16), 10 ** chance.uniform(9, 11, 16)
    unit = 1e9 if names[1].endswith("_b") else 1.0
    given = pd.DataFrame(dict(zip(names, (n, d / unit, 1.7 + 400 / n**0.34 + 410 / d**0.28), strict=True)))
    for read in (given, read_runs(given, "chinchilla"), read_runs(given, f"loss = {loss}")):
        found = moejax.fit(read, f"loss = {loss}", starts=Sobol(64))
        assert found.coefficients == pytest.approx(
            {"E": 1.7, "A": 400, "alpha": 0.34, "B": 410, "beta": 0.28}, rel=1e-4
        )


WRONG = {
    "lr = k*N^a*widht^c": "has widht, which is not a column; did you mean width",
    "lr = k*N^a*C^b": r"C in the formula .* means flops, but the table has no flops. Pass mapping={.flops.: .COLUMN",
    "accuracy = k*N^a": "no column accuracy",
    "loss = E + A/N^a": "no column loss",
    "lr = k*sparsity^a": "reads no column",
    "lr = k*N^a, width = c*N^b": "has several targets .lr and width.; fit one target at a time",
}


def test_a_parabola_about_a_number_that_is_subtracted_is_found_whatever_the_unit():
    tokens = np.geomspace(1e9, 1e10, 3)
    runs = pd.DataFrame({"tokens": tokens, "loss": 3.3 + 0.08 * (np.log(tokens) - 21.8) ** 2})
    found = moejax.fit(runs, "loss = c + k*(log(D) - m)^2", starts=Sobol(64))
    assert found.coefficients == pytest.approx({"c": 3.3, "k": 0.08, "m": 21.8}, rel=1e-6)


def test_a_formula_is_asked_in_its_own_letters(tmp_path, capsys):
    runs = table()[["params", "tokens"]]
    losses = 1.7 + 400 * runs["params"] ** -0.34 + 410 * (0.3 * runs["tokens"]) ** -0.28
    runs.assign(loss=losses).to_csv(tmp_path / "runs.csv", index=False)
    words = ["fit", str(tmp_path / "runs.csv"), "--form", "loss = 1.7 + A/N^a + 410/(0.3*D)^0.28", "--starts", "32"]
    words += ["--budget", "C = 6*N*D", "--decide", "C=1e21", "--predict", "N=1e9,D=2e10", "--json"]
    assert run(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["predictions"][0]["given"] == {"params_active": 1e9, "tokens": 2e10}
    assert said["predictions"][0]["loss"] == pytest.approx(1.7 + 400 * 1e9**-0.34 + 410 * 6e9**-0.28)
    assert {one["given"]["flops"] for one in said["decisions"]} == {1e21}


@pytest.mark.parametrize("text", WRONG)
def test_a_formula_is_held_to_the_columns_of_the_table(text):
    with pytest.raises(ValueError, match=WRONG[text]):
        read_runs(table(), text)


def test_a_name_that_could_be_two_columns_is_asked():
    frame = table().rename(columns={"params": "params_active"}).assign(params_total=lambda f: 4 * f.params_active)
    with pytest.raises(ValueError, match=r"N in the formula .* could be params_active or params_total"):
        law_of_formula(LR, frame)


def test_other_columns_travel_with_their_runs():
    runs = read_runs(table(), LR).runs
    assert runs.output == "lr"
    half = runs.where(np.arange(24) % 2 == 0)
    np.testing.assert_array_equal(half.design.columns["width"], table()["width"][::2])
    assert half.data_hash != runs.data_hash
    with pytest.raises(ValueError, match="have no width"):
        fit_law(law_of_formula(LR, table()), read_runs(table(), ("params_active",), loss="lr").runs, output="lr")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--form", "lr = k*N^a", "--law", "chinchilla"], "--law and --form exclude each other"),
        (["--form", "lr = k*N^a", "--positive", "b"], "No formula has a coefficient b; choose from k, a"),
        (["--form", "lr = k*N^a", "--positive", "a", "--negative", "a"], "declared with two signs"),
        (["--law", "chinchilla", "--positive", "a"], "signs can only be declared with --form"),
        (["--form", "lr = k*N^a", "--recipe", "zhao"], "--recipe and --form exclude each other"),
        (["--form", "lr = k*N^a", "--budget", ""], "--budget is empty"),
        (["--form", "lr = k*N^"], "ends where a number, a name"),
    ],
)
def test_options_that_contradict_each_other_are_a_sentence(tmp_path, capsys, options, words):
    table().to_csv(tmp_path / "runs.csv", index=False)
    assert run(["fit", str(tmp_path / "runs.csv"), *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_formulas_are_compared_on_their_target(tmp_path, capsys):
    table().to_csv(tmp_path / "runs.csv", index=False)
    worse = "lr = k*N^a"
    assert run(["compare", str(tmp_path / "runs.csv"), "--form", worse, "--form", LR, "--hold-out", "params"]) == 0
    said = capsys.readouterr().out
    assert said.index(f"\n{LR}") < said.index(f"\n{worse} ")
    assert "RMSE in log lr" in said
    assert f"moejax fit {tmp_path}/runs.csv --form '{LR}'" in said


@pytest.mark.parametrize("least_or_greatest", ["min", "max"])
def test_where_a_column_ceases_to_matter_is_found_in_the_columns_own_unit(least_or_greatest):
    chance = np.random.default_rng(0)
    params, tokens = 10 ** chance.uniform(7, 9.5, 50), 10 ** chance.uniform(9, 12, 50)
    where = {"min": np.minimum, "max": np.maximum}[least_or_greatest](tokens, 3e10)
    frame = pd.DataFrame({"N": params, "D": tokens, "loss": 1.7 + 400 * params**-0.34 + 410 * where**-0.28})
    form = f"loss = E + A/N^a + B/{least_or_greatest}(D, T)^b"
    fitted = moejax.fit(read_runs(frame, form), law_of_formula(form, frame), starts=Sobol(256))
    assert fitted.coefficients["T"] == pytest.approx(3e10, rel=1e-3)
    assert not fitted.warnings


def test_a_coefficient_near_0_whose_sign_was_assumed_is_said_and_its_scale_is_not():
    chance = np.random.default_rng(1001)
    frame = table().assign(lr=lambda known: 30 * known["params"] ** -0.25 * np.exp(0.15 * chance.normal(size=24)))
    read = read_runs(frame, LR)
    with in_command():
        one = moejax.fit(read, law_of_formula(LR, frame), starts=Sobol(64))
    either = moejax.fit(read, law_of_formula(LR, frame, signs={"c": "any"}), starts=Sobol(64))
    found = one.conf_int()
    assert 0 < found["low"]["c"] < found["value"]["c"] < FAR_FROM_0 * found["std_err"]["c"]
    (said,) = [words for words in one.warnings if "sign" in words]
    assert said.startswith("The sign of c was assumed (positive), so its interval cannot contain 0; it is ")
    assert "--either c tests whether it differs from 0" in said
    assert either.conf_int()["value"]["c"] == pytest.approx(found["value"]["c"], rel=1e-3)
    assert either.conf_int()["low"]["c"] < 0
    assert not [words for words in either.warnings if "sign" in words]


def test_a_fit_that_ends_where_an_assumed_sign_stops_it_names_the_option_for_the_other():
    frame = table().assign(lr=lambda known: 3 * known["params"] ** -0.25 * known["width"] ** 0.3)
    law = law_of_formula(LR, frame)
    with in_command():
        stopped = moejax.fit(read_runs(frame, LR), law, starts=Sobol(64))
    assert "c" in stopped.unidentified
    assert "--either c searches both" in " ".join(stopped.warnings)
    either = moejax.fit(read_runs(frame, LR), law_of_formula(LR, frame, signs={"c": "any"}), starts=Sobol(64))
    assert either.coefficients["c"] == pytest.approx(-0.3, rel=1e-4)
    assert "--either" not in " ".join(either.warnings)


@pytest.mark.parametrize("covariance", ["sandwich", "gauss_newton"])
def test_an_effect_that_a_grid_hides_is_in_the_interval(covariance):
    tried, rows = 10.0 ** np.arange(-5, 0), []
    for params, tokens in itertools.product(10.0 ** np.array([6, 8, 10]), [1e9, 3e9, 1e10, 3e10]):
        away = np.log(tried / (0.7 * params**-0.5 * (tokens / 1e10) ** 0.05))
        rows += [
            {"params": params, "tokens": tokens, "lr": lr, "loss": 2 + x**2} for lr, x in zip(tried, away, strict=True)
        ]
    form = "lr = k*N^a*D^b"
    read = read_runs(pd.DataFrame(rows), form, best_by=["lr"])
    law = law_of_formula(form, pd.DataFrame(rows))
    fitted = with_uncertainty(fit_law(law, read.runs, starts=Sobol(64)), read.runs, covariance=covariance)
    assert fitted.coefficients["b"] == pytest.approx(0, abs=1e-6)
    found = fitted.conf_int().loc["b"]
    assert found["low"] < 0.05 < found["high"]
    # The standard error of a line through points that are rounded to a decade.
    logs = np.log(read.runs.design.tokens)
    expected = np.log(10) / np.sqrt(12) / (np.std(logs) * np.sqrt(len(logs)))
    assert found["std_err"] == pytest.approx(expected, rel=0.3)
    assert any("uncertain by 0.66 in its logarithm because of the grid" in words for words in fitted.warnings)
    assert fitted.noise == pytest.approx(np.log(10) / np.sqrt(12))


@pytest.mark.parametrize("power", ["N^1e9", "N^1e30", "(N/1e9)^1e6"])
def test_a_power_that_no_float_holds_is_a_sentence(tmp_path, capsys, power):
    table().assign(loss=lambda frame: 2 + frame["lr"]).to_csv(tmp_path / "runs.csv", index=False)
    assert run(["fit", str(tmp_path / "runs.csv"), "--form", f"loss = E + A/{power}"]) == 2
    assert "The objective is not finite at any initial guess: loss = E + A/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("tokens = k*N^a", "The formulas predict lr and tokens"),
        (LR.replace("*", " * "), "is given twice; give each formula once"),
    ],
)
def test_formulas_of_two_targets_or_the_same_formula_are_not_compared(tmp_path, capsys, other, words):
    table().to_csv(tmp_path / "runs.csv", index=False)
    assert run(["compare", str(tmp_path / "runs.csv"), "--form", LR, "--form", other]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e8, 1e-9])
def test_a_line_through_a_column_of_both_signs_has_the_errors_of_least_squares_in_any_unit(size):
    chance = np.random.default_rng(0)
    x = size * chance.normal(size=40)
    frame = pd.DataFrame({"x": x, "y": 5 + 0.5 * x / size + 0.02 * chance.normal(size=40)})
    read = read_runs(frame, "y = a + b*x")
    fitted = fit_law(law_of_formula("y = a + b*x", frame), read.runs, penalty=Squared("nats"), starts=Sobol(64))
    errors = with_uncertainty(fitted, read.runs, covariance="gauss_newton").conf_int()["std_err"]
    expected = np.polyfit(x, frame["y"], 1, cov=True)[1]
    assert errors[["b", "a"]].to_numpy() == pytest.approx(np.sqrt(np.diag(expected)), rel=1e-3)


@pytest.mark.slow
def test_a_power_of_a_constant_near_the_largest_float_has_no_standard_errors(tmp_path, capsys):
    frame = table()
    frame.assign(const=1e300, loss=np.linspace(2, 3, len(frame))).to_csv(tmp_path / "runs.csv", index=False)
    assert run(["fit", str(tmp_path / "runs.csv"), "--form", "loss = E + A/N^a + B*const^b"]) == 0
    shown = capsys.readouterr().out
    for name in ("E", "B", "b"):
        assert f"! The table does not determine {name}." in shown
        (row,) = [line for line in shown.splitlines() if line.startswith(f"{name} ")]
        assert "[" not in row
        assert "not set by the data" in row


def test_an_exponent_that_grows_with_size_is_fitted_in_plain_units_and_predicts_what_was_fitted():
    """Farseer's form: its terms under- or overflow at most coefficients, and no scale bears the unit of the tokens."""
    form = "loss = exp(s*N^q + S) + exp(B*N^b + Q)*D^-exp(A*N^a + E)"
    params, tokens = (one.ravel() for one in np.meshgrid(np.geomspace(1e8, 1e10, 5), np.geomspace(1e9, 1e11, 5)))
    loss = np.exp(6 * params**-0.1 - 1.6) + np.exp(4.0) * tokens ** -np.exp(0.8 * params**-0.01 - 1.8)
    frame = pd.DataFrame({"N": params, "D": tokens, "loss": loss})
    law, read = law_of_formula(form, frame), read_runs(frame, form, trust_units=True)
    assert not describes_its_dimensions(law, read.runs)
    objective = FitObjective(law, Squared())
    data = data_of(objective, read.runs, {})
    point = np.array([6.0, -0.1, -1.6, 0.1, 0.1, 3.0, 0.8, -0.01, -1.8])
    centered = np.asarray(objective.predicted(point, data))
    with float64():
        plain = np.asarray(outputs(objective.law_at(point, data), read.runs.design, "loss"))
    assert plain == pytest.approx(centered, rel=1e-5)


def test_a_search_that_ends_where_the_law_predicts_0_is_a_sentence():
    frame = table().assign(loss=lambda known: 3 - 0.1 * np.log(known["params"]))
    form = "loss = exp(a - b*N)"
    with pytest.raises(ValueError, match=r"predicts no loss above 0 for \d+ of 24 runs; give residual=\"log\""):
        moejax.fit(frame, form, penalty="squared", residual="nats", starts=4, fixed={"b": 1.0})
