"""Gradients do not depend on what the backward pass recomputes."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import AxisType
from known_architectures import MIXTURE

from moejax.kernels.saved_names import SAVED_NAMES
from moejax.model import transformer
from moejax.model.loss import LossWeights, auxiliary, weighted_losses
from moejax.model.runtime import COMPUTE_DTYPES, REMAT_POLICIES, Runtime
from moejax.routing import ROUTERS, is_causal
from moejax.sharding import MESH_AXES

ALL_NAMES = "+".join(SAVED_NAMES)
POLICIES = [*(name for name in REMAT_POLICIES if name != "none"), *SAVED_NAMES, ALL_NAMES]
OPTIONS = {
    "switch": {"top_k": 1},
    "group_limited": {"num_groups": 4, "top_k_groups": 2},
    "top_p": {"top_k": 3, "threshold": 0.1},
}
EXPERTS = 32
MESHES = {"one device": (1, 1, 1, 1), "mesh": (2, 1, 2, 2)}


def model(router, layers=1):
    """Mixture layers with so many experts that rounding moves tokens between them."""
    options = {"top_k": 2, "expert_bias": is_causal(router)} | OPTIONS.get(router, {})
    return MIXTURE.replace(num_layers=layers, num_dense_layers=0, num_experts=EXPERTS, router=router, **options)


def loss_of(architecture, runtime, tokens):
    def loss(params):
        bias = transformer.init_expert_bias(architecture)
        output = transformer.apply(
            architecture, runtime, params, tokens[:, :-1], expert_bias=bias, key=jax.random.key(2)
        )
        auxiliaries, _ = auxiliary(output.routing, LossWeights(balance=0.01, router_z=0.001))
        targets, share = tokens[:, 1:], jnp.full(tokens[:, 1:].shape, 1 / tokens[:, 1:].size)
        return weighted_losses(architecture, params, (output.hidden,), (targets,), (share,))[0] + auxiliaries

    return loss


INNER = (ClosedJaxpr, Jaxpr)
INDICES = {"gather": slice(1, 2), "scatter": slice(1, 2), "scatter-add": slice(1, 2), "dynamic_slice": slice(1, None)}
"""Operands of an instruction that select entries of another operand."""


def inner_programs(instruction):
    """Programs that an instruction runs; their inputs are its last operands."""
    leaves = jax.tree.leaves(instruction.params, is_leaf=lambda leaf: isinstance(leaf, INNER))
    return [getattr(leaf, "jaxpr", leaf) for leaf in leaves if isinstance(leaf, INNER)]


def recomputations(program):
    """Programs in which a backward pass recomputes what was not saved."""
    for instruction in program.eqns:
        for inner in inner_programs(instruction):
            if instruction.params.get("differentiated"):
                yield inner
            yield from recomputations(inner)


def is_float(var):
    return jnp.issubdtype(var.aval.dtype, jnp.inexact)


def new_choices(program, chosen=()):
    """Instructions that index with integers which the program derives from floats; and which results are such integers.

    ``chosen`` are inputs that are.
    """
    chosen, wrong = {*chosen}, []
    for instruction in program.eqns:
        operands = [None if isinstance(var, Literal) else var for var in instruction.invars]
        indices = operands[INDICES.get(instruction.primitive.name, slice(0))]
        wrong += [str(instruction.primitive) for var in indices if var in chosen]
        results = set()
        for inner in inner_programs(instruction):
            outer = operands[len(operands) - len(inner.invars) :]
            found, places = new_choices(inner, [a for a, b in zip(inner.invars, outer, strict=True) if b in chosen])
            wrong, results = wrong + found, results | places
        if not inner_programs(instruction) and any(var in chosen or is_float(var) for var in operands if var):
            results = set(range(len(instruction.outvars)))
        chosen |= {instruction.outvars[place] for place in results if not is_float(instruction.outvars[place])}
    return wrong, {place for place, var in enumerate(program.outvars) if not isinstance(var, Literal) and var in chosen}


def on(mesh):
    """A context with the devices of ``MESHES[mesh]``."""
    sizes = MESHES[mesh]
    return jax.set_mesh(
        jax.make_mesh(sizes, MESH_AXES, (AxisType.Auto,) * 4, devices=jax.devices()[: math.prod(sizes)])
    )


@pytest.mark.parametrize(("remat", "mesh"), [("full", "one device"), (ALL_NAMES, "mesh")])
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.matrix(len(ROUTERS))
def test_a_backward_pass_never_chooses_experts_again(router, remat, mesh):
    architecture, tokens = model(router), jnp.zeros((4, 17), jnp.int32)
    loss = loss_of(architecture, Runtime(remat=remat), tokens)
    with on(mesh):
        program = jax.make_jaxpr(jax.grad(loss))(transformer.abstract_params(architecture))
    again = list(recomputations(program.jaxpr))
    assert again
    assert [new_choices(program)[0] for program in again] == [[]] * len(again)


@functools.cache
def initial(router):
    architecture = model(router, layers=2)
    init = jax.jit(lambda: transformer.init(architecture, jax.random.key(0)))
    return jax.tree.map(np.asarray, init())


@functools.cache
def gradients(router, runtime, mesh):
    architecture = model(router, layers=2)
    tokens = jax.random.randint(jax.random.key(1), (32, 129), 0, architecture.vocab_size)
    with on(mesh):
        found = jax.jit(jax.grad(loss_of(architecture, runtime, tokens)))(initial(router))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(found)}


def cosine(ours, theirs):
    ours, theirs = (np.asarray(array, float).ravel() for array in (ours, theirs))
    return ours @ theirs / max(np.linalg.norm(ours) * np.linalg.norm(theirs), 1e-300)


QUICK = [
    (ALL_NAMES, "softmax_topk", "float32", "one device", True),
    ("dots", "group_limited", "float32", "one device", False),
]


def check_gradients(remat, router, dtype, mesh, is_scanned):
    """Compare with gradients for which everything was saved."""
    runtime = Runtime(scan_layers=is_scanned, compute_dtype=dtype)
    ours, theirs = (gradients(router, dataclasses.replace(runtime, remat=one), mesh) for one in (remat, "none"))
    if dtype == "float32":
        for name, expected in theirs.items():
            atol = 1e-5 * abs(expected).max()
            np.testing.assert_allclose(ours[name], expected, atol=atol, err_msg=f"{remat}: {name}")
        return
    # Of two programs in bfloat16 each chooses other experts for some tokens: both are compared with float32.
    exact = gradients(router, Runtime(scan_layers=is_scanned), mesh)
    for name, expected in exact.items():
        lost = cosine(theirs[name], expected) - cosine(ours[name], expected)
        assert lost < 0.02, f"{remat}: {name}: a cosine of {cosine(ours[name], expected):.3f}, {lost:.3f} lower"


@pytest.mark.parametrize(("remat", "router", "dtype", "mesh", "is_scanned"), QUICK)
def test_remat_changes_no_gradient(remat, router, dtype, mesh, is_scanned):
    check_gradients(remat, router, dtype, mesh, is_scanned)


@pytest.mark.slow
@pytest.mark.parametrize("is_scanned", [True, False])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("router", ROUTERS)
def test_no_remat_changes_a_gradient_of_any_router(router, mesh, is_scanned):
    # In one test, because its cases share the gradients that they are compared with.
    for dtype in COMPUTE_DTYPES:
        for remat in POLICIES if is_scanned or mesh == "one device" else ("full", "moe_gate_up", ALL_NAMES):
            check_gradients(remat, router, dtype, mesh, is_scanned)


TOKENS, SLOTS = 4 * 16, 2 * 4 * 16


def saved_bytes(router, remat):
    """Bytes that a layer hands to its backward pass, with experts that compute all tokens."""
    architecture, runtime = model(router).replace(expert_bias=False), Runtime(remat=remat, dispatcher="dense")
    loss = loss_of(architecture, runtime, jnp.zeros((4, 17), jnp.int32))
    backward = jax.eval_shape(lambda params: jax.vjp(loss, params)[1], transformer.abstract_params(architecture))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(backward))


@pytest.mark.parametrize(
    ("router", "of_layer"),
    [
        ("softmax_topk", 4 * SLOTS),
        ("group_limited", 4 * SLOTS),
        # A token has three slots, each of which is used or not.
        ("top_p", 5 * 3 * TOKENS),
        ("expert_choice", 4 * SLOTS),
        ("balanced", 0),
    ],
)
def test_a_saved_choice_takes_four_bytes_an_assignment(router, of_layer, monkeypatch):
    with_choices = saved_bytes(router, "full")
    monkeypatch.setitem(REMAT_POLICIES, "full", jax.checkpoint_policies.nothing_saveable)
    assert with_choices - saved_bytes(router, "full") == of_layer


def test_a_named_activation_takes_the_bytes_of_its_rows():
    of_layer = 4 * 2 * MIXTURE.expert_hidden * EXPERTS * TOKENS
    assert saved_bytes("softmax_topk", "moe_gate_up") - saved_bytes("softmax_topk", "full") == of_layer
