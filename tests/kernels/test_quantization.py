"""Products of 8-bit numbers: how far they are from exact ones, and what they do with zeros, outliers and no numbers."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, NamedSharding, PartitionSpec

from moejax.errors import UserError
from moejax.kernels import quantization
from moejax.kernels.grouped_matmul import REFERENCE, grouped_matmul
from moejax.kernels.linear import ProductTypes, project
from moejax.kernels.quantization import TYPES, in_8_bits, matmul
from moejax.kernels.table import TABLE, load, select
from moejax.plan.collectives import collectives
from moejax.plan.program_text import instructions
from moejax.sharding import MESH_AXES
from moejax.train.mesh import MeshShape, make_mesh

quantize = jax.jit(quantization.quantize, static_argnums=(1, 2))
rounded_at_random = jax.jit(quantization.rounded_at_random, static_argnums=(1, 2))

WIDTH, HIDDEN = 256, 96
DRAW = np.random.default_rng(7)


def normal(*shape):
    return DRAW.normal(size=shape)


def outlying_channels(*shape):
    """A few of the numbers of every row a hundred times as large, the same in each, as activations of transformers."""
    return normal(*shape) * np.where(np.arange(shape[-1]) % 64 == 3, 100.0, 1.0)


def heavy_tailed(*shape):
    return DRAW.standard_t(3, size=shape)


def rows_of_all_sizes(*shape):
    """Each row of another size, from a millionth to a million."""
    return normal(*shape) * 10.0 ** np.linspace(-6, 6, shape[-2])[:, None]


LIMITS = {
    "fp8": {normal: 0.04, outlying_channels: 0.04, heavy_tailed: 0.04, rows_of_all_sizes: 0.04},
    "int8": {normal: 0.014, outlying_channels: 0.11, heavy_tailed: 0.04, rows_of_all_sizes: 0.014},
}
"""Largest error of a product's rows, each as a share of its own norm, on average (docs/quantization.md)."""


def error(found, exact):
    """The mean over rows of |found - exact| / |exact|."""
    found, exact = (np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in (found, exact))
    return np.mean(np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1))


@functools.cache
def projected(kind):
    return jax.jit(lambda x, w: project("btd,df->btf", x[None], w, types=ProductTypes(quantization=kind))[0])


def of_a_batch(kind):
    if kind == "none":
        return lambda x, w: jnp.matmul(x, w, preferred_element_type=jnp.float32)
    return functools.partial(matmul, kind)


def of_groups(kind):
    """Three matrices, the second without rows, and 10 rows that are nobody's and hold no numbers."""
    sizes = jnp.asarray([30, 0, 34], jnp.int32)
    backend = REFERENCE if kind == "none" else in_8_bits(REFERENCE, quantization.reference, kind)

    def compute(x, w):
        rows = jnp.concatenate([x, jnp.full((10, WIDTH), jnp.nan, x.dtype)])
        matrices = jnp.stack([w, 3 * w, 0.01 * w])
        return grouped_matmul(backend, rows, matrices, sizes)[:64]

    return compute


@pytest.mark.parametrize("product", [projected, of_a_batch, of_groups])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.matrix(4)
def test_products_and_gradients_of_rows_are_within_the_stated_error_and_gradients_of_matrices_as_ever(
    product, kind, dtype
):
    w = jnp.asarray(normal(WIDTH, HIDDEN) / 16, jnp.float32).astype(dtype)

    @functools.partial(jax.jit, static_argnums=0)
    def run(kind, x, dy):
        y, back = jax.vjp(product(kind), x, w)
        return (y, *back(dy.astype(y.dtype)))

    for draw, limit in LIMITS[kind].items():
        # Rows of gradients are of the same kinds as rows of activations.
        x, dy = (jnp.asarray(draw(64, width), jnp.float32).astype(dtype) for width in (WIDTH, HIDDEN))
        found, exact = run(kind, x, dy), run("none", x, dy)
        assert [x.dtype for x in found] == [x.dtype for x in exact]
        for ours, theirs in zip(found[:2], exact[:2], strict=True):
            assert limit / 30 < error(ours, theirs) < limit, draw.__name__
        np.testing.assert_allclose(found[2], exact[2], rtol=1e-5, atol=1e-5 * float(jnp.abs(exact[2]).max()))


