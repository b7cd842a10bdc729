"""What ranks tell each other about the blocks of a dimension that they hold: one number or two for each, gathered.

A reduction over a cut dimension is one of the block on each rank, and one of the blocks' results, which are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import check_floating
from hpcdist.autograd.pool import pooled
from hpcdist.dtensor.cut import length
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Placement, Shard
from hpcdist.dtensor.tensor import DTensor, relaid

__all__ = [
    "BLOCK_LARGEST", "BLOCK_LOG_SUM_EXP", "BLOCK_MOMENTS", "LARGEST", "LOG_SUM_EXP", "MOMENTS", "counts", "cutting",
    "finite", "gathered", "logarithm", "reduced_layout",
]  # fmt: skip


# ---------------------------------------------------------------- who holds which block
def cutting(layout: Layout, dims: Sequence[int]) -> list[int]:
    """Return the mesh axes that cut one of ``dims``."""
    return [axis for axis, p in enumerate(layout.placements) if isinstance(p, Shard) and p.dim in dims]


def gathered(block: Tensor, layout: Layout, dims: Sequence[int], to: Placement) -> DTensor:
    """Return the results of all blocks side by side. Collective over the axes that cut ``dims``, one after another.

    Moves ``block.data.nbytes`` a rank of such an axis.

    Parameters
    ----------
    block : Tensor
        Numbers a block by row: (numbers, *extents), where extents are what this rank holds, 1 along ``dims``.
    layout : Layout
        Of the array that was reduced; nowhere Partial.
    dims : sequence of int
        Reduced dimensions.
    to : Placement
        Invariant, or Replicate where each rank uses them in its own way.

    Returns
    -------
    DTensor, shape (numbers, *extents), with extents along ``dims`` of the number of blocks
    """
    cut = cutting(layout, dims)
    sizes = [_num_blocks(layout, d) if d in dims else n for d, n in enumerate(layout.shape)]
    placements = [_shifted(p, plain=axis in cut) for axis, p in enumerate(layout.placements)]
    src = Layout.of(layout.mesh, placements, (block.shape[0], *sizes), layout.order)
    dst = src.placed([to if axis in cut else p for axis, p in enumerate(placements)])
    return relaid(DTensor(block, src), dst)


def _num_blocks(layout: Layout, dim: int) -> int:
    return int(np.prod([layout.mesh.shape[axis] for axis in layout.cutters(dim)], dtype=int))


def _shifted(p: Placement, *, plain: bool) -> Placement:
    if not isinstance(p, Shard):
        return p
    return Shard(p.dim + 1) if plain else replace(p, dim=p.dim + 1)


def counts(layout: Layout, dims: Sequence[int]) -> Array:
    """Return how many elements each block has, in the shape of :func:`gathered` without its first dimension."""
    total = np.ones([1] * len(layout.shape))
    for dim in dims:
        extents = [length(layout.runs_at(dim, place)) for place in layout.places_along(layout.cutters(dim))]
        total = total * np.reshape(extents, [-1 if d == dim else 1 for d in range(len(layout.shape))])
    return total


def reduced_layout(layout: Layout, dims: Sequence[int], keepdim: bool) -> Layout:
    """Return the layout of a reduction over ``dims`` that all ranks have finished."""
    kept = [d for d in range(len(layout.shape)) if keepdim or d not in dims]
    placements: list[Placement] = []
    for p in layout.placements:
        if isinstance(p, Shard):
            placements.append(Invariant() if p.dim in dims else replace(p, dim=kept.index(p.dim)))
        else:
            placements.append(p)
    return Layout.of(layout.mesh, placements, [1 if d in dims else layout.shape[d] for d in kept], layout.order)


# ---------------------------------------------------------------- mean and squares of distances to it
@row("")
def block_moments(a: Array, *, dims: tuple[int, ...]) -> tuple[Array, tuple[Array, Array, int]]:
    """Return mean and sum of squared distances to it along ``dims``, stacked; 0 and 0 of an empty block.

    In double precision: differences of the means of blocks, where these are large, lose digits.
    """
    if a.dtype.kind in "biu":
        raise TypeError(f"expected floating-point values, not {a.dtype}")
    xp, n = namespace(a), max(int(np.prod([a.shape[d] for d in dims])), 1)
    double = np.dtype(np.complex128 if a.dtype.kind == "c" else np.float64)
    near = a.sum(axis=dims, keepdims=True) / a.real.dtype.type(n)
    away = pooled(xp.subtract, a, near)
    rest = away.sum(axis=dims, keepdims=True, dtype=double) / n  # what rounding has left between near and the mean
    squares = away.real**2 + away.imag**2 if a.dtype.kind == "c" else pooled(xp.multiply, away, away)
    total = squares.sum(axis=dims, keepdims=True, dtype=np.float64) - n * abs(rest) ** 2
    return xp.stack([near + rest, total.astype(double)]), (a, near, n)


@block_moments
def BLOCK_MOMENTS(into: Any, grads: Any, saved: Any, **_: Any) -> None:  # noqa: N802 (named as its row)
    """Gradient of :func:`block_moments`."""
    a, mean, n = saved
    to_mean, to_squares = (grads[0][0] / n).astype(a.dtype), (2 * grads[0][1].real).astype(a.real.dtype)
    into[0].give((a - mean) * to_squares + to_mean)


@row("")
def moments_of_blocks(blocks: Array, *, counts: Array) -> tuple[Array, tuple[Array, Array]]:
    """Return mean and sum of squared distances to it, from those of blocks of ``counts`` elements.

    Chan, Golub and LeVeque 1979, Updating formulae and a pairwise algorithm for computing sample variances, eq. 2.1.
    """
    weight = namespace(blocks).asarray(counts, blocks.real.dtype)
    along = tuple(d for d, n in enumerate(counts.shape) if n != 1)
    mean = (blocks[0] * weight).sum(axis=along, keepdims=True) / weight.sum()
    off = blocks[0] - mean
    squares = blocks[1] + (off.real**2 + off.imag**2) * weight
    return namespace(blocks).stack([mean, squares.sum(axis=along, keepdims=True)]), (off, weight)


@moments_of_blocks
def MOMENTS(into: Any, grads: Any, saved: Any, **_: Any) -> None:  # noqa: N802 (named as its row)
    """Gradient of :func:`moments_of_blocks`."""
    (off, weight), (to_mean, to_squares) = saved, grads[0]
    to_squares = to_squares.real
    first = to_mean * (weight / weight.sum()) + off * (2 * weight * to_squares)
    second = namespace(off).broadcast_to(to_squares, off.shape).astype(first.dtype)
    into[0].give(namespace(off).stack([first, second]))


# ---------------------------------------------------------------- logarithms of sums of exponentials
def finite(top: Array) -> Array:
    """Return ``top``, 0 where it is minus infinity: of no elements, or of impossible ones."""
    return namespace(top).where(top == -np.inf, 0, top).astype(top.dtype, copy=False)


def logarithm(total: Array) -> Array:
    """Return the logarithm of sums, minus infinity where there is nothing to add up."""
    xp, some = namespace(total), total != 0
    return xp.where(some, xp.log(xp.where(some, total, 1)), -np.inf).astype(total.dtype, copy=False)


@row("")
def block_log_sum_exp(a: Array, *, dims: tuple[int, ...]) -> tuple[Array, tuple[Array, Array]]:
    """Return ``log(sum(exp(a - top)))`` along ``dims`` and ``top``, the largest element, stacked; top is a constant."""
    check_floating(a)
    xp = namespace(a)
    top = a.max(axis=dims, keepdims=True, initial=-np.inf)
    total = xp.exp(pooled(xp.subtract, a, finite(top))).sum(axis=dims, keepdims=True)
    value = xp.stack([logarithm(total), top])
    return value, (a, value)


@block_log_sum_exp
def BLOCK_LOG_SUM_EXP(into: Any, grads: Any, saved: Any, **_: Any) -> None:  # noqa: N802 (named as its row)
    """Gradient of :func:`block_log_sum_exp`."""
    a, (value, top) = saved
    xp = namespace(a)
    share = pooled(xp.subtract, a, finite(top))
    share -= finite(value)
    xp.exp(share, out=share)
    share *= grads[0][0]
    into[0].give(share)


@row("")
def log_sum_exp_of_blocks(blocks: Array, *, dims: tuple[int, ...]) -> tuple[Array, tuple[Array]]:
    """Return what :func:`block_log_sum_exp` says of all elements, from what it says of blocks along ``dims``."""
    xp = namespace(blocks)
    top = blocks[1].max(axis=dims, keepdims=True)
    share = xp.exp(blocks[0] + (blocks[1] - finite(top)))  # in this order: large tops would swallow digits
    total = share.sum(axis=dims, keepdims=True)
    return xp.stack([logarithm(total), top]), (share / xp.where(total == 0, 1, total).astype(total.dtype),)


@log_sum_exp_of_blocks
def LOG_SUM_EXP(into: Any, grads: Any, saved: Any, **_: Any) -> None:  # noqa: N802 (named as its row)
    """Gradient of :func:`log_sum_exp_of_blocks`."""
    share = saved[0] * grads[0][0]
    into[0].give(namespace(share).stack([share, namespace(share).zeros_like(share)]))


# ---------------------------------------------------------------- largest magnitude
@row("")
def block_largest(a: Array, *, dims: tuple[int, ...]) -> tuple[Array, tuple[Array, Array]]:
    """Return the largest magnitude along ``dims``, and how many elements have it, stacked; 0 of an empty block."""
    if a.dtype.kind in "biu":
        raise TypeError(f"expected floating-point values, not {a.dtype}")
    size = abs(a)
    value = size.max(axis=dims, keepdims=True, initial=0)
    share = (size == value).astype(size.dtype)
    count = share.sum(axis=dims, keepdims=True)
    share /= count.clip(1)
    return namespace(a).stack([value, count]), (namespace(a).sign(a), share)


@block_largest
def BLOCK_LARGEST(into: Any, grads: Any, saved: Any, **_: Any) -> None:  # noqa: N802 (named as its row)
    """Gradient of :func:`block_largest`: equals share it."""
    sign, share = saved
    into[0].give(sign * (share * grads[0][0]))


@row("")
def largest_of_blocks(blocks: Array, *, dims: tuple[int, ...]) -> tuple[Array, tuple[Array]]:
    """Return the largest magnitude along ``dims``, from those of blocks and how many elements have them."""
    value = blocks[0].max(axis=dims, keepdims=True)
    held = (blocks[0] == value) * blocks[1]
    return value, (held / held.sum(axis=dims, keepdims=True).clip(1),)


@largest_of_blocks
def LARGEST(into: Any, grads: Any, saved: Any, **_: Any) -> None:  # noqa: N802 (named as its row)
    """Gradient of :func:`largest_of_blocks`: a block gets as many shares as it has equals."""
    share = saved[0] * grads[0]
    into[0].give(namespace(share).stack([share, namespace(share).zeros_like(share)]))
