"""Maxima and averages over windows that move over the planes of channels."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.ops.planes import Dims, check_planes, planes_signature, window_of
from hpcdist.autograd.ops.resample import resampling
from hpcdist.autograd.pool import empty
from hpcdist.kernels import pooling as kernels
from hpcdist.kernels.resample import Band
from hpcdist.kernels.window import extent

__all__ = ["ADAPTIVE_AVG_POOL", "AVG_POOL", "MAX_POOL"]


def _check_window(kernel_size: Dims, padding: Dims) -> None:
    if any(2 * p > k for k, p in zip(kernel_size, padding, strict=True)):
        raise ValueError("expected a padding of at most half the window")


# ---------------------------------------------------------------- maxima
@row(planes_signature)
def max_pool(
    x: Array, *, kernel_size: Dims, stride: Dims, padding: Dims, dilation: Dims, ceil_mode: bool
) -> tuple[Array, tuple[Array]]:
    """Return the largest element of each window: x (batch, channels, ...). Saves their places."""
    check_planes(x, kernel_size)
    _check_window(kernel_size, padding)
    places = [
        extent(*dim, ceil=ceil_mode) for dim in zip(x.shape[2:], kernel_size, stride, padding, dilation, strict=True)
    ]
    planes = contiguous(x).reshape(x.shape[0] * x.shape[1], *(1,) * (4 - x.ndim), *x.shape[2:])
    small = planes.shape[1] * planes.shape[2] <= np.iinfo(np.int32).max
    y = empty((*x.shape[:2], *places), x.dtype, x)
    out = y.reshape(len(planes), *(1,) * (4 - x.ndim), *places)
    index = empty(out.shape, np.int32 if small else np.int64, x)
    kernels.max_pool(planes, window_of(kernel_size, stride, padding, dilation), out, index)
    return y, (index,)


@max_pool
def MAX_POOL(into: Any, grads: Any, saved: Any, **_: Any) -> None:
    g, (index,) = contiguous(grads[0]), saved
    gx = namespace(g).zeros(into[0].shape, into[0].dtype)
    m = len(index)
    each = index.size // max(m, 1)
    kernels.max_pool_grad(g.reshape(m, each), index.reshape(m, each), gx.reshape(m, gx.size // max(m, 1)))
    into[0].give(gx)


# ---------------------------------------------------------------- averages
@functools.lru_cache(maxsize=64)
def _window_band(n: int, size: int, stride: int, padding: int, ceil_mode: bool, count_include_pad: bool) -> Band:
    """Return the averages over windows; those that reach past the padding at the end count what they see."""
    begin = np.arange(extent(n, size, stride, padding, ceil=ceil_mode)) * stride - padding
    end = np.minimum(begin + size, n + padding)
    start, stop = np.maximum(begin, 0), np.minimum(end, n)
    count = end - begin if count_include_pad else stop - start
    return Band(start, stop, np.repeat(1 / count[:, None], size, 1))


@functools.lru_cache(maxsize=64)
def _adaptive_band(n: int, places: int) -> Band:
    """Return the averages over ``places`` stretches that cover ``n`` elements, of lengths as equal as may be."""
    i = np.arange(places)
    start, stop = i * n // places, -(-(i + 1) * n // places)
    return Band(start, stop, np.repeat(1 / (stop - start)[:, None], int((stop - start).max(initial=0)), 1))


def _windows(
    shape: Dims, *, kernel_size: Dims, stride: Dims, padding: Dims, ceil_mode: bool, count_include_pad: bool
) -> tuple[Band, ...]:
    _check_window(kernel_size, padding)
    dims = zip(shape, kernel_size, stride, padding, strict=True)
    return tuple(_window_band(*dim, ceil_mode, count_include_pad) for dim in dims)


def _stretches(shape: Dims, *, output_size: Dims) -> tuple[Band, ...]:
    if min(output_size) < 1 or 0 in shape:
        raise ValueError("expected at least one element a dimension, before and after")
    return tuple(map(_adaptive_band, shape, output_size))


AVG_POOL = resampling("avg_pool", "kernel_size", _windows)
ADAPTIVE_AVG_POOL = resampling("adaptive_avg_pool", "output_size", _stretches)
