"""Attention in tiles is attention with all scores at once: values and gradients, whatever it is asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_architectures import KNOWN

from moejax.kernels import cpu
from moejax.kernels.attention import AttentionMask, attention, reference
from moejax.kernels.attention import tiled as attention_tiled
from moejax.kernels.attention.tiled import tiled
from moejax.kernels.table import load
from moejax.model import transformer
from moejax.model.positions import alibi_slopes
from moejax.model.runtime import Runtime


@pytest.fixture(autouse=True, scope="module")
def small_tiles():
    """Tiles of 8 tokens, so that short sequences have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(attention_tiled.TILES, "cpu", 8)
        yield


def with_gradients(attend, dtype, arrays, mask, options):
    """Outputs and the gradients of query, key, value and sinks under a random direction."""
    *inputs, sinks, direction = (None if x is None else jnp.asarray(x, jnp.float32) for x in arrays)

    @jax.jit
    def both(direction, *inputs):
        out, back = jax.vjp(lambda q, k, v, sinks: attend(q, k, v, mask, sinks=sinks, **options), *inputs)
        return out, back(direction)

    found = both(direction.astype(dtype), *(x.astype(dtype) for x in inputs), sinks)
    return jax.tree.map(lambda x: np.asarray(x, np.float32), found)


def agrees(attend, dtype, tolerance, length, heads, value_width, window, documents, biased, sunk, seed):
    """Compare a kernel with the reference: outputs and gradients at a random point."""
    draw, (heads, groups) = np.random.default_rng(seed), heads
    arrays = (
        draw.normal(size=(2, length, heads, 4)),
        draw.normal(size=(2, length, groups, 4)),
        draw.normal(size=(2, length, groups, value_width)),
        draw.normal(size=heads) if sunk else None,
        draw.normal(size=(2, length, heads, value_width)),
    )
    segments = jnp.asarray(np.sort(draw.integers(1, 4, (2, length)), axis=1), jnp.int32) if documents else None
    mask = AttentionMask(query_segments=segments, key_segments=segments, window=window)
    options = {"scale": 0.7, "slopes": alibi_slopes(heads) if biased else None}
    expected = with_gradients(reference, dtype, arrays, mask, options)
    found = with_gradients(attend, dtype, arrays, mask, options)
    scale = max(1.0, max(np.abs(x).max() for x in jax.tree.leaves(expected)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance * scale), found, expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 2e-5), (jnp.bfloat16, 6e-2)])
@settings(max_examples=6)
@given(
    length=st.sampled_from([1, 7, 8, 21, 40]),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    value_width=st.sampled_from([4, 6]),
    window=st.sampled_from([0, 1, 5, 8, 13]),
    documents=st.booleans(),
    biased=st.booleans(),
    sunk=st.booleans(),
    seed=st.integers(0, 99),
)
@pytest.mark.matrix(1)
def test_tiles_agree_with_all_scores_at_once(dtype, tolerance, **case):
    agrees(tiled, dtype, tolerance, **case)


BACKENDS = ["tiled", pytest.param("numba", marks=pytest.mark.skipif(not cpu.available(), reason="needs numba"))]


@pytest.mark.parametrize("backend", BACKENDS)
def test_very_large_scores_stay_finite(backend):
    attend = load("attention", backend)
    query, key, value = 300.0 * jax.random.normal(jax.random.key(0), (3, 1, 53, 2, 4))
    out, back = jax.vjp(lambda *qkv: attend(*qkv, AttentionMask(window=9), scale=1.0), query, key, value)
    np.testing.assert_allclose(out, reference(query, key, value, AttentionMask(window=9), scale=1.0), atol=1e-2)
    assert all(bool(jnp.isfinite(x).all()) for x in back(out))


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_tokens_after_a_cache_are_attended_as_if_all_came_at_once(backend):
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 20, 2, 4))
    whole, late = (
        attention(query[:, start:], key, value, AttentionMask(start=start), scale=1.0, backend=backend)
        for start in (0, 15)
    )
    np.testing.assert_allclose(late, whole[:, 15:], atol=1e-5)


def _bytes_to_work_in(attend, length):
    x = jax.ShapeDtypeStruct((1, length, 1, 4), jnp.float32)

    def cost(query, key, value):
        return attend(query, key, value, AttentionMask(), scale=1.0).sum()

    return jax.jit(jax.grad(cost, argnums=(0, 1, 2))).lower(x, x, x).compile().memory_analysis().temp_size_in_bytes


def test_memory_grows_with_the_tokens_and_not_with_their_square():
    assert _bytes_to_work_in(tiled, 4096) < 6 * _bytes_to_work_in(tiled, 1024)
    assert _bytes_to_work_in(reference, 4096) > 8 * _bytes_to_work_in(reference, 1024)


def test_batch_and_heads_may_lie_on_many_devices():
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), (jax.sharding.AxisType.Auto,) * 2)
    query, key, value = jax.random.normal(jax.random.key(0), (3, 4, 21, 2, 4))
    expected = tiled(query, key, value, AttentionMask(), scale=1.0)
    spread = jax.NamedSharding(mesh, jax.P("data", None, "tensor"))
    program = jax.jit(lambda *qkv: tiled(*qkv, AttentionMask(), scale=1.0), out_shardings=spread)
    found = program(*(jax.device_put(x, spread) for x in (query, key, value)))
    assert found.sharding.spec == spread.spec
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("remat", ["none", "full"])
@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.matrix(2)
def test_layers_that_are_computed_again_attend_tile_by_tile_too(remat, scan_layers):
    architecture = KNOWN["dense"]
    runtime = Runtime(remat=remat, scan_layers=scan_layers, attention="tiled")
    tokens = jax.ShapeDtypeStruct((1, 40), jnp.int32)

    def total(params, tokens):
        return transformer.apply(architecture, runtime, params, tokens).hidden.sum()

    program = str(jax.make_jaxpr(jax.grad(total))(transformer.abstract_params(architecture), tokens))
    assert "8,8]" in program
    assert "40,40]" not in program
