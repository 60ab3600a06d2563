"""XLA's custom calls as numba sees them.

A kernel is a function ``part(frame, i)`` of the call and the number of one of its parts, which may be computed in any
order on any threads::

    @kernel("moejax_double")
    @no_type_check
    def _double(frame, i):
        x, y = floats2(argument(frame, 0)), floats2(result(frame, 0))
        y[i] = 2 * x[i]

    y = custom_call("moejax_double", x.shape[0], jax.ShapeDtypeStruct(x.shape, x.dtype), x)

XLA hands its handler, which is one for all kernels, the address of a call frame (``XLA_FFI_CallFrame`` of
``xla/ffi/api/c_api.h``, which jaxlib ships in ``jax.ffi.include_dir()``), from which buffers and attributes are read.
Offsets here are those of that header's structures, of API 0.3, which XLA keeps binary-compatible. Numba keeps what it
compiled on disk, so nothing compiled may hold an address: functions find each other by name, or in a table.
"""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, no_type_check

import jax
import numba
import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from moejax.kernels.cpu.compiled import FAST, compiled

HANDLER = types.intp(types.intp)
"""From the address of a call frame to that of an error: 0 for none."""
PART = types.intp(types.intp, types.intp)
"""A kernel: from the address of a call frame and a part's number to nothing, which is 0."""

INT64, INT32, BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8)

# Where fields lie, in bytes. Structures begin with their size and extensions, 8 bytes each.
EXTENSION, API, CONTEXT = 8, 16, 24
ARGUMENTS, RESULTS, ATTRIBUTES = 40 + 32, 80 + 32, 120 + 40
"""Of the call frame: the arrays of addresses of buffers and attributes."""
SCALAR_DATA = 8
BUFFER_DATA, BUFFER_DIMENSIONS = 24, 40
EXTENSION_TYPE, METADATA = 8, 24
METADATA_VERSION = 8
METADATA_EXTENSION = 1
VERSION_MAJOR, VERSION_MINOR, VERSION_SIZE = 16, 20, 24
# Of the table of XLA's functions, which follow its version and a private address.
FUNCTIONS = 16 + VERSION_SIZE + 8
ERROR_DESTROY, SCHEDULE, NUM_THREADS = FUNCTIONS + 8 * 2, FUNCTIONS + 8 * 11, FUNCTIONS + 8 * 12

# A call whose parts are shared: six whole numbers.
FRAME, KERNEL, PARTS, NEXT, DONE, HOLDERS = 0, 8, 16, 24, 32, 40
SHARED_BYTES = 48
# The process's kernels: how many, and of each its number and address.
MOST_KERNELS = 64
TABLE = (ctypes.c_int64 * (1 + 2 * MOST_KERNELS))()
binding.add_symbol("moejax_kernels", ctypes.addressof(TABLE))
DEVICES, CORES = ctypes.c_int64(1), ctypes.c_int64(1)
"""Devices that share XLA's threads, and the cores that run these: more helpers than cores would only be in the way."""
binding.add_symbol("moejax_native_devices", ctypes.addressof(DEVICES))
binding.add_symbol("moejax_native_cores", ctypes.addressof(CORES))


def _address(builder: Any, value: Any, pointed: Any) -> Any:
    return builder.inttoptr(value, pointed.as_pointer())


def _memory(kind: Any, pointed: Any) -> tuple[Any, Any]:
    """``load(address)`` and ``store(address, value)`` of whole numbers of a kind."""

    @no_type_check
    def load(typingctx: Any, address: Any) -> Any:
        def generate(context, builder, signature, arguments):
            return builder.load(_address(builder, arguments[0], pointed))

        return kind(types.intp), generate

    @no_type_check
    def store(typingctx: Any, address: Any, value: Any) -> Any:
        def generate(context, builder, signature, arguments):
            builder.store(arguments[1], _address(builder, arguments[0], pointed))
            return context.get_dummy_value()

        return types.void(types.intp, kind), generate

    return intrinsic(load), intrinsic(store)


load, store = _memory(types.intp, INT64)
load32, store32 = _memory(types.int32, INT32)


