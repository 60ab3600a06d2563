"""A fit finds the law that made the runs, and says when it cannot."""

import dataclasses
import inspect
import json

import numpy as np
import pytest
from known_fit import known_fit, known_runs, sweep

from moejax.cli.commands.fit import FitCommand
from moejax.cli.parser import parse_command
from moejax.fit.fit_result import FitResult, from_json
from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import EVERY_START, chosen, fit_law
from moejax.fit.search.objective import FitObjective, Huber, Squared, data_of
from moejax.fit.search.starts import Grid, Sobol, WarmStart
from moejax.fit.selection.metrics import errors, predict
from moejax.float64 import float64
from moejax.laws import PUBLISHED
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design
from moejax.laws.formula_law import formula_law
from moejax.laws.law import coefficients
from moejax.laws.mixtures.effective_params import CHAPTER_002, EffectiveParams
from moejax.report import render


def test_rounding_and_the_order_of_the_starts_do_not_decide_between_equally_good_optima():
    one, other, worse = np.array([0.5, -1.0, 2.0]), np.array([0.5, 2.0, -1.0]), np.array([0.1, 0.1, 0.1])
    for noise in (1e-12, -1e-12):
        points, values = np.stack([other, worse, one]), np.array([2.0, 2.1, 2.0 * (1 + noise)])
        for order in ([0, 1, 2], [2, 1, 0]):
            np.testing.assert_array_equal(points[order][chosen(points[order], values[order])], one)


def test_a_law_of_two_exchangeable_terms_has_the_same_coefficients_from_starts_in_any_order():
    sizes = np.geomspace(1e7, 1e10, 24)
    table = {"size": sizes, "loss": 1.5 + 60 * sizes**-0.25 + 3e7 * sizes**-1.0}
    law = formula_law("loss = E + A/size^a + B/size^b", ("size",))
    runs = runs_from(Design(columns={"size": sizes}), table["loss"])

    def backwards(objective, data):
        return Sobol(64)(objective, data)[::-1]

    first, second = (fit_law(law, runs, starts=starts).coefficients for starts in (Sobol(64), backwards))
    assert first == pytest.approx(second, rel=1e-3)


def test_the_command_and_python_search_in_the_same_way():
    command = parse_command("fit", ["runs.csv", "--law", "chinchilla"])
    assert isinstance(command, FitCommand)
    # fit_law has the defaults of the starts and of the search.
    assert command.how() == {"penalty": Huber(), "seed": inspect.signature(fit_law).parameters["seed"].default}


@pytest.mark.parametrize("truth", [HOFFMANN_2022, CHAPTER_002])
def test_a_law_is_recovered_from_the_losses_it_predicts(truth):
    found = fit_law(type(truth), sweep(truth)).coefficients
    for name, value in coefficients(truth).items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


def test_the_optimum_is_stationary_in_every_coefficient():
    """marin #749."""
    assert known_fit().converged
    assert known_fit().gradient_norm < 1e-8


def test_no_nearby_law_fits_better():
    objective = FitObjective(EffectiveParams, Huber())
    for name, value in known_fit().coefficients.items():
        for factor in (0.999, 1.001):
            law = dataclasses.replace(known_fit().law, **{name: value * factor})
            penalty = np.sum(np.asarray(objective.penalty(predict(law, known_runs()), known_runs().loss)))
            assert penalty > known_fit().value


def test_the_objective_is_the_sum_of_penalties_in_units_of_predicting_one_loss_for_all_runs():
    objective = FitObjective(EffectiveParams, Huber())
    data = data_of(objective, known_runs(), {})
    with float64():
        value = float(objective(objective.point_of(known_fit().law, data), data, known_runs().weight))
    one_loss = np.full(len(known_runs()), np.exp(np.mean(np.log(known_runs().loss))))
    unit = np.mean(np.asarray(objective.penalty(one_loss, known_runs().loss)))
    assert value == pytest.approx(known_fit().value / unit, rel=1e-5)


def test_the_fit_does_not_depend_on_the_units_of_the_runs():
    thousands = dataclasses.replace(
        known_runs(),
        design=dataclasses.replace(known_runs().design, tokens=known_runs().design.tokens / 1e3),
        weight=known_runs().weight,
    )
    found = fit_law(EffectiveParams, thousands)
    assert found.value == pytest.approx(known_fit().value, rel=1e-6)
    exponent = known_fit().coefficients["tokens_exponent"]
    assert found.coefficients["tokens_scale"] == pytest.approx(
        known_fit().coefficients["tokens_scale"] * 1e3**-exponent, rel=1e-4
    )


