"""Attention by the kernel for CPU cores is attention with all scores at once, on one device and on many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention_tiled import agrees

pytest.importorskip("numba")

from moejax.kernels.attention import AttentionMask, attention
from moejax.kernels.cpu import custom_call
from moejax.kernels.cpu.attention import attention as numba_attention
from moejax.sharding import MESH_AXES

TILE = 32
"""Queries of a tile at these widths."""


@settings(max_examples=12)
@given(
    length=st.sampled_from([1, 7, TILE - 1, TILE, TILE + 1, 2 * TILE + 22]),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]),
    value_width=st.sampled_from([4, 6]),
    window=st.sampled_from([0, 1, 5, TILE, TILE + 9]),
    documents=st.booleans(),
    biased=st.booleans(),
    sunk=st.booleans(),
    seed=st.integers(0, 99),
)
@pytest.mark.matrix(1)
def test_the_kernel_agrees_with_all_scores_at_once(**case):
    agrees(numba_attention, jnp.float32, 2e-5, **case)


@pytest.mark.parametrize(("dtype", "kernels"), [(jnp.float32, 1), (jnp.bfloat16, 0)])
def test_a_cpu_is_given_the_kernel_for_what_it_computes(dtype, kernels):
    x = jax.ShapeDtypeStruct((1, 20, 2, 4), dtype)
    program = jax.jit(lambda q, k, v: attention(q, k, v, AttentionMask(), scale=1.0)).lower(x, x, x).as_text()
    assert program.count("@moejax_kernel(") == kernels


def value_and_gradients(inputs, mask, sinks):
    def total(query, key, value, sinks):
        return (numba_attention(query, key, value, mask, scale=1.0, sinks=sinks) ** 2).sum()

    return jax.value_and_grad(total, argnums=(0, 1, 2, 3))(*inputs, sinks)


@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (4, 1), (3, 3)])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.matrix(2)
def test_batch_and_heads_may_lie_on_many_devices(heads, groups, documents):
    """Heads are split where every device has the keys of its own: not where there is one, or three for two devices."""
    shape = {**dict.fromkeys(MESH_AXES, 1), "data": 2, "fsdp": 2, "tensor": 2}
    mesh = jax.make_mesh(tuple(shape.values()), tuple(shape), (jax.sharding.AxisType.Auto,) * len(shape))
    keys = jax.random.split(jax.random.key(0), 4)
    inputs = tuple(jax.random.normal(k, (4, 70, n, 4)) for k, n in zip(keys, (heads, groups, groups), strict=False))
    sinks = jax.random.normal(keys[3], heads)
    segments = jnp.repeat(jnp.arange(1, 8), 10)[None].repeat(4, axis=0) if documents else None
    mask = AttentionMask(query_segments=segments, key_segments=segments)
    expected = jax.jit(value_and_gradients)(inputs, mask, sinks)
    with jax.set_mesh(mesh):
        found = jax.jit(value_and_gradients)(inputs, mask, sinks)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), found, expected)


def test_threads_change_no_bit():
    draws = jax.random.normal(jax.random.key(0), (3, 4, 3 * TILE, 4, 16))
    program = jax.jit(value_and_gradients).lower(tuple(draws), AttentionMask(), jnp.zeros(4)).compile()
    threads = jax.local_device_count("cpu")
    alone = program(tuple(draws), AttentionMask(), jnp.zeros(4))
    try:
        custom_call.DEVICES.value = 1
        for _ in range(20):
            helped = program(tuple(draws), AttentionMask(), jnp.zeros(4))
            jax.tree.map(np.testing.assert_array_equal, helped, alone)
    finally:
        custom_call.DEVICES.value = threads
