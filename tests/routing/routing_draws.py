"""Random experts and routings for the tests of dispatch."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from moejax.routing import ROUTERS, Experts
from moejax.routing.routing import Routing, token_choice


def draw_experts(num_experts, model, hidden, dtype=jnp.float32, biases=False):
    draw = np.random.default_rng(1)
    shapes = {"gate_up": (2, model, hidden), "down": (hidden, model)}
    if biases:
        shapes |= {"gate_up_bias": (2, hidden), "down_bias": (model,)}
    drawn = {name: jnp.asarray(0.2 * draw.normal(size=(num_experts, *shape)), dtype) for name, shape in shapes.items()}
    return Experts(**drawn)


def draw_tokens(tokens, model, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(2).normal(size=(tokens, model)), dtype)


def draw_logits(tokens, num_experts, skew=0.0):
    """Logits under which expert 0 is the more preferred the larger ``skew``."""
    noise = np.random.default_rng(3).normal(size=(tokens, num_experts))
    return jnp.asarray(noise - skew * np.arange(num_experts), jnp.float32)


def routing_of(expert, num_experts):
    """The routing of token t to the experts ``expert[t]`` with random weights, ``num_experts`` for invalid slots."""
    expert = jnp.asarray(expert, jnp.int32)
    logits = jnp.zeros((expert.shape[0], num_experts))
    routing = token_choice(logits, logits, expert, jax.random.uniform(jax.random.key(4), expert.shape))
    return routing.masked(routing.valid)


@partial(jax.jit, static_argnames=("router", "top_k"))
def route(logits, top_k=2, router="softmax_topk", **options):
    """A router's routing, by one program and not by one an operation."""
    return ROUTERS[router](logits, top_k=top_k, **options)


@partial(jax.jit, static_argnums=0)
def outputs_and_gradients(dispatch, x, routing: Routing, experts):
    """Output, and gradients of tokens, combine weights and experts, as float32 NumPy arrays."""

    def loss(x, weight, experts):
        y = dispatch(x, dataclasses.replace(routing, combine_weight=weight), experts)
        return (y.astype(jnp.float32) ** 2).mean(), y

    gradients, y = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)(x, routing.combine_weight, experts)
    # An invalid slot's weight has no meaning, and so no gradient anyone may read.
    gradients = (gradients[0], jnp.where(routing.valid, gradients[1], 0.0), gradients[2])
    return jax.tree.map(lambda a: a.astype(jnp.float32), (y, gradients))


def assert_close(given, expected, tolerance):
    """Equal up to ``tolerance`` of the largest entry, array by array."""
    for a, b in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(float(np.abs(b).max()), 1e-6))
