"""The IsoFLOP surface is found again from its own losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moejax.float64 import float64
from moejax.laws.design import Design
from moejax.laws.mixtures.isoflop_surface import IsoflopSurface, fit_surface, optimal_params_total

TRUTH = IsoflopSurface(
    size=(-1.2, 0.03), sparsity=(-0.2, 0.01), interaction=(-0.002, 1e-5), offset=14.0, params_unit=1.0
)


def runs():
    totals, expansions = np.meshgrid(np.geomspace(1e8, 1e10, 7), [1.0, 2.0, 4.0, 10.0, 20.0])
    return Design(
        params_total=jnp.asarray(totals.ravel()),
        num_experts=jnp.asarray(expansions.ravel()),
        top_k=jnp.ones(expansions.size),
    )


@pytest.mark.parametrize("degrees", [(2, 2, 2), (3, 1, 1), (1, 2, 0)])
def test_least_squares_finds_a_surface_of_any_degrees_again(degrees):
    with float64():
        size, sparsity, interaction = (tuple(0.1 / 3.0**i for i in range(degree)) for degree in degrees)
        truth = IsoflopSurface(size=size, sparsity=sparsity, interaction=interaction, offset=2.0, params_unit=1e9)
        designs = runs()
        found = fit_surface(designs, truth(designs), degrees, params_unit=1e9)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, truth)


def test_the_best_size_of_a_fitted_surface_grows_with_sparsity_as_in_the_paper():
    with float64():
        designs = runs()
        found = fit_surface(designs, TRUTH(designs))
    sizes = [optimal_params_total(found, sparsity).value["params_total"] for sparsity in (0.0, 0.5, 0.9)]
    expected = [optimal_params_total(TRUTH, sparsity).value["params_total"] for sparsity in (0.0, 0.5, 0.9)]
    assert sizes == pytest.approx(expected, rel=1e-5)
    assert sizes == sorted(sizes)
