"""The kernels in Triton's own language compute what the reference does, run by Triton's interpreter on a CPU.

They need Triton: ``make gpu-programs``.
"""

import importlib.util
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moejax.kernels import quantization
from moejax.kernels.grouped_matmul import REFERENCE, GroupedMatmul

pytestmark = [
    pytest.mark.gpu_programs,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make gpu-programs"),
]


class Tensor:
    """An array as Triton's interpreter expects one, in the memory of the host."""

    def __init__(self, array):
        self.array, self.dtype = array, array.dtype

    def data_ptr(self):
        return self.array.ctypes.data

    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def new_empty(self, *size, **options):
        return self

    def __getattr__(self, name):
        # The interpreter copies the same memory onto itself.
        return lambda *arguments: None


def interpreted(kernel, out, tile, grid, *arrays, **sizes):
    """Run a kernel as ``jax_triton._call`` does."""

    def run(*arrays):
        result = np.full(out.shape, 7, out.dtype)
        tensors = [Tensor(np.ascontiguousarray(array)) for array in (*arrays, result)]
        kernel[grid](*tensors, **sizes, ROWS=tile.rows, COLUMNS=tile.columns, INNER=tile.inner)
        return tensors[-1].array

    return jax.pure_callback(run, out, *arrays)


def differences(dtype, rows, sizes, into, out_of):
    """Return how far the products and gradients are from the reference's, relative to the largest number."""
    from moejax.kernels.grouped_matmul import jax_triton as kernels

    kernels._call = interpreted
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(rows, into), (len(sizes), into, out_of), (rows, out_of)]
    x, matrices, dy = (jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))
    # Rows behind the last group's hold anything.
    held = sum(sizes)
    x, dy = x.at[held:].set(jnp.nan), dy.at[held:].set(jnp.nan)
    counts = jnp.asarray(sizes, jnp.int32)
    given = [(x, matrices), (dy, matrices), (x, dy)]
    found = {}
    for name, arguments in zip(GroupedMatmul._fields, given, strict=True):
        ours, theirs = (getattr(one, name)(*arguments, counts) for one in (kernels.JAX_TRITON, REFERENCE))
        found[name] = distance(ours, theirs, held if name != "matrices_gradient" else None)
    # The interpreter has no float8.
    both = (kernels.in_8_bits, quantization.reference)
    ours, theirs = (one(x, matrices.swapaxes(1, 2), counts, "int8") for one in both)
    return found | {"int8": distance(ours, theirs, held)}


def distance(ours, theirs, rows):
    ours, theirs = (np.asarray(one, np.float32)[:rows] for one in (ours, theirs))
    return float(np.abs(ours - theirs).max(initial=0) / max(1.0, np.abs(theirs).max(initial=0)))


# The interpreter multiplies the bits of bfloat16 as integers; tests/plan/test_gpu_programs.py compiles that type.
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 2e-6), ("float16", 1e-2)])
@pytest.mark.parametrize(
    ("rows", "sizes", "into", "out_of"),
    [(300, [130, 0, 100, 20], 64, 128), (40, [0, 0, 33], 40, 24), (256, [1, 0, 255], 48, 200), (64, [0, 0], 32, 32)],
    ids=["groups end within tiles", "fewer rows than a tile", "widths that no tile divides", "no group has rows"],
)
def test_products_and_gradients_are_those_of_the_reference(rows, sizes, into, out_of, dtype, limit, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as process:
        found = process.submit(differences, dtype, rows, sizes, into, out_of).result()
    assert set(found) == {*GroupedMatmul._fields, "int8"}
    assert max(found.values()) <= limit, found
