"""Use double precision for fits and decisions, regardless of the process's default."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Enable float64 in JAX within this context, with NumPy's type promotion.

    Both settings are needed. Formulas often combine a float64 array with a Python scalar's weak type or an integer
    array. Strict promotion, which the tests use, rejects this.
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield
