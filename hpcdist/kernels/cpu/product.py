"""A matrix product inside compiled code: NumPy's BLAS behind a symbol of LLVM, so that kernels stay cacheable."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext

from llvmlite import binding
from numba import types

from hpcdist.backends import blas, cpu
from hpcdist.errors import explain
from hpcdist.kernels.cpu.compiled import inline, single

__all__ = ["of_one_thread", "product"]

_ROW_MAJOR, _PLAIN = 101, 111  # transposed is one more than plain


def _declare():
    found = blas.interface()
    if found is None:
        raise ImportError(explain("kernels: NumPy's BLAS has no C interface", do="install NumPy from PyPI"))
    name = f"hpcdist_sgemm{found.int_bits}"
    binding.add_symbol(name, ctypes.cast(found.sgemm, ctypes.c_void_p).value)
    flag, integer = types.int32, types.int64 if found.int_bits == 64 else types.int32
    matrix = types.CPointer(types.float32)
    operands = (types.float32, matrix, integer, matrix, integer, types.float32, matrix, integer)
    return types.ExternalFunction(name, types.void(flag, flag, flag, integer, integer, integer, *operands))


_sgemm = _declare()


def of_one_thread() -> AbstractContextManager[None]:
    """Let products use one thread while a block runs whose threads each call them."""
    return blas.single_threaded() if cpu.num_threads() > 1 else nullcontext()


@inline
def product(trans_a, trans_b, m, n, k, alpha, a, lead_a, b, lead_b, beta, c, lead_c):
    """Set ``c = alpha * op(a) @ op(b) + beta * c``: addresses, and elements from row to row."""
    _sgemm(
        _ROW_MAJOR,
        _PLAIN + trans_a,
        _PLAIN + trans_b,
        m,
        n,
        k,
        single(alpha),
        a,
        lead_a,
        b,
        lead_b,
        single(beta),
        c,
        lead_c,
    )
