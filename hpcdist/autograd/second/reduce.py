"""Second forms of reductions and running sums."""

from __future__ import annotations

import math
from typing import Any

from hpcdist.array import namespace
from hpcdist.autograd.operand import call
from hpcdist.autograd.ops.reduce import Dims, reduced
from hpcdist.autograd.second.elementwise import kept
from hpcdist.autograd.second.form import Shapes, second
from hpcdist.autograd.tensor import Tensor

__all__: list[str] = []


def _kept_dims(g: Tensor, shape: tuple[int, ...], dim: Dims) -> Tensor:
    """Give the result of a reduction of ``shape`` its dimensions back, with an extent of one."""
    gone = reduced(len(shape), dim)
    return g.reshape(tuple(1 if i in gone else n for i, n in enumerate(shape)))


def _spread(g: Tensor, shape: tuple[int, ...], dim: Dims) -> Tensor:
    return call("broadcast_to", _kept_dims(g, shape, dim), shape=shape)


def _count(shape: tuple[int, ...], dim: Dims) -> int:
    return math.prod(shape[d] for d in reduced(len(shape), dim))


@second("sum")
def _sum(grads: Any, saved: Any, shapes: Any, *, dim: Dims, keepdim: bool) -> Any:
    return (_spread(grads[0], shapes[0], dim),)


@second("mean")
def _mean(grads: Any, saved: Any, shapes: Any, *, dim: Dims, keepdim: bool) -> Any:
    return (_spread(grads[0] / _count(shapes[0], dim), shapes[0], dim),)


@second("cumsum")
def _cumsum(grads: Any, saved: Any, shapes: Any, *, dim: int) -> Any:
    (place,) = reduced(len(shapes[0]), dim)
    backwards = (*(slice(None),) * place, slice(None, None, -1))
    return (grads[0][backwards].cumsum(dim)[backwards],)


# ---------------------------------------------------------------- statistics
@second("var", 0)
def _var(grads: Any, saved: Any, shapes: Any, *, dim: Dims, correction: float, keepdim: bool) -> Any:
    a = saved[0]
    scale = _kept_dims(grads[0], a.shape, dim) * (2 / (_count(a.shape, dim) - correction))
    return ((a - a.mean(dim, keepdim=True)) * scale,)


@second("std", 0)
def _std(grads: Any, saved: Any, shapes: Any, *, dim: Dims, correction: float, keepdim: bool) -> Any:
    a = saved[0]
    root = a.std(dim, correction, keepdim=True)
    scale = _kept_dims(grads[0], a.shape, dim) / (_nonzero(root) * (_count(a.shape, dim) - correction))
    return ((a - a.mean(dim, keepdim=True)) * scale,)


@second("norm", 0)
def _norm(grads: Any, saved: Any, shapes: Shapes, *, p: float, dim: Dims, keepdim: bool) -> Any:
    a, value = saved[0], saved[0].norm(p, dim, keepdim=True)
    g, sign = _kept_dims(grads[0], a.shape, dim), namespace(a.data).sign(a.data)
    if p == math.inf:
        share = (abs(a.data) == value.data) * sign  # equals share
        return (g * Tensor(share / abs(share).sum(axis=reduced(a.ndim, dim), keepdims=True).clip(1)).to(g.dtype),)
    if p == 2:
        return (g * (a / _nonzero(value)),)
    # 0 where the norm or (for p < 1) an element is 0: there the slope is not defined
    inside = (a.data != 0) if p < 1 else (value.data > 0)
    ratio = call("where", Tensor(inside), a.abs(), Tensor(namespace(sign).ones((), a.dtype))) / _nonzero(value)
    return (g * (kept(ratio ** (p - 1), inside) * Tensor(sign)),)


def _nonzero(value: Tensor) -> Tensor:
    """Return ``value`` with 1 in place of 0."""
    return value.masked_fill(value.data == 0, 1.0)


# ---------------------------------------------------------------- extremes
def _extreme(grads: Any, saved: Any, shapes: Any, *, dim: Dims, keepdim: bool) -> Any:
    """Put each gradient where the extreme is; the row saved that place, counted over the dimensions that are gone."""
    (index,), shape, xp = saved, shapes[0], namespace(saved[0])
    gone = sorted(reduced(len(shape), dim))
    rest = [d for d in range(len(shape)) if d not in gone]
    kept_shape = tuple(shape[d] for d in rest)
    places = dict(zip(rest, xp.ogrid[tuple(slice(n) for n in kept_shape)] if rest else (), strict=True))
    inside = index.reshape(kept_shape)
    places |= zip(gone, xp.unravel_index(inside, [shape[d] for d in gone]) if gone else (), strict=True)
    where = tuple(places[d] for d in range(len(shape)))
    return (call("put", grads[0].reshape(kept_shape), index=where, shape=shape),)


second("max")(_extreme)
second("min")(_extreme)
