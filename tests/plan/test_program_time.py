"""The seconds of a compiled program's kernels are those that it states, as often as they run."""

import importlib.util
import re
from dataclasses import replace
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
from moejax.plan.program_time import (
    attention_flops,
    compiler_floor_seconds,
    compiler_seconds,
    product_flops,
    stated_seconds,
)
from moejax.plan.step_time import Roofline
from moejax.plan.topology import parse
from moejax.train.mesh import MeshShape, batch_sharding, make_mesh
from moejax.train.program_text import Instruction

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
    assert compiler_floor_seconds(ELEMENTWISE, CHIP) == pytest.approx(501 * cycle + 8000 * byte)


def test_where_nobody_states_the_clock_products_are_at_the_peak_and_all_else_at_the_memorys_bandwidth():
    chip = replace(CHIP, cycles_per_second=0.0)
    assert compiler_seconds(ELEMENTWISE, chip) == 0
    assert compiler_floor_seconds(ELEMENTWISE, chip) == pytest.approx(3 * 8000 / CHIP.memory_bytes_per_second)
    heavy = ELEMENTWISE.replace("convolution(%b, %b)", "convolution(%m, %m), dim_labels=bf_io->bf").replace(
        "  %b = f32[1000]{0} parameter(0)", "  %b = f32[1000]{0} parameter(0)\n  %m = f32[4000,4000]{1,0} bitcast(%b)"
    )
    heavy = heavy.replace("ROOT %dot = f32[1000]{0}", "ROOT %dot = f32[4000,4000]{1,0}")
    expected = 2 * 4000**3 / CHIP.flops_per_second + 2 * 8000 / CHIP.memory_bytes_per_second
    assert compiler_floor_seconds(heavy, chip) == pytest.approx(expected)


@pytest.mark.parametrize(("chip", "kind", "type_"), [("v6e", "int8", "s8"), ("tpu7x", "fp8", "f8e4m3fn")])
def test_products_of_8_bits_are_at_their_own_peak_and_those_of_an_8_bit_factor_with_a_wider_one_are_not(
    chip, kind, type_
):
    chip = find(chip).device
    assert not chip.cycles_per_second
    wide = ELEMENTWISE.replace("convolution(%b, %b)", "convolution(%m, %n), dim_labels=bf_io->bf").replace(
        "  %b = f32[1000]{0} parameter(0)",
        "  %b = f32[1000]{0} parameter(0)\n  %m = bf16[4000,4000]{1,0} bitcast(%b)"
        "\n  %n = bf16[4000,4000]{1,0} bitcast(%b)",
    )
    wide = wide.replace("ROOT %dot = f32[1000]{0}", "ROOT %dot = f32[4000,4000]{1,0}")
    both = wide.replace("bf16[", f"{type_}[")
    one = wide.replace("bf16[", f"{type_}[", 1)
    at_peak, others = 2 * 4000**3 / chip.peak(kind), 2 * 8000 / chip.memory_bytes_per_second
    assert compiler_floor_seconds(both, chip) == pytest.approx(at_peak + others)
    for text in (wide, one):
        assert compiler_floor_seconds(text, chip) == pytest.approx(2 * at_peak + others)


def test_what_lies_on_the_chip_takes_no_time_of_its_memory():
    chip = replace(CHIP, cycles_per_second=0.0)
    on_chip = ELEMENTWISE.replace("f32[1000]{0} fusion", "f32[1000]{0:T(1024)S(1)} fusion")
    # Each of the three reads the program's argument, or what was left on the chip, and leaves its own there.
    assert compiler_floor_seconds(on_chip, chip) == pytest.approx(2 * 4000 / chip.memory_bytes_per_second)
    # Of the array there only a row and the index, read, and the row put back with it.
    sliced = WRITTEN.replace("f32[16,1000]{1,0}", "f32[16,1000]{1,0:S(1)}")
    assert compiler_floor_seconds(sliced, chip) == pytest.approx(2 * (4000 + 4) / chip.memory_bytes_per_second)


