"""The TPU's attention kernel, interpreted, is attention with all scores at once; programs for a TPU choose it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from moejax.kernels.attention import AttentionMask, attention, reference
from moejax.kernels.attention import splash as attention_splash
from moejax.kernels.attention.splash import splash
from moejax.kernels.platform import platform
from moejax.kernels.table import TABLE
from moejax.sharding import MESH_AXES


def drawn(length, heads, groups, width, value_width):
    sizes = [(heads, width), (groups, width), (groups, value_width), (heads, value_width)]
    draw = np.random.default_rng(0)
    return [jnp.asarray(draw.normal(size=(2, length, *size)), jnp.float32) for size in sizes]


@pytest.mark.parametrize(
    ("length", "heads", "groups", "value_width", "window", "documents", "sunk"),
    [(128, 2, 2, 16, 0, False, False), (200, 4, 2, 8, 70, True, True)],
    ids=["reference", "grouped, windowed, packed, with sinks, of an odd length"],
)
def test_the_kernel_agrees_with_all_scores_at_once(length, heads, groups, value_width, window, documents, sunk):
    *inputs, direction = drawn(length, heads, groups, 16, value_width)
    segments = jnp.repeat(jnp.asarray([[1, 2], [1, 2]], jnp.int32), length // 2, axis=1) if documents else None
    mask = AttentionMask(query_segments=segments, key_segments=segments, window=window)
    sinks = jnp.linspace(-1.0, 1.0, heads) if sunk else None

    @functools.partial(jax.jit, static_argnums=0)
    def both(attend):
        out, back = jax.vjp(lambda *qkv: attend(*qkv, mask, scale=0.3, sinks=sinks), *inputs)
        return out, back(direction)

    for ours, theirs in zip(jax.tree.leaves(both(splash)), jax.tree.leaves(both(reference)), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


def test_the_platform_is_that_of_the_mesh_a_program_is_traced_for():
    assert platform() == "cpu"
    tpu = AbstractDevice(device_kind="TPU v5p", num_cores=1, platform="tpu")
    mesh = AbstractMesh((1, 1, 1, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 4, abstract_device=tpu)
    with jax.sharding.use_abstract_mesh(mesh):
        assert platform() == "tpu"
        traced = str(
            jax.make_jaxpr(lambda *qkv: attention(*qkv, AttentionMask(), scale=1.0))(*drawn(128, 2, 2, 16, 16)[:3])
        )
    assert "pallas_call" in traced


@pytest.mark.parametrize(("kernels", "choice"), [(True, "numba"), (False, "tiled")])
def test_on_a_cpu_the_choice_is_the_kernel_or_tiles(kernels, choice, monkeypatch):
    kernel = TABLE["attention"]["numba"]
    if kernels and not kernel.is_available():
        pytest.skip("numba is not installed")
    inputs = drawn(40, 2, 1, 8, 8)[:3]
    monkeypatch.setitem(TABLE["attention"], "numba", kernel._replace(is_default=kernels))
    by_itself, by_name = (
        attention(*inputs, AttentionMask(), scale=1.0, backend=backend) for backend in ("auto", choice)
    )
    np.testing.assert_array_equal(by_itself, by_name)


def test_the_scale_is_not_rounded_to_the_type_of_the_queries(monkeypatch):
    """In bfloat16 1/sqrt(192) is .13 % larger: another temperature, of all scores alike."""
    seen = []
    monkeypatch.setattr(attention_splash, "_heads_first", lambda query, *others: seen.append(query) or query)
    query = jnp.ones((1, 128, 2, 16), jnp.bfloat16) * 1.75
    attention_splash.splash(query, query, query, AttentionMask(), scale=192**-0.5)
    assert seen[0].dtype == jnp.bfloat16
    assert seen[0].ravel()[0] == jnp.bfloat16(1.75 * 192**-0.5)
    assert seen[0].ravel()[0] != query.ravel()[0] * jnp.bfloat16(192**-0.5)
