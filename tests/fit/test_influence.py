"""Derivatives through the optimum agree with fitting again."""

import dataclasses

import numpy as np
import pytest
from known_fit import known_fit, known_runs
from test_every_law import NOT_A_LOSS_OF_RUNS, NOT_IDENTIFIABLE, WITH_CONSTANTS, runs_for

from moejax import minimize
from moejax.fit.search.fit_law import fit_law, objective_of
from moejax.fit.search.objective import Huber, Squared
from moejax.fit.search.starts import WarmStart
from moejax.fit.selection.metrics import predict
from moejax.fit.uncertainty.bootstrap import bootstrap
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.fit.uncertainty.derivatives import derivatives, influence
from moejax.float64 import float64
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.law import coefficients

assert not set(WITH_CONSTANTS) & set(NOT_A_LOSS_OF_RUNS)


NEAR_ZERO = {"five_factor": {"active_coupling"}}
"""What a table this small and noisy drives to the end of its range, where no derivative is told from nothing."""


def refitted(result, runs, start):
    """Coefficients of the fit to changed runs, searched from the old optimum."""
    objective, at = objective_of(result), derivatives(result, dataclasses.replace(runs, loss=start))
    data = {**at.data, "loss": runs.loss}
    lanes = minimize.minimize_lanes(objective, at.point[None], data, runs.weight[None], tolerance=1e-12)
    ended = minimize.newton(objective, lanes.points[0], data, runs.weight)
    assert ended.gradient_norm < 1e-7
    with float64():
        return coefficients(objective.law_at(ended.point, data))


def assert_influence_is_that_of_refits(law, truth, output, penalty):
    name = next(k for k, v in LAWS.items() if v is law)
    runs = runs_for(name)
    exact = predict(truth, runs, output)
    noisy = exact * np.exp(0.003 * np.random.default_rng(3).normal(size=len(runs)))
    runs = dataclasses.replace(runs, loss=noisy)
    unknown = NOT_IDENTIFIABLE.get(name, set()) | NEAR_ZERO.get(name, set())
    fixed = {name: float(value) for name, value in coefficients(truth).items() if name in unknown}
    result = fit_law(law, runs, starts=WarmStart((truth,)), fixed=fixed, output=output, penalty=penalty)
    free = [name for name in coefficients(truth) if name not in fixed]
    found = influence(result, runs, lambda one: [getattr(one, name) for name in free])
    for i in np.argsort(-np.abs(found[0].per_nat))[:2]:
        step = 1e-4 * noisy[i]
        ends = []
        for sign in (1, -1):
            moved = noisy.copy()
            moved[i] += sign * step
            ends.append(refitted(result, dataclasses.replace(runs, loss=moved), noisy))
        for name, one in zip(free, found, strict=True):
            measured = float(ends[0][name] - ends[1][name]) / (2 * step)
            largest = np.abs(one.per_nat).max()
            assert one.per_nat[i] == pytest.approx(measured, rel=1e-3, abs=1e-4 * largest), (name, i)


@pytest.mark.parametrize("penalty", [Squared(), Huber()])
@pytest.mark.matrix(1)
def test_influence_of_a_loss_is_that_of_refits(penalty):
    assert_influence_is_that_of_refits(Chinchilla, HOFFMANN_2022, "loss", penalty)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_CONSTANTS)
def test_influence_of_a_loss_is_that_of_refits_for_every_law(name):
    truth = next(iter(PUBLISHED[name].values())).law
    assert_influence_is_that_of_refits(LAWS[name], truth, next(iter(LAWS[name].outputs)), Squared())


@pytest.mark.slow
def test_a_run_that_is_removed_moves_the_estimate_as_predicted():
    result = fit_law(LAWS["effective_params"], known_runs(), penalty=Squared())
    (found,) = influence(result, known_runs(), lambda law: law.tokens_exponent)
    for i in found.most(3):
        without = fit_law(
            LAWS["effective_params"],
            known_runs().only(np.arange(120) != i),
            penalty=Squared(),
            starts=WarmStart((result.law,)),
        )
        moved = without.coefficients["tokens_exponent"] - result.coefficients["tokens_exponent"]
        assert found.if_removed[i] == pytest.approx(moved, rel=0.35)


def test_standard_errors_agree_with_the_bootstrap():
    result = fit_law(LAWS["effective_params"], known_runs(), penalty=Squared())
    resampled = bootstrap(result, known_runs(), 400).coefficients()
    for kind in ("sandwich", "gauss_newton"):
        errors = with_uncertainty(result, known_runs(), covariance=kind).conf_int()["std_err"]
        for name, found in resampled.items():
            assert float(errors[name]) == pytest.approx(found.deviation, rel=0.35), (kind, name)


def test_unknown_kinds_of_errors_are_a_sentence():
    with pytest.raises(ValueError, match="sandwich or gauss_newton"):
        with_uncertainty(known_fit(), known_runs(), covariance="jackknife")
