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
from moejax.kernels.attention.splash import splash
from moejax.kernels.grouped_matmul import grouped_matmul
from moejax.kernels.grouped_matmul.megablox import MEGABLOX
from moejax.laws.chips import find
from moejax.plan.program_text import Instruction
from moejax.plan.program_time import (
    attention_flops,
    bytes_moved,
    compiler_floor_seconds,
    compiler_seconds,
    grouped_flops,
    kernels,
    pallas_seconds,
    product_flops,
    program_time,
)
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


def test_kernels_in_loops_of_unknown_turns_are_counted_once_and_named():
    known = PROGRAM.replace("BRANCHES", "branch_computations={%rare, %usual}")
    unknown = known.replace(', backend_config={"known_trip_count":{"n":"7"}}', "")
    times = [program_time(text, CHIP, 1.0, {}, {}) for text in (known, unknown)]
    assert [one.once_counted for one in times] == [0, 3]
    assert times[0].xla_seconds - times[1].xla_seconds == pytest.approx(6 * 1000 / CHIP.cycles_per_second)


def test_a_grouped_product_in_float32_takes_twice_as_long_on_a_gpu():
    text = """ENTRY %main (x: bf16[4096,64]) -> bf16[4096,2048] {
  %x = TYPE[4096,64]{1,0} parameter(0)
  %w = TYPE[4,64,2048]{2,1,0} parameter(1)
  ROOT %grouped = TYPE[4096,2048]{1,0} custom-call(%x, %w), custom_call_target="__gpu$xla.gpu.triton"
}
"""
    plain, wide = (
        pallas_seconds(kernels(text.replace("TYPE", type_)), replace(GPU, memory_bytes_per_second=1e30))
        for type_ in ("bf16", "f32")
    )
    assert plain == pytest.approx(2 * 4096 * 64 * 2048 / GPU.flops_per_second, rel=0.01)
    assert wide == 2 * plain


@pytest.mark.parametrize(
    "branches", ["true_computation=%usual, false_computation=%rare", "branch_computations={%rare, %usual}"]
)
def test_kernels_count_as_often_as_they_run_and_what_is_rare_or_unknown_does_not(branches):
    program = PROGRAM.replace("BRANCHES", branches)
    assert compiler_seconds(kernels(program), CHIP) == pytest.approx((7 * 1000 + 10_000) / CHIP.cycles_per_second)


def test_a_stated_kernel_takes_the_longer_of_its_products_and_its_bytes():
    assert pallas_seconds(kernels(PROGRAM), CHIP) == pytest.approx(7 * 1e-6 + 1e-3)


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
    assert compiler_seconds(kernels(ELEMENTWISE), CHIP) == pytest.approx(1401 * cycle)
    assert compiler_floor_seconds(kernels(ELEMENTWISE), CHIP) == pytest.approx(501 * cycle + 8000 * byte)


def test_where_nobody_states_the_clock_products_are_at_the_peak_and_all_else_at_the_memorys_bandwidth():
    chip = replace(CHIP, cycles_per_second=0.0)
    assert compiler_seconds(kernels(ELEMENTWISE), chip) == 0
    assert compiler_floor_seconds(kernels(ELEMENTWISE), chip) == pytest.approx(3 * 8000 / CHIP.memory_bytes_per_second)
    heavy = ELEMENTWISE.replace("convolution(%b, %b)", "convolution(%m, %m), dim_labels=bf_io->bf").replace(
        "  %b = f32[1000]{0} parameter(0)", "  %b = f32[1000]{0} parameter(0)\n  %m = f32[4000,4000]{1,0} bitcast(%b)"
    )
    heavy = heavy.replace("ROOT %dot = f32[1000]{0}", "ROOT %dot = f32[4000,4000]{1,0}")
    expected = 2 * 4000**3 / CHIP.flops_per_second + 2 * 8000 / CHIP.memory_bytes_per_second
    assert compiler_floor_seconds(kernels(heavy), chip) == pytest.approx(expected)


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
    assert compiler_floor_seconds(kernels(both), chip) == pytest.approx(at_peak + others)
    for text in (wide, one):
        assert compiler_floor_seconds(kernels(text), chip) == pytest.approx(2 * at_peak + others)


