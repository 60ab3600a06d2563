"""The proof of benchmarks/next.py in small: a known law is measured with noise by a grid, at random, and as planned."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from moejax.fit.uncertainty.estimands import prediction_estimand
from moejax.laws.dense.chinchilla import HOFFMANN_2022, Chinchilla
from moejax.laws.design import Design


@pytest.fixture(scope="module")
def benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "next.py"
    spec = importlib.util.spec_from_file_location("benchmark_next", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_next"] = module
    spec.loader.exec_module(module)
    return module


def grid(active, tokens):
    active, tokens = (a.ravel() for a in np.meshgrid(active, tokens))
    return Design(params_active=active, tokens=tokens)


@pytest.mark.slow
def test_planned_runs_come_near_a_grid_of_three_times_their_flops_and_are_better_than_random_ones(benchmark):
    truth = benchmark.Truth(
        HOFFMANN_2022,
        grid(np.geomspace(5e7, 2e9, 6), np.geomspace(1e9, 5e10, 6)),
        grid(np.geomspace(5e7, 2e9, 9), np.geomspace(1e9, 5e10, 9)),
        (prediction_estimand(Chinchilla, {"params_active": 6e10, "tokens": 2.8e12}),),
    )
    rows = {
        row["arm"]: row
        for row in benchmark.simulate("hoffmann", truth, [1 / 3], seeds=range(1000, 1024), together=True)
    }
    whole, drawn, planned = (rows[arm] for arm in ("the paper's grid", "random", "designed"))
    assert planned["flops"] <= whole["flops"] / 3
    assert planned["runs"] <= whole["runs"]
    assert planned["median"][0] < 1.5 * whole["median"][0]
    assert planned["median"] < drawn["median"]
    assert planned["worst_tenth"] < drawn["worst_tenth"]
