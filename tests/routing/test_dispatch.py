"""Every dispatcher computes what the dense reference computes, for every router, and so do its gradients."""

import dataclasses
import importlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params
from jax.sharding import AbstractDevice, AbstractMesh, AxisType
from routing_draws import (
    assert_close,
    draw_experts,
    draw_logits,
    draw_tokens,
    outputs_and_gradients,
    route,
    routing_of,
)

from moejax.kernels import cpu
from moejax.kernels.experts import clamped_swiglu, side_by_side
from moejax.kernels.table import TABLE, load
from moejax.routing import DISPATCHERS, ROUTERS
from moejax.routing.dispatch import dense, grouped
from moejax.routing.layout import limit_capacity


def use(operation, name, patch):
    """Make a kernel the only one that is chosen for an operation."""
    for other, kernel in TABLE[operation].items():
        is_it = {"platform": "any", "is_default": True, "dtype": None} if other == name else {"is_default": False}
        patch.setitem(TABLE[operation], other, kernel._replace(**is_it))


def blocks_of(x, routing, experts):
    """The grouped dispatcher as it is where no kernel is installed."""
    with pytest.MonkeyPatch.context() as patch:
        use("experts", "blocks", patch)
        return grouped(x, routing, experts)


WAYS = {**{name: dispatch for name, dispatch in DISPATCHERS.items() if name != "dense"}, "blocks": blocks_of}
TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("dispatcher", WAYS)
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.matrix(16)
def test_every_router_with_every_dispatcher_agrees_with_the_reference(router, dispatcher, dtype):
    routing = route(draw_logits(96, 8), 1 if router == "switch" else 2, router, key=jax.random.key(0))
    inputs = draw_tokens(96, 16, dtype), routing, draw_experts(8, 16, 24, dtype)
    expected = outputs_and_gradients(dense, *inputs)
    assert_close(outputs_and_gradients(WAYS[dispatcher], *inputs), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("dispatcher", WAYS)
def test_gradients_reach_the_router(dispatcher):
    x, experts = draw_tokens(96, 16), draw_experts(8, 16, 24)

    def loss(dispatch, logits):
        return (dispatch(x, route(logits), experts) ** 2).mean()

    gradient = jax.jit(jax.grad(loss, argnums=1), static_argnums=0)
    expected = gradient(dense, draw_logits(96, 8))
    assert np.abs(expected).max() > 0
    assert_close(gradient(WAYS[dispatcher], draw_logits(96, 8)), expected, 1e-5)


SHAPES = [(75, 16, 8, 9, 9), (40, 8, 12, 16, 2)]
"""tokens, model, hidden, experts, top_k: k = E with more rows than a block, and fewer rows than experts have room."""


@pytest.mark.parametrize("dispatcher", WAYS)
@settings(max_examples=12)
@given(
    shape=st.sampled_from(SHAPES),
    skew=st.sampled_from(["even", "zipf", "one takes all", "some take none"]),
    dropped=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_any_loads_and_phantoms_agree_with_the_reference(dispatcher, shape, skew, dropped, seed):
    tokens, model, hidden, num_experts, top_k = shape
    generator = np.random.default_rng(seed)
    preference = {
        "even": np.zeros(num_experts),
        "zipf": -np.log(np.arange(1, num_experts + 1)),
        "one takes all": -1e3 * np.arange(num_experts),
        "some take none": -1e3 * (np.arange(num_experts) >= max(top_k, num_experts // 2)),
    }[skew]
    noisy = preference + generator.gumbel(size=(tokens, num_experts))
    expert = np.argsort(-noisy, axis=1)[:, :top_k]
    expert[generator.random(expert.shape) < dropped] = num_experts
    inputs = draw_tokens(tokens, model), routing_of(expert, num_experts), draw_experts(num_experts, model, hidden)
    expected = outputs_and_gradients(dense, *inputs)
    assert_close(outputs_and_gradients(WAYS[dispatcher], *inputs), expected, 1e-5)


@pytest.mark.parametrize("dispatcher", WAYS)
def test_biases_and_another_activation_agree_with_the_reference(dispatcher):
    experts = dataclasses.replace(draw_experts(8, 16, 24, biases=True), activation=clamped_swiglu)
    routing = limit_capacity(route(draw_logits(96, 8)), 1.0)
    inputs = draw_tokens(96, 16), routing, experts
    expected = outputs_and_gradients(dense, *inputs)
    assert_close(outputs_and_gradients(WAYS[dispatcher], *inputs), expected, 1e-5)


@pytest.mark.skipif(not cpu.available(), reason="numba is not installed")
def test_kernels_of_a_cpu_are_used_for_the_experts_they_know_and_blocks_for_others():
    routing = route(draw_logits(96, 8))

    def kernels(dispatch, dtype=jnp.float32, **changes):
        experts = dataclasses.replace(
            draw_experts(8, 16, 24, dtype, biases="biases" in changes), **changes.get("to", {})
        )
        program = jax.jit(dispatch).lower(draw_tokens(96, 16, dtype), routing, experts).as_text()
        return program.count("@moejax_kernel(")

    assert kernels(grouped) == 2  # the experts, and the sums over their rows
    assert kernels(blocks_of) == 0
    assert kernels(grouped, jnp.bfloat16) == 0
    assert kernels(grouped, biases=True) == 0
    assert kernels(grouped, to={"activation": clamped_swiglu}) == 0


@pytest.mark.skipif(not cpu.available(), reason="numba is not installed")
@pytest.mark.parametrize("blocks", [2, 3])
def test_an_expert_with_several_blocks_of_rows_agrees_with_the_reference(blocks):
    """Blocks of a kernel have at most ``BLOCK`` rows, equally many of an expert's in each."""
    tokens = importlib.import_module("moejax.kernels.cpu.experts").BLOCK * blocks - 100
    routing = routing_of(np.tile([0, 2], (tokens, 1)), 4)
    inputs = draw_tokens(tokens, 16), routing, draw_experts(4, 16, 24)
    assert_close(outputs_and_gradients(grouped, *inputs), outputs_and_gradients(dense, *inputs), 1e-5)


def gradients_of_a_population(dispatch):
    """Gradients of two sets of tokens and experts under one routing."""
    members = draw_tokens(96, 16), draw_experts(8, 16, 24)
    members = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf]), members)
    routing = route(draw_logits(96, 8))

    def loss(x, experts):
        return (dispatch(x, routing, experts) ** 2).mean()

    return jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1))))(*members)


