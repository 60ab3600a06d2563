"""On Blackwell experts meet their rows in tokamax's kernels, with the sizes that we name, as far as programs
for a GPU are lowered without one; and its kernel of a TPU, interpreted."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType

from moejax.kernels import quantization
from moejax.kernels.experts import Experts
from moejax.kernels.grouped_matmul.tiles import nearest
from moejax.kernels.table import has_tokamax, load
from moejax.plan.topology import TARGETS
from moejax.routing import ROUTERS
from moejax.routing.dispatch import grouped

pytestmark = [
    pytest.mark.skipif(not has_tokamax(), reason="tokamax is not installed: make parity"),
    # Tokamax's own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:tokamax"),
]
TOKENS, WIDTH, HIDDEN, EXPERTS = 256, 256, 128, 4


class Absent:
    """A GPU as tokamax asks it what it is."""

    platform, compute_capability = "gpu", "10.0"
    device_kind, core_count = TARGETS["b200"].description, TARGETS["b200"].cores


def traced(monkeypatch, dtype, loss):
    """The program of ``loss(grouped, tokens, experts)`` for a B200."""
    monkeypatch.setattr("jax.extend.backend.get_default_device", Absent)
    device = jax.sharding.AbstractDevice(device_kind=Absent.device_kind, num_cores=Absent.core_count, platform="gpu")
    mesh = jax.sharding.AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device)
    routing = ROUTERS["softmax_topk"](jax.random.normal(jax.random.key(0), (TOKENS, EXPERTS)), top_k=2)
    sides = ((EXPERTS, 2, WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH))
    matrices = [jnp.ones(shape, dtype) for shape in sides]
    with jax.sharding.use_abstract_mesh(mesh):
        program = jax.make_jaxpr(
            lambda x, experts: loss(lambda *given: grouped(given[0], routing, given[1]), x, experts)
        )
        return str(program(jnp.ones((TOKENS, WIDTH), dtype), Experts(*matrices)))


def gradients(dispatch, x, experts):
    return jax.grad(lambda x, experts: dispatch(x, experts).astype(jnp.float32).sum(), argnums=(0, 1))(x, experts)


def test_experts_of_a_gpu_are_two_grouped_products_and_two_more_for_each_gradient(monkeypatch):
    kernels, asked = importlib.import_module("tokamax._src.ops.ragged_dot.pallas_mosaic_gpu"), []
    config = kernels.Config
    monkeypatch.setattr(kernels, "Config", lambda **sizes: asked.append(sizes) or config(**sizes))
    traced(monkeypatch, jnp.bfloat16, lambda dispatch, *given: dispatch(*given))
    tile = nearest("forward", 2 * TOKENS, EXPERTS, WIDTH, 2 * HIDDEN).tile
    assert len(asked) == 2
    assert (asked[0]["block_m"], asked[0]["block_k"]) == (tile.rows, tile.inner)
    assert asked[0]["num_stages"] == tile.stages
    # What is traced already would not ask again.
    jax.clear_caches()
    both = traced(monkeypatch, jnp.bfloat16, gradients)
    assert len(asked) >= 2 + 2 + 2
    assert both.count("name=grouped_matrices") == 2
    assert "ragged_dot_general" not in both


def test_in_float32_they_are_ours(monkeypatch):
    both = traced(monkeypatch, jnp.float32, gradients)
    assert both.count("name=grouped_forward") >= 2
    assert both.count("name=grouped_rows") == both.count("name=grouped_matrices") == 2
    assert "tokamax" not in both


@pytest.mark.parametrize("kind", quantization.TYPES)
def test_in_8_bits_the_interpreted_kernel_of_a_tpu_computes_what_the_reference_does(monkeypatch, kind):
    chips = importlib.import_module("jax._src.pallas.mosaic.tpu_info")
    v5e = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion.TPU_V5E, 1)
    # Its blocks' shapes are those of a chip, which the kernel asks for.
    monkeypatch.setitem(chips.registry, "cpu", lambda: v5e)
    kernel = load("grouped_matmul_8_bits", "tokamax")
    draw = np.random.default_rng(7)
    rows, matrices = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in ((200, 256), (3, 128, 256)))
    sizes = jnp.asarray([70, 0, 100], jnp.int32)
    found, exact = (
        jax.jit(one, static_argnums=3)(rows, matrices, sizes, kind) for one in (kernel, quantization.reference)
    )
    np.testing.assert_allclose(found[:170], exact[:170], rtol=0, atol=1e-3)
