"""Connect numba-compiled kernels to XLA's custom calls.

A kernel is a function ``part(frame, i)`` of the call frame and a part's index. Parts run in any order on any thread::

    @kernel("moejax_double")
    @no_type_check
    def _double(frame, i):
        x, y = floats2(argument(frame, 0)), floats2(result(frame, 0))
        y[i] = 2 * x[i]

    y = custom_call("moejax_double", x.shape[0], jax.ShapeDtypeStruct(x.shape, x.dtype), x)

XLA passes the address of a call frame to the handler, which is the same for all kernels. The handler reads buffers and
attributes from this frame; ``ffi_layout.py`` declares its structures. Numba caches compiled code on disk, so compiled
code must not contain addresses: it looks functions up by name or in a table.
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
from llvmlite import binding
from numba import njit, types

from moejax.kernels.cpu import ffi_layout as ffi
from moejax.kernels.cpu.compiled import FAST, compiled
from moejax.kernels.cpu.memory import (
    add,
    address_of,
    call,
    call2,
    load,
    load32,
    pointer,
    room,
    store,
    store32,
)

HANDLER = types.intp(types.intp)
"""Signature of the handler: from the address of a call frame to the address of an error, or 0 without an error."""
PART = types.intp(types.intp, types.intp)
"""Signature of a kernel: from the address of a call frame and a part's index to 0."""

# Offsets in bytes are plain numbers, which numba compiles as constants.
EXTENSION = ffi.CallFrame.extension_start.offset
API = ffi.CallFrame.api.offset
CONTEXT = ffi.CallFrame.context.offset
ARGUMENTS = ffi.CallFrame.arguments.offset + ffi.Arrays.values.offset
RESULTS = ffi.CallFrame.results.offset + ffi.Arrays.values.offset
ATTRIBUTES = ffi.CallFrame.attributes.offset + ffi.Attributes.values.offset
SCALAR_DATA = ffi.Scalar.value.offset
BUFFER_DATA = ffi.Buffer.data.offset
BUFFER_DIMENSIONS = ffi.Buffer.dimensions.offset
EXTENSION_TYPE = ffi.ExtensionBase.type.offset
METADATA_EXTENSION = ffi.METADATA_EXTENSION
METADATA = ffi.MetadataExtension.metadata.offset
METADATA_VERSION = ffi.Metadata.api_version.offset
VERSION_MAJOR = ffi.ApiVersion.major_version.offset
VERSION_MINOR = ffi.ApiVersion.minor_version.offset
VERSION_SIZE = ctypes.sizeof(ffi.ApiVersion)
MAJOR_VERSION, MINOR_VERSION = ffi.MAJOR_VERSION, ffi.MINOR_VERSION
ERROR_DESTROY = ffi.Api.error_destroy.offset
ERROR_DESTROY_SIZE = ctypes.sizeof(ffi.ErrorDestroyArguments)
ERROR_DESTROY_ERROR = ffi.ErrorDestroyArguments.error.offset
SCHEDULE = ffi.Api.thread_pool_schedule.offset
SCHEDULE_SIZE = ctypes.sizeof(ffi.ScheduleArguments)
SCHEDULE_CONTEXT = ffi.ScheduleArguments.context.offset
SCHEDULE_TASK = ffi.ScheduleArguments.task.offset
SCHEDULE_DATA = ffi.ScheduleArguments.data.offset
NUM_THREADS = ffi.Api.thread_pool_num_threads.offset
NUM_THREADS_SIZE = ctypes.sizeof(ffi.NumThreadsArguments)
NUM_THREADS_CONTEXT = ffi.NumThreadsArguments.context.offset
NUM_THREADS_RESULT = ffi.NumThreadsArguments.num_threads.offset

# Shared state of a call's threads: six integers.
FRAME, KERNEL, PARTS, NEXT, DONE, HOLDERS = 0, 8, 16, 24, 32, 40
SHARED_BYTES = 48
# Table of the process's kernels: their number, then the id and address of each.
MOST_KERNELS = 64
TABLE = (ctypes.c_int64 * (1 + 2 * MOST_KERNELS))()
binding.add_symbol("moejax_kernels", ctypes.addressof(TABLE))
DEVICES, CORES = ctypes.c_int64(1), ctypes.c_int64(1)
"""Number of devices that share XLA's threads, and number of cores. More helper threads than cores would be slower."""
binding.add_symbol("moejax_native_devices", ctypes.addressof(DEVICES))
binding.add_symbol("moejax_native_cores", ctypes.addressof(CORES))


malloc = types.ExternalFunction("malloc", types.intp(types.intp))
free = types.ExternalFunction("free", types.void(types.intp))
sched_yield = types.ExternalFunction("sched_yield", types.int32())


@njit(inline="always")
@no_type_check
def argument(frame: int, index: int) -> int:
    """Return the address of an argument's buffer."""
    return load(load(frame + ARGUMENTS) + 8 * index)


@njit(inline="always")
@no_type_check
def result(frame: int, index: int) -> int:
    """Return the address of a result's buffer."""
    return load(load(frame + RESULTS) + 8 * index)


