"""Every law of the library is found again from the losses it predicts, whatever its form."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from moejax.fit.runs import runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import describes_its_dimensions
from moejax.fit.selection.metrics import predict
from moejax.fit.tables.read_runs import read_runs
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.design import FIELDS, Design, design_from, known
from moejax.laws.law import coefficients


def sweep(count=200):
    rng = np.random.default_rng(0)
    active, tokens = np.exp(rng.uniform(np.log([1e7, 1e9]), np.log([1e10, 1e12]), (count, 2))).T
    experts = 2.0 ** rng.integers(1, 8, count)
    top_k = np.minimum(2.0 ** rng.integers(0, 4, count), experts)
    model_dim = 64 * np.round(np.exp(rng.uniform(np.log(4), np.log(40), count)))
    return Design(
        params_active=active,
        params_total=active * (1 + 0.8 * (experts - top_k) / (top_k + 1)),
        tokens=tokens,
        unique_tokens=tokens / np.exp(rng.uniform(0, np.log(100), count)),
        flops=6 * active * tokens,
        num_experts=experts,
        top_k=top_k,
        num_shared_experts=rng.integers(0, 3, count).astype(float),
        model_dim=model_dim,
        num_layers=rng.integers(4, 80, count).astype(float),
        expert_hidden=2 * model_dim / 2.0 ** rng.integers(0, 5, count),
        columns={"loss": rng.uniform(0.6, 5.0, count)},
    )


NOT_A_LOSS_OF_RUNS = {
    "resources": "its outputs compare designs; nobody measures them on runs",
    "isoflop_surface": "linear in its coefficients: moejax.laws.mixtures.isoflop_surface.fit_surface solves it",
}
NOT_IDENTIFIABLE = {
    "loss_compute": {"irreducible"},  # Kaplan's is 0, the end of what it can be.
    "leverage": {"ratio_maximum"},  # An activation ratio is at most 1, and the law saturates at 5e16.
    "hyperparameters": {"batch_scale", "batch_exponent"},  # Another output than the one that is fitted here.
    "step_law": {"batch_scale", "batch_exponent"},
    "allocation": {"tokens_scale", "tokens_exponent"},
}
LOSSES = {"error_from_loss": {"loss": np.linspace(1.5, 5.0, 200)}}
"""Losses at which a law of scores gives a score above 0."""
WITH_CONSTANTS = [name for name in LAWS if PUBLISHED[name] and name not in NOT_A_LOSS_OF_RUNS]
RUNS = runs_from(sweep(), np.ones(200))


def runs_for(name):
    """The runs, at losses that a law can read."""
    return dataclasses.replace(RUNS, design=design_from(known(RUNS.design) | LOSSES.get(name, {})))


@pytest.mark.parametrize("name", [name for name in LAWS if name not in NOT_A_LOSS_OF_RUNS])
def test_a_law_measured_in_other_units_predicts_the_same(name):
    assert describes_its_dimensions(LAWS[name], RUNS)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("name", ["routed", "sparsity", "leverage", "hyperparameters"])
def test_a_published_law_is_found_again_from_its_predictions(name):
    assert_found_again(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_CONSTANTS)
def test_all_published_laws_are_found_again_from_their_predictions(name):
    assert_found_again(name)


@pytest.mark.parametrize("name", [name for name in LAWS if name not in NOT_A_LOSS_OF_RUNS])
def test_a_law_is_fitted_to_an_output_of_its_own_or_refused(name):
    """The column `loss` was once taken for a learning rate."""
    others = {output for law in LAWS.values() for output in law.outputs} - set(LAWS[name].outputs)
    for output in others:
        with pytest.raises(ValueError, match=f"the runs have the {output}"):
            fit_law(LAWS[name], dataclasses.replace(RUNS, output=output))


@pytest.mark.parametrize("name", LAWS)
def test_a_table_is_read_by_the_columns_of_a_laws_outputs(name):
    law, measures = LAWS[name], {"learning_rate": 1e-3, "efficiency_leverage": 2.0}
    frame = pd.DataFrame(
        {f: getattr(RUNS.design, f) for f in FIELDS if getattr(RUNS.design, f) is not None} | {"loss": RUNS.design.loss}
    ).assign(**{f: 24.0 for f in ("num_layers", "sequence_length") if f in law.inputs})
    if "loss" in law.outputs:
        assert read_runs(frame, law).runs.output == "loss"
        assert read_runs(frame.rename(columns={"loss": "val"}), law, loss="val").runs.output == "loss"
        return
    with pytest.raises(ValueError, match="a fit has one output" if len(law.outputs) > 1 else "has no column"):
        read_runs(frame, law)
    with pytest.raises(ValueError, match="mapping="):
        read_runs(frame.assign(val=2.0), law, loss="val")
    for output in law.outputs:
        sizes = frame if "loss" in law.inputs else frame.drop(columns="loss")
        measured = sizes.assign(**{output: measures.get(output, 1e9)})
        # These sizes are no run's: what is overwritten contradicts the others.
        assert read_runs(measured, law, loss=output, trust_units=True).runs.output == output


def assert_found_again(name):
    truth = next(iter(PUBLISHED[name].values())).law
    output = next(iter(LAWS[name].outputs))
    runs = runs_for(name)
    found = fit_law(LAWS[name], runs_from(runs.design, predict(truth, runs, output), output=output))
    assert found.metrics.max_relative_error < 1e-4
    for key, value in coefficients(truth).items():
        if key not in NOT_IDENTIFIABLE.get(name, ()):
            assert found.coefficients[key] == pytest.approx(value, rel=1e-3, abs=1e-4), key
