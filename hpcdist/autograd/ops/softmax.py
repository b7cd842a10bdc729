"""Softmax and its logarithm along one dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.autograd.op import Op, define
from hpcdist.autograd.ops.elementwise import LETTERS, check_floating
from hpcdist.autograd.ops.linalg import rows_of
from hpcdist.autograd.ops.reduce import reduced
from hpcdist.autograd.pool import empty
from hpcdist.kernels import softmax as kernels

__all__ = ["LOG_SOFTMAX", "SOFTMAX"]


def _signature(shapes: list[tuple[int, ...]], *, dim: int) -> str:
    (along,) = reduced(len(shapes[0]), dim)
    names = "".join(f"[{n}]" if i == along else n for i, n in enumerate(LETTERS[: len(shapes[0])]))
    return f"{names}->{names}"


def _last(a: Array, dim: int) -> Array:
    """Return ``a``, contiguous, with ``dim`` last."""
    reduced(a.ndim, dim)
    return np.ascontiguousarray(a.swapaxes(dim, -1)) if isinstance(a, np.ndarray) else a.swapaxes(dim, -1).copy()


def _along_rows(name: str, values: Any, gradient: Any) -> Op:
    """Define a function of rows, applied along ``dim``, whose gradient is a formula in its value."""

    def forward(a: Array, *, dim: int) -> tuple[Array, tuple[Array]]:
        check_floating(a)
        x = _last(a, dim)
        y = empty(x.shape, x.dtype, x)
        if x.size:  # no elements have no maximum
            values(rows_of(x), rows_of(y))
        y = y.swapaxes(dim, -1)
        return y, (y,)

    def vjp(into: Any, grads: Any, saved: Any, dim: int) -> None:
        y = _last(saved[0], dim)
        gx = empty(y.shape, y.dtype, y)
        gradient(rows_of(y), rows_of(_last(grads[0], dim)), rows_of(gx))
        into[0].give(gx.swapaxes(dim, -1))

    return define(name, forward, vjp, signature=_signature)


SOFTMAX = _along_rows("softmax", kernels.softmax, kernels.softmax_grad)
LOG_SOFTMAX = _along_rows("log_softmax", kernels.log_softmax, kernels.log_softmax_grad)
