"""Products of matrices against NumPy's, which have double the bits."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

numba = pytest.importorskip("numba")

from llvmlite import binding  # noqa: E402

from moejax.kernels.cpu.product import multiply  # noqa: E402
from moejax.kernels.cpu.tile import HEIGHTS, LANES, PANEL, TILE, Registers, registers  # noqa: E402

X86 = {
    "haswell": ("avx2", "+avx,+avx2,+fma", Registers(lanes=8, vectors=2, height=6)),
    "x86-64": ("sse2", "+sse2", Registers(lanes=4, vectors=4, height=6)),
}
"""Older processors: a feature they have, their features, and how their registers are used."""


@numba.njit
def multiply_in(a, b, c, lengths, strides, transposed, add):
    multiply(a, b, c, lengths, strides, transposed, add)


def assert_is_numpys(lengths, transposed, add, beyond=(0, 0, 0), begins=(0, 0, 0), seed=0):
    """Each matrix lies in a larger array: ``begins`` rows above it, ``beyond`` numbers between its rows."""
    m, n, k = lengths
    lies = [(k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n), (m, n)]
    draw = np.random.default_rng(seed)
    a, b, c = (
        draw.normal(size=(begin + rows, columns + more)).astype(np.float32)
        for (rows, columns), more, begin in zip(lies, beyond, begins, strict=True)
    )
    views = [array[begin:, :columns] for array, (_, columns), begin in zip((a, b, c), lies, begins, strict=True)]
    left, right = (view.T if turned else view for view, turned in zip(views[:2], transposed, strict=True))
    product = left.astype(np.float64) @ right.astype(np.float64)
    expected, size = c.astype(np.float64), np.zeros(c.shape)
    expected[begins[2] :, :n] = expected[begins[2] :, :n] * add + product
    size[begins[2] :, :n] = np.abs(expected[begins[2] :, :n] - product) + np.abs(left).astype(np.float64) @ np.abs(
        right
    )
    strides = tuple(array.shape[1] for array in (a, b, c))
    multiply_in(a[begins[0] :], b[begins[1] :], c[begins[2] :], lengths, strides, transposed, add)
    # Sums of k products may be off by k roundings of their terms; what lies around the product is not touched.
    assert (np.abs(c - expected) <= (k + 2) * 2.0**-24 * size).all()


@settings(max_examples=300)
@given(
    lengths=st.tuples(st.integers(1, 2 * TILE + 3), st.integers(1, 2 * PANEL + 3), st.integers(0, 2 * LANES + 3)),
    beyond=st.tuples(*[st.integers(0, 3)] * 3),
    begins=st.tuples(*[st.integers(0, 2)] * 3),
    transposed=st.tuples(st.booleans(), st.booleans()),
    add=st.booleans(),
    seed=st.integers(0, 99),
)
def test_products_are_numpys_whatever_lies_between_rows(lengths, beyond, begins, transposed, add, seed):
    assert_is_numpys(lengths, transposed, add, beyond, begins, seed)


@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("add", [False, True])
def test_products_are_numpys_over_several_depths_and_many_tiles(transposed, add):
    assert_is_numpys((10 * TILE + 5, 3 * PANEL + 7, 2 * 256 + 19), transposed, add, (1, 2, 3))


@pytest.mark.parametrize("height", HEIGHTS)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_what_is_not_a_number_stays_in_its_row_and_column(height, is_transposed):
    m, n, k = height, PANEL + 1, 9
    a, b, c = np.zeros((m, k), np.float32), np.ones((k, n), np.float32), np.zeros((m, n), np.float32)
    a[-1, 2], b[3, 4] = np.nan, np.inf
    lies = np.ascontiguousarray(a.T) if is_transposed else a
    multiply_in(lies, b, c, (m, n, k), (m if is_transposed else k, n, n), (is_transposed, False), False)
    expected = np.zeros((m, n))
    expected[-1], expected[:, 4] = np.nan, np.nan
    np.testing.assert_array_equal(c, expected)


def test_registers_are_those_of_the_processor():
    assert registers("+sse2,+avx,+avx512f") == Registers(lanes=16, vectors=2, height=14)
    assert registers("-avx,+neon") == Registers(lanes=4, vectors=4, height=6)
    for vector in (registers(features) for features in ("+avx512f", "+avx", "")):
        assert vector.height * vector.vectors + vector.vectors + 1 <= (16 if vector.lanes == 8 else 32)


@pytest.mark.slow
@pytest.mark.parametrize("name", X86)
def test_products_are_numpys_with_the_registers_of_older_processors(name, tmp_path):
    feature, features, expected = X86[name]
    if os.environ.get("NUMBA_CPU_NAME") or not binding.get_host_cpu_features().get(feature):
        pytest.skip(f"this processor cannot run the programs of {name}")
    assert registers(features) == expected
    chosen = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "numpys", __file__]
    done = subprocess.run(command, env=os.environ | chosen, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout
