"""Sobol points are those of SciPy, without its import."""

import numpy as np
import pytest
from scipy.stats import qmc

from moejax.sobol import DIRECTIONS, sobol


@pytest.mark.parametrize("dimensions", [1, 2, 6, len(DIRECTIONS), len(DIRECTIONS) + 3])
@pytest.mark.parametrize("count", [1, 8, 512])
def test_points_are_scipys_to_the_bit(dimensions, count):
    for seed in (0, 7):
        theirs = qmc.Sobol(dimensions, rng=seed).random(count)
        np.testing.assert_array_equal(sobol(dimensions, count, seed), theirs)


def test_any_number_of_points_is_the_beginning_of_more():
    np.testing.assert_array_equal(sobol(3, 5, 1), sobol(3, 16, 1)[:5])
