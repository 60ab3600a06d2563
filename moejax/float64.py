"""Double precision for fits and decisions, whatever the process's default is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Within it, JAX makes and keeps float64, and promotes types as NumPy does.

    Both are set together because strict promotion, which the tests run under, refuses a float64 array beside a Python
    scalar's weak type or an integer array, which formulas are full of.
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield
