"""Laws are compared on the same runs, and the one that made them wins."""

import dataclasses
import json
import re

import numpy as np
import pytest
from known_fit import known_runs

from moejax.__main__ import main
from moejax.errors import UserError
from moejax.fit.runs import runs_from
from moejax.fit.search.objective import Squared
from moejax.fit.selection import holdout
from moejax.fit.selection.comparison import compare, of_the_loss
from moejax.fit.selection.holdout import Split, largest
from moejax.fit.selection.metrics import errors, predict
from moejax.fit.selection.model_selection import by_error, choose
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.fit.uncertainty.estimands import decision_estimands
from moejax.fit.uncertainty.estimates import estimate
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.dense.chinchilla import HOFFMANN_2022
from moejax.laws.design import Design
from moejax.laws.law import law as law_class
from moejax.report import render

NAMES = ["chinchilla", "effective_params", "sparsity"]


@pytest.fixture(scope="module")
def found():
    return compare(of_the_loss(LAWS, NAMES), known_runs(), [largest(known_runs(), "tokens")])


def test_the_law_that_made_the_runs_predicts_them_best(found):
    assert found.laws[0].name == "effective_params"
    assert found.laws[0].errors.rmse < 0.5 * found.laws[1].errors.rmse
    assert "effective_params predicts the held-out runs best" in found.verdict


def test_the_verdict_says_which_law_to_extrapolate_with_why_and_how_far_that_was_tested(found):
    fitted, held_out = (
        known_runs().design.tokens[kept] for kept in (~found.splits[0].held_out, found.splits[0].held_out)
    )
    assert found.beyond["tokens"] == pytest.approx(held_out.max() / fitted.max())
    assert (
        "For extrapolation, trust effective_params: it has the lowest error on held-out runs that reach beyond"
        in found.verdict
    )
    assert f"{found.beyond['tokens']:.3g} times in tokens" in found.verdict
    assert found.to_json()["trusted"] == "effective_params"


def as_good(law, best, **fit):
    """A law with the errors of another, and as likely by all runs."""
    return dataclasses.replace(law, held_out=best.held_out, fit=dataclasses.replace(law.fit, aicc=best.fit.aicc, **fit))


def test_laws_as_good_as_each_other_are_a_tie_and_the_simplest_is_named(found):
    best, other = found.laws
    plain = as_good(other, best)
    tied = dataclasses.replace(found, laws=(best, plain))
    assert len(other.fit.coefficients) < len(best.fit.coefficients)
    assert (tied.selection.trusted, tied.selection.preferred) == (None, "chinchilla")
    assert "Of these laws, chinchilla is the simplest, with 5 coefficients" in tied.verdict
    assert tied.selection.tied == ("chinchilla",)
    assert "do not distinguish effective_params from chinchilla" in tied.verdict
    assert tied.to_json()["trusted"] is None


def test_of_a_tie_the_law_that_has_both_the_lowest_error_and_the_lowest_aicc_is_preferred(found):
    best, other = found.laws
    for more, preferred in ((0.5, best.name), (-0.5, "chinchilla")):
        fit = dataclasses.replace(other.fit, aicc=best.fit.aicc + more)
        tied = dataclasses.replace(found, laws=(best, dataclasses.replace(other, held_out=best.held_out, fit=fit)))
        assert (tied.selection.trusted, tied.selection.preferred) == (None, preferred)
        both = f"Of these laws, {best.name} has both the lowest held-out error and the lowest AICc"
        assert (both in tied.verdict) == (preferred == best.name)


def test_a_law_whose_aicc_is_7_higher_is_not_preferred(found):
    best, other = found.laws
    fit = dataclasses.replace(other.fit, aicc=best.fit.aicc + 7)
    third = dataclasses.replace(best, name="third", fit=dataclasses.replace(best.fit, aicc=best.fit.aicc - 0.1))
    laws = (best, third, dataclasses.replace(other, held_out=best.held_out, fit=fit))
    tied = dataclasses.replace(found, laws=laws)
    assert tied.selection.preferred != "chinchilla"
    assert "All runs together are evidence against chinchilla" in tied.verdict


