"""Runs are sorted into the budgets they spent; a table without budgets is told what it lacks."""

import dataclasses

import numpy as np
import pytest
from test_isoflop_degrees import SPARSITIES, abnar_runs

from moejax.fit.sweeps.isoflop_curves import isoflop_budgets


@pytest.fixture(scope="module")
def runs():
    return abnar_runs(budgets=(3e19, 1e20))


def changed(runs, **fields):
    return dataclasses.replace(runs, design=dataclasses.replace(runs.design, **fields))


def test_budgets_met_to_a_few_per_cent_are_recognised(runs):
    met = runs.design.flops * np.random.default_rng(0).uniform(0.97, 1.03, len(runs))
    found, left_out = isoflop_budgets(changed(runs, flops=met))
    assert [one.flops for one in found] == pytest.approx([3e19, 1e20], rel=0.01)
    assert [len(one.runs) for one in found] == [56, 56]
    assert found[0].levels == pytest.approx(SPARSITIES)
    assert not left_out


def test_a_budget_of_too_few_sparsities_is_left_out_and_said(runs):
    (found,), (sentence,) = isoflop_budgets(runs.where((runs.design.flops > 5e19) | (runs.design.num_experts < 1.5)))
    assert found.flops == pytest.approx(1e20)
    assert sentence == "3e+19 FLOPs: 16 runs with 2 sparsities, 2 of them at 3 sizes."


def test_runs_of_weight_0_take_no_part(runs):
    found, _ = isoflop_budgets(runs.only(runs.design.flops > 5e19))
    assert [one.flops for one in found] == pytest.approx([1e20])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"flops": None}, "have no flops"),
        ({"num_experts": None, "tokens": None}, "have no tokens, num_experts"),
        ({"top_k": np.full(112, 60.0)}, "num_experts is 1 and top_k 60 in run 1"),
        (
            {"flops": np.geomspace(3e19, 1e30, 112)},
            "1 run with 1 sparsity, 0 of them at 3 sizes.* And 107 more budgets",
        ),
        ({"num_experts": np.ones(112)}, r"sizes \(params_total\).*56 runs with 1 sparsity, 1 of them at 3 sizes"),
    ],
)
def test_what_a_table_lacks_is_a_sentence_with_its_columns(runs, fields, words):
    with pytest.raises(ValueError, match=words):
        isoflop_budgets(changed(runs, **fields))


def test_more_experts_to_a_token_than_there_are_is_said_of_the_run_as_its_table_has_it(runs):
    chosen = runs.where(np.arange(112) >= 10)
    top_k = np.where(np.arange(len(chosen)) == 3, 1e4, chosen.design.top_k)
    with pytest.raises(ValueError, match=r"top_k 10000 in run 14: a sparsity .* It does not in 1 run\."):
        isoflop_budgets(changed(chosen, top_k=top_k))


def test_active_parameters_take_the_place_of_total_ones(runs):
    (one, _), _ = isoflop_budgets(runs)
    assert (one.by_active().size == one.runs.design.params_active).all()
    np.testing.assert_array_less(one.by_active().size, one.size * (1 + 1e-9))
