"""Speed and memory as they are logged."""

import mmap
import re
import types

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from moejax.kernels.platform import GENERATIONS
from moejax.laws.accounting import flops_per_token
from moejax.laws.chips import CHIPS
from moejax.model.runtime import Runtime
from moejax.plan.topology import TARGETS
from moejax.train.devices import (
    CHIP_OF_DEVICE,
    XLA_OPTIONS,
    Speed,
    compiler_options,
    memory,
    without_mfu,
)


def test_utilization_is_the_models_flops_over_the_peak_of_all_devices(training, monkeypatch):
    h100 = types.SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(jax, "devices", lambda: [h100] * 4)
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    found = Speed(training).of(1_000_000, 2.0)
    assert found["tokens_per_second"] == 500_000
    flops = 3 * flops_per_token(training.architecture, 32).forward_causal
    assert found["mfu"] == pytest.approx(500_000 * flops / (4 * 989.4e12))


def test_where_the_peak_is_not_known_there_is_no_utilization(training):
    assert Speed(training).of(100, 2.0) == {"tokens_per_second": 50.0}


def test_memory_is_that_of_the_fullest_device(monkeypatch):
    stats = [{"bytes_in_use": 10, "peak_bytes_in_use": 30}, {"bytes_in_use": 20, "peak_bytes_in_use": 25}]
    devices = [types.SimpleNamespace(memory_stats=lambda one=one: one) for one in stats]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert memory() == {"memory_bytes": 20, "memory_peak_bytes": 30}


def test_a_cpu_does_not_tell_so_it_is_that_of_the_process():
    before = memory()
    # Mapped by itself: an array may lie in memory that earlier tests have left with the process.
    held = mmap.mmap(-1, 240_000_000)
    held.write(b"x" * len(held))
    after = memory()
    assert after["memory_bytes"] >= before["memory_bytes"] + 0.8 * len(held)
    assert after["memory_peak_bytes"] >= after["memory_bytes"]


def test_the_tables_of_chips_agree():
    assert set(CHIP_OF_DEVICE.values()) <= CHIPS.keys()
    assert TARGETS.keys() <= CHIPS.keys()
    for chip, target in TARGETS.items():
        assert CHIP_OF_DEVICE[target.description] == chip
    gpus = [name for name, chip in CHIP_OF_DEVICE.items() if not CHIPS[chip].torus_dimensions]
    assert gpus
    assert all(any(word in GENERATIONS for word in re.split("[ -]", name)) for name in gpus)


def test_a_device_in_no_table_is_named_where_the_mfu_is_missed(monkeypatch):
    assert without_mfu() == ""  # of a CPU nobody misses it
    for kind, said in {"NVIDIA GH200 480GB": "NVIDIA GH200 480GB", "NVIDIA H200": ""}.items():
        device = types.SimpleNamespace(device_kind=kind, platform="gpu")
        monkeypatch.setattr(jax, "devices", lambda device=device: [device])
        assert said in without_mfu()
        assert bool(without_mfu()) == bool(said)


def test_every_option_has_a_chip():
    assert set(XLA_OPTIONS) <= set(CHIPS)


def test_a_mesh_of_a_chip_is_compiled_with_its_options():
    mesh = types.SimpleNamespace(devices=np.array([types.SimpleNamespace(device_kind="TPU v5")]))
    found = compiler_options(mesh, Runtime())
    assert found == XLA_OPTIONS["v5p"]
    assert found["xla_tpu_scoped_vmem_limit_kib"] == "81920"
    assert compiler_options(mesh, Runtime(xla_options="none")) is None
    assert compiler_options(Mesh(np.array(jax.devices()[:1]), ("data",)), Runtime()) is None


def test_an_unknown_choice_is_a_sentence():
    with pytest.raises(ValueError, match="xla_options is 'all'; choose from auto, none"):
        Runtime(xla_options="all").check()