def test_of_tied_laws_with_as_few_coefficients_all_are_named_and_the_lowest_error_decides(found):
    best, other = found.laws
    close = as_good(other, best)
    worse = dataclasses.replace(missing(close, 1 - 1e-5), name="kaplan")
    assert worse.errors.rmse > close.errors.rmse
    for laws in ((worse, close, best), (best, close, worse)):
        selection = choose(laws, found.reach)
        assert selection.preferred == "chinchilla"
        said = (
            "chinchilla and kaplan are the simplest, with 5 coefficients each; chinchilla has the lowest held-out error"
        )
        assert said in selection.sentence


@pytest.mark.parametrize("undetermined", [0, 1])
def test_a_law_that_the_runs_do_not_determine_does_not_prevent_a_recommendation(found, undetermined):
    laws = [found.laws[0], dataclasses.replace(found.laws[1], held_out=found.laws[0].held_out)]
    lost = dataclasses.replace(laws[undetermined].fit, unidentified={"irreducible": "nothing depends on it"})
    laws[undetermined] = dataclasses.replace(laws[undetermined], fit=lost)
    selection, other = choose(laws, found.reach), laws[1 - undetermined].name
    assert (selection.trusted, selection.preferred, selection.contenders) == (other, other, (other,))
    assert selection.tied == (laws[1].name,)
    assert f"trust {other}: it has one of the lowest errors" in selection.reasons[0]
    assert selection.reasons[1] == f"Laws with equally low errors that do not count: {laws[undetermined].name}."
    assert "do not determine some of the laws" in selection.reasons[2]


@pytest.mark.parametrize(("more", "trusted"), [(9.0, False), (11.0, True)])
def test_an_aicc_that_is_higher_by_10_ends_a_tie(found, more, trusted):
    best, other = found.laws
    close = as_good(other, best)
    close = dataclasses.replace(close, fit=dataclasses.replace(close.fit, aicc=best.fit.aicc + more))
    selection = choose([best, close], found.reach)
    assert (selection.trusted == best.name) == trusted
    assert ("chinchilla" in selection.contenders) != trusted
    assert "All runs together are evidence against chinchilla" in selection.sentence


def test_the_table_counts_what_the_data_do_not_set_and_says_that_a_fit_is_to_all_runs(found):
    best = found.laws[0]
    lost = dataclasses.replace(best.fit, unidentified={"irreducible": "nothing depends on it"})
    table = dataclasses.replace(found, laws=(dataclasses.replace(best, fit=lost),)).summary("").tables[0]
    row = dict(zip((column.name for column in table.columns), table.cells()[0], strict=True))
    assert row["not set by the data"] == "1"
    assert best.fit.metrics.runs == len(known_runs())
    assert row["RMSE all runs"] == f"{best.fit.metrics.rmse:.5f}"


def test_the_law_that_fits_closest_is_not_trusted_for_that(found):
    best, other = found.laws
    proud = dataclasses.replace(other, fit=best.fit)
    swapped = dataclasses.replace(found, laws=(dataclasses.replace(best, fit=other.fit), proud))
    assert re.search(r"chinchilla fits all runs closest .* but has \d+\.\d times the lowest", swapped.verdict)
    assert swapped.selection.trusted == "effective_params"

    nothing = [dataclasses.replace(one, predicted=np.full_like(one.predicted, np.nan)) for one in proud.held_out]
    silent = dataclasses.replace(proud, held_out=tuple(nothing))
    verdict = dataclasses.replace(swapped, laws=(swapped.laws[0], silent)).verdict
    assert "chinchilla fits all runs closest" in verdict
    assert "but is NaN or infinite for some held-out run; a close fit" in verdict
    assert "nan" not in verdict


