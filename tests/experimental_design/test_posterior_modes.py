"""Modes of a posterior: found with few runs, told apart, and planned for."""

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from moejax.experimental_design.candidates import of_table
from moejax.experimental_design.criterion import posterior_arrays, share_left, sums, variances
from moejax.experimental_design.experiment_plan import RunBudget, exchange
from moejax.experimental_design.laplace_posterior import laplace_posterior
from moejax.experimental_design.posterior_modes import EDGE, FACTOR, Noise, distance
from moejax.experimental_design.propose import propose
from moejax.fit.runs import runs_from
from moejax.fit.search.starts import Sobol, middle_and_spread
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.estimands import prediction_estimand
from moejax.float64 import float64
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design, design_from
from moejax.laws.formula_law import formula_law

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from scalebench_modes import STEEPEST, AskedModes  # pyright: ignore[reportMissingImports]

NOISE = 0.003
LARGE = prediction_estimand(Chinchilla, {"params_active": 7e9, "tokens": 1.4e11})


def designs(active, tokens):
    active, tokens = (a.ravel() for a in np.meshgrid(active, tokens))
    return Design(params_active=active, tokens=tokens, flops=6 * active * tokens)


def measured(design):
    exact = predict(HOFFMANN_2022, runs_from(design, np.ones(np.size(design.tokens))))
    return runs_from(design, exact * np.exp(NOISE * np.random.default_rng(0).normal(size=len(exact))))


def test_with_many_runs_the_mode_is_the_law_that_made_them():
    runs = measured(designs(np.geomspace(3e7, 3e9, 6), np.geomspace(5e8, 5e10, 6)))
    search = AskedModes(Chinchilla, runs, designs([7e9], [1.4e11]))
    every = np.ones(len(runs), bool)
    modes, noise = search.modes(every)
    assert sum(mode.share for mode in modes) == pytest.approx(1)
    assert noise.level == pytest.approx(NOISE, rel=0.5)
    assert noise.growth == 0
    (answer, *_) = (posterior.answers[0] for posterior in search.posteriors(modes, every, noise))
    assert answer == pytest.approx(np.log(float(LARGE.functional(HOFFMANN_2022))), abs=0.02)
    assert float(LARGE.functional(search.law(modes[0]))) == pytest.approx(np.exp(answer), rel=1e-9)


@pytest.mark.parametrize("growth", [0.0, 1.0])
def test_noise_grows_away_from_what_is_asked_where_runs_say_so(growth):
    design = designs(np.geomspace(3e7, 3e9, 6), np.geomspace(5e8, 5e10, 6))
    target = designs([7e9], [1.4e11])
    below = distance(design, target) - distance(design, target).min()
    grows, found, answers = Noise(level=NOISE, growth=growth), [], []
    exact = predict(HOFFMANN_2022, runs_from(design, np.ones(36)))
    for seed in range(6):
        luck = np.random.default_rng(seed).normal(size=36) * NOISE / np.sqrt(grows.weights(below))
        runs, every = runs_from(design, exact * np.exp(luck)), np.ones(36, bool)
        search = AskedModes(Chinchilla, runs, target, apart=distance(design, target))
        modes, noise = search.modes(every)
        found.append(noise.growth)
        (best, *_) = search.posteriors(modes, every, noise)
        answers.append((best.answers[0] - np.log(float(LARGE.functional(HOFFMANN_2022)))) / best.deviations[0])
        # The farthest run tells less, by what it scatters more.
        farthest = np.argmax(below)
        assert best.candidate_weights[farthest] == pytest.approx(noise.weights(below)[farthest])
    assert np.mean([one > 0 for one in found]) == pytest.approx(float(growth > 0), abs=0.2)
    assert np.sqrt(np.mean(np.square(answers))) < 2


def test_noise_is_even_where_nothing_says_how_far_runs_are_or_it_is_given():
    design = designs(np.geomspace(3e7, 3e9, 4), [1e9, 1e10])
    below = np.log(design.flops.max() / design.flops)
    luck = np.random.default_rng(0).normal(size=8) * NOISE * (1 + 3 * below)
    runs = runs_from(design, predict(HOFFMANN_2022, runs_from(design, np.ones(8))) * np.exp(luck))
    every = np.ones(8, bool)
    assert AskedModes(Chinchilla, runs).modes(every)[1].growth == 0
    assert AskedModes(Chinchilla, runs, apart=below).modes(every, 0.01)[1] == Noise(level=0.01)


def test_residuals_with_heavy_tails_are_those_of_students_density():
    noise, off = Noise(level=1.0, tails=4.0), np.linspace(-30, 30, 301)
    found, slopes = noise.residuals(off)
    density = -0.5 * found**2 + noise.log_constant - 0.5 * np.log(2 * np.pi)
    assert density == pytest.approx(scipy.stats.t(4).logpdf(off), rel=1e-9, abs=1e-9)
    assert np.gradient(found, off)[1:-1] == pytest.approx(slopes[1:-1], rel=2e-2)
    assert Noise(level=1.0).residuals(off)[0] == pytest.approx(off)


