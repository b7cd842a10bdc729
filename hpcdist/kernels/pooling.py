"""Maxima over windows of planes: x is (m, h, w), results (m, oh, ow)."""

from __future__ import annotations

from hpcdist.array import Array, namespace
from hpcdist.kernels.indices import check_indices
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel
from hpcdist.kernels.window import Window, overlaps

__all__ = ["max_pool", "max_pool_grad"]


@kernel("pooling")
def max_pool(x: Array, window: Window, y: Array, index: Array) -> None:
    """Set ``y`` to the largest element each window sees, and ``index`` to its place in the plane.

    Of equal elements the first counts, in the order of rows; the first NaN is the largest.
    """
    xp = namespace(x)
    y[...], index[...] = -xp.inf, -1
    numbers = xp.arange(x.shape[1] * x.shape[2], dtype=index.dtype).reshape(1, *x.shape[1:])
    for _, to, source in overlaps(x.shape[1:], window, y.shape[1:]):
        seen, best = x[source], y[to]
        better = (seen > best) | (index[to] < 0) | (xp.isnan(seen) & ~xp.isnan(best))
        index[to] = xp.where(better, numbers[source], index[to])
        y[to] = xp.where(better, seen, best)


@kernel("pooling")
def max_pool_grad(g: Array, index: Array, gx: Array) -> None:
    """Add each element of ``g`` (m, l) to the element of ``gx`` (m, h * w) that ``index`` (m, l) names in its row.

    Raises
    ------
    ValueError
        If an index is not in ``[0, h * w)``.
    """
    check_indices("max_pool: indices", index, gx.shape[1])
    xp, total = namespace(g), wide(gx)
    xp.add.at(total, (xp.arange(len(g))[:, None], index), wide(g))
    if total is not gx:
        gx[...] = total
