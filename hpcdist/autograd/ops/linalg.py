"""Matrix products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS, conj, real_if, sum_to
from hpcdist.autograd.pool import empty
from hpcdist.autograd.replay import Into
from hpcdist.kernels.bias import col_sum
from hpcdist.kernels.gemm import gemm
from hpcdist.kernels.precision import wide

__all__ = ["LINEAR", "MATMUL", "rows_of"]


def rows_of(a: Array) -> Array:
    """Return ``a`` as a matrix of its last dimension's rows; a view where memory allows."""
    return a.reshape(math.prod(a.shape[:-1]), a.shape[-1]) if a.ndim else a.reshape(1, 1)


def gemm_into(into: Into | None, a: Array, b: Array, *, trans_a: bool = False) -> None:
    """Compute the gradient ``op(a) @ b``, which the product itself adds to what is there."""
    if into is not None:
        out, beta = into.place()
        gemm(a, b, rows_of(out), beta=beta, trans_a=trans_a)


def _linear_signature(shapes: list[tuple[int, ...]]) -> str:
    lead = LETTERS[: len(shapes[0]) - 1]
    return f"{lead}y,zy{',+z' * (len(shapes) == 3)}->{lead}z"


@row(_linear_signature)
def linear(x: Array, w: Array, b: Array | None = None) -> tuple[Array, tuple[Array, Array]]:
    """Return ``x @ w.T + b``: x (..., k), w (n, k), b (n,) or left out. Saves x and w."""
    if w.ndim != 2 or x.ndim < 1 or x.shape[-1] != w.shape[1] or (b is not None and b.shape != w.shape[:1]):
        raise ValueError("expected x (..., k), weight (n, k) and bias (n,)")
    y = empty((*x.shape[:-1], w.shape[0]), np.result_type(x.dtype, w.dtype), x)
    if b is not None:
        y[...] = b  # the product adds to it, which costs no more than clearing
    gemm(rows_of(x), w, rows_of(y), beta=float(b is not None), trans_b=True)
    return y, (x, w)


@linear
def LINEAR(into: Any, grads: Any, saved: Any) -> None:
    g, (x, w) = rows_of(grads[0]), saved
    gemm_into(into[0], g, conj(w))
    gemm_into(into[1], g, conj(rows_of(x)), trans_a=True)
    if len(into) == 3 and into[2] is not None:
        col_sum(g, *into[2].place())


def _matmul_signature(shapes: list[tuple[int, ...]]) -> str:
    """Batch dimensions align at the right; one of extent one that is stretched is written ``1``."""
    (*lead_a, _, _), (*lead_b, _, _) = shapes
    depth = max(len(lead_a), len(lead_b))
    names = LETTERS[:depth]

    def batch(lead: list[int], other: list[int]) -> str:
        skip = depth - len(lead)
        wide = [1] * (depth - len(other)) + other
        return "".join("1" if n == 1 and wide[skip + i] != 1 else names[skip + i] for i, n in enumerate(lead))

    return f"{batch(lead_a, lead_b)}xy,{batch(lead_b, lead_a)}yz->{names}xz"


def _product(a: Array, b: Array) -> Array:
    x, y = wide(a), wide(b)
    shape = (*np.broadcast_shapes(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1])
    out = empty(shape, np.result_type(x, y), x)
    namespace(x, y).matmul(x, y, out=out)
    return out.astype(np.result_type(a, b), copy=False)


def _adjoint(a: Array) -> Array:
    return conj(a.swapaxes(-1, -2))


@row(_matmul_signature, linear="each")
def matmul(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    """Return ``a @ b``: a (..., m, k), b (..., k, n); batch dimensions broadcast."""
    if a.ndim < 2 or b.ndim < 2:
        raise ValueError("expected matrices (at least two dimensions)")
    return _product(a, b), (a, b)


@matmul
def MATMUL(into: Any, grads: Any, saved: Any) -> None:
    (a, b), g = saved, grads[0]
    if into[0] is not None:
        into[0].give(real_if(sum_to(_product(g, _adjoint(b)), into[0].shape), into[0].dtype))
    if into[1] is not None:
        into[1].give(real_if(sum_to(_product(_adjoint(a), g), into[1].shape), into[1].dtype))
