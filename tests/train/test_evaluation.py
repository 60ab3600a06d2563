"""Validation loss while training and by source; the whole is the mean over tokens."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from few_documents import Few

from moejax.data.config import WeightedSource
from moejax.data.corpus import open_corpus
from moejax.data.rows import Validation, ValidationPart
from moejax.data.sources import NAMED
from moejax.report import render
from moejax.report.trainings import trained as trained_result
from moejax.report.trainings import training_text
from moejax.routing.sums import RoutingSums
from moejax.run_table import check
from moejax.train.directory import metrics
from moejax.train.directory.manifest import validation_losses
from moejax.train.directory.row import _routing
from moejax.train.directory.status import read_status
from moejax.train.evaluation import _sum, evaluate
from moejax.train.loop import train
from moejax.train.mesh import MeshShape, make_mesh
from moejax.train.program import make_program


@pytest.fixture
def mixed(training, monkeypatch):
    """On two texts with weights, measured every second step."""
    monkeypatch.setitem(NAMED, "other", lambda reading: [Few(line="ABC {0} DEF ")])
    sources = (
        WeightedSource(name="few", source="few", weight=3.0),
        WeightedSource(name="other", source="other", weight=1.0),
    )
    data = dataclasses.replace(training.recipe.data, mixture=sources, packing="documents")
    recipe = dataclasses.replace(
        training.recipe,
        data=data,
        mesh=MeshShape(data=8),
        evaluate_tokens=512,
        checkpoint_tokens=1024,
        keep_checkpoints=2,
        keep_best=1,
    )
    return dataclasses.replace(training, recipe=recipe)


def test_each_sources_loss_is_told_and_the_whole_is_their_mean_by_tokens(mixed, trained):
    rows, folder = trained(mixed)
    parts = open_corpus(mixed.recipe.data, folder / "data").validation().parts
    assert [part.name for part in parts] == ["few", "other"]
    targets = np.array([part.targets for part in parts])
    measured = [line for line in metrics.read(folder / "metrics.jsonl") if "validation_loss" in line]
    assert [line["step"] for line in measured if line["phase"] == "trunk"] == [2, 4, 6, 8, 10]
    for found, prefix in [*((line, "validation_") for line in measured), *((row, "") for row in rows)]:
        losses = np.array([found[f"{prefix}loss_{part.name}"] for part in parts])
        assert losses[0] != losses[1]
        assert found[f"{prefix}loss"] == pytest.approx((losses * targets).sum() / targets.sum(), rel=1e-5)
        for part, loss in zip(parts, losses, strict=True):
            bits_per_byte = loss * part.targets / part.bytes / math.log(2)
            assert found[f"{prefix}bits_per_byte_{part.name}"] == pytest.approx(bits_per_byte, rel=1e-5)
    assert [rows[0][f"share_{part.name}"] for part in parts] == pytest.approx(list(targets / targets.sum()))
    shown = render.text(trained_result(rows[-1:], folder))
    assert f"(few {rows[-1]['loss_few']:.4f}, other {rows[-1]['loss_other']:.4f})" in shown
    assert f"(few {measured[0]['validation_loss_few']:.3f}, other" in training_text(measured[0])
    # A row of a run table, whatever its sources are called.
    import pandas as pd

    assert "loss_other" in check(pd.DataFrame(rows))


def test_the_last_measurement_of_a_branch_is_its_row(mixed, trained):
    rows, folder = trained(mixed)
    last = [line for line in metrics.read(folder / "metrics.jsonl") if line["phase"] == "branch-4096"][-1]
    assert last["step"] == 16
    assert last["validation_loss"] == pytest.approx(rows[-1]["loss"], abs=1e-6)


@pytest.mark.parametrize("change", [{"capacity_factor": 1.0}, {"router": "expert_choice"}])
@pytest.mark.matrix(1)
def test_where_tokens_share_the_room_of_experts_neither_the_batch_nor_what_fills_it_decides_the_loss(training, change):
    """10 rows of 16 that are evaluated together; on a mesh of 8, with 6 slots to fill."""
    rows = {"tokens": np.random.default_rng(0).integers(0, 256, (10, 33)).astype(np.int32)}
    part = ValidationPart(name="few", targets=320, bytes=None)
    validation = Validation(rows=rows, source=np.zeros(10, int), parts=(part,))
    training, found = dataclasses.replace(training, architecture=training.architecture.replace(**change)), {}
    for batch, data in [(8, 8), (64, 1)]:
        recipe = dataclasses.replace(training.recipe, batch_tokens=32 * batch)
        mesh = make_mesh(MeshShape(data=data), jax.devices()[:data])
        program = make_program(dataclasses.replace(training, recipe=recipe), mesh)
        with jax.set_mesh(mesh):
            params = jax.tree.map(lambda leaf: 3 * leaf, program.init(0).params)
            one = evaluate(program, params, None, validation)
            found[batch] = one.losses()["loss"], one.routing
    with jax.set_mesh(mesh):
        costs, routing = program.evaluate(params, None, rows, np.ones(10, bool))
    alone = float(costs.sum()) / part.targets, routing
    for loss, routing in found.values():
        assert loss == pytest.approx(alone[0], rel=1e-6)
        np.testing.assert_array_equal(routing.counts, alone[1].counts)
        np.testing.assert_array_equal(routing.served, alone[1].served)


@pytest.mark.slow
def test_measuring_changes_nothing_else(mixed, tmp_path):
    without = dataclasses.replace(mixed, recipe=dataclasses.replace(mixed.recipe, evaluate_tokens=0, keep_best=0))
    assert mixed.fingerprint() == without.fingerprint()
    rows = train(without, tmp_path / "without")
    assert [row["loss"] for row in train(mixed, tmp_path / "with")] == [row["loss"] for row in rows]


@pytest.mark.slow
def test_the_checkpoint_with_the_lowest_validation_loss_is_kept(mixed, tmp_path):
    """At so high a learning rate the trunk gets worse again."""
    optimizer = dataclasses.replace(mixed.recipe.optimizer, learning_rate=0.3)
    recipe = dataclasses.replace(mixed.recipe, optimizer=optimizer, checkpoint_tokens=512, budgets_tokens=(8192,))
    train(dataclasses.replace(mixed, recipe=recipe), tmp_path)
    lines = [line for line in metrics.read(tmp_path / "metrics.jsonl") if line["phase"] == "trunk"]
    losses = {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}
    best = min((step for step in losses if step % 2 == 0), key=losses.__getitem__)
    kept = sorted(int(path.name) for path in (tmp_path / "checkpoints" / "trunk").iterdir() if path.name.isdigit())
    assert best in kept
    assert kept[-1] == recipe.trunk_steps
    assert validation_losses(tmp_path / "checkpoints" / "trunk")[best] == pytest.approx(losses[best], abs=1e-6)
    told = read_status(tmp_path).best_checkpoint
    assert told is not None
    assert told["validation_loss"] <= losses[best] + 1e-6


def test_what_is_not_measured_cannot_be_the_best(mixed):
    recipe = dataclasses.replace(mixed.recipe, evaluate_tokens=768)
    with pytest.raises(ValueError, match="make checkpoint_tokens a multiple of evaluate_tokens"):
        recipe.check()


def test_a_validation_of_more_assignments_than_an_int32_holds_drops_none():
    layers, experts, batch = 2, 8, 2**28
    one = RoutingSums(
        tokens=np.full(layers, batch // 8, np.int32),
        counts=np.full((layers, experts), batch, np.int32),
        served=np.full(layers, batch * 7, np.int32),
        probability=np.ones((layers, experts), np.float32),
        squared_logit=np.ones((layers, experts), np.float32),
        squared_logsumexp=np.ones(layers, np.float32),
        sequences=np.full(layers, 4, np.int32),
        sequence_balance=np.ones(layers, np.float32),
    )
    found = _routing(jax.tree.map(_sum, *[one] * 5))
    assert found["dropped_share"] == pytest.approx(1 / 8, rel=1e-6)
    assert found["load_cv"] == pytest.approx(0, abs=1e-6)
    assert found["balance_loss"] == pytest.approx(1, abs=1e-6)


def test_a_row_has_the_balance_loss_of_the_whole_validation_as_the_mean_over_layers():
    counts, probability = np.array([[6, 2], [4, 4]], np.int32), np.array([[3.0, 1.0], [1.0, 3.0]], np.float32)
    sums = RoutingSums(
        tokens=np.full(2, 4, np.int32),
        counts=counts,
        served=counts.sum(1),
        probability=probability,
        squared_logit=np.ones((2, 2), np.float32),
        squared_logsumexp=np.ones(2, np.float32),
        sequences=np.ones(2, np.int32),
        sequence_balance=np.ones(2, np.float32),
    )
    layers = [2 * (0.75 * 0.75 + 0.25 * 0.25), 1.0]
    assert _routing(sums)["balance_loss"] == pytest.approx(np.mean(layers), rel=1e-6)


def test_evaluation_is_compiled_before_the_first_step(mixed, tmp_path):
    """The first estimate of the time left would count its compilation."""
    happened = []
    # A shape that no other test has compiled.
    recipe = dataclasses.replace(mixed.recipe, batch_tokens=512, log_every_steps=1, evaluate_tokens=1024)

    def listen(event, duration, **about):
        if "backend_compile" in event and "evaluate" in about.get("fun_name", ""):
            happened.append("compiled")

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        train(
            dataclasses.replace(mixed, recipe=recipe),
            tmp_path,
            progress=lambda steps, values: happened.append("evaluated" if "validation_loss" in values else "logged"),
        )
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert happened.count("compiled") == 1
    assert happened.index("compiled") < happened.index("logged") < happened.index("evaluated")