def test_a_weight_of_two_is_a_run_given_twice():
    runs = sweep(HOFFMANN_2022, noise=0.01)
    twice = runs.where(np.concatenate([np.arange(115), np.arange(5)]))
    once = np.where(np.arange(120) < 115, 1.0, 0.0)
    weighted = dataclasses.replace(twice, weight=np.where(np.arange(120) < 5, 2.0, once))
    one, other = fit_law(Chinchilla, weighted), fit_law(Chinchilla, twice)
    assert one.value == pytest.approx(other.value, rel=1e-9)
    assert one.coefficients == pytest.approx(other.coefficients, rel=1e-5)


def test_equal_weights_of_any_size_give_the_same_coefficients():
    weight = 1e-20
    runs = sweep(HOFFMANN_2022, noise=0.01)
    plain = fit_law(Chinchilla, runs)
    weighed = fit_law(Chinchilla, dataclasses.replace(runs, weight=np.full(len(runs), weight)))
    assert weighed.coefficients == pytest.approx(plain.coefficients, rel=1e-5)
    assert weighed.value == pytest.approx(weight * plain.value, rel=1e-9)


def test_a_given_coefficient_stays_as_it_was_given():
    found = fit_law(EffectiveParams, known_runs(), fixed={"irreducible": 1.6, "params_scale": 400.0})
    assert found.coefficients["irreducible"] == 1.6
    assert found.coefficients["params_scale"] == pytest.approx(400.0, rel=1e-12)
    assert found.value > known_fit().value
    assert found.fixed == {"irreducible": 1.6, "params_scale": 400.0}


@pytest.mark.slow
def test_squared_errors_are_minimized_when_asked():
    found = fit_law(EffectiveParams, known_runs(), penalty=Squared())
    assert found.metrics.rmse_log <= known_fit().metrics.rmse_log
    assert found.value == pytest.approx(len(known_runs()) * found.metrics.rmse_log**2, rel=1e-9)


def test_a_result_comes_back_from_its_file_as_a_law_that_can_be_called(tmp_path):
    back = FitResult.load(known_fit().save(tmp_path / "fit.json"))
    assert back == known_fit()
    np.testing.assert_array_equal(predict(back.law, known_runs()), predict(known_fit().law, known_runs()))


def test_a_result_that_names_a_law_from_elsewhere_is_not_loaded():
    plain = json.loads(json.dumps(known_fit().to_json()))
    plain["law"]["module"] = "os"
    with pytest.raises(ValueError, match=r"only laws of moejax\.laws"):
        from_json(plain)


def test_a_file_that_is_no_fit_is_a_sentence(tmp_path):
    path = tmp_path / "fit.json"
    path.write_text("[1]")
    with pytest.raises(ValueError, match="written by another program; fit again"):
        FitResult.load(path)


def test_a_column_that_never_varies_is_named_as_undetermined():
    runs = sweep(HOFFMANN_2022, noise=0.003)
    flat = dataclasses.replace(runs.design, tokens=np.full(len(runs), 1e11))
    found = fit_law(Chinchilla, runs_from(flat, predict(HOFFMANN_2022, dataclasses.replace(runs, design=flat))))
    assert "tokens_exponent" in found.unidentified
    assert any("tokens is the same in all runs" in sentence for sentence in found.unidentified_directions)


def test_a_dense_table_cannot_set_what_experts_are_worth():
    runs = sweep(HOFFMANN_2022, noise=0.003)
    dense = dataclasses.replace(runs, design=dataclasses.replace(runs.design, params_total=runs.design.params_active))
    assert "expansion_exponent" in fit_law(EffectiveParams, dense).unidentified


def test_the_summary_names_every_coefficient_and_the_data():
    text = render.text(known_fit().summary())
    assert all(name in text for name in known_fit().coefficients)
    assert known_fit().data_hash in text