@pytest.mark.parametrize("product", [projected, of_a_batch, of_groups])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.matrix(4)
def test_what_is_common_to_gradients_small_beside_the_largest_of_their_rows_is_kept_in_sums_over_tokens(
    product, kind, dtype
):
    """Rounded to the nearest, int8 would lose 89 % of it (docs/quantization.md)."""
    is_large = DRAW.random((1024, HIDDEN)) < 0.02
    dy = np.where(is_large, 50 * normal(1024, HIDDEN), 0.05 + 0.05 * normal(1024, HIDDEN))
    dy = dy[:64] if product is of_groups else dy
    dy = jnp.asarray(dy, jnp.float32).astype(dtype)
    nearest, at_random = (quantize(one, -1, kind) for one in (dy, rounded_at_random(dy, -1, kind)))
    # The numbers that are drawn are what is quantized, at the same scale.
    np.testing.assert_allclose(at_random.scale, nearest.scale, rtol=1 / 127)
    assert np.abs(at_random.values.astype(np.float32) - nearest.values.astype(np.float32)).max() <= (kind == "int8")
    x, w = jnp.zeros((len(dy), WIDTH), dtype), jnp.ones((WIDTH, HIDDEN), dtype)

    @jax.jit
    def gradient_of_rows(dy):
        y, back = jax.vjp(product(kind), x, w)
        return back(dy.astype(y.dtype))[0]

    found, exact = (np.asarray(a, np.float64).sum() for a in (gradient_of_rows(dy), dy))
    if product is not of_groups:
        # Of all that is added up; what is common to the small numbers is 6 % of it.
        assert found / WIDTH == pytest.approx(exact, rel=0, abs=0.005 * float(jnp.abs(dy).sum()))
    small = (np.asarray(at_random.values, np.float64) * at_random.scale)[~is_large[: len(dy)]].mean()
    assert small == pytest.approx(np.asarray(dy, np.float64)[~is_large[: len(dy)]].mean(), rel=0.2)


def test_gradients_are_rounded_the_same_in_every_run_and_however_tokens_are_cut():
    dy = jnp.asarray(heavy_tailed(64, 96), jnp.bfloat16)
    whole = rounded_at_random(dy, -1, "int8")
    parts = [rounded_at_random(x, -1, "int8") for x in (dy[:20], dy[20:])]
    np.testing.assert_array_equal(whole, jnp.concatenate(parts))
    # And not as a row of other numbers is, where numbers are equal.
    same = jnp.full((64, 96), 0.3).at[:, 0].set(100 + jnp.arange(64.0))
    drawn = rounded_at_random(same, -1, "int8") != 0
    assert drawn[:, 1:].mean() == pytest.approx(0.3 / (131.5 / 127), rel=0.1)
    assert 0.3 < drawn[:, 1:].mean(0).std() / drawn[:, 1:].std() * 8 < 2


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_what_rounding_at_random_adds_to_a_mean_over_tokens_falls_with_any_number_of_them(dtype):
    """As noise of independent draws does: its square over theirs is 1; with 65,536 draws used again it was 99."""
    tokens, width = 2**19, 24
    key = jax.random.key(0)

    @jax.jit
    def of_both():
        is_other = jnp.arange(width) < 16
        x = jnp.where(is_other, 40 * jax.random.normal(key, (tokens, width)), 0.05).at[:, 0].set(127).astype(dtype)
        share = x[0, -1].astype(jnp.float32)
        error = quantization.rounded_at_random(x, -1, "int8")[:, 16:].astype(jnp.float32) - share
        return error.sum(0) ** 2 / (tokens * share * (1 - share))

    # A mean over 8 columns; of independent draws it lies in there 99 times in 100.
    assert 0.1 < of_both().mean() < 2.5