def test_held_out_runs_inside_the_table_say_nothing_of_extrapolation():
    middle = np.argsort(known_runs().design.tokens)[40:60]
    inside = np.isin(np.arange(len(known_runs())), middle)
    inside &= known_runs().design.params_total < known_runs().design.params_total.max()
    inside &= known_runs().design.params_active < known_runs().design.params_active.max()
    found = compare(of_the_loss(LAWS, ["chinchilla"]), known_runs(), [Split(name="the middle", held_out=inside)])
    assert found.beyond == {}
    assert found.reach == {}
    assert "does not test extrapolation" in found.verdict
    assert "Within the sizes of the runs, use chinchilla: it is the only law" in found.verdict
    assert "trust" not in found.verdict
    assert found.to_json()["trusted"] is None


def test_laws_whose_held_out_errors_are_equal_to_every_digit_share_the_first_place(found):
    best, other = found.laws
    twins = (best, dataclasses.replace(best, name="its_twin"), as_good(other, best))
    verdict = dataclasses.replace(found, laws=twins).verdict
    assert verdict.startswith(f"{best.name}, its_twin and {other.name} predict the held-out runs equally well")
    assert "has the lowest held-out error" not in verdict


def test_nothing_held_out_is_nothing_to_compare_by():
    with pytest.raises(ValueError, match="give at least one split"):
        compare(of_the_loss(LAWS, NAMES), known_runs(), [])


def test_a_law_whose_columns_are_missing_is_left_out_with_the_reason(found):
    assert "num_experts" in found.left_out["sparsity"]
    assert "\n\n- sparsity is left out: " in render.markdown(found.summary("", verbose=True))
    assert "Left out: sparsity. summary(verbose=True) gives the reasons." in render.markdown(found.summary(""))


def test_every_law_of_the_loss_is_compared_unless_some_are_named():
    assert set(of_the_loss(LAWS)) == {n for n, law in LAWS.items() if "loss" in law.outputs}


def test_the_isoflop_surface_is_left_out_with_the_reason():
    found = compare(
        of_the_loss(LAWS, ["chinchilla", "isoflop_surface"]), known_runs(), [largest(known_runs(), "tokens")]
    )
    assert "one FLOP budget" in found.left_out["isoflop_surface"]


def test_how_far_a_law_is_behind_the_best_has_an_interval_and_a_law_is_not_behind_itself(found):
    best, other = found.laws
    behind = found.behind(other)
    assert 0 < behind.low < other.errors.rmse - best.errors.rmse < behind.high
    assert (found.behind(best).low, found.behind(best).high) == (0.0, 0.0)
    assert found.selection.tied == ()
    assert found.to_json()["laws"][1]["behind"]["low"] == behind.low


def test_a_test_that_hardly_reaches_beyond_the_fitted_runs_names_no_law(found):
    selection = choose(found.laws, {"tokens": 1.25})
    assert selection.trusted is None
    assert "exceed the fitted sizes by a factor of 1.25" in selection.sentence
    assert choose(found.laws, {"tokens": 2.5}).trusted == "effective_params"


def test_a_factor_of_2_between_rounded_sizes_is_a_test_of_extrapolation(found):
    assert choose(found.laws, {"tokens": 52.083 / 26.042}).trusted == "effective_params"
    assert choose(found.laws, {"tokens": 1.97}).trusted is None


def test_a_law_that_the_runs_do_not_determine_is_not_trusted_however_low_its_error(found):
    best, other = found.laws
    few = dataclasses.replace(best.fit.metrics, runs=11)
    held_out = tuple(dataclasses.replace(one, fit=dataclasses.replace(one.fit, metrics=few)) for one in best.held_out)
    lost = dataclasses.replace(best.fit, unidentified={"irreducible": "no prediction depends on it"})
    for undetermined in (dataclasses.replace(best, held_out=held_out), dataclasses.replace(best, fit=lost)):
        selection = choose([undetermined, other], found.reach)
        assert selection.trusted is None
        assert selection.title == "undetermined"
        assert "because the runs do not determine the laws with the lowest error" in selection.sentence


