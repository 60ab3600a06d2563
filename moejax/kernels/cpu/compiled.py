"""How kernels are compiled."""

from __future__ import annotations

import warnings
import zlib
from pathlib import Path
from typing import Any

from numba import cfunc

from moejax.wording import says

FAST: dict[str, Any] = {"fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"}, "error_model": "numpy"}
"""Sums may be reordered, as vectors need; what is not a number stays so."""

SHARED_CODE = zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
"""Changes with all that kernels share."""


def compiled(kind: Any, function: Any, **options: Any) -> Any:
    """A function that XLA can call; numba keeps it on disk if it finds a folder to write to."""
    # Numba compiles again what is kept on disk if its own file has changed, but not if what it calls has.
    function.__qualname__ += f"-{SHARED_CODE:08x}"
    try:
        return cfunc(kind, cache=True, **options)(function)
    except (RuntimeError, OSError) as problem:
        if isinstance(problem, RuntimeError) and "cannot cache" not in str(problem):
            raise
        warnings.warn(
            f"Kernels for this CPU cannot be kept on disk ({says('numba', problem)}), so that every process "
            "compiles them, which takes seconds; set NUMBA_CACHE_DIR to a folder that can be written.",
            stacklevel=2,
        )
        return cfunc(kind, **options)(function)
