"""Declare the structures of XLA's foreign-function interface that kernels read: ``xla/ffi/api/c_api.h``, API 0.3.

jaxlib ships this header in ``jax.ffi.include_dir()``, and XLA keeps it binary-compatible. Structures are declared up to
the last field that kernels read. ``tests/kernels/test_custom_call.py`` compiles the installed jaxlib's header and
compares every offset.
"""

from __future__ import annotations

from ctypes import Structure, c_int, c_int64, c_size_t, c_void_p

MAJOR_VERSION, MINOR_VERSION = 0, 3
"""Version of the API."""
METADATA_EXTENSION = 1
"""Type of the extension with which XLA queries a handler's API version."""


class _Extensible(Structure):
    _fields_ = (("struct_size", c_size_t), ("extension_start", c_void_p))


class ApiVersion(_Extensible):
    _fields_ = (("major_version", c_int), ("minor_version", c_int))


class Arrays(_Extensible):
    """XLA_FFI_Args and XLA_FFI_Rets."""

    _fields_ = (("size", c_int64), ("types", c_void_p), ("values", c_void_p))


class Attributes(_Extensible):
    _fields_ = (("size", c_int64), ("types", c_void_p), ("names", c_void_p), ("values", c_void_p))


class CallFrame(_Extensible):
    _fields_ = (
        ("api", c_void_p),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", Arrays),
        ("results", Arrays),
        ("attributes", Attributes),
    )


class Buffer(_Extensible):
    _fields_ = (("dtype", c_int), ("data", c_void_p), ("rank", c_int64), ("dimensions", c_void_p))


class Scalar(Structure):
    _fields_ = (("dtype", c_int), ("value", c_void_p))


class ExtensionBase(Structure):
    _fields_ = (("struct_size", c_size_t), ("type", c_int), ("next", c_void_p))


class MetadataExtension(Structure):
    _fields_ = (("base", ExtensionBase), ("metadata", c_void_p))


class Metadata(Structure):
    _fields_ = (("struct_size", c_size_t), ("api_version", ApiVersion))


class Api(_Extensible):
    _fields_ = (
        ("api_version", ApiVersion),
        ("internal_api", c_void_p),
        ("error_create", c_void_p),
        ("error_get_message", c_void_p),
        ("error_destroy", c_void_p),
        ("handler_register", c_void_p),
        ("stream_get", c_void_p),
        ("type_register", c_void_p),
        ("execution_context_get", c_void_p),
        ("state_set", c_void_p),
        ("state_get", c_void_p),
        ("device_memory_allocate", c_void_p),
        ("device_memory_free", c_void_p),
        ("thread_pool_schedule", c_void_p),
        ("thread_pool_num_threads", c_void_p),
    )


class ErrorDestroyArguments(_Extensible):
    _fields_ = (("error", c_void_p),)


class ScheduleArguments(_Extensible):
    _fields_ = (("context", c_void_p), ("task", c_void_p), ("data", c_void_p))


class NumThreadsArguments(_Extensible):
    _fields_ = (("context", c_void_p), ("num_threads", c_void_p))
