"""Arithmetic of kernels against NumPy's, which has double the bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

numba = pytest.importorskip("numba")

from moejax.kernels.cpu.arithmetic import exp, larger, sigmoid  # noqa: E402
from moejax.kernels.cpu.compiled import FAST  # noqa: E402


@numba.njit(**FAST)
def exp_of(x, y):
    for i in range(x.size):
        y[i] = exp(x[i])


@numba.njit(**FAST)
def sigmoid_of(x, y):
    for i in range(x.size):
        y[i] = sigmoid(x[i])


@numba.njit(**FAST)
def largest_of(x):
    found = x[0]
    for i in range(x.size):
        found = larger(found, x[i])
    return found


def of(function, x):
    x = np.asarray(x, np.float32)
    y = np.empty_like(x)
    function(x, y)
    return y


@pytest.mark.parametrize(("lowest", "highest", "tolerance"), [(-10, 10, 1.5e-7), (-87, 88, 3.5e-7)])
def test_exponentials_are_numpys(lowest, highest, tolerance):
    x = np.linspace(lowest, highest, 400_001, dtype=np.float32)
    expected = np.exp(x.astype(np.float64))
    assert np.abs(of(exp_of, x) / expected - 1).max() < tolerance
    assert of(exp_of, [0.0]).tolist() == [1.0]


def test_exponentials_are_zero_below_their_range_and_finite_above_it():
    # As many as fill a vector, and one.
    assert of(exp_of, [-87.1, -100, -1e30, -3e38] * 8 + [-88]).tolist() == [0.0] * 33
    above = of(exp_of, [88.0, 88.1, 1e3, 1e30, 3e38])
    np.testing.assert_allclose(above, np.exp(88.0), rtol=1e-6)


def test_what_is_not_a_number_stays_so():
    x = np.array([0.5, np.nan, -100.0] * 11, np.float32)
    for function in (exp_of, sigmoid_of):
        np.testing.assert_array_equal(np.isnan(of(function, x)), np.isnan(x))


def test_sigmoids_are_numpys():
    x = np.linspace(-200, 200, 100_001, dtype=np.float32)
    expected = 1 / (1 + np.exp(-np.clip(x.astype(np.float64), -88, 88)))
    np.testing.assert_allclose(of(sigmoid_of, x), expected, rtol=1e-6, atol=2e-38)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False), min_size=1))
def test_the_larger_of_many_is_the_largest(numbers):
    assert largest_of(np.asarray(numbers, np.float32)) == np.float32(max(numbers))
