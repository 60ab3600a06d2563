"""Cross-validation finds the degrees that a surface has, by the same least squares as the law's own."""

import dataclasses

import numpy as np
import pytest

from moejax.fit.runs import runs_from
from moejax.fit.selection.metrics import predict
from moejax.fit.sweeps.isoflop_curves import isoflop_budgets
from moejax.float64 import float64
from moejax.laws.active_params import BackboneByActive
from moejax.laws.design import Design
from moejax.laws.mixtures.isoflop_surface import IsoflopSurface, fit_surface
from moejax.laws.mixtures.sparsity import ABNAR_2025, best_params_total
from moejax.papers.abnar.isoflop_surfaces import chosen, columns_of, least_squares, search_degrees

SPARSITIES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
BUDGETS = (3e19, 6e19, 1e20, 3e20, 1e21)
"""What Abnar et al. trained: Table 1 and Figure 8."""
CONVENTION = BackboneByActive(ratio=0.5)
"""N_a(N, S) is not given; every convention serves to make a table."""


def abnar_runs(noise=0.0, seed=0, *, sparsities=SPARSITIES, budgets=BUDGETS, sizes=8, span=4.0):
    """Losses of the published Eq. 6, with noise, at sizes around the best one of every sparsity and budget."""
    rows = []
    with float64():
        for flops in budgets:
            for sparsity in sparsities:
                best = float(best_params_total(ABNAR_2025, flops, sparsity, CONVENTION))
                for total in best * np.geomspace(1 / span, span, sizes):
                    active = float(CONVENTION(total, sparsity))
                    rows.append((total, active, flops / (6 * active), flops, 1 / (1 - sparsity)))
    total, active, tokens, flops, experts = np.array(rows).T
    design = Design(
        params_total=total,
        params_active=active,
        tokens=tokens,
        flops=flops,
        num_experts=experts,
        top_k=np.ones(len(rows)),
    )
    runs = runs_from(design, np.ones(len(rows)))
    exact = predict(ABNAR_2025, runs)
    return dataclasses.replace(runs, loss=exact * np.exp(noise * np.random.default_rng(seed).normal(size=len(exact))))


def planted(budget, degrees, noise=0.0, seed=0):
    """A budget whose losses are those of a surface of these degrees, the one nearest to its own, with noise in nats."""
    columns = columns_of(budget)[:, chosen(degrees)]
    weights = least_squares(columns, budget.runs.loss, budget.runs.weight)
    losses = columns @ weights[:-1] + weights[-1]
    losses = losses + noise * np.random.default_rng(seed).normal(size=len(losses))
    return dataclasses.replace(budget, runs=dataclasses.replace(budget.runs, loss=losses))


@pytest.fixture(scope="module")
def budgets():
    return isoflop_budgets(abnar_runs(budgets=BUDGETS[:3], sizes=6))[0]


@pytest.mark.parametrize("degrees", [(2, 2, 2), (2, 1, 1), (3, 2, 1)])
@pytest.mark.matrix(1)
def test_the_lowest_error_has_the_degrees_that_were_planted(budgets, degrees):
    noise = 0.0005
    found = search_degrees([planted(one, degrees, noise, seed) for seed, one in enumerate(budgets)])
    assert found.best == degrees
    assert noise < found.error < 1.3 * noise
    for part, degree in enumerate(degrees):
        fewer = tuple(degree - 1 if i == part else other for i, other in enumerate(degrees))
        assert found.errors[fewer] > 1.2 * found.error


@pytest.mark.slow
def test_errors_are_known_of_all_125_combinations_where_runs_suffice(budgets):
    assert len(search_degrees(budgets).errors) == 125


def test_powers_that_three_sparsities_cannot_tell_apart_are_no_candidates():
    few, _ = isoflop_budgets(abnar_runs(sparsities=(0.0, 0.5, 0.9), budgets=(1e20,), sizes=6))
    errors = search_degrees(few).errors
    assert (2, 2, 2) in errors
    assert not [degrees for degrees in errors if degrees[1] > 2]


def test_runs_too_few_for_any_surface_are_counted(budgets):
    one = budgets[0]
    four = np.arange(2)
    tiny = dataclasses.replace(one, runs=one.runs.where(four), sparsity=one.sparsity[four])
    with pytest.raises(ValueError, match=r"too few to cross-validate any surface \(2 at"):
        search_degrees([tiny])


@pytest.mark.parametrize("degrees", [(2, 2, 2), (3, 1, 0), (0, 2, 1)])
@pytest.mark.matrix(1)
def test_least_squares_is_that_of_the_law(budgets, degrees):
    runs = budgets[1].runs
    ours = least_squares(columns_of(budgets[1])[:, chosen(degrees)], runs.loss, runs.weight)
    with float64():
        theirs = fit_surface(runs.design, runs.loss, degrees)
    values = iter(ours)
    size, sparsity, interaction = (tuple(next(values) for _ in range(degree)) for degree in degrees)
    law = IsoflopSurface(size=size, sparsity=sparsity, interaction=interaction, offset=next(values))
    np.testing.assert_allclose(predict(law, runs), predict(theirs, runs), rtol=1e-7)


def test_a_run_that_counts_twice_is_two_runs(budgets):
    columns, losses = columns_of(budgets[0])[:, chosen((2, 1, 1))], budgets[0].runs.loss
    twice = np.where(np.arange(len(losses)) < 5, 2.0, 1.0)
    written_out = np.concatenate([np.arange(len(losses)), np.arange(5)])
    np.testing.assert_allclose(
        least_squares(columns, losses, twice),
        least_squares(columns[written_out], losses[written_out], np.ones(len(written_out))),
        rtol=1e-6,
    )
