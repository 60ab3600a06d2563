"""What the devices send each other in a training step is what the parallelism asks for, and nothing else."""

import collections
import dataclasses

import jax
import pytest

from moejax.model.runtime import Runtime
from moejax.plan.collectives import collectives
from moejax.train.mesh import MeshShape, make_mesh
from moejax.train.program import make_program

MESHES = {
    "data": MeshShape(data=8),
    "fsdp": MeshShape(data=1, fsdp=8),
    "expert": MeshShape(data=1, expert=8),
    "data, tensor": MeshShape(data=2, tensor=4),
    "data, fsdp, expert": MeshShape(data=2, fsdp=2, expert=2),
    "fsdp, expert, tensor": MeshShape(data=1, fsdp=2, expert=2, tensor=2),
}


def asked_for(sizes, communication):
    """Where, which and along which axes: inside the loop over the layers, or outside it."""
    split = [axis for axis, size in sizes.items() if size > 1]
    tokens = tuple(axis for axis in split if axis != "tensor")
    both = ("layers", "outside")
    # Losses, routing sums and gradients of what every device has whole are added over all that hold other tokens,
    # gradients of matrices, of which each holds a part, over those that hold the same, and so are those of experts.
    found = {(where, "all-reduce", tokens) for where in both}
    same = tuple(axis for axis in tokens if axis != "fsdp")
    found |= {("layers", "all-reduce", axes) for axes in (same, tuple(a for a in same if a != "expert")) if axes}
    if "fsdp" in split:
        # Matrices are gathered where they are used, and their gradients scattered; XLA's CPU adds and cuts instead,
        # but for experts and tokens' vectors, whose gather we write ourselves. The norm of all gradients is added too.
        found |= {(where, kind, ("fsdp",)) for where in both for kind in ("all-gather", "all-reduce")}
        found |= {(where, "reduce-scatter", ("fsdp",)) for where in both}
        found |= {("outside", "all-reduce", same)} if same else set()
    if "expert" in split:
        # Tokens, or where buffers are too small those of a whole group, travel there and back. Outside: the norm.
        found |= {("layers", kind, ("expert",)) for kind in ("all-gather", "reduce-scatter")}
        found |= {("outside", "all-reduce", ("expert",))}
        if communication != "all_gather":
            found |= {("layers", "all-to-all", ("expert",))}
        if communication == "all_to_all":
            # Whether the buffers are large enough on all.
            found |= {("layers", "all-reduce", ("expert",))}
    if "tensor" in split:
        # What heads, hidden units and the vocabulary's parts add to a token, and to the gradient of one.
        found |= {(where, "all-reduce", ("tensor",)) for where in both}
    return found


def of_step(training, mesh, communication):
    """The collectives of the compiled step of a training whose layers are a loop."""
    recipe = dataclasses.replace(training.recipe, runtime=Runtime(scan_layers=True, expert_communication=communication))
    architecture = training.architecture.replace(num_heads=4, num_kv_heads=4, vocab_size=256, expert_bias=True)
    devices = make_mesh(MESHES[mesh])
    program = make_program(dataclasses.replace(training, architecture=architecture, recipe=recipe), devices)
    with jax.set_mesh(devices):
        lowered = program.step.lower(program.abstract, program.batch, program.schedule)
    # Collectives are decided before machine code is made, which is most of the work.
    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    return collectives(lowered.compile(compiler_options=quick).as_text(), devices.shape)


def check(training, mesh, communication, most_bytes):
    found = of_step(training, mesh, communication)
    kinds = collections.Counter(("layers" if c.loops else "outside", c.kind, c.axes) for c in found)
    assert set(kinds) == asked_for(make_mesh(MESHES[mesh]).shape, communication)
    # Where buffers are too small, tokens of a whole group travel besides, and again for the gradients.
    sent = sum(c.times * c.bytes_sent for c in found if not c.is_rare)
    assert 0.9 * most_bytes < sent <= most_bytes
    return kinds


@pytest.mark.slow
def test_a_data_parallel_step_only_adds(training):
    """Routers look at their own tokens alone: no logit travels, and a layer's sums and gradients go three times."""
    kinds = check(training, "data", "all_gather", 140_000)
    assert kinds == {("layers", "all-reduce", ("data",)): 3, ("outside", "all-reduce", ("data",)): 1}


@pytest.mark.slow
def test_three_axes_at_once_send_what_each_asks_for(training):
    check(training, "fsdp, expert, tensor", "all_to_all", 195_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "communication", "most_bytes"),
    [
        ("fsdp", "all_gather", 180_000),
        ("expert", "all_gather", 225_000),
        ("expert", "all_to_all", 135_000),
        ("expert", "ragged_all_to_all", 370_000),
        ("data, tensor", "all_gather", 280_000),
        ("data, fsdp, expert", "all_gather", 155_000),
        ("data, fsdp, expert", "all_to_all", 160_000),
        ("fsdp, expert, tensor", "all_gather", 190_000),
    ],
)
def test_every_mesh_sends_what_it_asks_for(training, mesh, communication, most_bytes):
    check(training, mesh, communication, most_bytes)
