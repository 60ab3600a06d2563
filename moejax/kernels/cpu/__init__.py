"""Kernels for the cores of a CPU: Python that numba compiles, called by XLA as custom calls.

XLA computes such a piece of a model as dozens of small programs, each of which reads and writes main memory; a kernel
keeps a block of it in a core's cache from beginning to end. ``custom_call.py`` is how XLA reaches a kernel and how its
parts are spread over XLA's threads; kernels share ``product.py``, products of matrices out of ``tile.py``, and
``arithmetic.py``, exponentials. The other files hold the kernels, each named after the operation.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings

from moejax.wording import says


@functools.cache
def available() -> bool:
    """Whether numba is installed and works here."""
    if sys.platform == "win32":
        return False
    try:
        if importlib.import_module("numba").config.DISABLE_JIT:
            return False
        importlib.import_module("moejax.kernels.cpu.arithmetic")
    except ModuleNotFoundError as missing:
        if missing.name == "numba":
            return False
        raise
    except ImportError as problem:  # numba knows only NumPys older than itself
        warnings.warn(
            f"numba does not work here ({says('numba', problem)}), so a CPU runs XLA's own programs.", stacklevel=2
        )
        return False
    return True
