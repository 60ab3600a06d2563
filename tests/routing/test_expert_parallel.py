"""Expert parallelism computes what one device computes, on every mesh, with every local dispatcher."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moejax.routing import DISPATCHERS, ROUTERS, Experts
from moejax.routing.dispatch_dense import dense
from moejax.routing.expert_parallel import expert_parallel

MESHES = {
    "experts over 8": {"expert": 8},
    "experts over 4, tokens over 2": {"data": 2, "expert": 4},
    "all four axes": {"data": 1, "fsdp": 2, "expert": 2, "tensor": 2},
    "tokens only": {"data": 4, "fsdp": 2},
}


def make_mesh(sizes):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))


def draw(num_experts=8, tokens=64, model=16, hidden=24):
    keys = jax.random.split(jax.random.key(0), 8)
    shapes = dict(gate=(model, hidden), up=(model, hidden), down=(hidden, model))
    shapes |= dict(gate_bias=(hidden,), up_bias=(hidden,), down_bias=(model,))
    leaves = {
        name: jax.random.normal(key, (num_experts, *shape)) * 0.2
        for key, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    return (
        jax.random.normal(keys[6], (tokens, model)),
        jax.random.normal(keys[7], (model, num_experts)),
        Experts(**leaves),
    )


def outputs_and_gradients(dispatch, router, x, projection, experts):
    def loss(x, projection, experts):
        y = dispatch(x, router(x @ projection, top_k=2), experts)
        return (y**2).mean(), y

    return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(x, projection, experts)


@pytest.mark.parametrize("router", ["softmax_topk", "expert_choice"])
@pytest.mark.parametrize("dispatcher", DISPATCHERS)
@pytest.mark.parametrize("mesh", MESHES)
def test_result_is_that_of_one_device(mesh, dispatcher, router):
    inputs = draw()
    expected = outputs_and_gradients(dense, ROUTERS[router], *inputs)
    with jax.set_mesh(make_mesh(MESHES[mesh])):
        given = outputs_and_gradients(expert_parallel(DISPATCHERS[dispatcher]), ROUTERS[router], *inputs)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(given), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-5 * np.abs(a).max())
