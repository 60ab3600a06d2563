"""IsoFLOP parabolas: vertices, the power laws through them, and how a dense table comes to them."""

import json

import jax
import numpy as np
import pandas as pd
import pytest

from moejax.__main__ import main
from moejax.fit.runs import runs_from
from moejax.float64 import float64
from moejax.laws.dense.chinchilla import HOFFMANN_2022, optimal_split
from moejax.laws.design import Design
from moejax.papers.hoffmann.recipe import isoflop

BUDGETS = np.geomspace(1e19, 1e21, 5)


def sweep(budgets=BUDGETS, noise=0.0, seed=0, sizes=5, experts=None):
    """Sizes within a factor 2 of the best of Hoffmann's law, at every budget."""
    flops, offset = (a.ravel() for a in np.meshgrid(budgets, np.linspace(-0.7, 0.7, sizes), indexing="ij"))
    with float64():
        size = np.asarray(optimal_split(HOFFMANN_2022, flops)["params_active"]) * np.exp(offset)
        loss = np.asarray(jax.vmap(HOFFMANN_2022)(Design(params_active=size, tokens=flops / 6 / size)))
    loss = loss + noise * np.random.default_rng(seed).normal(size=len(flops))
    more = {} if experts is None else {"num_experts": np.full(len(flops), float(experts))}
    return Design(params_active=size, tokens=flops / 6 / size, flops=flops, **more), loss


def trend(found, what):
    return next(one for one in found.trends if one.what == what)


def test_vertices_and_exponents_are_those_of_the_law():
    found = isoflop(runs_from(*sweep()))
    best = optimal_split(HOFFMANN_2022, BUDGETS)
    assert [one.size.value for one in found.splits] == pytest.approx(best["params_active"], rel=0.02)
    assert [one.tokens.value for one in found.splits] == pytest.approx(best["tokens"], rel=0.02)
    share = HOFFMANN_2022.tokens_exponent / (HOFFMANN_2022.params_exponent + HOFFMANN_2022.tokens_exponent)
    assert trend(found, "N*").exponent == pytest.approx(share, abs=0.003)
    assert trend(found, "D*").exponent == pytest.approx(1 - share, abs=0.003)


def test_intervals_of_vertices_and_exponents_hold_the_truth_as_often_as_they_say():
    best, exact = optimal_split(HOFFMANN_2022, BUDGETS)["params_active"], isoflop(runs_from(*sweep()))
    held, exponents = [], []
    for seed in range(100):
        found = isoflop(runs_from(*sweep(noise=0.003, seed=seed)))
        held += [one.size.low <= at <= one.size.high for one, at in zip(found.splits, best, strict=True)]
        line = next((one for one in found.trends if one.what == "N*"), None)
        exponents += [line.low <= trend(exact, "N*").exponent <= line.high] if line else []
    assert 0.85 <= np.mean(held) <= 0.95
    assert 0.82 <= np.mean(exponents) <= 0.98


def grid(drift=0.0, budgets=BUDGETS, sizes=9):
    """Sizes from 2e8 to 2e10, the same at every budget; FLOPs fall by ``drift`` from the smallest to the largest."""
    spent, share = (a.ravel() for a in np.meshgrid(budgets, np.linspace(0, 1, sizes), indexing="ij"))
    flops, size = spent * np.exp(drift * (0.5 - share)), 2e8 * 100**share
    with float64():
        loss = np.asarray(jax.vmap(HOFFMANN_2022)(Design(params_active=size, tokens=flops / 6 / size)))
    return Design(params_active=size, tokens=flops / 6 / size, flops=flops), loss


@pytest.mark.parametrize("drift", [0.0, -0.2, 0.2])
def test_intervals_hold_the_laws_own_optimum_on_a_fixed_grid_of_sizes_and_where_flops_drift_with_size(drift):
    budgets = np.geomspace(2e19, 2e21, 5)
    design, loss = grid(drift, budgets)
    best = optimal_split(HOFFMANN_2022, budgets)["params_active"]
    share = HOFFMANN_2022.tokens_exponent / (HOFFMANN_2022.params_exponent + HOFFMANN_2022.tokens_exponent)
    held, exponents = [], []
    for seed in range(60):
        noise = 0.003 * np.random.default_rng(seed).normal(size=len(loss))
        found = isoflop(runs_from(design, loss * np.exp(noise)))
        assert [one.size.flops for one in found.splits] == pytest.approx(budgets)
        held += [one.size.low <= at <= one.size.high for one, at in zip(found.splits, best, strict=True)]
        exponents.append(trend(found, "N*").low <= share <= trend(found, "N*").high)
    assert 0.85 <= np.mean(held) <= 0.97
    assert 0.8 <= np.mean(exponents) <= 0.98


