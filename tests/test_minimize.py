"""Minimization finds the lowest point to the last digits, in float64 in a float32 process. Sobol points are SciPy's."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from scipy.stats import qmc

from moejax.minimize import DIRECTIONS, least_squares, minimize_lanes, newton, polish, sobol, values


def rosenbrock(point, shared, lane):
    x, y = point
    return (lane - x) ** 2 + shared * (y - x**2) ** 2


def test_too_few_iterations_are_not_called_convergence():
    lanes = minimize_lanes(rosenbrock, np.array([[-1.2, 1.0]]), 100.0, np.array([1.0]), max_iterations=2)
    assert lanes.gradient_norms[0] > 1e-3
    assert lanes.iterations[0] == 2


def test_every_lane_solves_its_own_problem_whatever_the_chunk():
    targets = np.linspace(0.5, 2.0, 7)
    starts = np.tile([-1.2, 1.0], (7, 1))
    for chunk in (3, 32):
        lanes = minimize_lanes(rosenbrock, starts, 100.0, targets, chunk=chunk)
        np.testing.assert_allclose(lanes.points[:, 0], targets, atol=1e-5)
        np.testing.assert_allclose(lanes.points[:, 1], targets**2, atol=1e-5)


def test_a_lane_that_never_meets_a_finite_value_reports_infinity_and_spares_the_others():
    def objective(point, shared, lane):
        return jnp.sum((point - 1.0) ** 2) / lane

    lanes = minimize_lanes(objective, np.zeros((2, 1)), None, np.array([np.nan, 1.0]))
    assert np.isinf(lanes.values[0])
    assert lanes.values[1] == pytest.approx(0.0, abs=1e-12)


def test_newton_takes_a_point_near_the_minimum_to_its_last_digits():
    ended = newton(rosenbrock, np.array([1.001, 1.002]), 100.0, 1.0)
    np.testing.assert_allclose(ended.point, [1.0, 1.0], atol=1e-14)
    assert ended.gradient_norm < 1e-12
    assert ended.value < 1e-20


def test_a_point_without_a_finite_curvature_is_left_where_it_is():
    def kinked(point, shared, lane):
        # The second derivative of the root is infinite at 0, and no number.
        return jnp.sum(point) + jnp.sum(jnp.abs(point) ** 1.5)

    ended = polish(kinked, np.zeros(1), None, None, tolerance=1e-6)
    assert (ended.point.tolist(), ended.value, ended.gradient_norm) == ([0.0], 0.0, 1.0)


def test_a_step_to_where_there_is_no_number_is_taken_back():
    def walled(point, shared, lane):
        return jnp.sum(jnp.where(point < 1.0, (point - 3.0) ** 2, jnp.nan))

    point, value, *_ = polish(walled, np.zeros(1), None, None, tolerance=1e-6)
    assert 0.0 < point[0] < 1.0
    assert value == pytest.approx((point[0] - 3.0) ** 2)


def test_values_are_infinite_where_the_objective_is_not_a_number():
    found = values(lambda p, shared, lane: jnp.sqrt(p[0]), np.array([[4.0], [-1.0]]), None, None, chunk=4)
    np.testing.assert_array_equal(found, [2.0, np.inf])


def test_least_squares_from_many_starts_end_where_scipy_does():
    x = np.linspace(0.0, 3.0, 20)
    data = 2.0 * np.exp(-0.7 * x) + 0.3

    def residuals(points):
        scale, rate, end = (points[:, i, None] for i in range(3))
        fall = np.exp(-rate * x)
        return scale * fall + end - data, np.stack([fall, -scale * x * fall, np.ones_like(fall)], axis=2)

    starts = np.random.default_rng(0).uniform(0.1, 3.0, (8, 3))
    points, values = least_squares(residuals, starts)
    best = scipy.optimize.least_squares(lambda p: residuals(p[None])[0][0], starts[0]).x
    assert points == pytest.approx(np.broadcast_to(best, (8, 3)), rel=1e-4)
    assert values.max() < 1e-8


def test_least_squares_leave_a_start_without_a_value_where_it_is():
    def residuals(points):
        with np.errstate(invalid="ignore"):
            return np.log(points) - 1.0, 1.0 / points[:, :, None]

    points, values = least_squares(residuals, np.asarray([[-1.0], [2.0]]))
    assert values.tolist()[0] == np.inf
    assert points[0, 0] == -1.0
    assert points[1, 0] == pytest.approx(np.e)


@pytest.mark.parametrize("dimensions", [1, 2, 6, len(DIRECTIONS), len(DIRECTIONS) + 3])
@pytest.mark.parametrize("count", [1, 8, 512])
def test_points_are_scipys_to_the_bit(dimensions, count):
    for seed in (0, 7):
        theirs = qmc.Sobol(dimensions, rng=seed).random(count)
        np.testing.assert_array_equal(sobol(dimensions, count, seed), theirs)


def test_any_number_of_points_is_the_beginning_of_more():
    np.testing.assert_array_equal(sobol(3, 5, 1), sobol(3, 16, 1)[:5])
