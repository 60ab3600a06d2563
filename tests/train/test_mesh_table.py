"""The mesh table: every mesh, every router and every way of communicating trains the model that one device trains.

    pytest -m slow tests/train/test_mesh_table.py -s

prints how far each row is from one device after 20 steps; docs/benchmarks.md records it.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from moejax.model.loss import LossWeights
from moejax.model.runtime import Runtime
from moejax.routing import ROUTERS, is_causal
from moejax.routing.communication import COMMUNICATION
from moejax.sharding import MESH_AXES
from moejax.train.mesh import batch_sharding
from moejax.train.program import make_program
from moejax.train.training import phases

STEPS = 20
ONE = (1, 1, 1, 1)

MESHES = {
    "data 8": (8, 1, 1, 1),
    "fsdp 8": (1, 8, 1, 1),
    "data 2, tensor 4": (2, 1, 1, 4),
    "data 2, fsdp 2, tensor 2": (2, 2, 1, 2),
    "expert 8": (1, 1, 8, 1),
    "data 4, expert 2": (4, 1, 2, 1),
    "fsdp 2, expert 4": (1, 2, 4, 1),
    "data 2, fsdp 2, expert 2": (2, 2, 2, 1),
    "expert 4, tensor 2": (1, 1, 4, 2),
    "fsdp 2, expert 2, tensor 2": (1, 2, 2, 2),
}
"""Attention takes the expert axis as one more of data, so with ``expert`` it is folded otherwise than the experts."""

ROWS = [
    (router, mesh, communication)
    for router in ROUTERS
    for mesh, sizes in MESHES.items()
    for communication in COMMUNICATION
    # Without an expert axis there is no communication; the third one is emulated here, where all_gather stands for it.
    if communication == "all_gather"
    or (sizes[2] > 1 and (communication == "all_to_all" or mesh == "fsdp 2, expert 2, tensor 2"))
]
QUICK = [
    ("group_limited", "fsdp 2, expert 2, tensor 2", "all_to_all"),
    ("expert_choice", "data 2, tensor 4", "all_gather"),
]

LIMITS = {
    "loss": 1e-5,
    "statistics": 1e-4,
    "gradients": 1e-5,
    "parameters": 1e-4,
    "expert bias": 1e-6,
    "evaluation": 1e-4,
}
"""Largest differences: of a loss in nats, of a statistic, and of arrays as a share of their largest entry."""


def tiny(training, router, communication):
    """One mixture layer with a shared expert, in float32."""
    options = {"group_limited": {"num_groups": 2, "top_k_groups": 1, "num_mtp_layers": 1}, "switch": {"top_k": 1}}.get(
        router, {}
    )
    architecture = training.architecture.replace(
        num_layers=1, num_heads=4, num_kv_heads=4, router=router, expert_bias=is_causal(router), **options
    )
    recipe = dataclasses.replace(
        training.recipe,
        batch_tokens=128,
        data=dataclasses.replace(training.recipe.data, sequence_length=16),
        loss=LossWeights(balance=0.02, router_z=0.01, sequence_balance=0.01),
        runtime=Runtime(expert_communication=communication),
    )
    return dataclasses.replace(training, architecture=architecture, recipe=recipe)


def trained(training, sizes):
    """Metrics of every step, the optimizer's moments after the first, the state after the last and its evaluation."""
    devices = jax.devices()[: int(np.prod(sizes))]
    mesh = jax.make_mesh(sizes, MESH_AXES, (AxisType.Auto,) * 4, devices=devices)
    program, dice = make_program(training, mesh), np.random.default_rng(0)
    with jax.set_mesh(mesh):
        # As quickly compiled as XLA can.
        quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
        lowered = program.step.lower(program.abstract, program.batch, program.schedule)
        step, state, found = lowered.compile(compiler_options=quick), program.init(0), []
        for number in range(STEPS):
            tokens = dice.integers(0, 256, (8, 17)).astype(np.int32)
            batch = {"tokens": jax.device_put(tokens, batch_sharding(mesh))}
            state, metrics = step(state, batch, phases(training)[0].schedule)
            found.append(jax.tree.map(np.asarray, metrics))
            if number == 0:
                first = jax.tree.map(np.asarray, state.optimizer)
        evaluated = program.evaluate(state.params, state.expert_bias, {"tokens": tokens}, np.ones(8, bool))
    return found, first, jax.tree.map(np.asarray, state), jax.tree.map(np.asarray, evaluated)


def deviations(found, expected):
    """Largest differences between two trainings."""
    (ours, first, last, evaluated), (theirs, their_first, their_last, their_evaluated) = found, expected
    names = [name for name in theirs[0] if "loss" not in name]
    return {
        "loss": max(abs(float(a["loss"] - b["loss"])) for a, b in zip(ours, theirs, strict=True)),
        "statistics": max(_relative(a[name], b[name]) for a, b in zip(ours, theirs, strict=True) for name in names),
        "gradients": _largest(first, their_first),
        "parameters": _largest(last.params, their_last.params),
        "expert bias": _largest(last.expert_bias, their_last.expert_bias),
        "evaluation": _largest(evaluated, their_evaluated),
    }


def _relative(ours, theirs):
    return float(np.max(np.abs(np.asarray(ours, float) - theirs)) / max(np.max(np.abs(theirs)), 1e-3))


def _largest(ours, theirs):
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max((_relative(a, b) for a, b in pairs), default=0.0)


@pytest.fixture(scope="module")
def one_device():
    return functools.cache(lambda training: trained(training, ONE))


def check(training, one_device, router, mesh, communication):
    found = trained(tiny(training, router, communication), MESHES[mesh])
    measured = deviations(found, one_device(tiny(training, router, "all_gather")))
    print(router, mesh, communication, *(f"{name} {value:.1e}" for name, value in measured.items()), sep="; ")
    assert {name: value for name, value in measured.items() if value > LIMITS[name]} == {}


@pytest.mark.parametrize(("router", "mesh", "communication"), QUICK)
@pytest.mark.matrix(1)
def test_a_mesh_trains_as_one_device_does(training, one_device, router, mesh, communication):
    """Megatron-LM #3672, #3768, #5007, #5047; NeMo Automodel #1412."""
    check(training, one_device, router, mesh, communication)


@pytest.mark.slow
@pytest.mark.parametrize(("router", "mesh", "communication"), ROWS)
def test_every_mesh_trains_as_one_device_does_with_every_router_and_exchange(
    training, one_device, router, mesh, communication
):
    check(training, one_device, router, mesh, communication)


def test_a_thousandth_of_a_gradient_would_be_seen(training, one_device):
    found, first, *rest = one_device(tiny(training, QUICK[0][0], "all_gather"))
    other = jax.tree.map(lambda leaf: 1.001 * leaf, first)
    measured = deviations((found, other, *rest), (found, first, *rest))
    assert [name for name, value in measured.items() if value > LIMITS[name]] == ["gradients"]
