"""What kernels compute with: products of matrices by BLAS, and exponentials that fill a core's vectors.

Numbers are float32.
"""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
import threadpoolctl
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

FAST = {"fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"}, "error_model": "numpy"}
"""Sums may be reordered, as vectors need; what is not a number stays so."""

binding.add_symbol("moejax_sgemm", get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))
# Threads are XLA's, and each of them multiplies blocks of its own.
threadpoolctl.ThreadpoolController().select(user_api="blas").limit(limits=1)

ZERO, ONE = np.float32(0), np.float32(1)
HIDDEN = np.float32(-1e30)
"""A logit that takes no part in a softmax: what is left of it overflows nowhere."""
FLOAT, INT = ir.FloatType(), ir.IntType(32)


@intrinsic
@no_type_check
def _sgemm(typingctx, transposed_a, transposed_b, m, n, k, a, lda, b, ldb, beta, c, ldc) -> Any:
    whole, address = types.int32, types.intp
    signature = types.void(
        whole, whole, whole, whole, whole, address, whole, address, whole, types.float32, address, whole
    )

    def generate(context, builder, signature, arguments):
        def kept(value: Any) -> Any:
            place = cgutils.alloca_once(builder, value.type)
            builder.store(value, place)
            return place

        def letter(transposed: Any) -> Any:
            byte = ir.IntType(8)
            is_transposed = builder.icmp_signed("!=", transposed, ir.Constant(INT, 0))
            return kept(builder.select(is_transposed, ir.Constant(byte, ord("T")), ir.Constant(byte, ord("N"))))

        def floats(address: Any) -> Any:
            return builder.inttoptr(address, FLOAT.as_pointer())

        transposed_a, transposed_b, m, n, k, a, lda, b, ldb, beta, c, ldc = arguments
        # BLAS knows columns only: rows of C = A·B are columns of B'·A'.
        given = [letter(transposed_b), letter(transposed_a), kept(n), kept(m), kept(k), kept(ir.Constant(FLOAT, 1.0))]
        given += [floats(b), kept(ldb), floats(a), kept(lda), kept(beta), floats(c), kept(ldc)]
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "moejax_sgemm"), given)
        return context.get_dummy_value()

    return signature, generate


@njit(inline="always")
@no_type_check
def multiply(a: Any, b: Any, c: Any, lengths: Any, strides: Any, transposed: Any, add: bool) -> None:
    """c[m, n] = a[m, k]·b[k, n], or added to c if ``add``.

    Arrays are given by views that begin where the matrices do; ``lengths`` are m, n, k, ``strides`` the elements from a
    row to the next of each matrix as it lies, ``transposed`` whether a and b lie as [k, m] and [n, k].
    """
    _sgemm(
        np.int32(transposed[0]),
        np.int32(transposed[1]),
        np.int32(lengths[0]),
        np.int32(lengths[1]),
        np.int32(lengths[2]),
        a.ctypes.data,
        np.int32(strides[0]),
        b.ctypes.data,
        np.int32(strides[1]),
        ONE if add else ZERO,
        c.ctypes.data,
        np.int32(strides[2]),
    )


SMALL_PRODUCT = 1_000_000
"""Multiplications up to which OpenBLAS takes kernels that copy nothing first."""


@njit(inline="always")
@no_type_check
def rows_at_once(wide: int, deep: int, otherwise: int) -> int:
    """Rows to multiply with matrices [wide, deep] at once: as many as such kernels take, or ``otherwise`` if those are
    too few to fill them."""
    rows = SMALL_PRODUCT // (wide * deep) // 16 * 16
    return min(rows, otherwise) if rows >= 64 else otherwise


@intrinsic
@no_type_check
def _of_bits(typingctx, bits) -> Any:
    """The float32 of 32 bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


@intrinsic
@no_type_check
def larger(typingctx, a, b) -> Any:
    """The larger of two float32, in a form of which maxima of many are taken with vectors."""

    def generate(context, builder, signature, arguments):
        largest = builder.module.declare_intrinsic("llvm.maxnum", [FLOAT], ir.FunctionType(FLOAT, [FLOAT, FLOAT]))
        return builder.call(largest, arguments, fastmath=("fast",))

    return types.float32(types.float32, types.float32), generate


@intrinsic
@no_type_check
def _or_nan(typingctx, y, x) -> Any:
    """y, or x if that is not a number: a choice without a branch, which no reordering can take away."""

    def generate(context, builder, signature, arguments):
        y, x = arguments
        return builder.select(builder.fcmp_unordered("uno", x, x), x, y)

    return types.float32(types.float32, types.float32), generate


# exp(x) = 2^n·exp(r) with n whole and |r| ≤ ln(2)/2. ln(2) is taken off in two parts, the first exact in n's range, and
# exp(r) by the polynomial of Cephes' expf (Moshier, 1989): within a unit in the last place, and within five (3e-7) at
# the ends of the range, where sums may be reordered.
_PER_LN2 = np.float32(1.44269504)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_LOWEST, _HIGHEST, _BIAS, _MANTISSA_BITS = np.float32(-87.0), np.float32(88.0), np.int32(127), np.int32(23)


@njit(inline="always", **FAST)
@no_type_check
def exp(x: np.float32) -> np.float32:
    """e^x; 0 below -87 and that of 88 above it, where float32 ends; NaN of NaN."""
    inside = min(larger(x, _LOWEST), _HIGHEST)
    n = np.rint(inside * _PER_LN2)
    r = inside - n * _LN2_HIGH - n * _LN2_LOW
    p = ((((_P0 * r + _P1) * r + _P2) * r + _P3) * r + _P4) * r + _P5
    y = (p * r * r + r + ONE) * _of_bits((np.int32(n) + _BIAS) << _MANTISSA_BITS)
    return _or_nan(ZERO if x < _LOWEST else y, x)


@njit(inline="always", **FAST)
@no_type_check
def sigmoid(x: np.float32) -> np.float32:
    """1 / (1 + e^-x)"""
    return ONE / (ONE + exp(-x))
