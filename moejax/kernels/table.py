"""Register all kernels by operation and platform, and select one for a program.

A kernel is a function with the signature of its operation's reference. ``select`` chooses a kernel once, when a program
is traced: the operation's first kernel for the program's platform whose library is available and whose module's
``supports``, if defined, returns True. The last kernel of an operation is its reference, which supports all inputs on
all platforms. ``tests/kernels/test_kernel_table.py`` compares the other kernels with it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from moejax.kernels import cpu
from moejax.kernels.platform import platform

Operand = jax.Array | jax.ShapeDtypeStruct
"""An array, or only its shape and type, for which a kernel is selected."""


class Kernel(NamedTuple):
    """One kernel in the table."""

    platform: str
    """``cpu``, ``gpu`` or ``tpu``; ``any`` for plain JAX."""
    function: str
    """Module in ``moejax.kernels`` and function, such as ``rms_norm:reference``; imported at first use."""
    is_available: Callable[[], bool] = lambda: True
    """Return whether the library that the module needs is available here."""
    dtype: str | None = None
    """The only supported floating type; None for any."""
    is_default: bool = True
    """True if ``select`` may choose the kernel; otherwise users must name it."""

    def works_on(self, platform: str) -> bool:
        """Return whether the kernel is for this platform (``cpu``, ``gpu`` or ``tpu``), and its library is available
        here."""
        return self.platform in ("any", platform) and self.is_available()


TOKAMAX = "0.0.17" if jax.__version_info__ >= (0, 11) else "0.0.12"
"""Supported tokamax release for this JAX version. Its private kernels accept the sizes of ``grouped_matmul.tokamax``.
JAX 0.11 changed the format of Mosaic kernels."""


def has_tokamax() -> bool:
    """Return whether the supported release of tokamax is installed."""
    try:
        return importlib.metadata.version("tokamax") == TOKAMAX
    except importlib.metadata.PackageNotFoundError:
        return False


def is_importable(*modules: str) -> bool:
    """Return whether all of these modules can be imported here."""
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError:
        return False
    return True


PALLAS_GPU = "jax.experimental.pallas.ops.gpu"


def has_pallas_triton() -> bool:
    """Return whether this JAX has Pallas's Triton backend, which JAX 0.11 deprecated."""
    return is_importable("jax.experimental.pallas.triton")


def has_jax_triton() -> bool:
    """Return whether ``jax_triton`` is installed (the extra ``triton``)."""
    return is_importable("jax_triton", "triton.language")


def has_any_triton() -> bool:
    """Return whether either Triton backend is available."""
    return has_pallas_triton() or has_jax_triton()


def triton_backend() -> Any:
    """Return the ``grouped_matmul`` backend of our Triton kernels, through Pallas if JAX still supports it."""
    return load("grouped_matmul", "triton" if has_pallas_triton() else "jax_triton")


