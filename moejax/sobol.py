"""Generate Sobol points, which fill a cube more evenly than random ones, so that a search needs fewer."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

BITS = 30


def sobol(dimensions: int, count: int, seed: int) -> Float[np.ndarray, "count dimensions"]:
    """Return the first ``count`` points of a Sobol sequence in [0, 1), scrambled by a seed; balanced for powers of 2.

    Direction numbers are those of Joe and Kuo (2008), "Constructing Sobol sequences with better two-dimensional
    projections". Scrambling uses random lower triangular matrices and a shift (Matousek 1998). The points equal those
    of ``scipy.stats.qmc.Sobol``, whose import takes longer than a fit. It is used for more than 37 dimensions.
    """
    if dimensions > len(DIRECTIONS):
        from scipy.stats import qmc

        return qmc.Sobol(dimensions, rng=np.random.default_rng(seed)).random(count)
    (random,), powers = np.random.default_rng(seed).spawn(1), np.uint32(1) << np.arange(BITS, dtype=np.uint32)
    shift = random.integers(2, size=(dimensions, BITS), dtype=np.uint32) @ powers
    matrices = np.tril(random.integers(2, size=(dimensions, BITS, BITS), dtype=np.uint32))
    matrices[:, np.arange(BITS), np.arange(BITS)] = 1
    # The axes are [dimension, bit of the point, binary digit], where the first digit is 1/2.
    digits = np.stack([_digits(*DIRECTIONS[dimension]) for dimension in range(dimensions)])
    scrambled = np.einsum("dij,dkj->dki", matrices, digits) % 2 @ powers[::-1]
    number = np.arange(count)
    gray = number ^ (number >> 1)
    points = np.repeat(shift[None], count, axis=0)
    for bit in range(BITS):
        points ^= np.where((gray >> bit & 1)[:, None], scrambled[:, bit], np.uint32(0))
    return points / 2.0**BITS


def _digits(polynomial: int, first: tuple[int, ...]) -> np.ndarray:
    """Return the binary digits of a dimension's direction numbers, by the recurrence of its primitive polynomial."""
    numbers = list(first or (1,) * BITS)
    degree = len(first)
    for j in range(len(numbers), BITS):
        # The highest and the lowest coefficient of a primitive polynomial are 1.
        number = numbers[j - degree]
        for k in range(1, degree + 1):
            number ^= (polynomial >> (degree - k) & 1) * (numbers[j - k] << k)
        numbers.append(number)
    return np.array(
        [[number >> (j - i) & 1 if i <= j else 0 for i in range(BITS)] for j, number in enumerate(numbers)], np.uint32
    )


DIRECTIONS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (1, ()),
    (3, (1,)),
    (7, (1, 3)),
    (11, (1, 3, 1)),
    (13, (1, 1, 1)),
    (19, (1, 1, 3, 3)),
    (25, (1, 3, 5, 13)),
    (37, (1, 1, 5, 5, 17)),
    (41, (1, 1, 5, 5, 5)),
    (47, (1, 1, 7, 11, 19)),
    (55, (1, 1, 5, 1, 1)),
    (59, (1, 1, 1, 3, 11)),
    (61, (1, 3, 5, 5, 31)),
    (67, (1, 3, 3, 9, 7, 49)),
    (91, (1, 1, 1, 15, 21, 21)),
    (97, (1, 3, 1, 13, 27, 49)),
    (103, (1, 1, 1, 15, 7, 5)),
    (109, (1, 3, 1, 15, 13, 25)),
    (115, (1, 1, 5, 5, 19, 61)),
    (131, (1, 3, 7, 11, 23, 15, 103)),
    (137, (1, 3, 7, 13, 13, 15, 69)),
    (143, (1, 1, 3, 13, 7, 35, 63)),
    (145, (1, 3, 5, 9, 1, 25, 53)),
    (157, (1, 3, 1, 13, 9, 35, 107)),
    (167, (1, 3, 1, 5, 27, 61, 31)),
    (171, (1, 1, 5, 11, 19, 41, 61)),
    (185, (1, 3, 5, 3, 3, 13, 69)),
    (191, (1, 1, 7, 13, 1, 19, 1)),
    (193, (1, 3, 7, 5, 13, 19, 59)),
    (203, (1, 1, 3, 9, 25, 29, 41)),
    (211, (1, 3, 5, 13, 23, 1, 55)),
    (213, (1, 3, 7, 3, 13, 59, 17)),
    (229, (1, 3, 1, 3, 5, 53, 69)),
    (239, (1, 1, 5, 5, 23, 33, 13)),
    (241, (1, 1, 7, 7, 1, 61, 123)),
    (247, (1, 1, 7, 9, 13, 61, 49)),
    (253, (1, 3, 3, 5, 3, 55, 33)),
)
"""Primitive polynomial of each dimension (binary coefficients), and its first direction numbers."""
