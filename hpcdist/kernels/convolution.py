"""Convolution as a matrix product (Chellapilla, Puri, Simard 2006): each image's windows become columns of a matrix.

Images x are (n, c, h, w), weights (o, c / groups, kh, kw), results y (n, o, oh, ow).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hpcdist.array import Array, namespace
from hpcdist.kernels.gemm import gemm
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel
from hpcdist.kernels.window import Window, overlaps

__all__ = ["correlate", "correlate_back", "correlate_weight"]

_POINT: Window = ((1, 1), (1, 1), (0, 0), (1, 1))


@kernel("convolution")
def correlate(x: Array, weight: Array, window: Window, groups: int, y: Array, beta: float) -> None:
    """Set ``y`` to the cross-correlation of ``x`` with ``weight``, plus ``beta * y``."""
    matrices = _matrices(weight, groups)
    for g, image, out in _parts(x, y, groups):
        gemm(matrices[g], _unfolded(image, window, y.shape[2:]), out, beta=beta)


@kernel("convolution")
def correlate_back(y: Array, weight: Array, window: Window, groups: int, x: Array, beta: float) -> None:
    """Set ``x`` to the transpose of :func:`correlate`, as a map of images, at ``y``, plus ``beta * x``."""
    total, matrices = wide(x), _matrices(weight, groups)
    total[...] = 0 if beta == 0 else beta * total
    for g, image, out in _parts(total, y, groups):
        _fold(namespace(y).matmul(wide(matrices[g].T), wide(out)), window, y.shape[2:], image)
    if total is not x:
        x[...] = total


@kernel("convolution")
def correlate_weight(x: Array, y: Array, window: Window, groups: int, weight: Array, beta: float) -> None:
    """Set ``weight`` to the transpose of :func:`correlate`, as a map of weights, at ``y``, plus ``beta * weight``."""
    total = wide(weight)  # images are added up one by one
    total[...] = 0 if beta == 0 else beta * total
    matrices = _matrices(total, groups)
    for g, image, out in _parts(x, y, groups):
        gemm(wide(out), wide(_unfolded(image, window, y.shape[2:])), matrices[g], beta=1.0, trans_b=True)
    if total is not weight:
        weight[...] = total


def _unfolded(image: Array, window: Window, places: tuple[int, ...]) -> Array:
    """Return the matrix whose row ``(c, i, j)`` is what element (i, j) of the window sees of channel c; 0 outside."""
    (kh, kw), *_ = window
    if window == _POINT:
        return image.reshape(image.shape[0], math.prod(places))
    columns: Array = namespace(image).zeros((image.shape[0], kh, kw, *places), image.dtype)
    for (i, j), to, source in overlaps(image.shape[1:], window, places):
        columns[:, i, j][to] = image[source]
    return columns.reshape(image.shape[0] * kh * kw, math.prod(places))


def _fold(columns: Array, window: Window, places: tuple[int, ...], image: Array) -> None:
    """Add to each element of ``image`` what ``columns`` hold where it was seen."""
    (kh, kw), *_ = window
    rows = columns.reshape(image.shape[0], kh, kw, *places)
    for (i, j), source, to in overlaps(image.shape[1:], window, places):
        image[to] += rows[:, i, j][source]


def _matrices(weight: Array, groups: int) -> Array:
    o, *rest = weight.shape
    return weight.reshape(groups, o // groups, math.prod(rest))


def _parts(x: Array, y: Array, groups: int) -> Iterator[tuple[int, Array, Array]]:
    """Yield (group, its channels of an image, its results as a matrix), image after image."""
    n, c, *plane = x.shape
    images = x.reshape(n, groups, c // groups, *plane)
    results = y.reshape(n, groups, y.shape[1] // groups, math.prod(y.shape[2:]))
    return ((g, images[i, g], results[i, g]) for i in range(n) for g in range(groups))
