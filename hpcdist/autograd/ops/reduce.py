"""Sums and averages along dimensions."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS
from hpcdist.autograd.pool import empty
from hpcdist.kernels.precision import add_up, wide

__all__ = ["CUMSUM", "MEAN", "SUM"]

Dims: TypeAlias = int | tuple[int, ...] | None


def reduced(ndim: int, dim: Dims) -> tuple[int, ...]:
    """Return the dimensions that ``dim`` names, counted from the front."""
    dims = range(ndim) if dim is None else (dim,) if isinstance(dim, (int, np.integer)) else dim
    for d in dims:
        if not isinstance(d, (int, np.integer)):
            raise TypeError(f"expected integers as dimensions, not {type(d).__name__}")
        if not -ndim <= d < ndim:
            raise ValueError(f"dim {d} is out of range for {ndim} dimensions")
    return tuple(int(d) % ndim for d in dims)


def reduction_signature(shapes: list[tuple[int, ...]], *, whole: bool, dim: Dims, keepdim: bool) -> str:
    """Dimensions along ``dim`` vanish, or get an extent of one; ``whole``: no rank may hold a part of them."""
    names, gone = LETTERS[: len(shapes[0])], reduced(len(shapes[0]), dim)
    inside = "".join(f"[{n}]" if whole and i in gone else n for i, n in enumerate(names))
    outside = "".join("1" if i in gone else n for i, n in enumerate(names) if keepdim or i not in gone)
    return f"{inside}->{outside}"


def spread(g: Array, shape: tuple[int, ...], dim: Dims) -> Array:
    """Stretch the gradient of a reduction back to ``shape``."""
    gone = reduced(len(shape), dim)
    kept = tuple(1 if i in gone else n for i, n in enumerate(shape))
    spread: Array = namespace(g).broadcast_to(g.reshape(kept), shape)
    return spread


@row(lambda shapes, **attrs: reduction_signature(shapes, whole=False, **attrs), linear="joint")
def sum(a: Array, *, dim: Dims, keepdim: bool) -> tuple[Array, tuple[()]]:
    """Add up the elements along ``dim``."""
    return namespace(a).asarray(add_up(a, reduced(a.ndim, dim), keepdims=keepdim)), ()


@sum
def SUM(into: Any, grads: Any, saved: Any, dim: Dims, keepdim: bool) -> None:
    into[0].give(spread(grads[0], into[0].shape, dim))


# the average over a cut dimension is not a sum of local averages: shards may be uneven
@row(lambda shapes, **attrs: reduction_signature(shapes, whole=True, **attrs), linear="joint")
def mean(a: Array, *, dim: Dims, keepdim: bool) -> tuple[Array, tuple[()]]:
    """Average the elements along ``dim``."""
    gone = reduced(a.ndim, dim)
    if a.dtype.kind in "biu":
        raise TypeError(f"the mean of {a.dtype} would be rounded: convert it to a floating dtype first")
    if not math.prod(a.shape[d] for d in gone):
        raise ValueError("the mean of no elements is not defined")
    return namespace(a).asarray(wide(a).mean(axis=gone, keepdims=keepdim), a.dtype), ()


@mean
def MEAN(into: Any, grads: Any, saved: Any, dim: Dims, keepdim: bool) -> None:
    count = math.prod(into[0].shape[d] for d in reduced(len(into[0].shape), dim))
    into[0].give(spread(grads[0] / grads[0].dtype.type(count), into[0].shape, dim))


def _cumsum_signature(shapes: list[tuple[int, ...]], *, dim: int) -> str:
    (along,) = reduced(len(shapes[0]), dim)
    names = "".join(f"[{n}]" if i == along else n for i, n in enumerate(LETTERS[: len(shapes[0])]))
    return f"{names}->{names}"


@row(_cumsum_signature, linear="joint")
def cumsum(a: Array, *, dim: int) -> tuple[Array, tuple[()]]:
    """Add up the elements along ``dim`` as far as each."""
    reduced(a.ndim, dim)
    return _running(a, dim), ()


@cumsum
def CUMSUM(into: Any, grads: Any, saved: Any, dim: int) -> None:
    flip = namespace(grads[0]).flip
    into[0].give(flip(_running(flip(grads[0], dim), dim), dim))


def _running(a: Array, dim: int) -> Array:
    if a.dtype.kind in "biu":
        return a.cumsum(axis=dim)
    x = wide(a)
    return x.cumsum(axis=dim, out=empty(x.shape, x.dtype, x)).astype(a.dtype, copy=False)
