"""Real tables of runs that others published: their fits reproduced, and corrected where they stopped early.

The tables are not part of the project; MOEJAX_RUN_TABLES names the folder that holds them.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import moejax
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Huber, Squared
from moejax.fit.search.starts import HOFFMANN_GRID
from moejax.fit.selection.comparison import diagnose
from moejax.fit.selection.holdout import hold_out, largest
from moejax.fit.tables.read_runs import read_runs
from moejax.fit.uncertainty.bootstrap import bootstrap
from moejax.laws.dense.chinchilla import Chinchilla
from moejax.laws.dense.loss_compute import LossCompute
from moejax.laws.design import Design
from moejax.laws.mixtures.routed import Routed

FOLDER = Path(os.environ.get("MOEJAX_RUN_TABLES", "."))
pytestmark = [
    pytest.mark.run_tables,
    pytest.mark.skipif(
        "MOEJAX_RUN_TABLES" not in os.environ, reason="MOEJAX_RUN_TABLES names no folder of public run tables"
    ),
]


@pytest.fixture(scope="module")
def epoch():
    """Chinchilla's runs, digitised by Besiroglu et al. (2024), without their five outliers."""
    frame = pd.read_csv(FOLDER / "epoch_chinchilla" / "svg_extracted_data.csv")
    frame = frame[frame["loss"] < frame["loss"].nlargest(5).min()]
    mapping = {"params_active": "Model Size", "tokens": "`Training FLOP` / 6 / `Model Size`"}
    return read_runs(frame, Chinchilla, mapping=mapping).runs


@pytest.mark.slow
def test_hoffmanns_grid_has_its_4500_starts_and_finds_the_optimum_of_epochs_points(epoch):
    found = fit_law(Chinchilla, epoch, starts=HOFFMANN_GRID)
    assert len(epoch) == 240
    assert found.starts == 4500
    assert found.value == pytest.approx(0.00101827402, rel=1e-6)
    expected = {
        "params_scale": 477.826,
        "tokens_scale": 2143.417,
        "irreducible": 1.817218,
        "params_exponent": 0.347310,
        "tokens_exponent": 0.367172,
    }
    for name, value in expected.items():
        assert found.coefficients[name] == pytest.approx(value, rel=2e-6), name


@pytest.mark.slow
def test_epochs_optimum_comes_out_by_formula(epoch):
    found = moejax.fit(epoch, "loss = E + A/N^alpha + B/D^beta")
    expected = {"E": 1.817218, "A": 477.826, "alpha": 0.347310, "B": 2143.417, "beta": 0.367172}
    assert found.coefficients == pytest.approx(expected, rel=2e-6)
    by_name = fit_law(Chinchilla, epoch)
    assert [*found.coefficients.values()] == pytest.approx([*by_name.coefficients.values()], rel=1e-9)
    assert found.value == pytest.approx(by_name.value, rel=1e-12)


@pytest.mark.slow
def test_resampled_errors_of_epochs_fit_are_those_of_besiroglu(epoch):
    resampled = bootstrap(fit_law(Chinchilla, epoch), epoch, 4000, by="run")
    deviations = {name: found.deviation for name, found in resampled.coefficients().items()}
    assert deviations["params_scale"] == pytest.approx(124.58, rel=0.1)
    assert deviations["tokens_scale"] == pytest.approx(1293.23, rel=0.2)
    printed = {"irreducible": 0.03, "params_exponent": 0.02, "tokens_exponent": 0.02}
    for name, value in printed.items():
        assert deviations[name] == pytest.approx(value, abs=0.006), name
    share = resampled.evaluate(lambda law: law.tokens_exponent / (law.tokens_exponent + law.params_exponent))
    assert np.std(share) == pytest.approx(0.018, abs=0.002)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("router", "runs", "experts_maximum"), [("S-Base", 58, 238.7), ("RL-R", 59, 470.0), ("Hash", 56, 427.3)]
)
def test_clarks_routed_laws_fit_their_released_curves_and_predict_the_largest_models(router, runs, experts_maximum):
    frame = pd.read_csv(FOLDER / "clark2022_routing" / "curves.csv.gz")
    subset = frame.query("k == 1 and seed == 42 and routing_frequency == 0.5 and router_type in ['Dense', @router]")
    last = subset.dropna(subset="loss_validation").sort_values("step").groupby("hyper_id").last().reset_index()
    mapping = {"params_active": "dense_parameter_count", "top_k": "k", "loss": "loss_validation"}
    read = read_runs(last, Routed, mapping=mapping)
    assert len(read.runs) == runs
    found = fit_law(Routed, read.runs, penalty=Squared())
    assert found.metrics.rmse <= 0.0184
    assert found.coefficients["experts_maximum"] == pytest.approx(experts_maximum, rel=1e-3)
    (held,) = hold_out(Routed, read.runs, [largest(read.runs, "params_active", above=1e9)], penalty=Squared())
    assert held.metrics.runs == 10
    assert held.metrics.max_relative_error <= 0.028


@pytest.fixture(scope="module")
def flame():
    """FLAME-MoE's runs of its three complete budgets."""
    mapping = {"params_active": "active_params", "tokens": "tokens_6NaD"}
    path = FOLDER / "flame_moe" / "flame_moe_isoflop_recovered.csv"
    return read_runs(path, Chinchilla, mapping=mapping, where=["flops > 5e18"]).runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("published", "penalty", "mean", "excess", "at_start"),
    [
        ((1.958528, 123.248650, 0.257583, 8886110.52, 0.750334), Squared("nats"), 0.006187, 0.75, set()),
        (
            (2.321319, 148.412879, 0.282095, 485165195.41, 0.949377),
            Huber(residual="log"),
            1.3138e-5,
            0.0016,
            {"params_scale", "tokens_scale"},
        ),
    ],
)
def test_flames_published_fits_are_recomputed_bettered_and_caught(flame, published, penalty, mean, excess, at_start):
    names = ("irreducible", "params_scale", "params_exponent", "tokens_scale", "tokens_exponent")
    given = Chinchilla(**dict(zip(names, published, strict=True)))
    found = diagnose(given, flame, penalty=penalty, grid=HOFFMANN_GRID)
    assert len(flame) == 48
    assert found.value / 48 == pytest.approx(mean, rel=2e-4)
    assert found.excess >= excess * 0.98
    assert set(found.at_start) == at_start
    assert any("above the optimum" in sentence for sentence in found.sentences)
    assert found.best.converged


@pytest.mark.slow
def test_marins_law_with_a_pinned_asymptote_predicts_its_next_budget():
    read = read_runs(FOLDER / "marin_grug_moe" / "v16_optima.csv", LossCompute, loss="paloma_macro_loss")
    found = fit_law(LossCompute, read.runs, fixed={"irreducible": 1.6}, penalty=Squared())
    assert found.coefficients["exponent"] == pytest.approx(-0.094, abs=0.001)
    predicted = found.law(Design(flops=1e21))
    assert predicted == pytest.approx(2.606, abs=0.003)
    assert predicted == pytest.approx(2.599, abs=0.01), "what was measured afterwards"
