"""The seconds of a compiled program's kernels are those that it states, as often as they run."""

import importlib.util
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from moejax.kernels.attention import AttentionMask
from moejax.kernels.attention_splash import splash
from moejax.kernels.grouped_matmul import grouped_matmul
from moejax.kernels.grouped_matmul_megablox import MEGABLOX
from moejax.laws.chips import find
from moejax.plan.program_time import attention_flops, compiler_seconds, stated_seconds
from moejax.plan.step_time import Roofline
from moejax.plan.topology import parse
from moejax.train.mesh import MeshShape, batch_sharding, make_mesh

CHIP = find("v5p")
PROGRAM = """HloModule step

%body (p: s32[]) -> s32[] {
  %p = s32[] parameter(0)
  %own = f32[8]{0} convolution(%p), backend_config={"estimated_cycles":"1000"}
  %unknown = f32[8]{0} sort(%p), backend_config={"estimated_cycles":"9223372036854775807"}
  ROOT %grouped = f32[8]{0} custom-call(%p), backend_config={STATED 459000000 8}
}

%condition (p.1: s32[]) -> pred[] {
  %p.1 = s32[] parameter(0)
  ROOT %less = pred[] compare(%p.1, %p.1)
}

%usual (p.2: s32[]) -> s32[] {
  ROOT %p.2 = f32[8]{0} convolution(%p.2), backend_config={"estimated_cycles":"10000"}
}

%rare (p.3: s32[]) -> s32[] {
  ROOT %p.3 = f32[8]{0} convolution(%p.3), backend_config={"estimated_cycles":"1000000"}
}

ENTRY %main (x: s32[]) -> s32[] {
  %x = s32[] parameter(0)
  %loop = s32[] while(%x), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"7"}}
  %often = s32[] conditional(%x, %x, %x), BRANCHES
  ROOT %bytes = f32[8]{0} custom-call(%x), backend_config={STATED 1 2765000000}
}
"""
PROGRAM = re.sub(
    r"STATED (\d+) (\d+)", r'"cost_estimate":{"flops":"\1","transcendentals":"0","bytes_accessed":"\2"}', PROGRAM
)


@pytest.mark.parametrize(
    "branches", ["true_computation=%usual, false_computation=%rare", "branch_computations={%rare, %usual}"]
)
def test_kernels_count_as_often_as_they_run_and_what_is_rare_or_unknown_does_not(branches):
    program = PROGRAM.replace("BRANCHES", branches)
    assert compiler_seconds(program, CHIP) == pytest.approx((7 * 1000 + 10_000) / CHIP.cycles_per_second)


def test_a_stated_kernel_takes_the_longer_of_its_products_and_its_bytes():
    assert stated_seconds(PROGRAM, CHIP) == pytest.approx(7 * 1e-6 + 1e-3)


ELEMENTWISE = """HloModule step

%add (a: f32[1000]) -> f32[1000] {
  %a = f32[1000]{0} parameter(0)
  ROOT %sum = f32[1000]{0} add(%a, %a)
}

%product (b: f32[1000]) -> f32[1000] {
  %b = f32[1000]{0} parameter(0)
  ROOT %dot = f32[1000]{0} convolution(%b, %b)
}

ENTRY %main (x: f32[1000]) -> f32[1000] {
  %x = f32[1000]{0} parameter(0)
  %multiplied = f32[1000]{0} fusion(%x), kind=kOutput, calls=%product, backend_config={"estimated_cycles":"500"}
  %fast = f32[1000]{0} fusion(%x), kind=kLoop, calls=%add, backend_config={"estimated_cycles":"1"}
  ROOT %added = f32[1000]{0} fusion(%multiplied), kind=kLoop, calls=%add, backend_config={"estimated_cycles":"900"}
}
"""


def test_kernels_without_products_take_at_most_the_time_of_their_bytes():
    cycle, byte = 1 / CHIP.cycles_per_second, 1 / CHIP.memory_bytes_per_second
    assert compiler_seconds(ELEMENTWISE, CHIP) == pytest.approx(1401 * cycle)
    assert compiler_seconds(ELEMENTWISE, CHIP, at_bandwidth=True) == pytest.approx(501 * cycle + 8000 * byte)


def test_slices_exchange_sums_while_links_of_a_slice_work():
    seconds = {"fsdp": 2.0, "data+fsdp": 1.0, "dcn_data": 2.5, "expert": 0.5}
    found = Roofline(compute_seconds=1.0, memory_seconds=0.0, link_seconds=seconds)
    assert (found.hidden_seconds, found.exposed_seconds, found.step_seconds) == (3.0, 0.5, 3.5)
    assert found.step_seconds_without_overlap == 7.0


def test_real_rows_are_a_share_of_the_products_and_not_of_the_bytes():
    assert stated_seconds(PROGRAM, CHIP, rows=0.5) == pytest.approx(7 * 0.5e-6 + 1e-3)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra: plan)")
@pytest.mark.parametrize(("window", "met"), [(0, 1 + 2 + 3 + 4), (1025, 1 + 2 + 2 + 2)])
def test_attention_compiled_for_a_tpu_works_on_the_blocks_that_meet(window, met):
    """Two products forwards, and seven in the two kernels of the backward pass."""
    mesh = make_mesh(MeshShape(data=4), parse("v5p:2x2x1").compile_only_devices())
    length, heads, width = 4096, 2, 128
    x = jax.ShapeDtypeStruct((4, length, heads, width), jnp.bfloat16, sharding=batch_sharding(mesh))

    def both(query, key, value, dy):
        mask = AttentionMask(window=window)
        mixed, back = jax.vjp(lambda *of: splash(*of, mask, scale=1.0), query, key, value)
        return mixed, back(dy)

    block = 2 * heads * 1024**2 * width
    with jax.set_mesh(mesh):
        text = jax.jit(both).lower(x, x, x, x).compile().as_text()
    assert attention_flops(text) == 9 * met * block


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (extra: plan)")
@pytest.mark.parametrize("groups", [8, 384])
def test_a_gradient_of_grouped_products_compiled_for_a_tpu_works_three_times_the_product(groups):
    mesh = Mesh(np.asarray(parse("v5p:2x2x1").compile_only_devices()), ("data",))
    rows, into, out_of = 2048, 256, 512
    shapes = [(rows, into), (groups, into, out_of), (rows, out_of)]
    everywhere = NamedSharding(mesh, P())
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=everywhere) for shape in shapes]
    sizes = jax.ShapeDtypeStruct((groups,), jnp.int32, sharding=everywhere)

    def both(x, matrices, dy, sizes):
        y, back = jax.vjp(lambda x, matrices: grouped_matmul(MEGABLOX, x, matrices, sizes), x, matrices)
        return y, back(dy)

    with jax.set_mesh(mesh):
        step = jax.shard_map(both, in_specs=P(), out_specs=P(), check_vma=False)
        found: Any = jax.jit(step).lower(*arguments, sizes).compile()
    assert found.cost_analysis()["flops"] == pytest.approx(3 * 2 * rows * into * out_of, rel=1e-2)
    assert stated_seconds(found.as_text(), CHIP) > 3 * 2 * rows * into * out_of / CHIP.flops_per_second
