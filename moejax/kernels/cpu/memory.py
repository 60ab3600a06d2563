"""Define memory access by address for compiled kernels. Numba caches compiled code on disk, so addresses must not be
constants: the code allocates memory itself and looks functions up by name.
"""

from __future__ import annotations

from typing import Any, no_type_check

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FLOAT, INT32, INT64, BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.IntType(8)


def _memory(kind: types.Type, pointed: ir.Type) -> tuple[Any, Any]:
    @no_type_check
    def load(typingctx, address):
        def generate(context, builder, signature, arguments):
            return builder.load(builder.inttoptr(arguments[0], pointed.as_pointer()))

        return kind(types.intp), generate

    @no_type_check
    def store(typingctx, address, value):
        def generate(context, builder, signature, arguments):
            builder.store(arguments[1], builder.inttoptr(arguments[0], pointed.as_pointer()))
            return context.get_dummy_value()

        return types.void(types.intp, kind), generate

    return intrinsic(load), intrinsic(store)


load, store = _memory(types.intp, INT64)
load32, store32 = _memory(types.int32, INT32)
get, put = _memory(types.float32, FLOAT)
"""Load and store the float32 at an address."""


@intrinsic
@no_type_check
def add(typingctx, address, value) -> Any:
    """Add to the number at an address atomically, and return its previous value."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], INT64.as_pointer()), arguments[1], "seq_cst")

    return types.intp(types.intp, types.intp), generate


@intrinsic(prefer_literal=True)
@no_type_check
def room(typingctx, size) -> Any:
    """Stack-allocate ``size`` bytes, a constant, in the calling function, and return their address."""

    def generate(context, builder, signature, arguments):
        place = cgutils.alloca_once(builder, ir.ArrayType(BYTE, size.literal_value), zfill=True)
        place.align = 8
        return builder.ptrtoint(place, INT64)

    return types.intp(size), generate


@intrinsic
@no_type_check
def call(typingctx, function, argument) -> Any:
    """Call the function at an address with one integer, and return its result."""

    def generate(context, builder, signature, arguments):
        pointed = ir.FunctionType(INT64, [INT64])
        return builder.call(builder.inttoptr(arguments[0], pointed.as_pointer()), [arguments[1]])

    return types.intp(types.intp, types.intp), generate


@intrinsic
@no_type_check
def call2(typingctx, function, first, second) -> Any:
    """Call the function at an address with two integers, and return its result."""

    def generate(context, builder, signature, arguments):
        pointed = ir.FunctionType(INT64, [INT64, INT64])
        return builder.call(builder.inttoptr(arguments[0], pointed.as_pointer()), list(arguments[1:]))

    return types.intp(types.intp, types.intp, types.intp), generate


@intrinsic(prefer_literal=True)
@no_type_check
def address_of(typingctx, name) -> Any:
    """Return the address that ``binding.add_symbol`` assigned to a name. It is looked up at load time, so the calling
    code can be cached on disk."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [INT64])
        return builder.ptrtoint(cgutils.get_or_insert_function(builder.module, kind, name.literal_value), INT64)

    return types.intp(name), generate


@intrinsic
@no_type_check
def pointer(typingctx, address) -> Any:
    """Return an address as a pointer, for ``numba.carray``."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], BYTE.as_pointer())

    return types.voidptr(types.intp), generate


def scratch(numbers: int) -> Any:
    """Return a function that stack-allocates ``numbers`` float32 values in its caller and returns their address."""

    @no_type_check
    def place(typingctx):
        def generate(context, builder, signature, arguments):
            with builder.goto_entry_block():  # `cgutils.alloca_once` would fill it with zeros.
                numbers_there = builder.alloca(ir.ArrayType(FLOAT, numbers))
            numbers_there.align = 64
            return builder.ptrtoint(numbers_there, INT64)

        return types.intp(), generate

    return intrinsic(place)
