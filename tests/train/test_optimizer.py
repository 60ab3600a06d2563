"""Optimizers against Optax's own, and what they do to which parameter."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moejax.config import check_fields
from moejax.model import transformer
from moejax.plan.analytic_estimate import step_memory
from moejax.plan.plan import parameter_bytes
from moejax.train import optimizer as module
from moejax.train.directory.checkpoint import CheckpointManager
from moejax.train.mesh import MeshShape, make_mesh
from moejax.train.optimizer import (
    MOMENT_TYPES,
    OPTIMIZERS,
    OptimizerConfig,
    ParameterParts,
    in_bfloat16,
    make_optimizer,
    round_stochastically,
)
from moejax.train.optimizer import _clip_by_global_norm as clipped
from moejax.train.program import make_program, vmap_program
from moejax.train.step import moment_bytes, parameter_parts


def with_optimizer(training, name, moments="float32", **recipe):
    optimizer = dataclasses.replace(training.recipe.optimizer, name=name, moments_dtype=moments)
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
    parts = parameter_parts(training.architecture)
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
    parts = parameter_parts(training.architecture)
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
    found = directions(
        OptimizerConfig(name=name, weight_decay=0.5), parameter_parts(training.architecture), params, nothing
    )
    layers = found["moe_layers"]
    for decayed in (found["embedding"], layers["feed_forward"]["router"], layers["attention"]["output"]):
        np.testing.assert_allclose(decayed, 0.5, atol=1e-6)
    for kept in (found["final_norm"], layers["attention_norm"]):
        np.testing.assert_allclose(kept, 0.0, atol=1e-6)


def test_gradients_are_clipped_by_their_global_norm(training):
    params = transformer.init(training.architecture, jax.random.key(0))
    gradients = jax.tree.map(lambda p: 1e3 * jnp.ones_like(p), params)
    parts = parameter_parts(training.architecture)
    clipped = directions(OptimizerConfig(clip_norm=1.0, epsilon=1.0, weight_decay=0.0), parts, params, gradients)
    free = directions(OptimizerConfig(clip_norm=0.0, epsilon=1.0, weight_decay=0.0), parts, params, gradients)
    assert float(optax.tree.norm(clipped)) < 0.01 * float(optax.tree.norm(free))


@pytest.mark.parametrize(("field", "value"), [("name", "sgd"), ("decay_shape", "step")])
def test_an_unknown_name_is_refused_with_the_known_ones(field, value):
    with pytest.raises(ValueError, match="choose from"):
        check_fields(OptimizerConfig(**{field: value}))


@pytest.mark.parametrize("moments", MOMENT_TYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizers_program_is_made_and_its_moments_lie_where_their_parameters_do(training, name, moments):
    mesh = make_mesh(MeshShape(data=1, fsdp=2, expert=2, tensor=2))
    program = make_program(with_optimizer(training, name, moments), mesh)
    shardings = jax.tree_util.tree_leaves_with_path(program.shardings.optimizer)
    types = dict(jax.tree_util.tree_leaves_with_path(program.abstract.optimizer))
    for path, sharding in jax.tree_util.tree_leaves_with_path(program.shardings.params):
        beside = [(place, found) for place, found in shardings if place[-len(path) :] == path]
        assert {found.spec for _, found in beside} == {sharding.spec}
        assert {types[place].dtype.name for place, _ in beside} == {moments}
    # Coefficients and counters are no moments.
    assert "bfloat16" not in {leaf.dtype.name for leaf in types.values() if leaf.ndim < 1 or leaf.shape[-1:] == (3,)}
    # Vmapped runs, too.
    two = vmap_program(program, 2)
    jax.eval_shape(two.step, *two.step_shapes())


@given(x=st.floats(width=32, allow_nan=False, allow_subnormal=False), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_rounding_is_to_a_neighbor_and_right_on_average(x, seed):
    values = jnp.full(1024, x, jnp.float32)
    rounded = np.asarray(round_stochastically(values, jax.random.key(seed)).astype(jnp.float32), np.float64)
    bits = np.float32(x).view(np.uint32) & np.uint32(0xFFFF0000)
    toward_zero = float(bits.view(np.float32))
    step = abs(float((bits + np.uint32(0x10000)).view(np.float32)) - toward_zero)
    if not np.isfinite(step):
        assert set(rounded) <= {toward_zero, np.copysign(np.inf, x)}
        return
    assert set(rounded) <= {toward_zero, toward_zero + np.copysign(step, x)}
    assert abs(rounded.mean() - np.float32(x)) <= 0.1 * step


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0xFF800000], ids=hex)
def test_what_is_not_finite_is_rounded_to_itself(bits):
    """A GPU's NaN has all bits set, which a carry would turn into a number."""
    given = jnp.full(64, np.uint32(bits).view(np.float32), jnp.float32)
    rounded = round_stochastically(given, jax.random.key(0)).astype(jnp.float32)
    assert np.array_equal(np.asarray(rounded), np.asarray(given), equal_nan=True)


