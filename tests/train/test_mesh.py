"""Every mesh of up to 8 devices trains the same model as one device."""

import dataclasses
import functools
import itertools
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from moejax.architecture import Architecture
from moejax.model import parameter, transformer
from moejax.model.runtime import COMPUTE_DTYPES, Runtime
from moejax.sharding import MESH_AXES
from moejax.train.mesh import MeshShape, batch_sharding, check_fits, local_rows, make_mesh, param_shardings, place_rows
from moejax.train.program import make_program
from moejax.train.training import phases

LARGE = Architecture(
    vocab_size=512, model_dim=128, num_layers=2, num_heads=8, num_kv_heads=8, head_dim=16,
    num_experts=16, top_k=2, expert_hidden=512,
)  # fmt: skip


ALONE = [tuple(size if axis == of else 1 for axis in MESH_AXES) for of in reversed(MESH_AXES) for size in range(2, 9)]
PAIRS = [
    tuple({one: first, other: second}.get(axis, 1) for axis in MESH_AXES)
    for one, other in itertools.combinations(MESH_AXES, 2)
    for first, second in ((2, 2), (2, 3), (3, 2), (2, 4), (4, 2))
]


@functools.cache
def first_step(training, sizes):
    """Metrics of one step that is compiled as fast as XLA can."""
    mesh = jax.make_mesh(sizes, MESH_AXES, (AxisType.Auto,) * 4, devices=jax.devices()[: math.prod(sizes)])
    program = make_program(training, mesh)
    sequences = training.recipe.batch_tokens // 8
    tokens = np.random.default_rng(0).integers(0, 256, (sequences, 9)).astype(np.int32)
    quick = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    with jax.set_mesh(mesh):
        step = program.step.lower(*program.step_shapes()).compile(compiler_options=quick)
        batch = {"tokens": jax.device_put(tokens, batch_sharding(mesh))}
        _, metrics = step(program.init(0), batch, phases(training)[0].schedule)
    return {name: np.asarray(metrics[name]) for name in ("loss", "balance_loss", "gradient_norm")}


@pytest.mark.parametrize("dtype", COMPUTE_DTYPES)
@pytest.mark.parametrize("sizes", [*ALONE, *PAIRS], ids=str)
@pytest.mark.matrix(2)
def test_every_axis_alone_and_every_pair_of_axes_takes_the_step_of_one_device(training, sizes, dtype):
    # All sizes divide experts, hidden units and sequences; 3, 5 and 7 do not divide the heads.
    parts = 24 if 24 % math.prod(sizes) == 0 else 70
    architecture = training.architecture.replace(
        vocab_size=280, model_dim=parts, num_layers=1, num_heads=4, num_experts=parts, expert_hidden=parts
    )
    recipe = dataclasses.replace(
        training.recipe,
        batch_tokens=parts * 8,
        data=dataclasses.replace(training.recipe.data, sequence_length=8),
        runtime=Runtime(compute_dtype=dtype),
    )
    given = dataclasses.replace(training, architecture=architecture, recipe=recipe)
    found, expected = first_step(given, sizes), first_step(given, (1, 1, 1, 1))
    for name in expected:
        tolerance = 1e-5 if dtype == "float32" else 0.02
        np.testing.assert_allclose(found[name], expected[name], rtol=tolerance, err_msg=name)


def test_parameters_are_split_over_the_mesh(training):
    program = make_program(training, make_mesh(MeshShape(data=1, fsdp=2, expert=2, tensor=2)))
    gate_up = program.shardings.params["moe_layers"]["feed_forward"]["gate_up"]
    assert gate_up.spec == jax.P(None, ("expert",), None, ("fsdp",), ("tensor",))
    moments = program.shardings.optimizer[1][0]
    assert moments.mu["moe_layers"]["feed_forward"]["gate_up"] == gate_up


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (MeshShape(data=3), "does not fit 8 devices"),
        (MeshShape(fsdp=3), "does not fit 8 devices"),
        (MeshShape(data=-1, fsdp=-1), "except that one may be -1"),
        (MeshShape(tensor=0), "axes must be positive"),
        (MeshShape(dcn_data=3), "mesh.dcn_data is 3, but 8 devices cannot be split"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(shape, sentence):
    with pytest.raises(ValueError, match=sentence):
        shape.sizes(8)


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        (
            MeshShape(dcn_data=1),
            "in 2 slices. Then other axes would send tokens or weights over the data-center network",
        ),
        (MeshShape(dcn_data=4), "set dcn_data to 2, or to -1"),
        (
            MeshShape(data=1, fsdp=8),
            "the 4 devices of each of 2 slices, and axes other than dcn_data would send",
        ),
        (MeshShape(data=2, expert=4), "the axes must multiply to 4"),
    ],
)
def test_a_mesh_that_would_send_tokens_between_slices_is_refused(shape, sentence):
    with pytest.raises(ValueError, match=sentence):
        shape.sizes(8, slices=2)