@pytest.mark.parametrize("kind", TYPES)
def test_zeros_stay_zeros_and_the_largest_and_smallest_numbers_stay_finite(kind):
    x = jnp.asarray([[0.0] * 4, [3e38, -3e38, 1.0, 0.0], [1e-38, 2e-38, -4e-38, 0.0], [-7.0, 7.0, 3.5, 0.1]])
    values, scale = quantize(x, 1, kind)
    found = values.astype(jnp.float32) * scale
    assert jnp.isfinite(found).all()
    assert (found[0] == 0).all()
    np.testing.assert_allclose(found[1], x[1], rtol=1 / 16, atol=3e38 / 127)
    np.testing.assert_allclose(found[3], x[3], rtol=1 / 16, atol=7 / 127)
    # No scale is smaller than float32's smallest number of full precision.
    np.testing.assert_allclose(found[2], x[2], rtol=0, atol=jnp.finfo(jnp.float32).tiny)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_what_is_no_number_does_not_become_one(kind, bad):
    x = jnp.ones((3, WIDTH)).at[1, 5].set(bad)
    y = projected(kind)(x, jnp.ones((WIDTH, 2)))
    assert not jnp.isfinite(y[1]).any()
    np.testing.assert_allclose(y[::2], WIDTH, rtol=1e-2)


def test_float8_is_the_nearest_number_of_four_bits_whatever_the_scale():
    x = jnp.asarray(normal(50, WIDTH), jnp.float32)
    values, scale = quantize(x, 1, "fp8")
    assert (jnp.frexp(scale)[0] == 0.5).all()
    found = np.asarray(values.astype(jnp.float32) * scale)
    # By another rounding: NumPy's, of numbers that need no scale. Below 2^-6 the type has fewer bits.
    expected = np.asarray(x).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    plain = np.abs(np.asarray(x)) > 2**-6
    assert plain.mean() > 0.9
    np.testing.assert_array_equal(found[plain], expected[plain])


def test_tokens_and_parts_of_a_sum_may_lie_on_other_devices():
    x, w = jnp.asarray(normal(64, WIDTH), jnp.float32), jnp.asarray(normal(WIDTH, HIDDEN), jnp.float32)
    for kind in TYPES:
        run = projected(kind)
        whole, parts = run(x, w), [run(x[:20], w), run(x[20:], w)]
        np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-4)
    # A mesh that splits what is summed over has scales of its own in each part; powers of two change nothing.
    halves = sum(projected("fp8")(x[:, part], w[part]) for part in (slice(0, 100), slice(100, None)))
    assert error(halves, projected("fp8")(x, w)) < 2e-3