def test_the_next_step_is_a_fit_for_extrapolation_only_of_the_law_that_is_recommended(found):
    best, other = found.laws
    assert found.next_steps("fit {}".format) == ["Next: fit effective_params"]
    assert found.summary().notes == ['Next: fit = moejax.fit(runs, "effective_params")']
    kaplan = next(iter(PUBLISHED["kaplan"].values())).law
    without = dataclasses.replace(best, name="kaplan", fit=dataclasses.replace(best.fit, law=kaplan))
    said = dataclasses.replace(found, laws=(without, other)).next_steps()
    assert said[-1] == ("Then: moejax.design(fit, flops=FLOPS), because moejax.decide does not apply to kaplan.")
    tied = dataclasses.replace(found, laws=(best, as_good(other, best)))
    decide, train, fit = tied.next_steps()
    assert "To decide nevertheless: moejax.decide(comparison, flops=" in decide
    assert "moejax.next_runs" in train
    assert fit.endswith('fit = moejax.fit(runs, "chinchilla")')
    assert len(tied.next_steps(decided=True)) == 2


def test_the_decisions_of_tied_laws_are_those_of_their_fits_and_the_safest_loses_least(found):
    best, other = found.laws
    tied = dataclasses.replace(found, laws=(best, as_good(other, best)))
    example = tied.example()
    design, least = found.runs.design, int(np.argmin(found.runs.loss))
    assert example["flops"] == pytest.approx(60 * design.params_active[least] * design.tokens[least], rel=0.5)
    assert example["expansion"] == pytest.approx(design.expansion[least], rel=0.01)
    decisions = tied.decide(**example)
    assert {*decisions.decided} == {best.name, other.name}
    for law in (best, other):
        given = {"flops": example["flops"]} if law is other else example
        alone = estimate(with_uncertainty(law.fit, found.runs), decision_estimands(type(law.fit.law), given))
        values = {one.name: one.value for one in alone}
        assert {one.name: one.value for one in decisions.decided[law.name]}.items() <= values.items()
    excess = {name: max(others.values()) for name, others in decisions.excess.items()}
    assert all(loss >= 0 for loss in excess.values())
    assert excess[decisions.safest] == min(excess.values())
    frame = decisions.to_frame()
    assert list(frame["law"]) == [best.name, other.name]
    with pytest.raises(UserError, match="No law has a decision for top_k"):
        tied.decide(flops=1e22, top_k=2)


def test_errors_on_runs_that_what_is_left_says_nothing_of_are_luck():
    """Three budgets, of which one is held out: of two values of tokens any E + B/D^beta can be made."""
    sizes, tokens = np.repeat(np.geomspace(1e8, 3e9, 5), 3), np.tile([2e9, 1e10, 5e10], 5)
    design = Design(params_active=sizes, tokens=tokens)
    noise = np.exp(0.002 * np.random.default_rng(0).normal(size=15))
    runs = runs_from(design, predict(HOFFMANN_2022, runs_from(design, np.ones(15))) * noise)
    laws = of_the_loss(LAWS, ["chinchilla", "kaplan"])
    found = compare(laws, runs, [largest(runs, "tokens")])
    one, other = sorted(found.laws, key=lambda law: law.name)
    (split,), (told,) = one.held_out, other.held_out
    assert "do not determine irreducible, tokens_scale and tokens_exponent" in split.left_open
    assert not told.left_open, "two values set a scale and an exponent"
    assert "The held-out errors of chinchilla are arbitrary" in found.verdict
    assert found.selection.trusted != "chinchilla"
    assert "is arbitrary" in choose([one], found.reach).sentence
    # An arbitrary error may be the lowest. It neither wins nor ties.
    lucky = dataclasses.replace(one, held_out=(dataclasses.replace(split, predicted=split.runs.loss),))
    assert lucky.rmse == 0
    ranked = dataclasses.replace(found, laws=tuple(by_error([lucky, other])))
    assert [law.name for law in ranked.laws] == ["kaplan", "chinchilla"]
    assert (ranked.selection.best, ranked.selection.tied, ranked.selection.preferred) == ("kaplan", (), "kaplan")
    assert ranked.verdict.startswith("kaplan predicts the held-out runs best")
    assert "and do not count in the ranking" in ranked.verdict
    (said,) = holdout.warnings(holdout.split_errors(one.held_out))
    assert said.startswith("The error on tokens ≥ 5e+10 is arbitrary: ")
    # With a fourth budget three are left, which set all three coefficients.
    more = np.concatenate([sizes, np.geomspace(1e8, 3e9, 5)])
    design = Design(params_active=more, tokens=np.concatenate([tokens, np.full(5, 2e11)]))
    longer = runs_from(design, predict(HOFFMANN_2022, runs_from(design, np.ones(20))))
    assert not holdout.hold_out(LAWS["chinchilla"], longer, [largest(longer, "tokens")])[0].left_open


