"""Every dispatcher computes what the dense reference computes, whatever the router, and so do its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moejax.routing import DISPATCHERS, ROUTERS, Experts
from moejax.routing.dispatch_dense import dense


def draw_experts(key, num_experts, model, hidden, dtype):
    keys = jax.random.split(key, 3)
    shapes = [(num_experts, model, hidden), (num_experts, model, hidden), (num_experts, hidden, model)]
    return Experts(*(jax.random.normal(k, s, dtype) * 0.2 for k, s in zip(keys, shapes, strict=True)))


def outputs_and_gradients(dispatch, router, x, projection, experts, top_k):
    def loss(x, projection, experts):
        routing = router(x.astype(jnp.float32) @ projection, top_k=top_k, key=jax.random.key(7))
        y = dispatch(x, routing, experts)
        return (y.astype(jnp.float32) ** 2).mean(), y

    gradients, y = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(x, projection, experts)
    return jax.tree.map(lambda a: np.asarray(a.astype(jnp.float32)), (y, gradients))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("dispatcher", DISPATCHERS)
@pytest.mark.parametrize("router", ROUTERS)
def test_dispatcher_agrees_with_the_dense_reference(router, dispatcher, dtype):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (96, 16), dtype)
    projection = jax.random.normal(keys[1], (16, 8))
    experts = draw_experts(keys[2], 8, 16, 24, dtype)
    top_k = 1 if router == "switch" else 2
    expected = outputs_and_gradients(dense, ROUTERS[router], x, projection, experts, top_k)
    given = outputs_and_gradients(DISPATCHERS[dispatcher], ROUTERS[router], x, projection, experts, top_k)
    tolerance = 1e-5 if dtype == jnp.float32 else 3e-2
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(given), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=tolerance * np.abs(a).max())
