"""Trainings whose products are of 8-bit numbers: near the loss of others, the same when resumed, refused on
chips without such products."""

import dataclasses

import jax
import numpy as np
import pytest
from interrupted import lasting, logged, on_one_device, train_killed_at_every_log

from moejax.errors import UserError
from moejax.kernels import table
from moejax.kernels.quantization import QUANTIZATIONS, TYPES
from moejax.laws.chips import CHIPS
from moejax.model.runtime import Runtime
from moejax.train.devices import CHIP_OF_DEVICE, check_quantization
from moejax.train.directory.identity import fingerprint
from moejax.train.mesh import MeshShape, make_mesh
from moejax.train.program import make_program


@pytest.fixture
def training(training):
    """Of one layer, twice as wide: with 8-bit products, a step of two takes long to compile."""
    return dataclasses.replace(training, architecture=training.architecture.replace(num_layers=1, model_dim=32))


def quantized(training, kind, **runtime):
    runtime = dataclasses.replace(training.recipe.runtime, matmul_quantization=kind, **runtime)
    return dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, runtime=runtime))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.matrix(1)
def test_a_small_training_ends_near_the_loss_of_one_without(training, trained, kind):
    losses = {}
    for one in ("none", kind):
        rows, _ = trained(quantized(on_one_device(training), one, compute_dtype="bfloat16"))
        losses[one] = rows[-1]["loss"]
    assert losses[kind] != losses["none"]
    assert abs(losses[kind] - losses["none"]) < 0.02
    assert losses[kind] < np.log(257) - 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_a_killed_one_goes_on_bit_by_bit(training, trained, tmp_path, kind):
    training = quantized(on_one_device(training), kind, compute_dtype="bfloat16")
    rows, folder = trained(training)
    assert lasting(train_killed_at_every_log(training, tmp_path / "killed")) == lasting(rows)
    assert logged(tmp_path / "killed") == logged(folder)


def test_it_is_another_training_than_one_without(training):
    prints = {fingerprint(quantized(training, kind).as_json()) for kind in QUANTIZATIONS}
    assert len(prints) == len(QUANTIZATIONS)


HAVE = {"fp8": {"h100", "h200", "h800", "b200", "gb200", "tpu7x"}, "int8": set(CHIPS) - {"tpu7x"}}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", TYPES)
def test_a_chip_without_such_products_is_refused_before_anything_is_traced(training, monkeypatch, chip, kind):
    monkeypatch.setattr("moejax.train.devices.has_tokamax", lambda: True)
    architecture = training.architecture.replace(model_dim=128, expert_hidden=128)
    training = dataclasses.replace(quantized(training, kind), architecture=architecture)
    check_quantization(architecture, Runtime(), chip)
    if chip in HAVE[kind]:
        return check_quantization(architecture, training.recipe.runtime, chip)
    monkeypatch.setattr("moejax.train.program._make_program", lambda *_: pytest.fail("traced"))
    here = jax.devices()[:1]
    monkeypatch.setitem(CHIP_OF_DEVICE, here[0].device_kind, chip)
    sentence = rf"is '{kind}', but {CHIPS[chip].name} does not support such matmuls; choose .*'none', or another"
    with pytest.raises(UserError, match=sentence):
        make_program(training, make_mesh(MeshShape(data=1), here))
    return None


def test_on_a_tpu_experts_need_tokamax_and_wide_matrices(training, monkeypatch):
    small = training.architecture
    wide = small.replace(model_dim=128, expert_hidden=128)
    runtime = Runtime(matmul_quantization="int8")
    monkeypatch.setattr("moejax.train.devices.has_tokamax", lambda: False)
    with pytest.raises(UserError, match=rf"need tokamax {table.TOKAMAX}, which.*\[quantization\]"):
        check_quantization(wide, runtime, "v5e")
    check_quantization(wide, runtime, "h100")
    monkeypatch.setattr("moejax.train.devices.has_tokamax", lambda: True)
    with pytest.raises(UserError, match=r"matmuls have a dimension of 8.*at least 128"):
        check_quantization(small, runtime, "v5e")


def test_an_unknown_name_is_refused():
    with pytest.raises(UserError, match=r"matmul_quantization is 'fp4'; did you mean fp8"):
        Runtime(matmul_quantization="fp4").check()