@pytest.mark.parametrize("rounding", ["stochastic", "to nearest"])
def test_second_moments_decay_in_bfloat16_only_if_rounded_stochastically(rounding, monkeypatch):
    """After a gradient of 1 come 1,000 of 0, each of which takes a thousandth of the moment."""
    if rounding == "to nearest":
        monkeypatch.setattr(module, "round_stochastically", lambda x, key: x.astype(jnp.bfloat16))
    params = {"w": jnp.zeros(512, jnp.float32)}
    optimizer = in_bfloat16(optax.scale_by_adam(b2=0.999))

    def after(state, size):
        return optimizer.update({"w": size * jnp.ones(512, jnp.float32)}, state, params)[1], None

    with jax.numpy_dtype_promotion("standard"):
        end: Any = jax.lax.scan(after, optimizer.init(params), jnp.zeros(1001, jnp.float32).at[0].set(1.0))[0]
    left = float(end.inner.nu["w"].astype(jnp.float32).mean()) / 1e-3
    assert left == pytest.approx(np.exp(-1.0), rel=0.05) if rounding == "stochastic" else left > 0.9


def test_muon_stores_one_moment_of_a_hidden_matrix(training):
    adamw, muon = (moment_bytes(OptimizerConfig(name=name), training.architecture) for name in ("adamw", "muon"))
    parts = parameter_parts(training.architecture)
    params = transformer.abstract_params(training.architecture)
    is_hidden = jax.tree.map(
        lambda axes, inputs: bool(inputs) and not {"vocab", "router"} & {*axes},
        parts.axes, parts.inputs, is_leaf=lambda leaf: isinstance(leaf, tuple),
    )  # fmt: skip
    sizes, hidden = (jax.tree.leaves(tree) for tree in (jax.tree.map(lambda leaf: leaf.size, params), is_hidden))
    share = sum(size for size, one in zip(sizes, hidden, strict=True) if one) / sum(sizes)
    assert adamw == 8
    # Matrices without outputs, such as gates, have two.
    assert muon == pytest.approx(8 - 4 * share, rel=1e-3)


def test_moments_in_bfloat16_save_four_bytes_of_a_parameter(training):
    mesh = {"dcn_data": 1, "data": 1, "fsdp": 8, "expert": 1, "tensor": 1}
    wide, narrow = (with_optimizer(training, "adamw", moments) for moments in MOMENT_TYPES)
    saved = step_memory(wide, mesh, "gpu").total - step_memory(narrow, mesh, "gpu").total
    assert saved == pytest.approx(parameter_bytes(training, mesh))


def test_moments_in_bfloat16_are_restored_and_updated_to_the_same_bits(training, tmp_path):
    one = with_optimizer(training, "adamw", "bfloat16")
    program = make_program(one, make_mesh(MeshShape(data=8)))
    optimizer = make_optimizer(one.recipe.optimizer, parameter_parts(one.architecture))

    @jax.jit
    def updated(state):
        gradients = jax.tree.map(jnp.sin, state.params)
        new = optimizer.update(gradients, state.optimizer, state.params)[1]
        return dataclasses.replace(state, optimizer=new)

    with jax.numpy_dtype_promotion("standard"), CheckpointManager(tmp_path) as saves:
        half = updated(program.init(0))
        saves.save(1, half, {"seconds": 1.0})
        restored, _ = saves.restore(1, program)
        wanted, found = (jax.tree.leaves(updated(state).optimizer) for state in (half, restored))
    assert "bfloat16" in {array.dtype.name for array in found}
    for one_of_them, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one_of_them, other)
