"""Planes of another resolution, made from their neighbours."""

from __future__ import annotations

import functools

import numpy as np

from hpcdist.autograd.ops.planes import Dims
from hpcdist.autograd.ops.resample import resampling
from hpcdist.kernels.resample import Band

__all__ = ["INTERPOLATE"]


@functools.lru_cache(maxsize=64)
def _nearest(n: int, places: int, scale: float | None) -> Band:
    i = np.arange(places)
    start = np.minimum(i * n // places if scale is None else (i / scale).astype(np.int64), n - 1)
    return Band(start, start + 1, np.ones((places, 1)))


@functools.lru_cache(maxsize=64)
def _linear(n: int, places: int, scale: float | None, align_corners: bool) -> Band:
    """Return weighted means of two neighbours: corners are the centres of the end elements, or their outer ends."""
    i = np.arange(places)
    if align_corners:
        at = i * ((n - 1) / max(places - 1, 1))
    else:
        at = np.maximum((i + 0.5) * (n / places if scale is None else 1 / scale) - 0.5, 0)
    start = np.minimum(at.astype(np.int64), n - 1)
    stop = np.minimum(start + 2, n)
    past = np.where(stop - start == 2, at - start, 0)
    return Band(start, stop, np.stack([1 - past, past], 1))


def _bands(
    shape: Dims, *, size: Dims, scale: tuple[float, ...] | None, mode: str, align_corners: bool
) -> tuple[Band, ...]:
    if min(size) < 1 or 0 in shape:
        raise ValueError("expected at least one element a dimension, before and after")
    scales = scale or (None,) * len(size)
    if mode == "nearest":
        return tuple(map(_nearest, shape, size, scales))
    return tuple(_linear(*dim, align_corners) for dim in zip(shape, size, scales, strict=True))


INTERPOLATE = resampling("interpolate", "size", _bands)