@pytest.mark.parametrize("drift", [-0.2, 0.2])
def test_flops_that_drift_with_size_move_no_vertex(drift):
    even, uneven = (isoflop(runs_from(*grid(one, np.geomspace(2e19, 2e21, 5)))) for one in (0.0, drift))
    for one, other in zip(even.splits, uneven.splits, strict=True):
        assert one.size.value == pytest.approx(other.size.value, rel=0.02)
        assert one.size.loss == pytest.approx(other.size.loss, rel=0.001)


def test_at_equal_flops_each_vertex_is_that_of_its_own_parabola():
    design, loss = sweep(noise=0.003)
    for one in isoflop(runs_from(design, loss)).splits:
        here = np.isclose(design.flops, one.size.flops)
        curvature, slope, _ = np.polyfit(np.log(design.params_active[here]), loss[here], 2)
        assert one.size.value == pytest.approx(np.exp(-slope / curvature / 2))


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (grid(0.4), "less than 25 % apart"),
        (sweep(np.array([1e19, 1.2e19, 1e20])), "1e+19, 1.2e+19 FLOPs may be fewer budgets"),
        (grid(0.2, BUDGETS[2:3]), "needs two budgets with a vertex"),
        (grid(sizes=5), "3 % above the lowest"),
    ],
)
def test_budgets_that_may_be_one_unknown_slopes_and_coarse_sizes_are_warnings(runs, words):
    found = isoflop(runs_from(*runs))
    assert any(words in warning for warning in found.warnings)
    assert f"! {found.warnings[0]}" in found.tables()[0].notes


def test_a_clean_sweep_has_no_warning():
    assert isoflop(runs_from(*sweep())).warnings == ()


def test_three_sizes_a_budget_have_vertices_and_exponents_and_no_intervals_of_vertices():
    found = isoflop(runs_from(*sweep(sizes=3)))
    assert not found.noise_is_known
    assert all(np.isnan(one.size.low) and one.size.determined for one in found.splits)
    assert np.isfinite(trend(found, "N*").low)
    assert "passes through its three runs" in found.tables()[0].notes[0]


def test_kinds_of_models_have_parabolas_of_their_own():
    (dense, loss), (sparse, lower) = sweep(experts=0), sweep(experts=8)
    both = Design(**{name: np.append(getattr(dense, name), getattr(sparse, name)) for name in KNOWN})
    found = isoflop(runs_from(both, np.append(loss, lower * 0.97)))
    assert len(found.splits) == 2 * len(BUDGETS)
    assert {one.held["num_experts"] for one in found.trends} == {0.0, 8.0}


KNOWN = ("params_active", "tokens", "flops", "num_experts")


def test_sizes_on_one_side_of_the_best_have_no_vertex_but_a_reason():
    design, loss = sweep(sizes=9)
    small = np.asarray(design.params_active) < 0.9 * optimal_split(HOFFMANN_2022, design.flops)["params_active"]
    found = isoflop(runs_from(design, loss).where(small | (np.asarray(design.flops) < 2e19)))
    assert [bool(one.why) for one in found.splits] == [False] + [True] * 4
    assert "the largest size trained" in found.splits[-1].why
    assert found.trends == ()


@pytest.mark.parametrize("recipe", ["isoflop", "tian"])
def test_a_dense_table_of_tokens_and_budgets_is_analysed_in_one_command(tmp_path, capsys, recipe):
    design, loss = sweep(BUDGETS[:2], sizes=4)
    table = tmp_path / "dense.csv"
    pd.DataFrame({"budget": design.flops, "tokens": design.tokens, "eval": loss}).to_csv(table, index=False)
    words = ["fit", str(table), "--recipe", recipe, "--map", "flops=budget", "--loss", "eval"]
    assert main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    best = optimal_split(HOFFMANN_2022, BUDGETS[:2])["tokens"]
    assert [one["tokens"] for one in said["vertices"]] == pytest.approx(best, rel=0.02)
    assert said["power_laws"] == []
    assert "A power law needs 3 budgets" in (tmp_path / "out" / "isoflop.txt").read_text()


def test_a_table_without_three_sizes_a_budget_is_refused_with_what_it_has(tmp_path, capsys):
    design, loss = sweep(sizes=2)
    table = tmp_path / "dense.csv"
    pd.DataFrame({"flops": design.flops, "tokens": design.tokens, "loss": loss}).to_csv(table, index=False)
    assert main(["fit", str(table), "--recipe", "isoflop"]) == 2
    said = capsys.readouterr().err
    assert "2 of the 3 sizes needed for a parabola" in said
    assert "--map flops=COLUMN" in said