def test_what_lies_on_the_chip_takes_no_time_of_its_memory():
    chip = replace(CHIP, cycles_per_second=0.0)
    on_chip = ELEMENTWISE.replace("f32[1000]{0} fusion", "f32[1000]{0:T(1024)S(1)} fusion")
    # Each of the three reads the program's argument, or what was left on the chip, and leaves its own there.
    assert compiler_floor_seconds(kernels(on_chip), chip) == pytest.approx(2 * 4000 / chip.memory_bytes_per_second)
    # Of the array there only a row and the index, read, and the row put back with it.
    sliced = WRITTEN.replace("f32[16,1000]{1,0}", "f32[16,1000]{1,0:S(1)}")
    assert compiler_floor_seconds(kernels(sliced), chip) == pytest.approx(2 * (4000 + 4) / chip.memory_bytes_per_second)


def test_what_is_copied_to_the_chip_beside_the_kernels_takes_its_memorys_time():
    copied = ELEMENTWISE.replace(
        "  %multiplied", "  %ahead = (f32[9000]{0:S(1)}, f32[9000]{0}, u32[]{:S(2)}) copy-start(%x)\n  %multiplied"
    )
    chip = replace(CHIP, cycles_per_second=0.0)
    assert compiler_floor_seconds(kernels(copied), chip) == pytest.approx(
        (3 * 8000 + 36_000) / chip.memory_bytes_per_second
    )
    # Beside a product that takes longer they are no more.
    assert compiler_floor_seconds(kernels(copied), replace(CHIP, cycles_per_second=1.0)) == pytest.approx(500)


def test_what_a_sparse_core_does_beside_the_kernels_takes_its_memorys_time_and_no_cycles():
    """As libtpu writes it for a TPU7x."""
    beside = """%beside (c: f32[9000]) -> f32[9000] {
  %c = f32[9000]{0} parameter(0)
  ROOT %copied = f32[9000]{0} copy(%c), backend_config={"estimated_cycles":"700"}
}, execution_thread="sparsecore"

ENTRY"""
    start = "  %start = ((f32[9000]{0}), f32[9000]{0}, u32[]{:S(8)}) call-start(%x), to_apply=%beside\n  %multiplied"
    offloaded = kernels(ELEMENTWISE.replace("ENTRY", beside).replace("  %multiplied", start, 1))
    assert compiler_seconds(offloaded, CHIP) == compiler_seconds(kernels(ELEMENTWISE), CHIP)
    chip = replace(CHIP, cycles_per_second=0.0)
    assert compiler_floor_seconds(offloaded, chip) == pytest.approx(
        (3 * 8000 + 2 * 36_000) / chip.memory_bytes_per_second
    )


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
    assert compiler_floor_seconds(kernels(WRITTEN), CHIP) == pytest.approx(bytes_ / CHIP.memory_bytes_per_second)


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
    assert pallas_seconds(kernels(PROGRAM), CHIP, rows=0.5) == pytest.approx(7 * 0.5e-6 + 1e-3)


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
    assert sum(one.times * attention_flops(one) for one in kernels(text)) == 9 * met * block


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
    assert pallas_seconds(kernels(found.as_text()), CHIP) > 3 * 2 * rows * into * out_of / CHIP.flops_per_second


