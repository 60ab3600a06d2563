"""Cross-entropy by chunks is cross-entropy of all logits: values, gradients, and a fraction of the memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moejax.kernels import cross_entropy
from moejax.kernels.table import TABLE
from moejax.plan.collectives import collectives
from moejax.sharding import MESH_AXES, TOKEN_AXES

KERNELS = TABLE["cross_entropy"]


def of_all_logits(hidden, unembedding, targets):
    logits = jnp.dot(hidden, unembedding.astype(hidden.dtype), preferred_element_type=jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]


def draw(seed, batch, length, vocab, dtype=jnp.float32):
    generator = np.random.default_rng(seed)
    hidden = jnp.asarray(generator.normal(size=(batch, length, 8)), dtype)
    unembedding = jnp.asarray(generator.normal(size=(8, vocab)), jnp.float32)
    targets = jnp.asarray(generator.integers(0, vocab, (batch, length)), jnp.int32)
    return hidden, unembedding, targets, jnp.asarray(generator.random((batch, length)), jnp.float32)


def assert_same(found, expected, tolerance):
    def close(a, b):
        assert a.dtype == b.dtype
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        np.testing.assert_allclose(a, b, atol=tolerance * max(1.0, np.abs(b).max()))

    jax.tree.map(close, found, expected)


@pytest.mark.parametrize(
    ("dtype", "kernel", "tolerance"),
    [(jnp.float32, True, 2e-6), (jnp.float32, False, 2e-6), (jnp.bfloat16, False, 2e-2)],
)
@settings(max_examples=4)
@given(
    at_once=st.sampled_from([1, 40, 100, 10_000]),
    shape=st.sampled_from([(1, 1), (2, 7), (3, 5), (3, 800)]),
    seed=st.integers(0, 99),
)
def test_chunks_agree_with_all_logits_at_once(dtype, kernel, tolerance, at_once, shape, seed):
    """By a kernel, which has eight parts of 256 tokens at once, where numba works."""
    # In bfloat16, JAX adds up the gradients of many chunks in bfloat16 too.
    assume(dtype == jnp.float32 or shape != (3, 800))
    hidden, unembedding, targets, weights = draw(seed, *shape, 11, dtype)

    def both(total):
        return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))(hidden, unembedding, weights)

    expected = both(lambda h, m, w: 3.0 * (w * of_all_logits(h, m, targets)).sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cross_entropy.LOGITS_AT_ONCE, "cpu", at_once)
        if not kernel:
            patch.setitem(KERNELS, "numba", KERNELS["numba"]._replace(is_default=False))
        one_pass = both(lambda h, m, w: 3.0 * cross_entropy.weighted_loss(h, m, targets, w))
        two_passes = both(lambda h, m, w: 3.0 * (w * cross_entropy.token_loss(h, m, targets)).sum())
    assert_same(one_pass, expected, tolerance)
    assert_same(two_passes, expected, tolerance)


def test_all_logits_are_never_held():
    tokens, vocab = 1024, 32_768
    shapes = [
        ((1, tokens, 8), jnp.float32),
        ((8, vocab), jnp.float32),
        ((1, tokens), jnp.int32),
        ((1, tokens), jnp.float32),
    ]
    gradient = jax.jit(jax.grad(cross_entropy.weighted_loss, argnums=(0, 1)))
    memory = gradient.lower(*(jax.ShapeDtypeStruct(*s) for s in shapes)).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * tokens * vocab / 2


def test_further_predictions_hold_no_further_gradient_of_the_matrix():
    tokens, dim, vocab = 64, 128, 8192

    def bytes_of(predictions):
        def shape(*sizes, dtype=jnp.float32):
            return (jax.ShapeDtypeStruct((1, tokens, *sizes), dtype),) * predictions

        def total(hidden, matrix, targets, weights):
            return cross_entropy.weighted_losses(hidden, matrix, targets, weights, (1.0,) * predictions)[0]

        given = shape(dim), jax.ShapeDtypeStruct((dim, vocab), jnp.float32), shape(dtype=jnp.int32), shape()
        return jax.jit(jax.grad(total, argnums=(0, 1))).lower(*given).compile().memory_analysis().temp_size_in_bytes

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cross_entropy.LOGITS_AT_ONCE, "cpu", 16 * vocab)
        patch.setitem(KERNELS, "numba", KERNELS["numba"]._replace(is_default=False))
        assert bytes_of(3) < bytes_of(1) + 4 * dim * vocab / 2


def test_tokens_and_vocabulary_may_lie_on_many_devices(monkeypatch):
    monkeypatch.setitem(cross_entropy.LOGITS_AT_ONCE, "cpu", 24)
    hidden, unembedding, targets, weights = draw(0, 4, 6, 12)
    program = jax.jit(jax.value_and_grad(cross_entropy.weighted_loss, argnums=(0, 1, 3)))
    expected = program(hidden, unembedding, targets, weights), cross_entropy.token_loss(hidden, unembedding, targets)
    mesh = jax.make_mesh((2, 2, 1, 2), MESH_AXES, (jax.sharding.AxisType.Auto,) * 4)
    with jax.set_mesh(mesh):
        arrays = (
            jax.device_put(hidden, jax.P(TOKEN_AXES)),
            jax.device_put(unembedding, jax.P("fsdp", "tensor")),
            jax.device_put(targets, jax.P(TOKEN_AXES)),
        )
        found = program(*arrays, jax.device_put(weights, jax.P(TOKEN_AXES))), jax.jit(cross_entropy.token_loss)(*arrays)
    assert_same(jax.device_get(found), jax.device_get(expected), 1e-6)


def test_several_predictions_of_one_matrix_are_its_losses_with_their_shares_and_devices_send_one_gradient():
    (*first, aims, weights), (hidden, _, further, others) = draw(0, 4, 6, 12), draw(1, 4, 6, 12)

    def both(hidden, matrix, weights, shares):
        return cross_entropy.weighted_losses(hidden, matrix, (aims, further), weights, shares)[0]

    def one_by_one(hidden, matrix, weights, shares):
        each = zip(hidden, (aims, further), weights, shares, strict=True)
        return sum(share * (w * of_all_logits(h, matrix, to)).sum() for h, to, w, share in each)

    given = ((first[0], hidden), first[1], (weights, others), (1.0, 0.3))
    expected = jax.value_and_grad(one_by_one, argnums=(0, 1, 2, 3))(*given)
    program = jax.jit(jax.value_and_grad(both, argnums=(0, 1, 2, 3)))
    assert_same(program(*given), expected, 1e-5)
    mesh = jax.make_mesh((2, 2, 1, 1), MESH_AXES, (jax.sharding.AxisType.Auto,) * 4, devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        tokens, matrix = jax.P(TOKEN_AXES), jax.P("fsdp", "tensor")
        where = ((tokens, tokens), matrix, (tokens, tokens), (jax.P(), jax.P()))
        placed = jax.tree.map(jax.device_put, given, where)
        assert_same(jax.device_get(program(*placed)), jax.device_get(expected), 1e-5)
        sent = collectives(program.lower(*placed).compile().as_text(), dict(mesh.shape))
    assert len([one for one in sent if one.bytes >= first[1].nbytes // 2 and one.kind != "all-gather"]) == 2
    _, of_each = cross_entropy.weighted_losses(given[0], first[1], (aims, further), given[2], given[3])
    np.testing.assert_allclose(of_each[1], (others * of_all_logits(hidden, first[1], further)).sum(), rtol=1e-5)


@pytest.mark.parametrize("kernel", [True, False])
def test_a_target_that_is_not_in_the_vocabulary_costs_what_is_not_a_number(kernel, monkeypatch):
    if not kernel:
        monkeypatch.setitem(KERNELS, "numba", KERNELS["numba"]._replace(is_default=False))
    hidden, unembedding, targets, weights = draw(0, 2, 7, 11)
    unknown = targets.at[1, 2].set(1_000_000)
    value, gradient = jax.value_and_grad(cross_entropy.weighted_loss)(hidden, unembedding, unknown, weights)
    assert np.isnan(value)
    # Gradients of the other tokens are theirs.
    known = jax.grad(cross_entropy.weighted_loss)(hidden, unembedding, targets, weights)
    others = np.ones((2, 7), bool)
    others[1, 2] = False
    np.testing.assert_allclose(gradient[others], known[others], rtol=1e-6)