def test_every_start_of_a_grid_can_be_followed():
    """OLMo-core #554."""
    runs = sweep(HOFFMANN_2022, noise=0.003)
    grid = Grid(
        {
            "irreducible": [1.0, 2.0],
            "params_scale": [1e2, 1e3],
            "params_exponent": [0.0, 0.3],
            "tokens_scale": [1e2, 1e3],
            "tokens_exponent": [0.3],
        }
    )
    found = fit_law(Chinchilla, runs, starts=grid, search=EVERY_START)
    assert found.starts == found.polished == 16
    assert found.value == pytest.approx(fit_law(Chinchilla, runs).value, rel=1e-9)


def test_starting_at_given_laws_is_enough_when_they_are_near():
    found = fit_law(EffectiveParams, known_runs(), starts=WarmStart((CHAPTER_002,)))
    assert found.starts == 1
    assert found.value == pytest.approx(known_fit().value, rel=1e-9)


def test_progress_reaches_its_total_in_every_stage():
    seen = {}
    fit_law(EffectiveParams, known_runs(), progress=lambda stage, done, total: seen.update({stage: (done, total)}))
    assert set(seen) == {"screening", "first steps", "polishing"}
    assert all(done == total for done, total in seen.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fixed": {"alpha": 1.0}}, "has no coefficient alpha"),
        ({"fixed": dict.fromkeys(coefficients(CHAPTER_002), 1.0)}, "leave at least one"),
        ({"starts": Grid({"irreducible": [1.0]})}, "no values for params_scale"),
    ],
)
def test_a_request_that_cannot_be_met_is_a_sentence(change, words):
    with pytest.raises(ValueError, match=words):
        fit_law(EffectiveParams, known_runs(), **change)


def test_fewer_runs_than_coefficients_are_refused():
    few = known_runs().where(np.arange(len(known_runs())) < 5)
    with pytest.raises(ValueError, match="5 runs cannot determine the 6 free coefficients"):
        fit_law(EffectiveParams, few)


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="the runs have no params_total"):
        fit_law(
            EffectiveParams,
            runs_from(Design(params_active=known_runs().design.params_active, tokens=1e9), known_runs().loss),
        )


def test_when_all_starts_fail_the_reason_is_given():
    absurd = WarmStart((dataclasses.replace(CHAPTER_002, params_exponent=1e5),))
    with pytest.raises(ValueError, match=r"is NaN or infinite for \d+ of 120 runs"):
        fit_law(EffectiveParams, known_runs(), starts=absurd)


def test_a_size_that_is_no_number_is_named_with_its_run():
    design = dataclasses.replace(
        known_runs().design, params_total=np.where(np.arange(len(known_runs())) == 3, np.nan, 1e10)
    )
    with pytest.raises(ValueError, match="params_total is nan in run 4"):
        fit_law(EffectiveParams, dataclasses.replace(known_runs(), design=design))


def test_a_loss_that_cannot_be_is_named_with_its_run_also_among_chosen_ones():
    chosen = known_runs().where(np.arange(len(known_runs())) >= 40)
    loss = np.where(np.arange(len(chosen)) == 2, -1.0, chosen.loss)
    with pytest.raises(
        ValueError, match=r"The loss is -1\.0 in run 43, and not above 0 in 1 run in all; correct these runs"
    ):
        fit_law(EffectiveParams, dataclasses.replace(chosen, loss=loss))


def test_a_size_is_found_however_far_from_the_runs_it_lies():
    """Kaplan's N_c, at which the loss would be 1, is a million times these models; the search ended before it."""
    truth = PUBLISHED["kaplan"]["kaplan-2020"].law
    sizes = np.repeat(np.geomspace(1e6, 1e9, 5), 3)
    design = Design(params_active=sizes, tokens=np.tile([5.0, 30.0, 200.0], 5) * sizes)
    exact = predict(truth, runs_from(design, np.ones(15)))
    found = fit_law(type(truth), runs_from(design, exact), starts=Sobol(64))
    assert not found.unidentified
    assert found.coefficients == pytest.approx(coefficients(truth), rel=1e-4)


def test_errors_whose_squares_no_float_holds_have_no_r_squared():
    found = errors(np.array([3.0, 2.9, 2.8]), np.array([3.0, 2.9, 1e308]), np.ones(3))
    assert found.mae == pytest.approx(1e308 / 3)
    assert found.rmse == np.inf
    assert np.isnan(found.r_squared)