@intrinsic
@no_type_check
def add(typingctx: Any, address: Any, value: Any) -> Any:
    """Add to the number at an address, undisturbed by other threads; the number there before."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", _address(builder, arguments[0], INT64), arguments[1], "seq_cst")

    return types.intp(types.intp, types.intp), generate


@intrinsic(prefer_literal=True)
@no_type_check
def room(typingctx: Any, size: Any) -> Any:
    """The address of so many bytes, which last as long as the function that asks for them; a constant size."""

    def generate(context, builder, signature, arguments):
        place = cgutils.alloca_once(builder, ir.ArrayType(BYTE, size.literal_value), zfill=True)
        place.align = 8
        return builder.ptrtoint(place, INT64)

    return types.intp(size), generate


@intrinsic
@no_type_check
def call(typingctx: Any, function: Any, argument: Any) -> Any:
    """Call the function at an address with one number; what it returns."""

    def generate(context, builder, signature, arguments):
        pointed = ir.FunctionType(INT64, [INT64])
        return builder.call(_address(builder, arguments[0], pointed), [arguments[1]])

    return types.intp(types.intp, types.intp), generate


@intrinsic
@no_type_check
def call2(typingctx: Any, function: Any, first: Any, second: Any) -> Any:
    """Call the function at an address with two numbers; what it returns."""

    def generate(context, builder, signature, arguments):
        pointed = ir.FunctionType(INT64, [INT64, INT64])
        return builder.call(_address(builder, arguments[0], pointed), list(arguments[1:]))

    return types.intp(types.intp, types.intp, types.intp), generate


malloc = types.ExternalFunction("malloc", types.intp(types.intp))
free = types.ExternalFunction("free", types.void(types.intp))
sched_yield = types.ExternalFunction("sched_yield", types.int32())


@intrinsic(prefer_literal=True)
@no_type_check
def address_of(typingctx: Any, name: Any) -> Any:
    """The address that ``binding.add_symbol`` gave a name: not a constant, so that the caller can be kept on disk."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [INT64])
        return builder.ptrtoint(cgutils.get_or_insert_function(builder.module, kind, name.literal_value), INT64)

    return types.intp(name), generate


@intrinsic
@no_type_check
def _pointer(typingctx: Any, address: Any) -> Any:
    def generate(context, builder, signature, arguments):
        return _address(builder, arguments[0], BYTE)

    return types.voidptr(types.intp), generate


@njit(inline="always")
@no_type_check
def argument(frame: int, index: int) -> int:
    """The address of an argument's buffer."""
    return load(load(frame + ARGUMENTS) + 8 * index)


@njit(inline="always")
@no_type_check
def result(frame: int, index: int) -> int:
    """The address of a result's buffer."""
    return load(load(frame + RESULTS) + 8 * index)


@njit(inline="always")
@no_type_check
def size(buffer: int, axis: int) -> int:
    """One dimension of a buffer."""
    return load(load(buffer + BUFFER_DIMENSIONS) + 8 * axis)


@njit(inline="always")
@no_type_check
def floats1(buffer: int) -> Any:
    """A buffer as a NumPy array: float32 of one axis."""
    return numba.carray(_pointer(load(buffer + BUFFER_DATA)), (size(buffer, 0),), numba.float32)


@njit(inline="always")
@no_type_check
def floats2(buffer: int) -> Any:
    """Of two axes."""
    return numba.carray(_pointer(load(buffer + BUFFER_DATA)), (size(buffer, 0), size(buffer, 1)), numba.float32)


@njit(inline="always")
@no_type_check
def floats3(buffer: int) -> Any:
    """Of three axes."""
    shape = (size(buffer, 0), size(buffer, 1), size(buffer, 2))
    return numba.carray(_pointer(load(buffer + BUFFER_DATA)), shape, numba.float32)


@njit(inline="always")
@no_type_check
def floats4(buffer: int) -> Any:
    """Of four axes."""
    shape = (size(buffer, 0), size(buffer, 1), size(buffer, 2), size(buffer, 3))
    return numba.carray(_pointer(load(buffer + BUFFER_DATA)), shape, numba.float32)


@njit(inline="always")
@no_type_check
def integers1(buffer: int) -> Any:
    """A buffer as a NumPy array: int32 of one axis."""
    return numba.carray(_pointer(load(buffer + BUFFER_DATA)), (size(buffer, 0),), numba.int32)


@njit(inline="always")
@no_type_check
def integers2(buffer: int) -> Any:
    """Of two axes."""
    return numba.carray(_pointer(load(buffer + BUFFER_DATA)), (size(buffer, 0), size(buffer, 1)), numba.int32)


@njit
@no_type_check
def announced(frame: int) -> bool:
    """Whether XLA only asks, when a handler is registered, which version of the interface it was written for."""
    extension = load(frame + EXTENSION)
    if extension == 0 or load32(extension + EXTENSION_TYPE) != METADATA_EXTENSION:
        return False
    version = load(extension + METADATA) + METADATA_VERSION
    store32(version + VERSION_MAJOR, 0)
    store32(version + VERSION_MINOR, 3)
    store32(version + VERSION_SIZE, 0)  # traits: none
    return True


