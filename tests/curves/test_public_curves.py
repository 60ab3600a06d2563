"""Loss curves that others published: the multi-power law's constants give its errors, and a fit goes below them.

The curves are not part of the project; MOEJAX_RUN_TABLES names the folder that holds them.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from moejax.curves.loss_curves import fit_curves
from moejax.curves.read_curves import Curves, read_curves, runs_of
from moejax.fit.search.objective import Huber
from moejax.fit.search.starts import WarmStart
from moejax.fit.selection.metrics import errors, predict
from moejax.laws.curves.multi_power import PUBLISHED

FOLDER = Path(os.environ.get("MOEJAX_RUN_TABLES", "."), "multi_power_law")
pytestmark = [
    pytest.mark.run_tables,
    pytest.mark.skipif(
        "MOEJAX_RUN_TABLES" not in os.environ, reason="MOEJAX_RUN_TABLES names no folder of public run tables"
    ),
]

FITTED = ("cosine_24000", "constant_24000", "wsdcon_9")
HELD_OUT = ("constant_72000", "cosine_72000", "wsd_20000_24000", "wsdld_20000_24000", "wsdcon_3", "wsdcon_18")
PRINTED = {
    "25M": (0.9988, 0.00376, 0.00465, 0.0041),
    "100M": (0.9983, 0.00435, 0.00592, 0.0058),
    "400M": (0.9978, 0.00484, 0.00730, 0.0100),
}
"""R², MAE, RMSE and largest relative error of the paper, means over the six schedules."""


def read(size, names):
    return read_curves([FOLDER / f"{size}_{name}.csv" for name in names], warmup=2160)


def held_out(law, size):
    """The four errors, means over the six schedules."""
    found = []
    for curve in read(size, HELD_OUT).curves:
        runs = runs_of(Curves(curves=(curve,)), most_points=10_000, drops=True)
        one = errors(predict(law, runs), runs.loss, runs.weight)
        found.append((one.r_squared, one.mae, one.rmse, one.max_relative_error))
    return np.mean(found, axis=0)


@pytest.mark.parametrize("size", PRINTED)
def test_published_constants_give_the_published_errors(size):
    found = held_out(PUBLISHED[f"luo-2025-{size.lower()}"].law, size)
    # Rates are read as they are logged, and the paper's are computed for every step.
    np.testing.assert_allclose(found[1:], PRINTED[size][1:], rtol=0.08)
    assert found[0] == pytest.approx(PRINTED[size][0], abs=3e-4)


@pytest.mark.slow
@pytest.mark.parametrize("size", PRINTED)
def test_the_minimum_of_the_published_objective_lies_far_below_the_published_constants(size):
    """Their search stops early; at its end the fitted curves are met several times better, and the worst errors on the
    others are smaller, and the mean ones larger."""
    truth = PUBLISHED[f"luo-2025-{size.lower()}"].law
    curves = read(size, FITTED)
    found = fit_curves(curves, truth, starts=WarmStart((truth,)))
    runs = runs_of(curves)
    published = float(np.sum(np.asarray(Huber()(predict(truth, runs), runs.loss))))
    assert found.converged
    assert found.value < 0.6 * published
    r_squared, mae, rmse, worst = held_out(found.law, size)
    assert worst < PRINTED[size][3]
    assert mae < 1.35 * PRINTED[size][1]
    assert rmse < 1.25 * PRINTED[size][2]
    assert r_squared > 0.995


@pytest.mark.slow
@pytest.mark.parametrize("size", PRINTED)
def test_drops_whose_exponents_are_held_to_a_half_predict_unseen_schedules_better(size):
    """Three curves determine them badly, and the published search leaves them near the half from which it starts."""
    truth, curves = PUBLISHED[f"luo-2025-{size.lower()}"].law, read(size, FITTED)
    held = {"drop_exponent": 0.5, "rate_exponent": 0.5}
    free, fixed = (
        fit_curves(curves, type(truth), fixed=given, starts=WarmStart((truth,)), intervals=False)
        for given in ({}, held)
    )
    assert free.value < fixed.value
    assert held_out(fixed.law, size)[1] < held_out(free.law, size)[1]
