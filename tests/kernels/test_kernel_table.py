"""Every kernel in the table computes what its operation's reference does, gradients included, where it can run here."""

import functools
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from moejax.kernels.attention import AttentionMask
from moejax.kernels.experts import Experts
from moejax.kernels.grouped_matmul import grouped_matmul
from moejax.kernels.private_api import tracing_for_gpu
from moejax.kernels.quantization import TYPES
from moejax.kernels.table import TABLE, accepts, load, select
from moejax.routing.dispatch import grouped as dispatch_grouped
from moejax.routing.layout import by_expert
from moejax.routing.routers import ROUTERS
from moejax.sharding import MESH_AXES

INTERPRETED = {"splash", "megablox", "triton"}
"""Kernels of accelerators that Pallas interprets on a CPU."""


def normal(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def attention(kernel):
    def compute(query, key, value):
        return kernel(query, key, value, AttentionMask(window=9), scale=0.5)

    return compute, (normal(2, 40, 4, 16), normal(2, 40, 2, 16), normal(2, 40, 2, 8))


def rms_norm(kernel):
    return lambda x, weight: kernel(x, weight, 1e-6), (normal(2, 70, 8), normal(8))


def linear_gradient(kernel):
    def compute(x, dy):
        return kernel("btd,bthk->dhk", x, dy, precision=None, dtype=jnp.float32)

    return compute, (normal(2, 70, 8), normal(2, 70, 3, 5))


def cross_entropy(kernel):
    def compute(hidden, matrix, weights):
        return kernel(hidden, matrix, jnp.arange(40, dtype=jnp.int32) % 11, weights)

    return compute, (normal(40, 8), normal(8, 11), normal(40))


def of_experts(kernel):
    routing = ROUTERS["softmax_topk"](normal(96, 8), top_k=2)
    layout_with = functools.partial(by_expert, routing)

    def compute(x, weight, gate_up, down):
        return kernel(x, weight, layout_with, Experts(gate_up, down), tokens_per_expert=24)

    matrices = (0.2 * normal(*shape) for shape in ((8, 2, 16, 24), (8, 24, 16)))
    return compute, (normal(96, 16), routing.combine_weight, *matrices)


def grouped(backend):
    sizes = jnp.asarray([30, 0, 70, 20], jnp.int32)

    def compute(rows, matrices):
        # What lies behind the last group is anything.
        return grouped_matmul(backend, rows, matrices, sizes)[:120]

    return compute, (normal(120, 8), normal(4, 8, 12))


def grouped_in_8_bits(kernel):
    sizes = jnp.asarray([30, 0, 70, 20], jnp.int32)

    def compute(rows, matrices):
        return [kernel(rows, matrices, sizes, quantization)[:120] for quantization in TYPES]

    return compute, (normal(120, 8), normal(4, 12, 8))


CASES = {
    "attention": attention,
    "rms_norm": rms_norm,
    "linear_gradient": linear_gradient,
    "cross_entropy": cross_entropy,
    "experts": of_experts,
    "grouped_matmul": grouped,
    "grouped_matmul_8_bits": grouped_in_8_bits,
    # Devices take part in it: tests/routing/test_ragged_all_to_all.py.
    "ragged_all_to_all": None,
}
NO_GRADIENT = {"linear_gradient", "cross_entropy", "grouped_matmul_8_bits"}
"""Operations that are gradients themselves, or whose gradients are made elsewhere."""


def test_every_operation_has_a_case_and_ends_with_its_reference():
    assert set(CASES) == set(TABLE)
    assert all(list(kernels)[-1] == "reference" for kernels in TABLE.values())


@pytest.mark.parametrize(
    ("operation", "name"),
    [(operation, name) for operation in TABLE for name in TABLE[operation] if name != "reference" and CASES[operation]],
)
def test_every_kernel_computes_what_its_reference_does(operation, name):
    kernel = TABLE[operation][name]
    if kernel.platform not in ("any", "cpu") and name not in INTERPRETED:
        pytest.skip(f"{name} runs on a {kernel.platform}")
    if not kernel.is_available():
        pytest.skip(f"what {name} needs is not installed")

    def found(name):
        compute, inputs = CASES[operation](load(operation, name))

        def both(*inputs):
            if operation in NO_GRADIENT:
                return compute(*inputs)
            out, back = jax.vjp(compute, *inputs)
            return out, back(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

        return jax.jit(both)(*inputs)

    for ours, theirs in zip(jax.tree.leaves(found(name)), jax.tree.leaves(found("reference")), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * max(1.0, float(jnp.abs(theirs).max())))


def traced_for(kind, platform):
    """As a program for a device that is not here."""
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
    mesh = AbstractMesh((1, 1, 1, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 4, abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


HOPPER, AMPERE = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("platform", "kind", "dtype", "attention", "experts", "grouped"),
    [
        ("cpu", "cpu", "float32", "tiled", "blocks", "reference"),
        ("tpu", "TPU v5p", "bfloat16", "splash", "megablox", "megablox"),
        ("gpu", HOPPER, "bfloat16", "cudnn", "grouped_matmul", "triton"),
        ("gpu", "NVIDIA B200", "bfloat16", "cudnn", "grouped_matmul", "tokamax"),
        ("gpu", HOPPER, "float32", "tiled", "grouped_matmul", "triton"),
        ("gpu", AMPERE, "bfloat16", "cudnn", "grouped_matmul", "triton"),
        ("gpu", "Tesla T4", "bfloat16", "tiled", "blocks", "reference"),
    ],
)
def test_a_program_gets_the_kernels_of_its_platform(platform, kind, dtype, attention, experts, grouped, monkeypatch):
    for kernels in TABLE.values():
        for name, kernel in kernels.items():
            # As where all libraries are installed but numba and jax_triton.
            is_there = name not in ("numba", "jax_triton")
            monkeypatch.setitem(kernels, name, kernel._replace(is_available=lambda is_there=is_there: is_there))
    x, matrices = normal(2, 40, 4, 16).astype(dtype), normal(4, 64, 128).astype(dtype)
    of_experts = Experts(normal(4, 2, 128, 64).astype(dtype), matrices)
    with traced_for(kind, platform):
        chosen = select("attention", x, x, x, AttentionMask(), scale=1.0, slopes=None, sinks=None)
        assert chosen is load("attention", attention)
        assert select("experts", normal(8, 128).astype(dtype), None, None, of_experts) is load("experts", experts)
        assert select("grouped_matmul", normal(8, 64).astype(dtype), matrices) is load("grouped_matmul", grouped)


@pytest.mark.parametrize(
    ("kind", "widths", "chosen"),
    [
        (HOPPER, (256, 512), "triton"),
        ("NVIDIA B200", (256, 512), "mosaic_blackwell"),
        # No tile divides these.
        ("NVIDIA B200", (64, 192), "triton"),
    ],
)
def test_without_tokamax_a_gpu_gets_what_jax_brings_or_what_we_do(kind, widths, chosen, monkeypatch):
    absent = TABLE["grouped_matmul"]["tokamax"]._replace(is_available=lambda: False)
    monkeypatch.setitem(TABLE["grouped_matmul"], "tokamax", absent)
    rows, matrices = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, widths[0]), (4, *widths)))
    with traced_for(kind, "gpu"):
        assert select("grouped_matmul", rows, matrices) is load("grouped_matmul", chosen)