@pytest.mark.skipif(not cpu.available(), reason="numba is not installed")
def test_a_population_of_kernels_agrees_with_the_reference():
    assert_close(gradients_of_a_population(grouped), gradients_of_a_population(dense), 1e-5)


@pytest.fixture(params=["reference", "megablox"])
def as_on_accelerators(request, monkeypatch):
    """The grouped dispatcher with grouped products: the reference, or the kernels of a TPU, interpreted."""
    use("experts", "megablox", monkeypatch)
    use("grouped_matmul", request.param, monkeypatch)
    # Another function object, so that no program compiled for the blocks is found.
    return partial(grouped)


def test_ragged_products_agree_with_the_reference(as_on_accelerators):
    routing = limit_capacity(route(draw_logits(96, 8)), 1.0)
    inputs = draw_tokens(96, 16), routing, draw_experts(8, 16, 24, biases=True)
    expected = outputs_and_gradients(dense, *inputs)
    assert_close(outputs_and_gradients(as_on_accelerators, *inputs), expected, 1e-5)


@pytest.mark.matrix(1)
def test_ragged_products_of_a_population_agree_with_the_reference(as_on_accelerators):
    assert_close(gradients_of_a_population(as_on_accelerators), gradients_of_a_population(dense), 1e-5)


@pytest.mark.parametrize(("platform", "kind"), [("cpu", "cpu"), ("gpu", "NVIDIA H100 80GB HBM3"), ("tpu", "TPU v5p")])
def test_no_platform_has_a_product_of_every_row_with_every_expert(platform, kind):
    """As ``jax.lax.ragged_dot`` is, or one of its gradients: jax #34168; SkyRL #862; marin #5394, #7012."""
    routing = route(draw_logits(96, 8))
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device)

    def loss(x, experts):
        return blocks_of(x, routing, experts).sum() if platform == "cpu" else grouped(x, routing, experts).sum()

    with jax.sharding.use_abstract_mesh(mesh):
        program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(draw_tokens(96, 16), draw_experts(8, 16, 24))
    text = str(program)
    assert "ragged_dot" not in text
    assert ("pallas_call" in text) == (platform != "cpu")


