"""A banded matrix along one dimension: what averages over windows and interpolation have in common.

A band says of each of o results which stretch of the n elements it is made of, and with which weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.errors import explain
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel

__all__ = ["Band", "check_band", "resample", "transposed"]


class Band(NamedTuple):
    """Result i is the sum of ``weights[i, t] * x[start[i] + t]`` up to, and without, element ``stop[i]``.

    Attributes
    ----------
    start, stop : int64 array, shape (o,)
        Neither ever falls.
    weights : float64 array, shape (o, k)
        Those past ``stop - start`` are not used.
    """

    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]


def transposed(band: Band, n: int) -> Band:
    """Return the band of the transpose: of the n elements, and of which results each is a part."""
    start, stop, weights = band
    place = np.arange(n)
    first, last = np.searchsorted(stop, place, "right"), np.searchsorted(start, place, "right")
    last = np.maximum(first, last)
    turned = np.zeros((n, int((last - first).max(initial=0))))
    for t in range(weights.shape[1]):
        (results,) = np.nonzero(start + t < stop)
        j = start[results] + t
        turned[j, results - first[j]] = weights[results, t]
    return Band(first.astype(np.int64), last.astype(np.int64), turned)


@kernel("resample")
def resample(x: Array, start: Array, stop: Array, weights: Array, y: Array, beta: float) -> None:
    """Set ``y`` (m, o, w) to the band applied along dimension 1 of ``x`` (m, n, w), plus ``beta * y``.

    Raises
    ------
    ValueError
        If the band reaches outside of x.
    """
    check_band(start, stop, x.shape[1])
    wx, factors, total = wide(x), wide(weights), wide(y)
    total[...] = 0 if beta == 0 else beta * total
    for t in range(weights.shape[1]):
        (results,) = (start + t < stop).nonzero()
        total[:, results] += factors[results, t][:, None] * wx[:, start[results] + t]
    if total is not y:
        y[...] = total


def check_band(start: Array, stop: Array, n: int) -> None:
    """Check that a band stays inside ``n`` elements; compiled loops do not look."""
    if len(start) and (start.min() < 0 or stop.max() > n):
        raise ValueError(
            explain(
                "resample: the band does not fit",
                got=f"elements {start.min()} to {stop.max()}",
                expected=f"0 to {n}",
            )
        )
