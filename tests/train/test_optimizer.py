"""Optimisers against Optax's own, and what they do to which parameter."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.config import check_fields
from moejax.model import transformer
from moejax.train.mesh import MeshShape, make_mesh
from moejax.train.optimizer import OPTIMIZERS, OptimizerConfig, ParameterParts, make_optimizer
from moejax.train.optimizer import _clip_by_global_norm as clipped
from moejax.train.program import make_program, vmap_program
from moejax.train.step import parameter_parts


def with_optimizer(training, name, **recipe):
    optimizer = dataclasses.replace(training.recipe.optimizer, name=name)
    return dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, optimizer=optimizer, **recipe))


def directions(config, parts, params, gradients):
    optimizer = make_optimizer(config, parts)

    @jax.jit
    def update(params, gradients):
        return optimizer.update(gradients, optimizer.init(params), params)[0]

    with jax.numpy_dtype_promotion("standard"):
        return update(params, gradients)


def test_adamw_is_optax_adamw_at_the_schedules_rate():
    params = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}
    gradients = jax.tree.map(lambda p: p**2 - 0.3, params)
    parts = ParameterParts(axes={"w": ("embed", "hidden")}, inputs={"w": ("embed",)}, is_matrix={"w": True})
    ours = directions(OptimizerConfig(clip_norm=1e9), parts, params, gradients)
    theirs = optax.adamw(0.01, b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.1)
    with jax.numpy_dtype_promotion("standard"):
        update, _ = theirs.update(gradients, theirs.init(params), params)
    np.testing.assert_allclose(-0.01 * ours["w"], update["w"], rtol=1e-6)


@settings(max_examples=40)
@given(
    shapes=st.lists(st.sampled_from([(), (3,), (2, 5), (0,)]), min_size=1, max_size=4),
    size=st.sampled_from([0.0, 1e-6, 0.1, 1.0, 30.0]),
    most=st.sampled_from([0.5, 1.0, 7.0]),
    seed=st.integers(0, 99),
)
def test_gradients_are_clipped_as_by_optax(shapes, size, most, seed):
    """Below the norm, above it, and where all of them are zero."""
    draw = np.random.default_rng(seed)
    gradients = {str(i): jnp.asarray(size * draw.normal(size=shape), jnp.float32) for i, shape in enumerate(shapes)}
    ours, theirs = (
        clip(most).update(gradients, optax.EmptyState())[0] for clip in (clipped, optax.clip_by_global_norm)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)


@pytest.mark.slow
def test_muon_orthogonalises_every_hidden_matrix_by_itself(training):
    parts = parameter_parts(training)
    params = transformer.init(training.architecture, jax.random.key(0))
    gradients = jax.tree.map(lambda p: jax.random.normal(jax.random.key(p.size), p.shape), params)
    found = directions(OptimizerConfig(name="muon", weight_decay=0.0), parts, params, gradients)
    for layer in range(2):
        for expert in range(8):
            # Gate and up each by itself. Five Newton-Schulz steps bring singular values near 1; their scale is Adam's,
            # .2·sqrt(16).
            gate_up = np.asarray(found["moe_layers"]["feed_forward"]["gate_up"][layer, expert])
            singular = np.linalg.svd(gate_up, compute_uv=False) / (0.2 * 4)
            assert np.all((singular > 0.5) & (singular < 1.5))
    query = np.asarray(found["moe_layers"]["attention"]["query"][0]).reshape(16, 16)
    singular = np.linalg.svd(query, compute_uv=False)
    assert singular.max() / singular.min() < 3


@pytest.mark.slow
def test_muon_leaves_vocabulary_router_and_norms_to_adam(training):
    parts = parameter_parts(training)
    params = transformer.init(training.architecture, jax.random.key(0))
    gradients = jax.tree.map(lambda p: jax.random.normal(jax.random.key(p.size), p.shape), params)
    muon = directions(OptimizerConfig(name="muon", weight_decay=0.0), parts, params, gradients)
    nadam = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b1=0.9, b2=0.95, nesterov=True))
    with jax.numpy_dtype_promotion("standard"):
        adam = nadam.update(gradients, nadam.init(params), params)[0]
    for of in (
        lambda p: p["embedding"],
        lambda p: p["final_norm"],
        lambda p: p["moe_layers"]["feed_forward"]["router"],
        lambda p: p["moe_layers"]["attention_norm"],
    ):
        np.testing.assert_allclose(of(muon), of(adam), rtol=1e-4)
    assert not np.allclose(muon["moe_layers"]["attention"]["value"], adam["moe_layers"]["attention"]["value"])


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.matrix(1)
def test_weight_decay_touches_matrices_and_not_norms(training, name):
    params = jax.tree.map(jnp.ones_like, transformer.init(training.architecture, jax.random.key(0)))
    nothing = jax.tree.map(jnp.zeros_like, params)
    found = directions(OptimizerConfig(name=name, weight_decay=0.5), parameter_parts(training), params, nothing)
    layers = found["moe_layers"]
    for decayed in (found["embedding"], layers["feed_forward"]["router"], layers["attention"]["output"]):
        np.testing.assert_allclose(decayed, 0.5, atol=1e-6)
    for kept in (found["final_norm"], layers["attention_norm"]):
        np.testing.assert_allclose(kept, 0.0, atol=1e-6)


def test_gradients_are_clipped_by_their_global_norm(training):
    params = transformer.init(training.architecture, jax.random.key(0))
    gradients = jax.tree.map(lambda p: 1e3 * jnp.ones_like(p), params)
    parts = parameter_parts(training)
    clipped = directions(OptimizerConfig(clip_norm=1.0, epsilon=1.0, weight_decay=0.0), parts, params, gradients)
    free = directions(OptimizerConfig(clip_norm=0.0, epsilon=1.0, weight_decay=0.0), parts, params, gradients)
    assert float(optax.tree.norm(clipped)) < 0.01 * float(optax.tree.norm(free))


@pytest.mark.parametrize(("field", "value"), [("name", "sgd"), ("decay_shape", "step")])
def test_an_unknown_name_is_refused_with_the_known_ones(field, value):
    with pytest.raises(ValueError, match="known are"):
        check_fields(OptimizerConfig(**{field: value}))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimisers_program_is_made_and_its_moments_lie_where_their_parameters_do(training, name):
    program = make_program(with_optimizer(training, name), make_mesh(MeshShape(data=1, fsdp=2, expert=2, tensor=2)))
    moments = jax.tree_util.tree_leaves_with_path(program.shardings.optimizer)
    for path, sharding in jax.tree_util.tree_leaves_with_path(program.shardings.params):
        assert {found.spec for place, found in moments if place[-len(path) :] == path} == {sharding.spec}
    # Vmapped runs, too.
    two = vmap_program(program, 2)
    jax.eval_shape(two.step, *two.step_shapes())
