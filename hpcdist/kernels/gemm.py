"""Matrix product into a given array, by NumPy's BLAS where its strides allow."""

from __future__ import annotations

import ctypes
from typing import TypeAlias

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.backends import blas, flags
from hpcdist.errors import explain
from hpcdist.kernels.precision import wide

__all__ = ["gemm"]

_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_BLAS = blas.interface()
_HEADER = object.__basicsize__


_Layout: TypeAlias = tuple[int, int]
"""Whether memory holds the matrix or its transpose, row after row; the elements from one row to the next."""


def gemm(
    a: Array,
    b: Array,
    out: Array,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
) -> None:
    """Set ``out = alpha * op(a) @ op(b) + beta * out``, where ``op`` transposes if asked.

    Parameters
    ----------
    a, b, out : array
        (m, k), (k, n) and (m, n), after ``op``; ``out`` shares no memory with the others. Views with one
        unit stride, transposed ones too, are used where they lie; others are copied.
    alpha, beta : float
        Factors; with ``beta`` 0 the old content of ``out`` is not read.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """
    if trans_a:
        a = a.T
    if trans_b:
        b = b.T
    (m, k), (rows, n) = a.shape, b.shape
    if rows != k or out.shape != (m, n):
        raise ValueError(_mismatch(a, b, out))
    if not _by_blas(a, b, out, alpha, beta):
        _generic(a, b, out, alpha, beta)


def _by_blas(a: Array, b: Array, out: Array, alpha: float, beta: float) -> bool:
    """Compute by BLAS if it can take the arrays; say whether it did."""
    dtype = out.dtype
    if _BLAS is None or not flags.kernel_enabled("gemm") or a.dtype != dtype or b.dtype != dtype:
        return False
    product = _BLAS.sgemm if dtype == _FLOAT32 else _BLAS.dgemm if dtype == _FLOAT64 else None
    if product is None or not isinstance(out, np.ndarray) or not out.flags.writeable or not a.size or not b.size:
        return False
    at, bt, ot = _layout(a), _layout(b), _layout(out)
    if at is None or bt is None or ot is None:
        return False
    (m, k), n = a.shape, b.shape[1]
    if ot[0] == _TRANSPOSED:  # out.T = b.T @ a.T
        a, b, at, bt, m, n = b, a, _turned(bt), _turned(at), n, m
    if _BLAS.int_bits == 32 and max(m, n, k, at[1], bt[1], ot[1]) > _BLAS.int_limit:
        return False
    product(
        _ROW_MAJOR,
        at[0],
        bt[0],
        m,
        n,
        k,
        alpha,
        _address(a),
        at[1],
        _address(b),
        bt[1],
        beta,
        _address(out),
        ot[1],
    )
    return True


def _layout(x: Array) -> _Layout | None:
    (rows, cols), (down, right), size = x.shape, x.strides, x.itemsize
    if right == size or cols == 1:
        lead = cols if rows == 1 else down // size
        if lead >= cols and (rows == 1 or down % size == 0):
            return _PLAIN, lead
    if down == size or rows == 1:
        lead = rows if cols == 1 else right // size
        if lead >= rows and (cols == 1 or right % size == 0):
            return _TRANSPOSED, lead
    return None


def _turned(layout: _Layout) -> _Layout:
    return _PLAIN + _TRANSPOSED - layout[0], layout[1]


def _generic(a: Array, b: Array, out: Array, alpha: float, beta: float) -> None:
    product = namespace(a, b, out).matmul(wide(a), wide(b))
    if alpha != 1:
        product = product * alpha
    out[...] = product if beta == 0 else product + beta * wide(out)


def _mismatch(a: Array, b: Array, out: Array) -> str:
    return explain(
        "gemm: the shapes do not fit",
        got=f"{a.shape} @ {b.shape} into {out.shape} (after transposing)",
        expected="(m, k) @ (k, n) into (m, n)",
    )


def _address_in_header(x: Array) -> int:
    # The first field of NumPy's array object is its data pointer (a part of NumPy's stable ABI); reading
    # it takes 0.1 us where x.ctypes.data takes 0.7.
    return ctypes.c_size_t.from_address(id(x) + _HEADER).value


def _address_by_attribute(x: Array) -> int:
    return x.ctypes.data


_probe = np.empty(1)
_address = _address_in_header if _address_in_header(_probe) == _probe.ctypes.data else _address_by_attribute