@njit
@no_type_check
def leave(shared: int) -> int:
    """Hold what is shared no longer."""
    if add(shared + HOLDERS, -1) == 1:
        free(shared)
    return 0


@njit
@no_type_check
def _threads(frame: int) -> int:
    """How many threads XLA has for a call, at least this one."""
    arguments, count = room(32), room(8)
    store(arguments, 32)
    store(arguments + 16, load(frame + CONTEXT))
    store(arguments + 24, count)
    return max(load(count), 1) if _succeeds(frame, NUM_THREADS, arguments) else 1


@njit
@no_type_check
def _schedule(frame: int, task: int, shared: int) -> bool:
    arguments = room(40)
    store(arguments, 40)
    store(arguments + 16, load(frame + CONTEXT))
    store(arguments + 24, task)
    store(arguments + 32, shared)
    return _succeeds(frame, SCHEDULE, arguments)


@njit
@no_type_check
def _succeeds(frame: int, function: int, arguments: int) -> bool:
    api = load(frame + API)
    error = call(load(api + function), arguments)
    if error == 0:
        return True
    destroyed = room(24)
    store(destroyed, 24)
    store(destroyed + 16, error)
    call(load(api + ERROR_DESTROY), destroyed)
    return False


@njit
@no_type_check
def _attribute(frame: int, index: int) -> int:
    """A whole number that a call was given by name; names are sorted."""
    return load(load(load(load(frame + ATTRIBUTES) + 8 * index) + SCALAR_DATA))


@njit
@no_type_check
def _address_of_kernel(number: int) -> int:
    table = address_of("moejax_kernels")
    for i in range(load(table)):
        if load(table + 8 + 16 * i) == number:
            return load(table + 16 + 16 * i)
    return 0


@partial(compiled, HANDLER)
@no_type_check
def _work(shared: int) -> int:
    """What a thread does for a call: take parts until none is left."""
    part = add(shared + NEXT, 1)
    while part < load(shared + PARTS):
        call2(load(shared + KERNEL), load(shared + FRAME), part)
        add(shared + DONE, 1)
        part = add(shared + NEXT, 1)
    return leave(shared)


binding.add_symbol("moejax_work", _work.address)


@partial(compiled, HANDLER)
@no_type_check
def _handler(frame: int) -> int:
    """Compute all parts of a call, on this thread and on those of XLA's that come to help.

    Nobody waits for a thread that has not begun, so that calls of several devices cannot wait for each other: threads
    take parts until none is left, and only parts that were taken are waited for. A helper that comes too late finds no
    part; whoever leaves last frees what was shared.
    """
    if announced(frame):
        return 0
    kernel, parts = _address_of_kernel(_attribute(frame, 0)), _attribute(frame, 1)
    threads = min(_threads(frame), load(address_of("moejax_native_cores")))
    helpers = min(threads // load(address_of("moejax_native_devices")), parts) - 1
    if helpers < 1:
        for part in range(parts):
            call2(kernel, frame, part)
        return 0
    shared, work = malloc(SHARED_BYTES), address_of("moejax_work")
    store(shared + FRAME, frame)
    store(shared + KERNEL, kernel)
    store(shared + PARTS, parts)
    store(shared + NEXT, 0)
    store(shared + DONE, 0)
    store(shared + HOLDERS, 2)  # this thread, as the one who takes parts and as the one who waits
    for _ in range(helpers):
        add(shared + HOLDERS, 1)
        if not _schedule(frame, work, shared):
            add(shared + HOLDERS, -1)
    call(work, shared)
    while add(shared + DONE, 0) < parts:
        sched_yield()
    return leave(shared)


def kernel(name: str) -> Callable[[Any], Any]:
    """Compile a function ``part(frame, i)`` as the kernel of a name."""

    def registered(part: Any) -> Any:
        function = compiled(PART, part, **FAST)
        count = TABLE[0]
        TABLE[1 + 2 * count], TABLE[2 + 2 * count] = _number(name), function.address
        TABLE[0] = count + 1
        return function

    return registered


def custom_call(name: str, parts: int, results: Any, *arguments: jax.Array) -> Any:
    """What a kernel computes in ``parts``; shapes and types of the results are given."""
    DEVICES.value = jax.local_device_count("cpu")
    CORES.value = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    call = jax.ffi.ffi_call("moejax_kernel", results, vmap_method="sequential")
    return call(*arguments, kernel=np.int64(_number(name)), parts=np.int64(parts))


def _number(name: str) -> int:
    """The same in every process: compiled programs hold it."""
    return zlib.crc32(name.encode())


jax.ffi.register_ffi_target("moejax_kernel", jax.ffi.pycapsule(_handler.ctypes), platform="cpu")
