"""A law of several outputs is fitted to one: what others alone depend on is no part of the fit."""

import jax
import numpy as np
import pytest

from moejax.__main__ import main
from moejax.fit.fit_result import FitResult, from_json
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.fit.uncertainty.estimands import prediction_estimand
from moejax.fit.uncertainty.profile import profile
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.budget.step_law import StepLaw
from moejax.laws.design import Design, design_from
from moejax.laws.formula_law import formula_law
from moejax.laws.law import coefficients, outputs_of, without_effect
from moejax.laws.predict import predict as ask

TRUTH = PUBLISHED["step_law"]["step-law-2025"].law
SEVERAL = [name for name, law in LAWS.items() if len(law.outputs) > 1 and "total_ratio" not in law.outputs]
OUTPUTS = ("learning_rate", "batch_tokens")


@pytest.fixture(scope="module")
def design():
    sizes, tokens = (values.ravel() for values in np.meshgrid(np.geomspace(1e8, 1e9, 6), [4e9, 2e10, 1e11]))
    return Design(params_total=sizes, tokens=tokens, params_embedding=np.zeros(len(sizes)))


def measured(design, output, scatter=0.05):
    exact = predict(TRUTH, runs_from(design, np.ones(18)), output)
    return runs_from(
        design, exact * np.exp(scatter * np.random.default_rng(0).normal(size=18)), group=range(18), output=output
    )


@pytest.mark.parametrize("name", SEVERAL)
def test_an_output_depends_on_the_coefficients_that_are_not_declared_to_be_of_others(name):
    law = next(iter(PUBLISHED[name].values())).law
    at = Design(**dict.fromkeys(law.inputs, 1000000000.0), params_embedding=0.0)
    for output in law.outputs:
        slopes = coefficients(jax.grad(lambda one, o=output: one(at)[o])(law))
        assert {n for n, slope in slopes.items() if slope == 0} == {*without_effect(type(law), output)}


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_fit_of_one_output_is_that_of_the_formula_of_it_alone(design, output, tmp_path):
    fit = fit_law(StepLaw, measured(design, output))
    form = {
        "learning_rate": "learning_rate = k*params_total_nonembedding^a*tokens^b",
        "batch_tokens": "batch_tokens = k*tokens^b",
    }
    read = ["params_total_nonembedding", "tokens"] if output == "learning_rate" else ["tokens"]
    values = {"params_total_nonembedding": design.params_total, "tokens": design.tokens}
    alone = formula_law(form[output], columns=read)
    same = runs_from(
        design_from({n: values[n] for n in read}), measured(design, output).loss, group=range(18), output=output
    )
    other = fit_law(alone, same)
    assert fit.free == other.free
    assert fit.aicc == pytest.approx(other.aicc, abs=1e-3)
    assert fit.noise == pytest.approx(other.noise, rel=0.05)
    assert not fit.unidentified
    assert fit.warnings == ()
    again = FitResult.load(with_uncertainty(fit, measured(design, output)).save(tmp_path / "fit.json"))
    assert {n for n, value in again.coefficients.items() if np.isnan(value)} == {*without_effect(StepLaw, output)}
    assert [*outputs_of(again.law)] == [output]
    own = next(name for name in again.coefficients if not again.state(name))
    plain = again.to_json()
    plain["law"]["coefficients"][own] = None
    with pytest.raises(TypeError, match=own):
        from_json(plain)
    asked = Design(params_total=2e9, params_embedding=0.0, tokens=1e11)
    assert [*ask(again, asked).values] == [output]
    assert all(np.isfinite([low, high]).all() for name, low, high in _intervals(again) if not again.state(name))


def _intervals(fit):
    return fit.conf_int()[["low", "high"]].itertuples()


@pytest.mark.parametrize("given", [{"batch_scale": 0.5}, {"batch_scale": 0.5, "batch_exponent": 0.6}])
def test_a_coefficient_of_another_output_may_be_given(given, design):
    fit = fit_law(StepLaw, measured(design, "learning_rate"), fixed=given)
    assert fit.free == 3
    assert given.items() <= fit.coefficients.items()
    assert [*outputs_of(fit.law)] == [*OUTPUTS[: len(given)]]
    assert fit.state("batch_scale") == "given"