@pytest.mark.parametrize("kind", TYPES)
def test_devices_that_share_a_sum_add_up_products_in_the_compute_type_and_agree_on_no_scales(kind):
    """Float32 here, as a CPU adds up bfloat16 in it."""
    mesh = make_mesh(MeshShape(data=2, tensor=2), jax.devices()[:4])
    into, out_of = PartitionSpec(None, "tensor"), PartitionSpec("tensor")
    tokens, types = PartitionSpec("data"), ProductTypes(quantization=kind)
    x, dy = (jnp.asarray(normal(4, 16, 64), jnp.float32) for _ in range(2))
    up, down = (jnp.asarray(normal(*shape) / 8, jnp.float32) for shape in ((64, WIDTH), (WIDTH, 64)))

    def both(x, up, down, dy):
        def layer(x, up, down):
            return project("btf,fd->btd", project("btd,df->btf", x, up, types=types), down, types=types)

        y, back = jax.vjp(layer, x, up, down)
        return y, back(dy)[0]

    where = [NamedSharding(mesh, spec) for spec in (tokens, into, out_of, tokens)]
    with jax.set_mesh(mesh):
        step: Any = jax.jit(both, in_shardings=where, out_shardings=where[0]).lower(x, up, down, dy).compile()
        y, dx = step(*(jax.device_put(one, place) for one, place in zip((x, up, down, dy), where, strict=True)))
    sent = collectives(step.as_text(), dict(mesh.shape))
    assert {(one.kind, one.axes) for one in sent} == {("all-reduce", ("tensor",))}
    assert sum(one.bytes for one in sent) == 2 * 4 * x.size // 2
    added = [one.type for one in instructions(step.as_text()) if "all-reduce" in one.opcode]
    assert not any("s32[" in type_ for type_ in added)

    def of_halves(x, dy):
        def layer(x):
            parts = [slice(0, WIDTH // 2), slice(WIDTH // 2, None)]
            h = [project("btd,df->btf", x, up[:, part], types=types) for part in parts]
            return sum(project("btf,fd->btd", one, down[part], types=types) for one, part in zip(h, parts, strict=True))

        y, back = jax.vjp(layer, x)
        return y, back(dy)[0]

    for found, expected in zip((y, dx), jax.jit(of_halves)(x, dy), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize(
    ("kind", "platform", "quantized", "kernel"),
    [
        ("NVIDIA H100 80GB HBM3", "gpu", "fp8", "mosaic"),
        ("NVIDIA H100 80GB HBM3", "gpu", "int8", "triton"),
        ("NVIDIA B200", "gpu", "fp8", "triton"),
        ("NVIDIA A100-SXM4-80GB", "gpu", "int8", "triton"),
        ("TPU7x", "tpu", "fp8", "tokamax"),
        ("TPU v5 lite", "tpu", "int8", "tokamax"),
        ("cpu", "cpu", "fp8", "reference"),
    ],
)
def test_a_program_gets_the_kernel_of_its_chip(kind, platform, quantized, kernel, monkeypatch):
    kernels = TABLE["grouped_matmul_8_bits"]
    monkeypatch.setitem(kernels, "tokamax", kernels["tokamax"]._replace(is_available=lambda: True))
    rows, matrices = jnp.zeros((64, 256), jnp.bfloat16), jnp.zeros((4, 128, 256), jnp.bfloat16)
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
    mesh = AbstractMesh((1, 1, 1, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 4, abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        chosen = select("grouped_matmul_8_bits", rows, matrices, quantization=quantized)
        if kernel != "tokamax":
            assert chosen is load("grouped_matmul_8_bits", kernel)
        else:
            assert chosen.__module__.endswith("grouped_matmul.tokamax_tpu")


@pytest.mark.parametrize(("rows", "is_refused"), [(299_593, False), (299_594, True), (599_186, True), (599_187, False)])
def test_rows_that_tritons_kernel_would_look_for_elsewhere_are_refused(rows, is_refused):
    """2^31 numbers are 299,593 rows of 7,168 and a part of one: beyond them, places in 32 bits are negative."""
    device = AbstractDevice(device_kind="NVIDIA B200", num_cores=1, platform="gpu")
    mesh = AbstractMesh((1, 1, 1, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 4, abstract_device=device)
    shapes = (jax.ShapeDtypeStruct((rows, 7168), jnp.bfloat16), jax.ShapeDtypeStruct((4, 128, 7168), jnp.bfloat16))
    sizes = jax.ShapeDtypeStruct((4,), jnp.int32)

    def trace():
        product = functools.partial(load("grouped_matmul_8_bits", "triton"), quantization="fp8")
        return jax.eval_shape(product, *shapes, sizes)

    with jax.sharding.use_abstract_mesh(mesh):
        if is_refused:
            with pytest.raises(
                UserError, match=rf"experts' rows have the shape {rows} by 7168 on a device.*raise recipe.microb"
            ):
                trace()
        else:
            assert trace().shape == (rows, 128)
