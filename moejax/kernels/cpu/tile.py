"""Define the building blocks of matmuls: tiles, which stay in a core's registers, and panels, which stay in its cache.

A panel is a row-major copy of ``PANEL`` columns of the second matrix. A tile is a part of the result: a few rows in a
panel's columns. Arrays are given by their addresses and row strides.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple, no_type_check

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from moejax.kernels.cpu.memory import BYTE, FLOAT, INT32, INT64


class Registers(NamedTuple):
    """Allocation of all vector registers of a core to a tile's sums, one row of a panel and one factor."""

    lanes: int
    """Numbers per vector."""
    vectors: int
    """Vectors per row of a panel."""
    height: int
    """Rows per tile."""


def registers(features: str) -> Registers:
    """Return the allocation for a processor with these LLVM features."""
    if "+avx512f" in features:
        return Registers(lanes=16, vectors=2, height=14)  # 32 registers
    if "+avx" in features:
        return Registers(lanes=8, vectors=2, height=6)  # 16 registers
    return Registers(lanes=4, vectors=4, height=6)  # ARM: 32 registers


CONTEXT: Any = cpu_target.target_context
LANES, VECTORS, TILE = registers(CONTEXT.codegen().magic_tuple()[2])
PANEL = LANES * VECTORS
LINE = 16
"""Numbers per cache line."""
DEPTH = 256
"""Rows per panel. A panel then takes 32 kB of a 48 kB cache, or 16 kB of a 32 kB cache."""
UNROLLED = 4
"""Rows of a panel per iteration of a tile's loop."""
FETCHED = 2
"""Cache lines prefetched per iteration. In measurements, three lines delayed the tile; a core drops prefetches beyond
its capacity."""
HEIGHTS = [TILE, *(height for height in (8, 4, 2, 1) if height < TILE)]
WIDTHS = [1, VECTORS]
"""Available heights and widths (in vectors) of tiles; smaller tiles handle the remainder of a matrix."""

VECTOR, POINTER = ir.VectorType(FLOAT, LANES), FLOAT.as_pointer()
TILE_TYPE = ir.FunctionType(ir.VoidType(), [POINTER, INT64, POINTER, INT64, POINTER, INT64, INT64, POINTER])


def _int(value: int) -> ir.Constant:
    return ir.Constant(INT64, value)


def _at(builder: ir.IRBuilder, address: ir.Value, index: ir.Value | int) -> ir.Value:
    return builder.gep(address, [index if isinstance(index, ir.Value) else _int(index)])


def _load(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.load(builder.bitcast(address, VECTOR.as_pointer()), align=4)


def _store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    builder.store(value, builder.bitcast(address, VECTOR.as_pointer()), align=4)


def _in_all_lanes(builder: ir.IRBuilder, number: ir.Value) -> ir.Value:
    undefined = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(INT32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES))


def _prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), INT32, INT32, INT32])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    # Arguments: read (0); into the second-level cache (2 of 3), because the first-level cache is in use; data (1).
    builder.call(prefetch, [address, *(ir.Constant(INT32, value) for value in (0, 2, 1))])


class _Loop:
    """An LLVM loop that carries values between iterations; after the loop, ``values`` are the final values."""

    def __init__(self, builder: ir.IRBuilder, first: ir.Value, last: ir.Value, step: int, values: list[Any]) -> None:
        self.builder, self.first, self.last, self.step, self.given = builder, first, last, step, [first, *values]

    def __enter__(self) -> _Loop:
        builder = self.builder
        self.before, self.body, self.after = builder.block, *(builder.append_basic_block() for _ in range(2))
        builder.cbranch(builder.icmp_signed("<", self.first, self.last), self.body, self.after)
        builder.position_at_end(self.body)
        self.carried = [builder.phi(value.type) for value in self.given]
        self.values = self.carried[1:]
        return self

    def __exit__(self, *problem: object) -> None:
        builder = self.builder
        following = [builder.add(self.carried[0], _int(self.step)), *self.values]
        builder.cbranch(builder.icmp_signed("<", following[0], self.last), self.body, self.after)
        builder.position_at_end(self.after)
        self.values = []
        for phi, start, end in zip(self.carried, self.given, following, strict=True):
            left = builder.phi(start.type)
            for joined in (phi, left):
                joined.add_incoming(start, self.before)
                joined.add_incoming(end, self.body)
            self.values.append(left)
        del self.values[0]