GPU = find("h100")
GPU_PROGRAM = """HloModule step, is_scheduled=true

%weights (w: bf16[16,64,32], layer: s32[]) -> bf16[64,32] {
  %w = bf16[16,64,32]{2,1,0} parameter(0)
  %layer = s32[] parameter(1)
  %zero = s32[] constant(0)
  %one = bf16[1,64,32]{2,1,0} dynamic-slice(%w, %layer, %zero, %zero), dynamic_slice_sizes={1,64,32}
  ROOT %flat = bf16[64,32]{1,0} bitcast(%one)
}

%product (x: bf16[100,64], stacked: bf16[16,64,32], i: s32[]) -> f32[100,32] {
  %x = bf16[100,64]{1,0} parameter(0)
  %stacked = bf16[16,64,32]{2,1,0} parameter(1)
  %i = s32[] parameter(2)
  %matrix = bf16[64,32]{1,0} fusion(%stacked, %i), kind=kCustom, calls=%weights
  ROOT %dot.1 = f32[100,32]{1,0} dot(%x, %matrix), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (p: (s32[], bf16[100,64])) -> (s32[], bf16[100,64]) {
  %p = (s32[], bf16[100,64]{1,0}) parameter(0)
  %turn = s32[] get-tuple-element(%p), index=0
  %rows = bf16[100,64]{1,0} get-tuple-element(%p), index=1
  %all = bf16[16,64,32]{2,1,0} iota()
  %gemm_fusion_dot.1 = f32[100,32]{1,0} fusion(%rows, %all, %turn), kind=kCustom, calls=%product
  %custom-call.1 = (f32[64,32]{1,0}, s8[4194304]{0}) custom-call(%rows, %gemm_fusion_dot.1), \
custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"dot_dimension_numbers":\
{"lhs_contracting_dimensions":["0"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[]}}}
  ROOT %again = (s32[], bf16[100,64]{1,0}) tuple(%turn, %rows)
}

%condition (p.1: (s32[], bf16[100,64])) -> pred[] {
  %p.1 = (s32[], bf16[100,64]{1,0}) parameter(0)
  ROOT %less = pred[] constant(true)
}

%usual (u: bf16[100,64]) -> bf16[100,64] {
  ROOT %u = bf16[100,64]{1,0} parameter(0)
}

%rare (r: bf16[100,64]) -> bf16[100,64] {
  %r = bf16[100,64]{1,0} parameter(0)
  ROOT %pallas_call.2 = bf16[100,64]{1,0} custom-call(%r, %r), custom_call_target="mosaic_gpu_v2"
}

ENTRY %main (given: bf16[100,64], is_usual: pred[], m: bf16[4,64,32], sizes: s32[4]) -> bf16[100,64] {
  %given = bf16[100,64]{1,0} parameter(0)
  %is_usual = pred[] parameter(1)
  %m = bf16[4,64,32]{2,1,0} parameter(2)
  %sizes = s32[4]{0} parameter(3)
  %start = s32[] constant(0)
  %state = (s32[], bf16[100,64]{1,0}) tuple(%start, %given)
  %layers = (s32[], bf16[100,64]{1,0}) while(%state), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"16"}}
  %pallas_call.1 = bf16[100,32]{1,0} custom-call(%given, %m, %sizes), custom_call_target="__gpu$xla.gpu.triton"
  ROOT %last = bf16[100,64]{1,0} conditional(%is_usual, %given, %given), true_computation=%usual, \
false_computation=%rare
}
"""


def test_a_gpus_program_counts_products_as_often_as_they_run_and_grouped_ones_by_the_rows_that_are_filled():
    product = 2 * 100 * 64 * 32
    (time, half) = (program_time(GPU_PROGRAM, GPU, rows, {}, {}) for rows in (1.0, 0.5))
    assert time.flops == 2 * 16 * product + product
    assert half.flops == 2 * 16 * product + product / 2
    assert time.kernels == 3 * 16 + 1
    assert np.isnan(time.cycles_seconds)


def test_a_gpus_kernel_reads_the_slice_of_weights_in_its_product_and_lends_cublas_its_workspace():
    moved = {one.run.name: bytes_moved(one) for one in kernels(GPU_PROGRAM)}
    rows, product = 2 * 100 * 64, 4 * 100 * 32
    assert moved["gemm_fusion_dot.1"] == rows + 2 * 64 * 32 + 4 + product
    assert moved["custom-call.1"] == rows + product + 4 * 64 * 32
    assert moved["pallas_call.1"] == rows + 2 * 4 * 64 * 32 + 4 * 4 + 2 * 100 * 32
    # All of it is small, so that the account is that of its bytes.
    whole = 16 * (sum(moved[name] for name in ("gemm_fusion_dot.1", "custom-call.1")) + 2 * 16 * 64 * 32)
    seconds = program_time(GPU_PROGRAM, GPU, 1.0, {}, {}).floor_seconds
    assert seconds == pytest.approx((whole + moved["pallas_call.1"]) / GPU.memory_bytes_per_second)


@pytest.mark.parametrize("is_root", [True, False], ids=["written in its place", "read by what follows"])
def test_only_an_update_that_is_a_kernels_result_is_written_in_its_place(is_root):
    root = "%put.1 = f32[16,1000]{1,0} bitcast(%put)" if is_root else "%put.1 = f32[16,1000]{1,0} negate(%put)"
    text = WRITTEN.replace("  ROOT %put = ", "  %put = ").replace("%i, %i)\n}", "%i, %i)\n  ROOT " + root + "\n}", 1)
    (into,) = (one for one in kernels(text) if one.run.name == "all")
    assert bytes_moved(into) == (4000 + 4 + 4000 if is_root else 64_000 + 4000 + 4 + 64_000)


