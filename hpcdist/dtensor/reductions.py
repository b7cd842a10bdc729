"""Reductions over dimensions that ranks hold in parts, computed by small messages: nothing is gathered but statistics.

=========================== =========================================== =============================================
operation                   messages forward                            messages backward
=========================== =========================================== =============================================
mean                        none: the result is Partial                 none (that of the result's finish)
var, std                    all_gather of 2 float64 numbers             none
norm                        all_gather of 1 number (p = inf: 2)         none
max, min (argmax, argmin)   all_gather of value and index               none
softmax, log_softmax        all_gather of 2 numbers                     all_reduce of 1 number
cumsum                      all_gather of 1 number                      reduce_scatter of 1 number
=========================== =========================================== =============================================

Numbers are those of one row: one position along the dimensions that stay. Each mesh axis that cuts a reduced dimension
has such a message. Results are whole (Invariant) on these axes, or cut as the input where they have its shape. float16
and bfloat16 are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor, apply
from hpcdist.autograd.functions import where
from hpcdist.autograd.op import row
from hpcdist.autograd.operand import call
from hpcdist.autograd.ops.reduce import Dims, reduced, reduction_signature, spread
from hpcdist.dtensor.block import (
    BLOCK_LARGEST,
    BLOCK_LOG_SUM_EXP,
    BLOCK_MOMENTS,
    LARGEST,
    LOG_SUM_EXP,
    MOMENTS,
    counts,
    cutting,
    gathered,
    reduced_layout,
)
from hpcdist.dtensor.dispatch import computed
from hpcdist.dtensor.extreme import EXTREME
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Placement, Replicate, Shard
from hpcdist.dtensor.tensor import DTensor, relaid
from hpcdist.kernels.precision import wide

__all__ = ["SCALED_SUM", "finished", "lent", "moments", "widened"]


# ---------------------------------------------------------------- what reductions start from and end with
def finished(x: DTensor) -> DTensor:
    """Return ``x`` without combinations that are pending. Collective over axes on which it is Partial."""
    return relaid(x, x.layout.settled)


def widened(x: DTensor) -> DTensor:
    """Return ``x``, as float32 if it is float16 or bfloat16."""
    return x.to(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind in "fV" else x


def _dims(x: DTensor, dim: Dims) -> tuple[int, ...]:
    return tuple(sorted(reduced(x.ndim, dim)))


def _ended(value: Tensor, x: DTensor, dims: Sequence[int], keepdim: bool) -> DTensor:
    """Return a result that has extents of 1 along ``dims`` and is the same on all ranks that cut them."""
    layout = reduced_layout(x.layout, dims, keepdim)
    return DTensor(value if keepdim else value.reshape(layout.local_shape), layout)


def lent(numbers: Tensor, x: DTensor, dims: Sequence[int]) -> Tensor:
    """Return numbers a row (numbers, *extents) for use by each rank in its own way.

    In backward: Collective over axes that cut ``dims``, one message for all numbers.
    """
    layout, cut = reduced_layout(x.layout, dims, keepdim=True), cutting(x.layout, dims)
    placements = [replace(p, dim=p.dim + 1) if isinstance(p, Shard) else p for p in layout.placements]
    src = Layout.of(layout.mesh, placements, (len(numbers), *layout.shape), layout.order)
    wanted: list[Placement] = [Replicate() if axis in cut else p for axis, p in enumerate(placements)]
    return relaid(DTensor(numbers, src), src.placed(wanted)).local


def _check_kind(name: str, x: DTensor, kinds: str, expected: str) -> None:
    """Raise in the name of an operation before those that it is composed of do."""
    if x.dtype.kind not in kinds:
        raise TypeError(f"{name}: expected {expected} values, not {x.dtype}")


# ---------------------------------------------------------------- averages
@row(
    lambda shapes, *, dim, keepdim, **_: reduction_signature(shapes, whole=False, dim=dim, keepdim=keepdim),
    linear="joint",
)
def scaled_sum(a: Array, *, dim: Dims, keepdim: bool, count: int) -> tuple[Array, tuple[()]]:
    """Return the sum of the elements along ``dim``, divided by ``count``."""
    total = wide(a).sum(axis=reduced(a.ndim, dim), keepdims=keepdim) / count
    return namespace(a).asarray(total, a.dtype), ()


@scaled_sum
def SCALED_SUM(into: Any, grads: Any, saved: Any, *, dim: Dims, count: int, **_: Any) -> None:  # noqa: ARG001, N802
    """Gradient of :func:`scaled_sum`."""
    into[0].give(spread(grads[0] / grads[0].dtype.type(count), into[0].shape, dim))


@computed("mean")
def _mean(x: DTensor, *, dim: Dims, keepdim: bool) -> Any:
    """Average over all elements, however many of them each rank holds."""
    count = math.prod(x.shape[d] for d in reduced(x.ndim, dim))
    if x.dtype.kind in "biu":
        raise TypeError(f"mean: the mean of {x.dtype} would be rounded: convert it to a floating dtype first")
    if not count:
        raise ValueError("mean: the mean of no elements is not defined")
    return apply(SCALED_SUM, x, dim=dim, keepdim=keepdim, count=count)


# ---------------------------------------------------------------- variance
def moments(x: DTensor, dims: tuple[int, ...]) -> Tensor:
    """Return mean and sum of squared distances to it, stacked. Collective over axes that cut ``dims``."""
    blocks = gathered(apply(BLOCK_MOMENTS, x.local, dims=dims), x.layout, dims, Invariant())
    total: Tensor = apply(MOMENTS, blocks.local, counts=counts(x.layout, dims))
    return total


def _variance(name: str, x: DTensor, dim: Dims, correction: float) -> tuple[DTensor, Tensor, tuple[int, ...]]:
    _check_kind(name, x, "fVc", "floating-point")
    dims = _dims(x, dim)
    free = math.prod(x.shape[d] for d in dims) - correction
    if free <= 0:
        raise ValueError(f"{name}: {free + correction} elements less a correction of {correction} have no variance")
    wider = finished(widened(x))
    squares = moments(wider, dims)[1]
    if squares.dtype.kind == "c":
        squares = call("real", squares)
    return wider, squares * (1 / free), dims


@computed("var")
def _var(x: DTensor, *, dim: Dims, correction: float, keepdim: bool) -> Any:
    wider, value, dims = _variance("var", x, dim, correction)
    return _ended(value, wider, dims, keepdim).to(_real(x.dtype))


@computed("std")
def _std(x: DTensor, *, dim: Dims, correction: float, keepdim: bool) -> Any:
    """Return the root of the variance; its gradient is 0 where it is 0."""
    wider, value, dims = _variance("std", x, dim, correction)
    zero = Tensor(value.data == 0)
    root = where(zero, 0.0, where(zero, 1.0, value).sqrt())
    return _ended(root, wider, dims, keepdim).to(_real(x.dtype))


def _real(dtype: Any) -> Any:
    return dtype.type(0).real.dtype if dtype.kind == "c" else dtype


# ---------------------------------------------------------------- lengths
@computed("norm")
def _norm(x: DTensor, *, p: float, dim: Dims, keepdim: bool) -> Any:
    """Return the norm of the norms of blocks."""
    _check_kind("norm", x, "fVc", "floating-point")
    wider, dims = finished(widened(x)), _dims(x, dim)
    if p == math.inf:
        blocks = gathered(apply(BLOCK_LARGEST, wider.local, dims=dims), wider.layout, dims, Invariant())
        value = apply(LARGEST, blocks.local, dims=dims)
    else:
        block = call("norm", wider.local, p=p, dim=dims, keepdim=True)
        blocks = gathered(block.reshape((1, *block.shape)), wider.layout, dims, Invariant())
        value = call("norm", blocks.local, p=p, dim=tuple(d + 1 for d in dims), keepdim=True)
        value = value.reshape(value.shape[1:])
    return _ended(value, wider, dims, keepdim).to(_real(x.dtype))


# ---------------------------------------------------------------- largest and smallest
def _extreme(name: str, x: DTensor, dim: Dims, keepdim: bool) -> Any:
    _check_kind(name, x, "biufV", "real")
    x, dims = finished(x), _dims(x, dim)
    layout = x.layout
    value, index = apply(
        EXTREME,
        x.local,
        name=name,
        dims=dims,
        comms=layout.groups_along(cutting(layout, dims)),
        held=tuple(layout.indices_at(d, layout.coordinate) for d in dims),
        size=tuple(x.shape[d] for d in dims),
    )
    return _ended(value, x, dims, keepdim), _ended(index, x, dims, keepdim)


@computed("max")
def _max(x: DTensor, *, dim: Dims, keepdim: bool) -> Any:
    return _extreme("max", x, dim, keepdim)


@computed("min")
def _min(x: DTensor, *, dim: Dims, keepdim: bool) -> Any:
    return _extreme("min", x, dim, keepdim)


# ---------------------------------------------------------------- softmax
def _log_softmax_of(x: DTensor, dim: int) -> Tensor:
    """Return what this rank holds of log softmax. Collective over axes that cut ``dim``, in backward again."""
    dims = _dims(x, dim)
    blocks = gathered(apply(BLOCK_LOG_SUM_EXP, x.local, dims=dims), x.layout, dims, Invariant())
    found = apply(LOG_SUM_EXP, blocks.local, dims=dims)
    return x.local - Tensor(found.data[1]) - lent(found[:1], x, dims)[0]


@computed("softmax")
def _softmax(x: DTensor, *, dim: int) -> Any:
    _check_kind("softmax", x, "fV", "floating-point")
    wider = finished(widened(x))
    return DTensor(_log_softmax_of(wider, dim).exp(), wider.layout).to(x.dtype)


@computed("log_softmax")
def _log_softmax(x: DTensor, *, dim: int) -> Any:
    _check_kind("log_softmax", x, "fV", "floating-point")
    wider = finished(widened(x))
    return DTensor(_log_softmax_of(wider, dim), wider.layout).to(x.dtype)


# ---------------------------------------------------------------- running sums
@computed("cumsum")
def _cumsum(x: DTensor, *, dim: int) -> Any:
    """Add up each block as far as each element, and to that the blocks before; those must follow each other."""
    wider, (along,) = finished(widened(x)), _dims(x, dim)
    layout = wider.layout
    cut = [layout.placements[axis] for axis in cutting(layout, (along,))]
    if any(isinstance(p, Shard) and p.sections for p in cut):
        return NotImplemented
    running = wider.local.cumsum(along)
    block = wider.local.sum(along, keepdim=True)
    blocks = gathered(block.reshape((1, *block.shape)), layout, (along,), Replicate()).local
    before = blocks[(0, *(slice(None),) * along, slice(_place(layout, along)))].sum(along, keepdim=True)
    return DTensor(running + before, layout).to(x.dtype if x.dtype.kind not in "biu" else running.dtype)


def _place(layout: Layout, dim: int) -> int:
    """Return how many blocks along ``dim`` come before that of this rank."""
    place = 0
    for axis in layout.cutters(dim):
        place = place * layout.mesh.shape[axis] + layout.coordinate[axis]
    return place