@pytest.mark.parametrize("wrong", [0, 5])
def test_a_few_runs_far_from_a_law_that_the_others_follow_do_not_draw_it(wrong):
    design = designs(np.geomspace(3e7, 3e9, 8), np.geomspace(5e8, 5e10, 8))
    exact = predict(HOFFMANN_2022, runs_from(design, np.ones(64)))
    chance = np.random.default_rng(0)
    luck = NOISE * chance.normal(size=64)
    luck[chance.choice(64, wrong, replace=False)] += 0.1
    runs, every = runs_from(design, exact * np.exp(luck)), np.ones(64, bool)
    search = AskedModes(Chinchilla, runs, designs([7e9], [1.4e11]))
    modes, noise = search.modes(every)
    assert noise.tails == (4 if wrong else 0)
    assert noise.level == pytest.approx(NOISE, rel=0.4)
    (best, *_) = search.posteriors(modes, every, noise)
    left = np.log(runs.loss) - best.predicted
    likeliest = scipy.stats.t.fit(left, 4, floc=0, f0=4)[2] if wrong else np.std(left)
    assert noise.level == pytest.approx(likeliest, rel=0.2)
    assert abs(best.answers[0] - np.log(float(LARGE.functional(HOFFMANN_2022)))) < 3 * best.deviations[0]
    assert best.deviations[0] < 0.02


def test_a_distance_is_in_e_folds_to_the_nearest_that_is_asked():
    runs = design_from({"params_active": np.array([1e8, 1e9]), "x": np.array([0.0, 1.0])})
    asked = design_from({"params_active": np.array([1e10, 1e9]), "x": np.array([1.0, 1.0])})
    # What may be 0 has no logarithm.
    assert distance(runs, asked) == pytest.approx([np.log(10), 0])
    assert distance(design_from({"x": np.array([0.0, 1.0])}), asked) == pytest.approx([0, 0])


def test_losses_of_runs_that_are_not_trained_are_not_read():
    runs = measured(designs([1e8, 1e9, 3e9], [1e9, 1e10, 1e11]))
    trained = np.arange(len(runs)) < 3
    found = []
    for hidden in (1.0, 100.0):
        seen = runs_from(runs.design, np.where(trained, runs.loss, hidden))
        modes, noise = AskedModes(Chinchilla, seen).modes(trained)
        found.append((modes[0].point, noise))
    assert np.array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


def test_two_values_of_a_coefficient_that_fit_alike_are_two_modes():
    # Losses fall on either side of a column's middle: its square is known, and the sign is not.
    law = formula_law("loss = c + (b*x)^2", columns=["x"], signs={"b": "any"})
    x = np.linspace(0.5, 2.0, 12)
    runs = runs_from(design_from({"x": x}), 1.0 + (0.5 * x) ** 2)
    search = AskedModes(law, runs)
    modes, _ = search.modes(np.ones(12, bool), noise=0.01)
    assert len(modes) == 2
    assert modes[0].share == pytest.approx(0.5, abs=0.05)
    slope = search.objective.free.index("b")
    assert modes[0].point[slope] == pytest.approx(-modes[1].point[slope], rel=1e-3)


def test_no_mode_says_of_what_is_asked_that_it_is_far_from_everything_seen():
    # By the best law of these runs, what is under the power is below 0 at the target, and the loss without end.
    law = formula_law("loss = c + a/max(x + b*z, 1e-12)^alpha", columns=["x", "z"], signs={"b": "any"})
    x, z = (one.ravel() for one in np.meshgrid([0.5, 0.6, 0.7, 0.8], [0.0, 0.05]))
    runs = runs_from(design_from({"x": x, "z": z}), 1 + 0.5 / (x - 2 * z) ** 0.5)
    target, every = design_from({"x": np.asarray([0.5]), "z": np.asarray([1.0])}), np.ones(len(x), bool)
    alone, asked = AskedModes(law, runs), AskedModes(law, runs, target)
    assert alone.law(alone.modes(every)[0][0]).b == pytest.approx(-2, abs=0.1)
    modes, noise = asked.modes(every)
    answers = [one.answers[0] for one in asked.posteriors(modes, every, noise)]
    assert max(answers) < np.log(runs.loss.max()) + np.ptp(np.log(runs.loss)) + np.log(FACTOR) + 3 * EDGE


def test_expected_losses_are_those_of_draws_from_the_modes_that_are_where_losses_are_expected():
    runs = measured(designs(np.geomspace(3e7, 3e9, 4), [1e9, 1e10]))
    search, few = AskedModes(Chinchilla, runs, designs([7e9, 1e12], [1e8, 1.4e13])), np.arange(len(runs)) < 3
    modes, noise = search.modes(few)
    low, high = (np.log(FACTOR) + np.ptp(np.log(runs.loss[few]))) * np.array([-1, 1])
    low, high = low + np.log(runs.loss[few]).min(), high + np.log(runs.loss[few]).max()
    means = []
    for one in search.posteriors(modes, few, noise):
        draws = one.answers + one.deviations * np.random.default_rng(0).normal(size=(200_000, 4))
        means.append(np.exp(np.mean(draws, axis=0, where=(draws > low) & (draws < high))))
    expected = search.expected_losses(modes, few, noise)
    assert expected == pytest.approx(np.average(means, axis=0, weights=[mode.share for mode in modes]), rel=0.01)
    # What three runs leave open is not what the likeliest law says; what many tell is.
    largest = search.losses(search.posteriors(modes[:1], few, noise)[0].answers)
    assert np.max(np.abs(np.log(expected / largest))) > 0.05
    inside, every = AskedModes(Chinchilla, runs, runs.design), np.ones(len(runs), bool)
    modes, noise = inside.modes(every)
    assert inside.expected_losses(modes, every, noise) == pytest.approx(runs.loss, rel=0.01)