@pytest.mark.parametrize(
    ("types", "said", "bfloat16_products"),
    [
        (("bf16", "bf16"), "operand_precision={highest,highest}", 1),
        (("bf16", "f32"), "", 1),
        # In TF32.
        (("f32", "f32"), "", 2),
        (("f32", "f32"), "algorithm=dot_bf16_bf16_f32_x6", 6),
        (("f8e4m3fn", "f8e4m3fn"), "", 0.5),
    ],
)
def test_a_gpus_product_takes_the_time_of_its_factors_types(types, said, bfloat16_products):
    text = f"""HloModule one

ENTRY %main (a: x[8192,8192], b: x[8192,8192]) -> f32[8192,8192] {{
  %a = {types[0]}[8192,8192]{{1,0}} parameter(0)
  %b = {types[1]}[8192,8192]{{1,0}} parameter(1)
  ROOT %dot.1 = f32[8192,8192]{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {said}
}}
"""
    expected = bfloat16_products * 2 * 8192**3 / GPU.flops_per_second
    assert compiler_floor_seconds(kernels(text), GPU) == pytest.approx(expected, rel=1e-4)


CUDNN = """HloModule one

ENTRY %main (q: bf16[2,512,4,128], k: bf16[2,512,1,128], v: bf16[2,512,1,64]) -> bf16[2,4,512,64] {
  %q = bf16[2,512,4,128]{3,2,1,0} parameter(0)
  %k = bf16[2,512,1,128]{3,2,1,0} parameter(1)
  %v = bf16[2,512,1,64]{3,2,1,0} parameter(2)
  ROOT %attention = (bf16[2,4,512,64]{3,1,2,0}, u8[0]{0}) custom-call(%q, %k, %v), \
custom_call_target="__cudnn$fmhaSoftmaxWAY", backend_config={"cudnn_fmha_backend_config": {"fmha_scale": 0.1, \
"intermediate_tensor_shape": {"element_type": "BF16", "dimensions": ["2", "4", "512", "512"], "tuple_shapes": []}, \
"mask_type": "MASK", "bmm1_dot_dimension_numbers": {"lhs_contracting_dimensions": ["3"]}, \
"sliding_window_length": WINDOW, "max_seg_per_batch": 1}}
}
"""


@pytest.mark.parametrize(
    ("mask", "window", "scores"),
    [
        ("CAUSAL", 0, 512 * 513 / 2),
        ("PADDING_CAUSAL", 100, 100 * 101 / 2 + 412 * 100),
        ("NO_MASK", 0, 512 * 512),
    ],
)
def test_cudnns_attention_makes_two_products_of_the_scores_it_meets_forwards_and_five_backwards(mask, window, scores):
    found = {}
    for way in ("", "Backward"):
        text = CUDNN.replace("WAY", way).replace('"MASK"', f'"{mask}"').replace("WINDOW", str(window))
        found[way] = sum(map(attention_flops, kernels(text)))
    assert found[""] == 2 * 2 * 4 * scores * (128 + 64)
    assert found["Backward"] == 2 * 2 * 4 * scores * (3 * 128 + 2 * 64)


@pytest.mark.parametrize(
    ("read", "result"),
    [
        (("bf16[90,64]", "bf16[4,64,32]", "s32[6]"), "bf16[90,32]"),
        # Tokamax gives what says whose the rows are first; gradients of rows read the matrices the other way round.
        (("s32[6]", "s32[6]", "bf16[90,32]", "bf16[4,32,64]"), "bf16[90,64]"),
        (("f8e4m3fn[90,64]", "f8e4m3fn[4,64,32]", "f32[90]", "f32[4,32]"), "bf16[90,32]"),
        (("bf16[90,64]", "bf16[90,32]", "s32[4]", "s32[4]"), "bf16[4,64,32]"),
    ],
    ids=["forward", "tokamax", "8 bits", "gradient of matrices"],
)
def test_a_grouped_product_on_a_gpu_counts_by_its_arrays(read, result):
    one = Instruction(type=f"{result}{{0}}", opcode="custom-call", rest="", operands=tuple(f"{a}{{0}}" for a in read))
    assert grouped_flops(one) == 2 * 90 * 64 * 32