class Chip(SimpleNamespace):
    __hash__ = object.__hash__


def test_slices_are_the_outermost_part_of_data():
    shape = MeshShape(data=-1, fsdp=2)
    assert (shape.sizes(8, slices=2), shape.slice_sizes(8, slices=2)) == ((4, 2, 1, 1), (2, 2, 1, 1))
    # Slices that do not come one after another, as a TPU's devices might.
    devices = [
        Chip(slice_index=n % 2, coords=(n // 2, 0, 0), core_on_chip=0, device_kind="TPU v5", platform="tpu")
        for n in range(4)
    ]
    mesh = make_mesh(MeshShape(fsdp=2), devices)
    assert [device.slice_index for device in mesh.devices.flat] == [0, 0, 1, 1]
    assert mesh.shape["data"] == 2


@pytest.mark.parametrize("shape", [MeshShape(data=1, fsdp=8), MeshShape(data=1, expert=8)], ids=["fsdp", "expert"])
def test_no_device_draws_more_of_a_large_models_parameters_than_it_holds(monkeypatch, shape):
    monkeypatch.setattr(parameter, "_ONE_STREAM", 0)
    mesh = make_mesh(shape)

    def init(seed):
        return transformer.init(LARGE, jax.random.key(seed))

    abstract = jax.eval_shape(init, np.uint32(0))
    shardings = param_shardings(transformer.param_axes(LARGE), abstract, mesh)
    with jax.set_mesh(mesh):
        program = jax.jit(init, out_shardings=shardings).lower(np.uint32(0)).compile()
    memory = program.memory_analysis()
    assert memory.output_size_in_bytes < sum(4 * leaf.size for leaf in jax.tree.leaves(abstract)) / 4
    assert memory.temp_size_in_bytes < 4 * memory.output_size_in_bytes


def test_devices_of_two_tpu_slices_refuse_a_mesh_of_one():
    devices = [SimpleNamespace(platform="tpu", slice_index=number // 4) for number in range(8)]
    with pytest.raises(ValueError, match="the 4 devices of each of 2 slices"):
        make_mesh(MeshShape(data=8), devices)


def test_minus_one_takes_what_the_others_leave():
    assert MeshShape(data=-1, expert=2).sizes(8) == (4, 1, 2, 1)


@pytest.mark.parametrize(
    ("batch", "microbatches", "shape", "sentence"),
    [
        (12, 1, MeshShape(data=8), "12 sequences, which is not divisible by the 8 token shards"),
        (
            8,
            2,
            MeshShape(data=8),
            "A microbatch has 4 sequences \\(8 in 2 microbatches\\), which is not divisible by the 8 token shards",
        ),
        (8, 1, MeshShape(data=1, fsdp=8), "model_dim is 20, which is not divisible by mesh.fsdp = 8"),
        (8, 1, MeshShape(data=1, expert=8), "num_experts is 4, which is not divisible by mesh.expert = 8"),
        (8, 1, MeshShape(data=1, tensor=8), "expert_hidden is 12, which is not divisible by mesh.tensor = 8"),
    ],
)
def test_what_the_mesh_does_not_divide_is_refused(training, batch, microbatches, shape, sentence):
    architecture = training.architecture.replace(model_dim=20, num_experts=4, expert_hidden=12)
    with pytest.raises(ValueError, match=sentence):
        check_fits(architecture, batch, microbatches, make_mesh(shape))


def test_a_process_reads_the_rows_that_its_devices_hold():
    sharding = batch_sharding(make_mesh(MeshShape(data=2, fsdp=2, tensor=2)))
    assert local_rows(sharding, 8).tolist() == list(range(8))
    rows = np.arange(24).reshape(8, 3)
    placed = place_rows(rows, np.arange(8), 8, sharding)
    np.testing.assert_array_equal(placed, rows)
    assert placed.sharding == sharding