@pytest.mark.parametrize(
    ("kind", "dtype", "grouped", "calls"),
    [
        # Gate and up, down, and both gradients of each.
        (HOPPER, "bfloat16", "mosaic_hopper", 6),
        ("NVIDIA H200", "bfloat16", "mosaic_hopper", 6),
        (HOPPER, "float32", None, 0),
        ("NVIDIA B200", "bfloat16", None, 0),
        (AMPERE, "bfloat16", None, 0),
    ],
)
def test_without_any_triton_a_layer_is_lowered_with_what_jax_has_left(kind, dtype, grouped, calls, monkeypatch):
    for module in ("jax.experimental.pallas.triton", "jax_triton"):
        monkeypatch.setitem(sys.modules, module, None)
    shapes = [(512, 256), (8, 2, 256, 128), (8, 128, 256)]
    x, gate_up, down = (jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)

    def loss(x, gate_up, down, logits):
        routing = ROUTERS["softmax_topk"](logits, top_k=2)
        return dispatch_grouped(x, routing, Experts(gate_up, down)).astype(jnp.float32).sum()

    with traced_for(kind, "gpu"), tracing_for_gpu(SimpleNamespace(core_count=132)):
        chosen = select("experts", x, None, None, Experts(gate_up, down))
        assert chosen is load("experts", "grouped_matmul" if grouped else "blocks")
        if grouped:
            assert select("grouped_matmul", x, down) is load("grouped_matmul", grouped)
        gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
        logits = jax.ShapeDtypeStruct((512, 8), jnp.float32)
        text = gradients.trace(x, gate_up, down, logits).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call @mosaic_gpu_v2") == calls
    # No product of every row with every expert's matrix.
    assert "tensor<8x1024x" not in text


@pytest.mark.parametrize("quantization", TYPES)
def test_without_any_triton_no_gpu_multiplies_every_row_by_every_matrix_in_8_bits(quantization, monkeypatch):
    for module in ("jax.experimental.pallas.triton", "jax_triton"):
        monkeypatch.setitem(sys.modules, module, None)
    matrices = (normal(*shape).astype("bfloat16") for shape in ((4, 2, 256, 128), (4, 128, 256)))
    given = Experts(*matrices, quantization=quantization)
    for kind in (HOPPER, "NVIDIA B200", AMPERE):
        with traced_for(kind, "gpu"):
            chosen = select("experts", normal(8, 256).astype("bfloat16"), None, None, given)
            is_grouped = kind == HOPPER and quantization == "fp8"
            assert chosen is load("experts", "grouped_matmul" if is_grouped else "blocks")


def test_a_kernel_of_one_type_is_not_chosen_for_another():
    x, weight = normal(2, 70, 8), normal(8)
    assert accepts("rms_norm", "numba", x, weight, 1e-6) == TABLE["rms_norm"]["numba"].is_available()
    assert not accepts("rms_norm", "numba", x.astype(jnp.bfloat16), weight, 1e-6)