@njit(inline="always")
@no_type_check
def size(buffer: int, axis: int) -> int:
    """Return one dimension of a buffer."""
    return load(load(buffer + BUFFER_DIMENSIONS) + 8 * axis)


def _array_of(dtype: Any, axes: int) -> Any:
    shapes = (
        lambda buffer: (size(buffer, 0),),
        lambda buffer: (size(buffer, 0), size(buffer, 1)),
        lambda buffer: (size(buffer, 0), size(buffer, 1), size(buffer, 2)),
        lambda buffer: (size(buffer, 0), size(buffer, 1), size(buffer, 2), size(buffer, 3)),
    )
    shape = njit(inline="always")(shapes[axes - 1])

    @njit(inline="always")
    @no_type_check
    def array(buffer: int) -> Any:
        return numba.carray(pointer(load(buffer + BUFFER_DATA)), shape(buffer), dtype)

    return array


floats1, floats2, floats3, floats4 = (_array_of(numba.float32, axes) for axes in (1, 2, 3, 4))
integers1, integers2 = (_array_of(numba.int32, axes) for axes in (1, 2))


@njit
@no_type_check
def announced(frame: int) -> bool:
    """Return whether the call is XLA's query for the API version, and answer it if so. XLA sends this query when a
    handler is registered."""
    extension = load(frame + EXTENSION)
    if extension == 0 or load32(extension + EXTENSION_TYPE) != METADATA_EXTENSION:
        return False
    version = load(extension + METADATA) + METADATA_VERSION
    store32(version + VERSION_MAJOR, MAJOR_VERSION)
    store32(version + VERSION_MINOR, MINOR_VERSION)
    store32(version + VERSION_SIZE, 0)  # The next field, traits: none.
    return True


@njit
@no_type_check
def leave(shared: int) -> int:
    """Release the shared state; the last holder frees it."""
    if add(shared + HOLDERS, -1) == 1:
        free(shared)
    return 0


@njit
@no_type_check
def _threads(frame: int) -> int:
    arguments, count = room(NUM_THREADS_SIZE), room(8)
    store(arguments, NUM_THREADS_SIZE)
    store(arguments + NUM_THREADS_CONTEXT, load(frame + CONTEXT))
    store(arguments + NUM_THREADS_RESULT, count)
    return max(load(count), 1) if _succeeds(frame, NUM_THREADS, arguments) else 1


@njit
@no_type_check
def _schedule(frame: int, task: int, shared: int) -> bool:
    arguments = room(SCHEDULE_SIZE)
    store(arguments, SCHEDULE_SIZE)
    store(arguments + SCHEDULE_CONTEXT, load(frame + CONTEXT))
    store(arguments + SCHEDULE_TASK, task)
    store(arguments + SCHEDULE_DATA, shared)
    return _succeeds(frame, SCHEDULE, arguments)


@njit
@no_type_check
def _succeeds(frame: int, function: int, arguments: int) -> bool:
    api = load(frame + API)
    error = call(load(api + function), arguments)
    if error == 0:
        return True
    destroyed = room(ERROR_DESTROY_SIZE)
    store(destroyed, ERROR_DESTROY_SIZE)
    store(destroyed + ERROR_DESTROY_ERROR, error)
    call(load(api + ERROR_DESTROY), destroyed)
    return False


@njit
@no_type_check
def _attribute(frame: int, index: int) -> int:
    """Return an integer attribute of a call; attributes are sorted by name."""
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
    """Process parts of a call on one thread until none is left."""
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
    """Compute all parts of a call on this thread and on XLA's helper threads.

    The call never waits for a thread that has not started, so calls of several devices cannot deadlock. Threads process
    parts until none is left, and the call waits only for parts that a thread has begun. A helper that starts too late
    has nothing to do. The last thread frees the shared state.
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
    store(shared + HOLDERS, 2)  # This thread counts twice: it processes parts and waits.
    for _ in range(helpers):
        add(shared + HOLDERS, 1)
        if not _schedule(frame, work, shared):
            add(shared + HOLDERS, -1)
    call(work, shared)
    while add(shared + DONE, 0) < parts:
        sched_yield()
    return leave(shared)


def kernel(name: str) -> Callable[[Any], Any]:
    """Compile a function ``part(frame, i)`` and register it as the kernel with this name."""

    def registered(part: Any) -> Any:
        function = compiled(PART, part, **FAST)
        count = TABLE[0]
        TABLE[1 + 2 * count], TABLE[2 + 2 * count] = _number(name), function.address
        TABLE[0] = count + 1
        return function

    return registered


def custom_call(name: str, parts: int, results: Any, *arguments: jax.Array) -> Any:
    """Call a kernel in ``parts`` parts; ``results`` are the shapes and types of its results."""
    DEVICES.value = jax.local_device_count("cpu")
    CORES.value = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    call = jax.ffi.ffi_call("moejax_kernel", results, vmap_method="sequential")
    return call(*arguments, kernel=np.int64(_number(name)), parts=np.int64(parts))


def _number(name: str) -> int:
    """Return a kernel's id, which is the same in every process because compiled programs contain it."""
    return zlib.crc32(name.encode())


jax.ffi.register_ffi_target("moejax_kernel", jax.ffi.pycapsule(_handler.ctypes), platform="cpu")
