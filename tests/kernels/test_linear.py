"""The router's product on a GPU's matrix units is as exact as in float32, and routes the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from moejax.kernels.linear import on_matrix_units, project

TOKENS, TOP_K = 1024, 8
PRODUCTS = {"six": 3, "three": 2, "one": 1}
"""Pieces of 8 bits that each factor is cut into."""


def drawn(width, experts, is_bfloat16):
    draw = np.random.default_rng(width + experts)
    x = jnp.asarray(draw.normal(size=(TOKENS, width)), jnp.float32)
    router = jnp.asarray(draw.normal(size=(width, experts)) * width**-0.5, jnp.float32)
    return x.astype(jnp.bfloat16).astype(jnp.float32) if is_bfloat16 else x, router


def pieces(x, count):
    found = []
    for _ in range(count):
        found.append(x.astype(jnp.bfloat16).astype(jnp.float32))
        x = x - found[-1]
    return found


def product(x, router):
    return jnp.einsum("nd,de->ne", x, router, precision="highest")


def by_pieces(x, router, count):
    """Products of pieces whose places together are below ``count``, the smallest added first: those of XLA's presets
    BF16_BF16_F32, X3 and X6. Products of two numbers of 8 bits are exact in float32."""
    xs, routers = pieces(x, count), pieces(router, count)
    places = sorted(((i, j) for i in range(count) for j in range(count) if i + j < count), key=sum, reverse=True)
    return sum(product(xs[i], routers[j]) for i, j in places)


def experts(logits):
    return np.sort(np.argsort(-logits, axis=1)[:, :TOP_K], axis=1)


@pytest.mark.parametrize("is_bfloat16", [True, False], ids=["of activations in bfloat16", "of float32"])
@pytest.mark.parametrize(("width", "count"), [(2048, 64), (7168, 256)], ids=["OLMoE's", "DeepSeek-V3's"])
@pytest.mark.matrix(2)
def test_six_products_in_bfloat16_are_as_exact_as_float32_and_fewer_are_not(width, count, is_bfloat16):
    x, router = drawn(width, count, is_bfloat16)
    exact = np.asarray(x, np.float64) @ np.asarray(router, np.float64)
    single = product(x, router) - exact
    errors = {name: by_pieces(x, router, cut) - exact for name, cut in PRODUCTS.items()}
    assert np.abs(errors["six"]).max() <= np.abs(single).max()
    assert np.std(errors["six"]) <= np.std(single)
    # The largest error of a product in float32 depends on the order of a processor's sums; the usual one does less.
    assert np.std(errors["three"]) > 2 * np.std(single)
    assert np.std(errors["one"]) > 1000 * np.std(single)
    assert (experts(by_pieces(x, router, PRODUCTS["six"])) == experts(exact)).all()
    assert (experts(by_pieces(x, router, PRODUCTS["one"])) != experts(exact)).any()


def lowered(kind, platform):
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device)

    def both(x, router):
        y, back = jax.vjp(lambda *given: project("nd,de->ne", *given, lax.Precision.HIGHEST), x, router)
        return back(y)

    with jax.sharding.use_abstract_mesh(mesh):
        return str(jax.make_jaxpr(both)(*drawn(32, 8, False)))


def test_a_gpus_program_has_six_products_in_all_three_places_and_no_other_program_has():
    assert lowered("NVIDIA H100 80GB HBM3", "gpu").count("BF16_BF16_F32_X6") == 3
    for kind, platform in (("cpu", "cpu"), ("TPU v5p", "tpu"), ("Tesla T4", "gpu")):
        text = lowered(kind, platform)
        assert "BF16" not in text
        assert "HIGHEST" in text
    assert on_matrix_units(None) is None
