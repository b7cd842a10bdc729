"""Linear maps that take a plane's dimensions one by one, each by a banded matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import Op, define
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.ops.planes import check_planes, planes_signature
from hpcdist.autograd.pool import empty
from hpcdist.kernels.precision import wide
from hpcdist.kernels.resample import Band, resample, transposed

__all__ = ["resampling"]


def resampling(name: str, names_dims: str, bands: Callable[..., tuple[Band, ...]]) -> Op:
    """Define a linear map of planes.

    Parameters
    ----------
    names_dims : str
        The attribute that has one entry a dimension of the plane.
    bands : function ``(extents, **attrs) -> one band a dimension``
    """

    def forward(x: Array, **attrs: Any) -> tuple[Array, tuple[()]]:
        check_planes(x, attrs[names_dims])
        return _along_all(x, bands(x.shape[2:], **attrs)), ()

    def vjp(into: Any, grads: Any, saved: Any, **attrs: Any) -> None:
        extents = into[0].shape[2:]
        turned = [transposed(band, n) for band, n in zip(bands(extents, **attrs), extents, strict=True)]
        into[0].give(_along_all(grads[0], turned))

    return define(name, forward, vjp, signature=planes_signature, linear="joint")


def _along_all(x: Array, bands: Sequence[Band]) -> Array:
    """Apply the bands to the dimensions after the first two: the last, which is slow, while elements are few."""
    dims, grows = range(len(bands)), len(bands[0].start) > x.shape[2]
    for dim in reversed(dims) if grows else dims:
        x = _along(x, dim + 2, bands[dim])
    return x


def _along(x: Array, dim: int, band: Band) -> Array:
    xp, (start, stop, weights) = namespace(x), band
    lead, n, inner = x.shape[:dim], x.shape[dim], x.shape[dim + 1 :]
    y = empty((*lead, len(start), *inner), x.dtype, x)
    rows, width = math.prod(lead), math.prod(inner)
    factors = xp.asarray(weights, wide(x[:0]).dtype)
    resample(
        contiguous(x).reshape(rows, n, width),
        xp.asarray(start),
        xp.asarray(stop),
        factors,
        y.reshape(rows, len(start), width),
        0.0,
    )
    return y