def _write_tile(function: ir.Function, height: int, vectors: int, is_transposed: bool) -> None:
    """Generate code for c = a·panel, or c + a·panel if ``add``, with ``height`` rows and ``depth`` columns of a.

    The code also prefetches ``fetched(depth)`` numbers, beginning at ``ahead``.
    """
    a, a_stride, panel, depth, c, c_stride, add, ahead = function.args
    builder: Any = ir.IRBuilder(function.append_basic_block())
    between, along = (_int(1), a_stride) if is_transposed else (a_stride, _int(1))
    rows = [builder.mul(between, _int(row)) for row in range(height)]
    whole = builder.and_(depth, _int(-UNROLLED))
    values = [a, panel, ahead, *[ir.Constant(VECTOR, [0.0] * LANES)] * (height * vectors)]
    for first, last, step in ((_int(0), whole, UNROLLED), (whole, depth, 1)):
        with _Loop(builder, first, last, step, values) as loop:
            a, panel, ahead, *sums = loop.values
            for _ in range(FETCHED if step == UNROLLED else 0):
                _prefetch(builder, builder.bitcast(ahead, BYTE.as_pointer()))
                ahead = _at(builder, ahead, LINE)
            for _ in range(step):
                of_panel = [_load(builder, _at(builder, panel, v * LANES)) for v in range(vectors)]
                for row in range(height):
                    factor = _in_all_lanes(builder, builder.load(_at(builder, a, rows[row]), align=4))
                    for v, i in enumerate(range(row * vectors, (row + 1) * vectors)):
                        product = builder.fmul(factor, of_panel[v], flags=("contract",))
                        sums[i] = builder.fadd(sums[i], product, flags=("contract",))
                a, panel = _at(builder, a, along), _at(builder, panel, PANEL)
            loop.values = [a, panel, ahead, *sums]
        values = loop.values
    starts = [_at(builder, c, builder.mul(c_stride, _int(row))) for row in range(height)]
    places = [_at(builder, start, v * LANES) for start in starts for v in range(vectors)]
    with builder.if_else(builder.trunc(add, ir.IntType(1))) as (then, otherwise):
        with then:
            for place, total in zip(places, values[3:], strict=True):
                _store(builder, builder.fadd(total, _load(builder, place)), place)
        with otherwise:
            for place, total in zip(places, values[3:], strict=True):
                _store(builder, total, place)
    builder.ret_void()


def _tile_function(module: ir.Module, height: int, vectors: int, is_transposed: bool) -> ir.Function:
    name = f"moejax_tile_{height}_{vectors}{'_transposed' * is_transposed}"
    function = cgutils.get_or_insert_function(module, TILE_TYPE, name)
    if not function.blocks:
        function.linkage = "internal"
        function.attributes.add("noinline")
        _write_tile(function, height, vectors, is_transposed)
    return function


@intrinsic
@no_type_check
def tile(typingctx, height, vectors, is_transposed, a, a_stride, panel, depth, c, c_stride, add, ahead) -> Any:
    """Compute ``height`` rows and ``vectors`` vectors of a matmul: a's ``depth`` columns times the panel, plus c if
    ``add``.

    Meanwhile it prefetches ``fetched(depth)`` numbers, beginning at ``ahead``. a is stored as [depth, height] if
    ``is_transposed``. ``height`` is one of HEIGHTS, ``vectors`` one of WIDTHS; booleans are integers, 0 or 1.
    """

    def generate(context, builder, signature, arguments):
        height, vectors, is_transposed, a, a_stride, panel, depth, c, c_stride, add, ahead = arguments
        a, panel, c, ahead = (builder.inttoptr(address, POINTER) for address in (a, panel, c, ahead))
        end = builder.append_basic_block()

        def number(height: ir.Value, vectors: ir.Value, is_transposed: ir.Value) -> ir.Value:
            kind = builder.add(builder.mul(vectors, _int(2)), is_transposed)
            return builder.add(builder.mul(kind, _int(TILE + 1)), height)

        choice = builder.switch(number(height, vectors, is_transposed), end)
        for kind in itertools.product(HEIGHTS, WIDTHS, (False, True)):
            case = builder.append_basic_block()
            choice.add_case(_int((kind[1] * 2 + kind[2]) * (TILE + 1) + kind[0]), case)
            builder.position_at_end(case)
            builder.call(_tile_function(builder.module, *kind), [a, a_stride, panel, depth, c, c_stride, add, ahead])
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 11), generate


@intrinsic
@no_type_check
def transpose_square(typingctx, source, source_stride, target, target_stride) -> Any:
    """Transpose a block of LANES rows and LANES columns."""

    def generate(context, builder, signature, arguments):
        source, source_stride, target, target_stride = arguments
        source, target = builder.inttoptr(source, POINTER), builder.inttoptr(target, POINTER)
        rows = [_load(builder, _at(builder, source, builder.mul(source_stride, _int(i)))) for i in range(LANES)]
        lanes, mask = range(LANES), ir.VectorType(INT32, LANES)
        # Each step exchanges one bit of the row index with one bit of the lane index.
        bit = LANES // 2
        while bit:
            low = ir.Constant(mask, [j if not j & bit else LANES + j - bit for j in lanes])
            high = ir.Constant(mask, [j + bit if not j & bit else LANES + j for j in lanes])
            for i in range(LANES):
                if not i & bit:
                    pair = rows[i], rows[i + bit]
                    rows[i], rows[i + bit] = (builder.shuffle_vector(*pair, chosen) for chosen in (low, high))
            bit //= 2
        for i, row in enumerate(rows):
            _store(builder, row, _at(builder, target, builder.mul(target_stride, _int(i))))
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), generate


@intrinsic
@no_type_check
def copy_vector(typingctx, source, target) -> Any:
    """Copy LANES numbers."""

    def generate(context, builder, signature, arguments):
        source, target = (builder.inttoptr(address, POINTER) for address in arguments)
        _store(builder, _load(builder, source), target)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


@intrinsic
@no_type_check
def fetch(typingctx, address) -> Any:
    """Prefetch a cache line from memory without waiting."""

    def generate(context, builder, signature, arguments):
        _prefetch(builder, builder.inttoptr(arguments[0], BYTE.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.intp), generate


@njit(inline="always")
@no_type_check
def fetched(depth: int) -> int:
    """Return how many numbers a tile of this depth prefetches."""
    return depth // UNROLLED * FETCHED * LINE
