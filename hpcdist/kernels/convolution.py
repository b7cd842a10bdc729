"""Convolution as a matrix product (Chellapilla, Puri, Simard 2006): each image's windows become columns of a matrix.

Images x are (n, c, h, w), weights (o, c / groups, kh, kw), results y (n, o, oh, ow), all contiguous. ``columns``,
(c / groups * kh * kw, oh, ow), is memory to work in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpcdist.array import Array
from hpcdist.kernels.gemm import gemm
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel
from hpcdist.kernels.window import Window, overlaps

__all__ = ["col2im", "correlate", "correlate_back", "correlate_weight", "im2col", "needs_columns"]

_POINT: Window = ((1, 1), (1, 1), (0, 0), (1, 1))


# ---------------------------------------------------------------- windows to columns and back
@kernel("convolution")
def im2col(x: Array, window: Window, columns: Array) -> None:
    """Set row ``(c, i, j)`` of ``columns`` to what element (i, j) of the window sees of channel c; 0 outside of x.

    Parameters
    ----------
    x : array, shape (c, h, w)
    columns : array, shape (c * kh * kw, oh, ow)
    """
    (kh, kw), *_ = window
    rows = columns.reshape(x.shape[0], kh, kw, *columns.shape[1:])
    rows[...] = 0
    for (i, j), to, source in overlaps(x.shape[1:], window, columns.shape[1:]):
        rows[:, i, j][to] = x[source]


@kernel("convolution")
def col2im(columns: Array, window: Window, x: Array) -> None:
    """Add to each element of ``x`` (c, h, w) what ``columns`` hold where it was seen: the transpose of im2col."""
    (kh, kw), *_ = window
    rows, total = columns.reshape(x.shape[0], kh, kw, *columns.shape[1:]), wide(x)
    for (i, j), source, to in overlaps(x.shape[1:], window, columns.shape[1:]):
        total[to] += rows[:, i, j][source]
    if total is not x:
        x[...] = total


# ---------------------------------------------------------------- products
def correlate(
    x: Array, weight: Array, window: Window, groups: int, y: Array, beta: float, columns: Array | None
) -> None:
    """Set ``y`` to the cross-correlation of ``x`` with ``weight``, plus ``beta * y``."""
    matrices = _matrices(weight, groups)
    for g, image, out in _parts(x, y, groups):
        gemm(matrices[g], _unfolded(image, window, columns), out, beta=beta)


def correlate_back(
    y: Array, weight: Array, window: Window, groups: int, x: Array, beta: float, columns: Array | None
) -> None:
    """Set ``x`` to the transpose of :func:`correlate`, as a map of images, at ``y``, plus ``beta * x``."""
    matrices = _matrices(weight, groups)
    if columns is not None and beta != 1:
        x[...] = 0 if beta == 0 else beta * x
    for g, image, out in _parts(x, y, groups):
        if columns is None:
            gemm(matrices[g], out, _flat(image), beta=beta, trans_a=True)
        else:
            gemm(matrices[g], out, _flat(columns), trans_a=True)
            col2im(columns, window, image)


def correlate_weight(
    x: Array, y: Array, window: Window, groups: int, weight: Array, beta: float, columns: Array | None
) -> None:
    """Set ``weight`` to the transpose of :func:`correlate`, as a map of weights, at ``y``, plus ``beta * weight``."""
    total = wide(weight)  # images are added up one by one
    if not len(x):
        total[...] = 0 if beta == 0 else beta * total
    matrices = _matrices(total, groups)
    for i, (g, image, out) in enumerate(_parts(x, y, groups)):
        first = i < groups
        gemm(out, _unfolded(image, window, columns), matrices[g], beta=beta if first else 1.0, trans_b=True)
    if total is not weight:
        weight[...] = total


def needs_columns(window: Window) -> bool:
    """Say whether images are not their own columns: those of a window of one element are."""
    return window != _POINT


def _unfolded(image: Array, window: Window, columns: Array | None) -> Array:
    if columns is None:
        return _flat(image)
    im2col(image, window, columns)
    return _flat(columns)


def _flat(a: Array) -> Array:
    return a.reshape(a.shape[0], math.prod(a.shape[1:]))


def _matrices(weight: Array, groups: int) -> Array:
    o, *rest = weight.shape
    return weight.reshape(groups, o // groups, math.prod(rest))


def _parts(x: Array, y: Array, groups: int) -> Iterator[tuple[int, Array, Array]]:
    """Yield (group, its channels of an image, its results as a matrix), image after image."""
    n, c, *plane = x.shape
    images = x.reshape(n, groups, c // groups, *plane)
    results = y.reshape(n, groups, y.shape[1] // groups, math.prod(y.shape[2:]))
    return ((g, images[i, g], results[i, g]) for i in range(n) for g in range(groups))