def test_a_coefficient_of_another_output_is_not_profiled(design, table, capsys):
    words = ["fit", table, "--law", "step_law", "--loss", "learning_rate"]
    assert main([*words, "--profile", "batch_exponent"]) == 2
    assert "batch_exponent does not affect the fitted learning_rate" in capsys.readouterr().err
    assert "nan" not in with_uncertainty(fit_law(StepLaw, runs := measured(design, "batch_tokens")), runs).to_latex()


def test_laws_without_several_outputs_have_all_their_coefficients():
    for law in LAWS.values():
        if len(law.outputs) == 1:
            assert not without_effect(law, next(iter(law.outputs)))


def test_a_profile_is_walked_where_noise_is_far_beyond_hubers_delta(design):
    runs = measured(design, "batch_tokens")
    asked = prediction_estimand(StepLaw, {"params_total": 2e9, "params_embedding": 0, "tokens": 1e11}, "batch_tokens")
    found = profile(fit_law(StepLaw, runs), runs, asked.functional)
    assert found.low < found.middle < found.high < 2 * found.low


@pytest.fixture
def table(design, tmp_path):
    columns = {
        "params_total": design.params_total,
        "params_embedding": design.params_embedding,
        "tokens": design.tokens,
    }
    columns |= {"params_active": design.params_total}
    columns["flops"] = 6 * design.params_total * design.tokens
    columns |= {output: measured(design, output).loss for output in OUTPUTS}
    rows = [",".join(columns), *(",".join(map(repr, map(float, row))) for row in zip(*columns.values(), strict=True))]
    (tmp_path / "sweeps.csv").write_text("\n".join(rows))
    return str(tmp_path / "sweeps.csv")


RUN = "params_total=2e9,params_embedding=0,tokens=1e11"


def test_commands_speak_of_the_output_that_was_fitted(table, tmp_path, capsys):
    asked = ["--predict", RUN, "--bootstrap", "20", "--hold-out", "tokens", "--out", str(tmp_path / "fit")]
    assert main(["fit", table, "--law", "step_law", "--loss", "batch_tokens", *asked]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "batch_tokens (batch_tokens) params_total = 2B" in shown
    assert "of another output exponent of parameters" in shown
    file = str(tmp_path / "fit/fit.json")
    assert main(["predict", "--law", file, "--params-total", "2B", "--params-embedding", "1", "--tokens", "100B"]) == 0
    shown = capsys.readouterr().out
    assert "batch tokens" in shown
    assert "learning rate" not in shown
    assert main(["plot", "fit", "profile", "--fit", file, "--runs", table, "--out", str(tmp_path / "figures")]) == 0
    assert main(["report", str(tmp_path / "fit"), "--out", str(tmp_path / "report")]) == 0
    assert "log batch tokens</p>" in (tmp_path / "report/report.html").read_text()
    capsys.readouterr()
    words = ["next", table, "--law", "step_law", "--loss", "batch_tokens", "--flops", "1e21"]
    assert main([*words, "--target", f"learning_rate:{RUN}"]) == 2
    assert "The target learning_rate does not depend on the fitted batch_tokens" in capsys.readouterr().err


def test_laws_of_what_differs_by_factors_are_compared_by_logarithms(table, capsys):
    assert main(["compare", table, "--loss", "learning_rate", "--laws", "step_law,hyperparameters"]) == 0
    shown = capsys.readouterr().out
    assert "RMSE in log learning rate" in shown
    row = next(line.split() for line in shown.splitlines() if line.startswith("step_law "))
    assert float(row[2]) == pytest.approx(0.05, rel=0.5)


def test_a_figure_of_both_outputs_has_a_line_of_the_fitted_one_alone(table, tmp_path):
    assert (
        main(["fit", table, "--law", "hyperparameters", "--loss", "learning_rate", "--out", str(tmp_path / "fit")]) == 0
    )
    assert main(["plot", "tian-2", "--fit", str(tmp_path / "fit/fit.json"), "--out", str(tmp_path / "figures")]) == 0
    drawn = (tmp_path / "figures/tian-2.csv").read_text()
    assert "nan" not in drawn
    assert "the fit in" in drawn
