"""Kernels for CPU cores: Python functions compiled by numba, which XLA calls as custom calls.

XLA computes an operation as dozens of small programs, each of which reads and writes main memory. A kernel keeps a
block of data in a core's cache from beginning to end. ``custom_call.py`` connects XLA with the kernels and distributes
their parts over XLA's threads. Kernels share ``product.py`` (matmuls based on ``tile.py``), ``arithmetic.py``
(exponentials) and ``memory.py``. The other files contain the kernels, each named after its operation.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings

from moejax.wording import says


@functools.cache
def available() -> bool:
    """Return whether numba is installed and works here."""
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
    except ImportError as problem:  # numba rejects NumPy versions newer than itself.
        warnings.warn(
            f"numba does not work here ({says('numba', problem)}), so XLA's own programs run on the CPU.", stacklevel=2
        )
        return False
    return True
