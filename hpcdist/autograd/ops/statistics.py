"""Variance, its root, and the length of vectors, along dimensions. Complex values count by their magnitude."""

from __future__ import annotations

import math
from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import Op, define, row
from hpcdist.autograd.ops.reduce import Dims, reduced, reduction_signature, spread
from hpcdist.autograd.pool import pooled
from hpcdist.kernels.precision import wide

__all__ = ["NORM", "STD", "VAR"]


def _check(a: Array) -> None:
    if a.dtype.kind in "biu":
        raise TypeError(f"expected floating-point values, not {a.dtype}")


def _squares(a: Array) -> Array:
    return a.real * a.real + a.imag * a.imag if a.dtype.kind == "c" else pooled(namespace(a).multiply, a, a)


def _real(dtype: Any) -> Any:
    """Return the dtype of magnitudes of ``dtype``."""
    return dtype.type(0).real.dtype if dtype.kind == "c" else dtype


def _whole(shapes: list[tuple[int, ...]], *, dim: Dims, keepdim: bool, **_: Any) -> str:
    return reduction_signature(shapes, whole=True, dim=dim, keepdim=keepdim)


def _by_variance(name: str, finish: Any, slope: Any) -> Op:
    """Define a function of the variance; ``slope`` is its derivative by the variance, from its value."""

    def forward(a: Array, *, dim: Dims, correction: float, keepdim: bool) -> tuple[Array, tuple[Array, ...]]:
        _check(a)
        xp, x, gone = namespace(a), wide(a), reduced(a.ndim, dim)
        free = math.prod(a.shape[d] for d in gone) - correction
        if free <= 0:
            raise ValueError(f"{free + correction} elements less a correction of {correction} have no variance")
        mean = x.mean(axis=gone, keepdims=True)
        total = _squares(pooled(xp.subtract, x, mean)).sum(axis=gone, keepdims=True)
        value = finish(xp, total / total.dtype.type(free))
        shape = [1 if d in gone else n for d, n in enumerate(a.shape) if keepdim or d not in gone]
        return value.reshape(shape).astype(_real(a.dtype), copy=False), (a, mean, value)

    def vjp(into: Any, grads: Any, saved: Any, dim: Dims, correction: float, keepdim: bool) -> None:
        a, mean, value = saved
        free = math.prod(a.shape[d] for d in reduced(a.ndim, dim)) - correction
        xp = namespace(a)
        scale = grads[0].reshape(value.shape) * slope(xp, value) * value.dtype.type(2 / free)
        into[0].give(pooled(xp.multiply, pooled(xp.subtract, wide(a), mean), scale))

    return define(name, forward, vjp, signature=_whole)


def _half_over(xp: Any, root: Array) -> Any:
    """Return the derivative of the square root at ``root ** 2``; 0 at 0, where all elements are equal."""
    return xp.where(root > 0, root.dtype.type(0.5) / xp.where(root > 0, root, root.dtype.type(1)), root.dtype.type(0))


VAR = _by_variance("var", lambda xp, v: v, lambda xp, v: v.dtype.type(1))
"""``var(a, dim=, correction=, keepdim=)``: squares of distances to the mean, by their number less ``correction``."""
STD = _by_variance("std", lambda xp, v: xp.sqrt(v), _half_over)
"""``std(a, dim=, correction=, keepdim=)``: the square root of the variance; its gradient is 0 where it is 0."""


@row(_whole)
def norm(a: Array, *, p: float, dim: Dims, keepdim: bool) -> tuple[Array, tuple[Array, ...]]:
    """Return ``sum(|a| ** p) ** (1 / p)`` along ``dim`` for p > 0; p = inf: the largest magnitude."""
    _check(a)
    if not isinstance(p, (int, float)) or not p > 0:
        raise ValueError(f"p = {p} is not a positive number")
    gone, size = reduced(a.ndim, dim), abs(wide(a))
    if p == math.inf:
        value = size.max(axis=gone, keepdims=True, initial=0)
    elif p == 2:
        value = namespace(a).sqrt((size * size).sum(axis=gone, keepdims=True))
    else:
        value = (size**p).sum(axis=gone, keepdims=True) ** (1 / p)
    shape = [1 if d in gone else n for d, n in enumerate(a.shape) if keepdim or d not in gone]
    return value.reshape(shape).astype(_real(a.dtype), copy=False), (a, value)


@norm
def NORM(into: Any, grads: Any, saved: Any, p: float, dim: Dims, keepdim: bool) -> None:
    a, value = saved
    xp, size, gone = namespace(a), abs(wide(a)), reduced(a.ndim, dim)
    if p == math.inf:
        share = (size == value).astype(size.dtype)  # equals share
        share /= share.sum(axis=gone, keepdims=True).clip(1)
    else:
        # 0 where the norm or (for p < 1) an element is 0: there the slope is not defined
        inside = size > 0 if p < 1 else value > 0
        ratio = xp.where(inside, size, 1) / xp.where(value > 0, value, 1)
        share = xp.where(inside, ratio ** (p - 1), 0)
    into[0].give(xp.sign(wide(a)) * (share * spread(grads[0], a.shape, dim)))