TABLE: dict[str, dict[str, Kernel]] = {
    "attention": {
        "numba": Kernel("cpu", "cpu.attention:attention", cpu.available, "float32"),
        "splash": Kernel("tpu", "attention.splash:splash"),
        "cudnn": Kernel("gpu", "attention.cudnn:cudnn"),
        "tiled": Kernel("any", "attention.tiled:tiled"),
        "reference": Kernel("any", "attention:reference"),
    },
    "rms_norm": {
        "numba": Kernel("cpu", "cpu.rms_norm:rms_norm", cpu.available, "float32"),
        "reference": Kernel("any", "rms_norm:reference"),
    },
    "linear_gradient": {
        "numba": Kernel("cpu", "cpu.linear:linear_gradient", cpu.available, "float32"),
        "one_axis": Kernel("cpu", "linear:over_one_axis"),
        "reference": Kernel("any", "linear:reference"),
    },
    "cross_entropy": {
        "numba": Kernel("cpu", "cpu.cross_entropy:loss_and_gradients", cpu.available, "float32"),
        "reference": Kernel("any", "cross_entropy:reference"),
    },
    "experts": {
        "numba": Kernel("cpu", "cpu.experts:swiglu_experts", cpu.available, "float32"),
        "megablox": Kernel("tpu", "experts_grouped_matmul:experts_grouped_matmul"),
        "grouped_matmul": Kernel("gpu", "experts_grouped_matmul:experts_grouped_matmul"),
        "blocks": Kernel("any", "experts_blocks:experts_blocks"),
        "reference": Kernel("any", "experts:reference"),
    },
    "grouped_matmul": {
        "megablox": Kernel("tpu", "grouped_matmul.megablox:MEGABLOX"),
        "tokamax": Kernel("gpu", "grouped_matmul.tokamax:TOKAMAX", lambda: has_tokamax() and has_any_triton()),
        "mosaic_blackwell": Kernel(
            "gpu",
            "grouped_matmul.mosaic_blackwell:MOSAIC_BLACKWELL",
            lambda: is_importable(f"{PALLAS_GPU}.blackwell_ragged_dot_mgpu") and has_any_triton(),
        ),
        "triton": Kernel("gpu", "grouped_matmul.triton:TRITON", has_pallas_triton),
        "mosaic_hopper": Kernel(
            "gpu",
            "grouped_matmul.mosaic_hopper:MOSAIC_HOPPER",
            lambda: is_importable(f"{PALLAS_GPU}.ragged_dot_mgpu", f"{PALLAS_GPU}.transposed_ragged_dot_mgpu"),
        ),
        "jax_triton": Kernel("gpu", "grouped_matmul.jax_triton:JAX_TRITON", has_jax_triton),
        "reference": Kernel("any", "grouped_matmul:REFERENCE"),
    },
    "grouped_matmul_8_bits": {
        "tokamax": Kernel("tpu", "grouped_matmul.tokamax_tpu:in_8_bits", has_tokamax),
        "mosaic": Kernel("gpu", "grouped_matmul.mosaic_8_bits:in_8_bits"),
        "triton": Kernel("gpu", "grouped_matmul.triton:in_8_bits", has_pallas_triton),
        "jax_triton": Kernel("gpu", "grouped_matmul.jax_triton:in_8_bits", has_jax_triton),
        "reference": Kernel("any", "quantization:reference"),
    },
    "ragged_all_to_all": {
        "collective": Kernel("tpu", "ragged_all_to_all:collective"),
        "reference": Kernel("any", "ragged_all_to_all:reference"),
    },
}
"""Kernels, keyed by operation and name, in order of preference."""


def load(operation: str, name: str) -> Any:
    """Return the kernel with a name."""
    module, _, function = TABLE[operation][name].function.partition(":")
    return getattr(importlib.import_module(f"moejax.kernels.{module}"), function)


def preferred(operation: str, platform: str) -> str:
    """Return the name of a platform's first available kernel, which ``select`` prefers if it supports the arguments."""
    return next(name for name, one in TABLE[operation].items() if one.is_default and one.works_on(platform))


def accepts(operation: str, name: str, *arguments: Any, **options: Any) -> bool:
    """Return whether a kernel is for this program's platform, is available here and supports the arguments."""
    kernel = TABLE[operation][name]
    types = {leaf.dtype for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array)}
    floats = {dtype.name for dtype in types if jnp.issubdtype(dtype, jnp.floating)}
    if not kernel.works_on(platform()) or (kernel.dtype and floats - {kernel.dtype}):
        return False
    # Import the module only now, because numba compiles kernels at import.
    module = importlib.import_module(f"moejax.kernels.{kernel.function.partition(':')[0]}")
    return not hasattr(module, "supports") or module.supports(*arguments, **options)


def select(operation: str, *arguments: Any, **options: Any) -> Any:
    """Return the kernel for an operation with these arguments in the program being traced."""
    for name, kernel in TABLE[operation].items():
        if kernel.is_default and accepts(operation, name, *arguments, **options):
            return load(operation, name)
    raise AssertionError(f"The reference of {operation} accepts everything.")
