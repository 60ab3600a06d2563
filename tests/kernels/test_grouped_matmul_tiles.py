"""Sizes of tiles on GPUs are those that were measured where some were, and programs take them."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from moejax.kernels.grouped_matmul.tiles import (
    HOPPER,
    RECORDS,
    SHARED_BYTES,
    TritonTile,
    jax_tile,
    nearest,
    triton_tile,
)
from moejax.kernels.grouped_matmul.triton import row_tiles
from moejax.kernels.platform import gpu_generation
from moejax.kernels.table import load
from moejax.plan.topology import TARGETS

PARTS = ("forward", "rows", "matrices")
MODELS = {
    "olmoe-1b-7b": (64, 8, 2048, 1024),
    "qwen3-30b-a3b": (128, 8, 2048, 768),
    "deepseek-v3": (256, 8, 7168, 2048),
}
"""Experts, experts of a token, width and hidden width."""


def on(chip):
    device = AbstractDevice(device_kind=TARGETS[chip].description, num_cores=1, platform="gpu")
    mesh = AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


def shapes(model, tokens):
    """Rows, experts and both widths of the product up and the one down."""
    experts, top_k, *widths = MODELS[model]
    return [(tokens * top_k, experts, *sides) for sides in (widths, widths[::-1])]


@pytest.mark.parametrize("chip", TARGETS)
def test_the_generation_of_a_gpu_that_is_not_here_is_that_of_its_target(chip):
    with on(chip):
        assert gpu_generation() == TARGETS[chip].compute_capability


@pytest.mark.parametrize(
    ("stated", "generation"), [("9.0", 9), ("8.9", 8), ("10.3", 10), ("12.0", 12), ("gfx942", 0), (None, 0)]
)
def test_the_generation_of_a_gpu_that_is_here_is_what_it_states(stated, generation, monkeypatch):
    device = SimpleNamespace() if stated is None else SimpleNamespace(compute_capability=stated)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert gpu_generation() == generation


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("generation", [8, 9, 11, 12])
def test_without_tensor_memory_sums_of_a_tile_fit_into_the_registers_of_its_threads(generation, part):
    tile = triton_tile(generation, part, 131_072, 64, 1000, 2000, 2)
    # A thread has 255 registers, and needs some for the factors.
    assert tile.rows * tile.columns // (32 * tile.warps) <= 128


@pytest.mark.parametrize(("model", "tokens"), [("qwen3-30b-a3b", 16_384), ("deepseek-v3", 16_384)])
def test_shapes_of_known_models_have_sizes_that_were_measured_on_blackwell(model, tokens):
    found = {part: nearest(part, *shapes(model, tokens)[0]) for part in PARTS}
    assert all(one.is_measured for one in found.values())
    # There is no Mosaic kernel for these.
    assert isinstance(found["matrices"].tile, TritonTile)


def test_a_shape_that_nobody_measured_takes_the_sizes_of_the_nearest_and_says_so():
    up, down = shapes("olmoe-1b-7b", 8192)
    for shape in (up, down):
        for part in PARTS:
            found = nearest(part, *shape)
            assert not found.is_measured
            assert found.tile == found.record.tile
    assert nearest("forward", *up).record.matrices == (128, 2048, 768)


@pytest.mark.parametrize("chip", ["h100", "b200"])
@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "deepseek-v3"])
def test_a_program_is_traced_with_the_sizes_that_were_measured(model, chip):
    rows, groups, into, out_of = shapes(model, 16_384)[0]
    given = [(rows, into), (rows, out_of), (groups,)]
    types = (jnp.bfloat16, jnp.bfloat16, jnp.int32)
    backend = load("grouped_matmul", "triton")
    with on(chip):
        arguments = [jax.ShapeDtypeStruct(*one) for one in zip(given, types, strict=True)]
        text = str(jax.make_jaxpr(backend.matrices_gradient)(*arguments))
    tile = HOPPER if chip == "h100" else nearest("matrices", rows, groups, into, out_of).tile
    assert f"num_warps={tile.warps}, num_stages={tile.stages}" in text
    grid = (-(-out_of // tile.columns), -(-into // tile.rows), groups)
    assert f"grid={grid}" in text


def test_every_tile_is_one_that_a_multiprocessor_holds():
    for record in RECORDS:
        assert math.log2(record.tile.rows).is_integer()
    assert 2 * HOPPER.inner * (HOPPER.rows + HOPPER.columns) * HOPPER.stages <= SHARED_BYTES
    for shape in (*shapes("olmoe-1b-7b", 8192), *shapes("qwen3-30b-a3b", 64), *shapes("deepseek-v3", 8192)):
        for generation in (9, 10):
            tile = jax_tile(generation, *shape)
            assert 2 * tile.inner * (tile.rows + tile.columns) * tile.stages <= SHARED_BYTES
            assert not any(width % tile.columns for width in shape[2:])
            assert tile.stages >= 2
    assert jax_tile(9, 8192, 8, 2048, 1000) is None
    assert jax_tile(10, 8192, 8, 2048, 1152) is None
    assert jax_tile(8, 8192, 8, 2048, 1024) is None


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize(
    "sizes", [[5, 0, 130, 64, 1, 0], [0, 0, 200, 0, 0, 0], [0] * 6, [200, 0, 0, 0, 0, 0], [33] * 6]
)
def test_every_row_of_a_group_is_in_one_tile_and_tiles_start_at_multiples(sizes, multiple):
    height = 64
    tiles = row_tiles(200, jnp.asarray(sizes, jnp.int32), height, multiple)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    found = []
    for group, start, first, stop in zip(*(np.asarray(part) for part in tiles), strict=True):
        assert start % multiple == 0
        rows = range(first, min(stop, start + height))
        assert start <= first or not rows
        found += [(row, group) for row in rows]
    assert sorted(found) == list(enumerate(owner))
