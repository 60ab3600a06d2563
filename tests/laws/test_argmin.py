"""The least value on an interval, inside it or at a bound."""

import math

import jax
import jax.numpy as jnp
import pytest

from moejax.float64 import float64
from moejax.laws.search import argmin_between


def test_a_minimum_inside_is_placed_to_the_last_digits():
    with float64():
        found = argmin_between(lambda x: jnp.exp(x) - 3 * x, -5.0, 5.0)
        assert float(found) == pytest.approx(math.log(3), abs=1e-14)


@pytest.mark.parametrize(("slope", "bound"), [(1.0, -2.0), (-1.0, 7.0)])
def test_a_function_without_a_valley_is_least_at_a_bound(slope, bound):
    assert argmin_between(lambda x: slope * x, -2.0, 7.0) == bound


def test_the_deepest_of_two_valleys_is_found():
    found = argmin_between(lambda x: jnp.cos(x) + 0.1 * x, 0.0, 12.0)
    assert float(found) == pytest.approx(math.pi + math.asin(-0.1), abs=1e-3)


def test_it_can_be_batched_over_what_the_function_closes_over():
    found = jax.vmap(lambda center: argmin_between(lambda x: (x - center) ** 2, 0.0, 10.0))(jnp.array([1.0, 4.0]))
    assert found.tolist() == pytest.approx([1.0, 4.0], abs=1e-5)


@pytest.mark.slow
def test_a_minimum_can_be_differentiated_twice_in_what_the_function_closes_over():
    def best(rate):
        return argmin_between(lambda x: jnp.exp(rate * x) - 3 * x, -5.0, 5.0)

    def closed(rate):
        return jnp.log(3 / rate) / rate

    with float64():
        for derivative in (jax.grad, jax.hessian):
            assert float(derivative(best)(1.3)) == pytest.approx(float(derivative(closed)(1.3)), rel=1e-9)
        assert float(jax.grad(lambda slope: argmin_between(lambda x: slope * x, -2.0, 7.0))(1.0)) == 0
