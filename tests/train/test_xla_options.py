"""Options of XLA's compiler belong to a chip, and a runtime may leave them."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from moejax.laws.chips import CHIPS
from moejax.model.runtime import Runtime
from moejax.train.xla_options import OPTIONS, as_flags, compiler_options, options_of


def test_every_option_has_a_chip():
    assert set(OPTIONS) <= set(CHIPS)


def test_a_mesh_of_a_chip_is_compiled_with_its_options():
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(device_kind="TPU v5")]))
    found = compiler_options(mesh, Runtime())
    assert found == OPTIONS["v5p"]
    assert found["xla_tpu_scoped_vmem_limit_kib"] == "81920"
    assert compiler_options(mesh, Runtime(xla_options="none")) is None
    assert compiler_options(Mesh(np.array(jax.devices()[:1]), ("data",)), Runtime()) is None
    assert as_flags(options_of("v5p", Runtime())).startswith("--xla_tpu_scoped_vmem_limit_kib=81920 --xla_")


def test_an_unknown_choice_is_a_sentence():
    with pytest.raises(ValueError, match="xla_options is 'all'; known are auto, none"):
        Runtime(xla_options="all").check()
