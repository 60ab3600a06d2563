"""Define vectorized float32 exponentials and maxima."""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from moejax.kernels.cpu.compiled import FAST

ZERO, ONE = np.float32(0), np.float32(1)
MASK_VALUE = np.float32(-1e30)
"""Logit of a masked key in a softmax; differences from it do not overflow."""
FLOAT, INT = ir.FloatType(), ir.IntType(32)


@intrinsic
@no_type_check
def fill_vectors(typingctx) -> Any:
    """Make loops of the calling function use a core's full vector width. By default LLVM uses only 8 of 16 lanes,
    because full vectors lower the clock rate, which does not pay in programs with few vector operations."""

    def generate(context, builder, signature, arguments):
        # llvmlite's own `add` does not support attributes with values.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
@no_type_check
def _of_bits(typingctx, bits) -> Any:
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


@intrinsic
@no_type_check
def larger(typingctx, a, b) -> Any:
    """Return the larger of two float32 numbers, in a form that LLVM can vectorize in reductions."""

    def generate(context, builder, signature, arguments):
        largest = builder.module.declare_intrinsic("llvm.maxnum", [FLOAT], ir.FunctionType(FLOAT, [FLOAT, FLOAT]))
        return builder.call(largest, arguments, fastmath=("fast",))

    return types.float32(types.float32, types.float32), generate


@intrinsic
@no_type_check
def _or_nan(typingctx, y, x) -> Any:
    """Return y, or x if x is NaN, without a branch and in a form that fast-math optimizations cannot remove."""

    def generate(context, builder, signature, arguments):
        y, x = arguments
        return builder.select(builder.fcmp_unordered("uno", x, x), x, y)

    return types.float32(types.float32, types.float32), generate


# exp(x) = 2^n·exp(r) with integer n and |r| ≤ ln(2)/2. n·ln(2) is subtracted in two parts, the first of which is exact,
# and exp(r) is the polynomial of Cephes' expf (Moshier, 1989). The error is one unit in the last place. Because sums
# may be reordered, it is up to five units (3e-7) at the ends of the range.
_PER_LN2 = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_LOWEST, _HIGHEST, _BIAS, _MANTISSA_BITS = np.float32(-87.0), np.float32(88.0), np.int32(127), np.int32(23)


@njit(inline="always", **FAST)
@no_type_check
def exp(x: np.float32) -> np.float32:
    """Return e^x: 0 below -87, e^88 above 88 (close to the float32 maximum), and NaN for NaN."""
    inside = min(larger(x, _LOWEST), _HIGHEST)
    n = np.rint(inside * _PER_LN2)
    r = inside - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    y = (p * r * r + r + ONE) * _of_bits((np.int32(n) + _BIAS) << _MANTISSA_BITS)
    return _or_nan(ZERO if x < _LOWEST else y, x)


@njit(inline="always", **FAST)
@no_type_check
def sigmoid(x: np.float32) -> np.float32:
    """Return 1 / (1 + e^-x)."""
    return ONE / (ONE + exp(-x))