def test_grouped_runs_in_a_scan_over_layers_and_under_rematerialization():
    x, experts = draw_tokens(96, 16), draw_experts(8, 16, 24)
    layers = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), experts)

    def layer(x, experts):
        routing = route(x @ jnp.eye(16)[:, :8])
        return x + grouped(x, routing, experts), None

    def scanned(x, layers):
        return (jax.lax.scan(jax.checkpoint(layer), x, layers)[0] ** 2).sum()

    def unrolled(x, layers):
        for index in range(2):
            x, _ = layer(x, jax.tree.map(lambda leaf, index=index: leaf[index], layers))
        return (x**2).sum()

    given, expected = (jax.jit(jax.grad(f, argnums=(0, 1)))(x, layers) for f in (scanned, unrolled))
    assert_close(given, expected, 1e-5)


def test_gradients_of_chunks_that_are_not_needed_are_not_added():
    """Outside conditions nothing adds two arrays of the shape of the experts' matrices or of the tokens."""
    routing = dataclasses.replace(route(draw_logits(64, 4)), buffer_rows=40)
    x, experts = draw_tokens(64, 8), draw_experts(4, 8, 16)

    def gradients(x, experts, dy):
        y, back = jax.vjp(lambda x, experts: grouped(x, routing, experts), x, experts)
        return y, back(dy)

    def equations(jaxpr):
        for equation in jaxpr.eqns:
            yield equation
            if equation.primitive.name != "cond":
                for inner in jaxprs_in_params(equation.params):
                    yield from equations(inner)

    found = list(equations(jax.make_jaxpr(gradients)(x, experts, x).jaxpr))
    assert [e.primitive.name for e in found].count("cond") == 2
    shapes = {x.shape, side_by_side(experts.gate_up).shape, experts.gate_up.shape, experts.down.shape}
    added = [e for e in found if e.primitive.name in ("add", "add_any") and e.outvars[0].aval.shape in shapes]
    assert not added


def test_no_more_chunks_are_computed_than_hold_rows(monkeypatch):
    """Of 128 slots, in chunks of 16, a third are this device's: 3 of 8 chunks."""
    routing = route(draw_logits(64, 4))
    mine = jnp.arange(128) % 3 == 0
    routing = dataclasses.replace(routing.masked(mine), buffer_rows=16)
    x, experts = draw_tokens(64, 8), draw_experts(4, 8, 16)
    calls = []

    def noting(x, weight, layout_with, experts, **options):
        jax.debug.callback(lambda: calls.append(1))
        return blocks(x, weight, layout_with, experts, **options)

    blocks = load("experts", "blocks")
    monkeypatch.setattr("moejax.routing.dispatch.select", lambda *_: noting)
    y, back = jax.jit(lambda *of: jax.vjp(lambda x, experts: grouped(x, routing, experts), *of))(x, experts)
    jax.effects_barrier()
    assert len(calls) == 3
    expected, expected_back = jax.jit(lambda *of: jax.vjp(lambda x, experts: dense(x, routing, experts), *of))(
        x, experts
    )
    assert_close(y, expected, 1e-5)
    calls.clear()
    given = jax.jit(lambda back, dy: back(dy))(back, x)
    jax.effects_barrier()
    # The first chunk's gradients are made of what it saved.
    assert len(calls) == 2
    assert_close(given, expected_back(x), 1e-5)