def test_a_law_that_is_steep_beyond_all_digits_can_be_planned_for():
    law = formula_law("loss = exp(a + b*u + c*u^3)", columns=["u"], signs=dict.fromkeys("abc", "any"))
    runs = runs_from(design_from({"u": np.geomspace(1, 1e6, 12)}), np.full(12, 2.0))
    search, one = AskedModes(law, runs, design_from({"u": np.asarray([1e7])})), np.arange(12) == 0
    modes, noise = search.modes(one)
    posteriors = search.posteriors(modes, one, noise)
    assert all(0 < posterior.deviations[0] <= 2 * STEEPEST for posterior in posteriors)
    chosen = exchange(posterior_arrays(posteriors, region=True), np.ones(12), RunBudget(flops=3.0, runs=3), None)
    assert chosen.sum() == 3


def test_a_law_that_can_be_negative_is_searched_where_it_is():
    # Its coordinates of 0 predict a loss of 0, which has no logarithm.
    law = formula_law("loss = c + b*x", columns=["x"])
    x = np.linspace(-1.0, 1.0, 5)
    runs = runs_from(design_from({"x": x}), 3.0 + x)
    search = AskedModes(law, runs, design_from({"x": np.asarray([2.0])}))
    modes, noise = search.modes(np.ones(5, bool))
    (posterior,) = search.posteriors(modes, np.ones(5, bool), noise)
    assert search.losses(posterior.answers) == pytest.approx([5.0], rel=1e-3)
    nothing = search.log_losses(np.zeros((1, 2)), np.arange(5))[0]
    assert search.losses(nothing) == pytest.approx(0, abs=1e-9)


def test_the_prior_is_one_deviation_from_the_middle_at_the_ends_of_the_starts():
    runs = measured(designs([1e8, 1e9], [1e9, 1e10]))
    objective = AskedModes(Chinchilla, runs).objective
    middle, spread = middle_and_spread(objective)
    starts = Sobol(256)(objective, {})
    assert np.all(np.abs(starts - middle) <= spread * (1 + 1e-9))
    assert np.all(np.abs(starts - middle).max(axis=0) > 0.9 * spread)


def test_fewer_runs_than_coefficients_are_planned_for():
    runs = measured(designs([1e8, 4e8], [1e9, 4e9]))
    candidates = of_table(runs_from(designs(np.geomspace(3e7, 3e9, 5), np.geomspace(5e8, 5e10, 4)), np.ones(20)), [])
    found = propose(
        {"chinchilla": Chinchilla}, runs, candidates, {"chinchilla": [LARGE.functional]}, RunBudget(flops=3e20, runs=5)
    )
    assert found.by_modes == ("chinchilla",)
    assert not found.fits
    assert sum(one.weight for one in found.posteriors.values()) == pytest.approx(1)
    assert found.plan.after < found.plan.before


def test_a_region_weighs_answers_by_their_variance_and_not_alike():
    runs, answers = (
        measured(designs([1e8, 4e8], [1e9, 4e9])),
        [prediction_estimand(Chinchilla, {"params_active": n, "tokens": 1e11}).functional for n in (1e8, 7e10)],
    )
    candidates = designs([3e9], [1e10, 5e10])
    seen = laplace_posterior(HOFFMANN_2022, runs, candidates, answers, noise=NOISE)
    counts = np.asarray([1.0, 0.0])
    with float64():
        for region, total in ((True, np.sum), (False, None)):
            arrays = posterior_arrays([seen], region=region)
            before, after = sums(arrays, np.zeros(2)), sums(arrays, counts)
            was, left = (np.asarray(variances(arrays, one, before)) for one in (before, after))
            expected = total(left) / total(was) if total else np.mean(left / was)
            assert float(share_left(arrays, after, before)) == pytest.approx(expected, rel=1e-9)


def test_outputs_of_one_run_are_no_rivals():
    runs, candidates = measured(designs([1e8, 4e8], [1e9, 4e9])), designs([3e9], [1e10, 5e10])
    one = laplace_posterior(HOFFMANN_2022, runs, candidates, [LARGE.functional], noise=NOISE, weight=0.5)
    far = type(one)(**{**vars(one), "answers": one.answers + 1.0})
    together = posterior_arrays([one, far], rivals=False)
    with float64():
        before = sums(together, np.zeros(2))
        assert np.asarray(variances(together, before, before)) == pytest.approx(one.deviations**2, rel=1e-6)