def test_what_is_copied_to_the_chip_beside_the_kernels_takes_its_memorys_time():
    copied = ELEMENTWISE.replace(
        "  %multiplied", "  %ahead = (f32[9000]{0:S(1)}, f32[9000]{0}, u32[]{:S(2)}) copy-start(%x)\n  %multiplied"
    )
    chip = replace(CHIP, cycles_per_second=0.0)
    assert compiler_floor_seconds(copied, chip) == pytest.approx((3 * 8000 + 36_000) / chip.memory_bytes_per_second)
    # Beside a product that takes longer they are no more.
    assert compiler_floor_seconds(copied, replace(CHIP, cycles_per_second=1.0)) == pytest.approx(500)


WRITTEN = """HloModule step

%into (s: f32[16,1000], u: f32[1,1000], i: s32[]) -> f32[16,1000] {
  %s = f32[16,1000]{1,0} parameter(0)
  %u = f32[1,1000]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %put = f32[16,1000]{1,0} dynamic-update-slice(%s, %u, %i, %i)
}

%out_of (t: f32[16,1000], j: s32[]) -> f32[1,1000] {
  %t = f32[16,1000]{1,0} parameter(0)
  %j = s32[] parameter(1)
  %slice = f32[1,1000]{1,0} dynamic-slice(%t, %j, %j), dynamic_slice_sizes={1,1000}
  ROOT %twice = f32[1,1000]{1,0} add(%slice, %slice)
}

ENTRY %main (x: f32[16,1000], i: s32[]) -> f32[16,1000] {
  %x = f32[16,1000]{1,0} parameter(0)
  %i.1 = s32[] parameter(1)
  %new = f32[1,1000]{1,0} fusion(%x, %i.1), calls=%out_of, backend_config={"estimated_cycles":"900000"}
  ROOT %all = f32[16,1000]{1,0} fusion(%x, %new, %i.1), calls=%into, backend_config={"estimated_cycles":"900000"}
}
"""


def test_of_an_array_that_is_read_or_written_in_part_that_part_counts():
    # A row and the index read, a row written, by both.
    bytes_ = 2 * (2 * 4000 + 4)
    assert compiler_floor_seconds(WRITTEN, CHIP) == pytest.approx(bytes_ / CHIP.memory_bytes_per_second)


@pytest.mark.parametrize(
    ("given", "said", "flops"),
    [
        # Tokens by widths, widths by a vocabulary.
        (("f32[64,32]", "f32[32,500]", "f32[64,500]"), "dim_labels=bf_io->bf", 2 * 64 * 32 * 500),
        # Into heads: each of 16 meets the one input that is no padding.
        (
            ("f32[2,64,32,1]", "f32[32,16,8,1]", "f32[2,64,16,8]"),
            "window={size=1x16 pad=0_0x15_15 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f",
            2 * 2 * 64 * 32 * 16 * 8,
        ),
        # Out of heads, which are added up.
        (
            ("f32[2,64,16,8]", "f32[32,16,8,1]", "f32[2,64,32,1]"),
            "window={size=1x16}, dim_labels=0b1f_o1i0->0bf1",
            2 * 2 * 64 * 32 * 16 * 8,
        ),
        # Of each pair of matrices alone.
        (
            ("f32[4,64,32]", "f32[4,32,16]", "f32[4,64,16]"),
            "window={size=4 stride=3 pad=3_3 lhs_dilate=4 rhs_reversal=1}, dim_labels=0bf_0io->0bf",
            2 * 4 * 64 * 32 * 16,
        ),
    ],
    ids=["plain", "into heads", "out of heads", "batched"],
)
def test_a_convolution_counts_the_numbers_that_meet(given, said, flops):
    *operands, result = given
    one = Instruction(type=result, opcode="convolution", rest=f"%a, %b), {said}, metadata", operands=tuple(operands))
    assert product_flops(one) == flops


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