def test_both_compilers_ways_of_writing_a_product_take_the_same_time_on_chips_alike():
    tpu = find("v6e")
    peaks = {name: getattr(tpu, name) for name in ("flops_per_second", "memory_bytes_per_second")}
    alike = replace(GPU, **peaks)
    assert not tpu.cycles_per_second
    for size in (10, 4000):
        kernel = f"""HloModule one

%product (a: bf16[1000,{size}], b: bf16[{size},2000]) -> bf16[1000,2000] {{
  %a = bf16[1000,{size}]{{1,0}} parameter(0)
  %b = bf16[{size},2000]{{1,0}} parameter(1)
  ROOT %c = bf16[1000,2000]{{1,0}} PRODUCT
}}

ENTRY %main (x: bf16[1000,{size}], y: bf16[{size},2000]) -> bf16[1000,2000] {{
  %x = bf16[1000,{size}]{{1,0}} parameter(0)
  %y = bf16[{size},2000]{{1,0}} parameter(1)
  ROOT %z = bf16[1000,2000]{{1,0}} fusion(%x, %y), calls=%product, backend_config={{CONFIG}}
}}
"""
        as_dot = kernel.replace("PRODUCT", "dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}")
        as_convolution = kernel.replace("PRODUCT", "convolution(%a, %b), dim_labels=bf_io->bf")
        on_gpu = program_time(as_dot, alike, 1.0, {}, {})
        on_tpu = program_time(as_convolution.replace("CONFIG", '"estimated_cycles":"9"'), tpu, 1.0, {}, {})
        assert on_gpu.floor_seconds == on_tpu.floor_seconds
        assert on_gpu.flops == on_tpu.flops == 2 * 1000 * size * 2000


def scheduled(lines):
    """A program of kernels ``work`` and of gathers, in this order."""
    written = []
    for number, line in enumerate(lines):
        what, _, name = line.partition(" ")
        written.append(
            {
                "work": f"%work.{number} = f32[1000]{{0}} negate(%x)",
                "begin": f"%{name} = (f32[1000]{{0}}, f32[4000]{{0}}) all-gather-start(%x), "
                'backend_config={"collective_backend_config":{"is_sync":false}}',
                "at-once": f"%{name} = (f32[1000]{{0}}, f32[4000]{{0}}) all-gather-start(%x), "
                'backend_config={"collective_backend_config":{"is_sync":true}}',
                "end": f"%{name}.done = f32[4000]{{0}} all-gather-done(%{name})",
            }[what]
        )
    body = "\n  ".join(written)
    return (
        f"HloModule one\n\nENTRY %main (x: f32[1000]) -> f32[] {{\n  %x = f32[1000]{{0}} parameter(0)\n  {body}\n}}\n"
    )


@pytest.mark.parametrize(
    ("lines", "waited"),
    [
        (("begin a", "end a", "work"), 3),
        (("begin a", "work", "work", "end a", "work"), 1),
        (("begin a", "work", "work", "work", "work", "end a"), 0),
        # The second waits for the first.
        (("begin a", "begin b", "work", "work", "end a", "work", "end b"), 3),
        (("begin a", "work", "work", "work", "begin b", "end a", "work", "end b"), 2),
        # Said to be done where it begins.
        (("at-once a", "work", "work", "work", "end a"), 3),
    ],
)
def test_an_exchange_is_waited_for_as_far_as_the_schedule_has_no_work_beside_it(lines, waited):
    """Each takes three times as long as a kernel."""
    text, work = scheduled(lines), 8000 / GPU.memory_bytes_per_second
    each = {"a": 3 * work, "b": 3 * work}
    found = program_time(text, GPU, 1.0, {}, each)
    assert found.waited_seconds == pytest.approx(waited * work)
    assert found.floor_seconds == pytest.approx((lines.count("work") + waited) * work)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_waited_for_is_no_more_than_the_exchanges_and_no_less_than_what_work_leaves_of_them(seed):
    draw = np.random.default_rng(seed)
    lines, begun = [], []
    for number in range(30):
        what = draw.choice(["work", "begin", "end"])
        if what == "begin":
            begun.append(f"e{number}")
            lines.append(f"begin e{number}")
        elif what == "end" and begun:
            lines.append(f"end {begun.pop(int(draw.integers(len(begun))))}")
        else:
            lines.append("work")
    lines += [f"end {name}" for name in begun]
    each = {line.split()[1]: float(draw.uniform(0, 1e-8)) for line in lines if line.startswith("begin")}
    found = program_time(scheduled(lines), GPU, 1.0, {"fsdp": sum(each.values())}, each)
    work = lines.count("work") * 8000 / GPU.memory_bytes_per_second
    assert max(0.0, sum(each.values()) - work) <= found.waited_seconds + 1e-15
    assert found.waited_seconds <= sum(each.values()) + 1e-15