def test_one_group_of_held_out_runs_cannot_tell_laws_apart(found):
    alone = [
        dataclasses.replace(
            law,
            held_out=tuple(
                dataclasses.replace(one, runs=dataclasses.replace(one.runs, group=0 * one.runs.group))
                for one in law.held_out
            ),
        )
        for law in found.laws
    ]
    assert choose(alone, found.reach).title == "a tie of 2 laws"


def missing(law, factor):
    """The same law, whose held-out predictions are wrong by a factor."""
    held_out = [
        dataclasses.replace(
            one,
            predicted=factor * one.predicted,
            metrics=errors(factor * one.predicted, one.runs.loss, one.runs.weight),
        )
        for one in law.held_out
    ]
    return dataclasses.replace(law, held_out=tuple(held_out))


def test_a_law_that_predicts_badly_is_not_trusted_for_being_the_best(found):
    best, other = found.laws
    for laws in ([missing(best, 1.5)], [missing(best, 1.5), missing(other, 3.0)]):
        selection = choose(laws, found.reach)
        assert (selection.trusted, selection.title) == (None, "no law holds")
        assert "times the scatter of the fitted runs" in selection.sentence


def test_a_law_that_predicts_worse_than_the_mean_is_not_trusted_unless_noise_explains_it(found):
    best = found.laws[0]
    (one,) = best.held_out
    for times, trusted in ((4.0, None), (1.0, best.name)):
        # Held-out runs of one loss nearly, so that their mean predicts them better than any law.
        loss = 2.0 * np.linspace(1, 1 + 1e-6, len(one.predicted))
        predicted = loss * np.exp(times * one.fit.noise)
        runs = dataclasses.replace(one.runs, loss=loss)
        held = dataclasses.replace(
            one, runs=runs, predicted=predicted, metrics=errors(predicted, runs.loss, runs.weight)
        )
        selection = choose([dataclasses.replace(best, held_out=(held,))], found.reach)
        assert held.metrics.r_squared < 0
        assert selection.trusted == trusted
        assert ("worse than their mean" in selection.sentence) == (trusted is None)


@pytest.mark.parametrize("nothing", [np.nan, np.inf])
def test_a_law_that_gives_no_number_is_neither_tied_nor_trusted(found, nothing):
    best, other = found.laws
    silent = missing(other, nothing)
    selection = choose([best, silent], found.reach)
    assert (selection.trusted, selection.tied) == (best.name, ())
    assert "chinchilla is NaN or infinite for some held-out run" in selection.sentence
    alone = choose([silent], found.reach)
    assert alone.trusted is None
    assert "each is NaN or infinite" in alone.sentence


@pytest.mark.slow
def test_a_given_coefficient_is_given_to_every_law_that_has_it():
    laws = of_the_loss(LAWS, ["chinchilla", "kaplan"])
    found = compare(
        laws, known_runs(), [largest(known_runs(), "tokens")], fixed={"irreducible": 1.6}, penalty=Squared()
    )
    by_name = {law.name: law.fit for law in found.laws}
    assert by_name["chinchilla"].coefficients["irreducible"] == 1.6
    assert by_name["kaplan"].fixed == {}
    assert "not counted as a coefficient: irreducible = 1.6; not in kaplan." in render.markdown(found.summary(""))
    with pytest.raises(ValueError, match="None of the laws has a coefficient alpha"):
        compare(laws, known_runs(), [largest(known_runs(), "tokens")], fixed={"alpha": 1.0})


def test_the_table_and_the_sentence_count_the_coefficients_that_were_fitted(found):
    best, other = found.laws
    tied = dataclasses.replace(found, laws=(best, as_good(other, best, fixed={"irreducible": 1.6})))
    (counted,) = (row[1] for row in tied.summary("").tables[0].cells() if row[0] == "chinchilla")
    assert f"Of these laws, chinchilla is the simplest, with {counted} coefficients" in tied.verdict


def test_a_law_that_overflows_is_left_out_and_the_others_are_compared():
    @law_class
    class Overflows(LAWS["kaplan"]):
        def __call__(self, design):
            raise OverflowError("Numerical result out of range")

    laws = {"overflows": Overflows, **of_the_loss(LAWS, ["chinchilla"])}
    found = compare(laws, known_runs(), [largest(known_runs(), "tokens")])
    assert [law.name for law in found.laws] == ["chinchilla"]
    assert "Numerical result out of range" in found.left_out["overflows"]


def test_when_no_law_can_be_fitted_every_reason_is_given():
    with pytest.raises(ValueError, match=r"No law can be fitted: sparsity: .*num_experts"):
        compare(of_the_loss(LAWS, ["sparsity"]), known_runs(), [largest(known_runs(), "tokens")])


def test_the_command_compares_a_file(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    d = known_runs().design
    rows = np.stack([d.params_active, d.params_total, d.tokens, known_runs().loss], axis=1)
    np.savetxt(path, rows, delimiter=",", header="params_active,params_total,tokens,loss", comments="")
    command = ["compare", str(path), "--laws", "hoffmann,effective_params", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["laws"][0]["name"] == "effective_params"
    page = (tmp_path / "out" / "compare.md").read_text()
    assert "\n\n| law |" in page
    assert plain["verdict"] in " ".join(page.split())

    assert "](predicted_vs_actual.png)" in page
    assert (tmp_path / "out" / "predicted_vs_actual.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out" / "predicted_vs_actual.svg").read_text()
    assert (tmp_path / "out" / "predicted_vs_actual.csv").read_text().count("held out") == 2 * 24
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == plain
    assert main(["compare", str(path), "--laws", "sparsty"]) == 2
    assert "sparsity" in capsys.readouterr().err


def test_the_command_decides_by_each_contender_and_names_a_short_command_if_the_mapping_is_saved(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    d = known_runs().design
    rows = np.stack([d.params_active / 1e6, d.params_total, d.tokens, known_runs().loss], axis=1)
    np.savetxt(path, rows, delimiter=",", header="active_m,params_total,tokens,loss", comments="")
    command = ["compare", str(path), "--laws", "chinchilla,effective_params", "--map", "params_active=active_m*1e6"]
    command += ["--save-mapping", "--decide", "flops=1e24,expansion=16"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "Decisions at flops = 1e+24, expansion = 16" in said
    assert f"Next: moejax fit {path} --law effective_params --bootstrap 200 --out fit" in said
    assert main([*command[:-1], "flops=1e24,sparsity=0.5"]) == 2
    said = capsys.readouterr().err
    assert "No law has a decision for sparsity; the laws' decisions need some of expansion, flops and loss." in said
    # A quantity of a law that cannot be fitted to the table does not cost the comparison.
    command[command.index("--laws") + 1] = "chinchilla,granularity"
    assert main([*command[:-1], "flops=1e24,granularity=8"]) == 0
    said = capsys.readouterr().out
    assert "No law has a decision for granularity" in said
    assert "chinchilla" in said
