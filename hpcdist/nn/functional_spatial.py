"""Pooling, interpolation and norms of lines and planes of channels, under the names of torch.nn.functional."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcdist.autograd import Tensor, apply, is_replaying, ops
from hpcdist.errors import explain
from hpcdist.nn.functional_conv import Sizes, numbers, versions

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "group_norm",
    "interpolate",
    "max_pool1d",
    "max_pool2d",
]

_MODES = {"nearest": (1, 2), "linear": (1,), "bilinear": (2,)}


# ---------------------------------------------------------------- pooling
def _max_pool(
    name: str,
    dims: int,
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the largest element of each window on x (n, c, width) or (n, c, height, width).

    Parameters
    ----------
    stride : int or sequence of int, optional
        Default: the size of the window.
    padding : int or sequence of int
        Elements at either side that are never the largest; at most half the window.
    dilation : int or sequence of int
        Step between a window's elements.
    ceil_mode : bool
        Whether a last window may reach past the end.
    """
    window = _window(name, dims, kernel_size, stride, padding)
    spread = numbers(f"{name}: dilation", dilation, dims, 1)
    return apply(ops.MAX_POOL, x, **window, dilation=spread, ceil_mode=ceil_mode)


def _window(
    name: str, dims: int, kernel_size: Sizes, stride: Sizes | None, padding: Sizes
) -> dict[str, tuple[int, ...]]:
    size = numbers(f"{name}: kernel_size", kernel_size, dims, 1)
    return {
        "kernel_size": size,
        "stride": size if stride is None else numbers(f"{name}: stride", stride, dims, 1),
        "padding": numbers(f"{name}: padding", padding, dims),
    }


max_pool1d, max_pool2d = versions("max_pool", _max_pool)


def _avg_pool(
    name: str,
    dims: int,
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window on x (n, c, width) or (n, c, height, width).

    Parameters
    ----------
    stride, padding, ceil_mode
        As in maxima; the padding is zeros.
    count_include_pad : bool
        Whether the padding counts as elements.
    """
    window = _window(name, dims, kernel_size, stride, padding)
    return apply(ops.AVG_POOL, x, **window, ceil_mode=ceil_mode, count_include_pad=count_include_pad)


avg_pool1d, avg_pool2d = versions("avg_pool", _avg_pool)


def _adaptive_avg_pool(name: str, dims: int, x: Tensor, output_size: int | Sequence[int | None]) -> Tensor:
    """Return the means of ``output_size`` stretches or patches, of sizes as equal as may be.

    x is (n, c, width) or (n, c, height, width). An extent of None stays what it is.
    """
    if isinstance(output_size, Sequence) and len(output_size) == x.ndim - 2:
        output_size = [n if size is None else size for size, n in zip(output_size, x.shape[2:], strict=True)]
    return apply(ops.ADAPTIVE_AVG_POOL, x, output_size=numbers(f"{name}: output_size", output_size, dims, 1))


adaptive_avg_pool1d, adaptive_avg_pool2d = versions("adaptive_avg_pool", _adaptive_avg_pool)


# ---------------------------------------------------------------- resolution
def interpolate(
    x: Tensor,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """Return x (n, c, ...) in another resolution.

    Parameters
    ----------
    size : int or sequence of int, optional
        Of the result; or say ``scale_factor``, which the result's extents (rounded down) and coordinates follow.
    mode : str
        ``"nearest"``, ``"linear"`` (lines) or ``"bilinear"`` (planes).
    align_corners : bool, optional
        Whether the centres of the first and last element stay where they are; else the outer ends of the line or
        plane do. Not for ``"nearest"``.
    """
    dims = x.ndim - 2
    if dims not in _MODES.get(mode, ()):
        raise ValueError(
            explain("interpolate: mode", got=f"{mode!r} for {x.shape}", expected="nearest, linear (lines) or bilinear")
        )
    if (size is None) == (scale_factor is None):
        raise ValueError(explain("interpolate", got=f"{size}, {scale_factor}", expected="size or scale_factor"))
    if mode == "nearest" and align_corners is not None:
        raise ValueError(explain("interpolate: align_corners", got=align_corners, expected="None with mode 'nearest'"))
    scale = None if scale_factor is None else _scales(scale_factor, dims)
    extents = size if scale is None else [math.floor(n * s) for n, s in zip(x.shape[2:], scale, strict=True)]
    new = numbers("interpolate: size", extents, dims, 1)
    return apply(ops.INTERPOLATE, x, size=new, scale=scale, mode=mode, align_corners=bool(align_corners))


def _scales(factor: float | Sequence[float], dims: int) -> tuple[float, ...]:
    factors = tuple(map(float, factor)) if isinstance(factor, Sequence) else (float(factor),) * dims
    if len(factors) != dims or not all(0 < f < math.inf for f in factors):
        raise ValueError(explain("interpolate: scale_factor", got=factor, expected=f"a number above 0, or {dims}"))
    return factors


# ---------------------------------------------------------------- norms
def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return the batch norm of x (n, c, ...).

    Parameters
    ----------
    running_mean, running_var : Tensor (c,), optional
        Used unless ``training``, and moved towards the batch's mean and unbiased variance if it is, unless backward
        is running: what it computes again has been counted.
    weight, bias : Tensor (c,), optional
        Gain and shift of each channel.
    training : bool
        Whether the statistics are those of the batch.
    momentum : float
        How far the running statistics move, from 0 to 1.

    Raises
    ------
    ValueError
        If the batch has a single value a channel, or there are no statistics to use.
    """
    gain, shift = _gain_and_shift(x, weight, bias)
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError(explain("batch_norm: statistics", got="none", do="pass running_mean and running_var"))
        return apply(ops.BATCH_NORM_EVAL, x, running_mean, running_var, gain, shift, eps=eps)
    y, mean, var = apply(ops.BATCH_NORM, x, gain, shift, eps=eps)
    count = x.size // x.shape[1]
    if is_replaying():
        running_mean = running_var = None
    for running, now in ((running_mean, mean.data), (running_var, var.data * (count / (count - 1)))):
        if running is not None:
            if running.data.shape != now.shape:
                do = "place running statistics as the channels of x are, or use batch_norm where channels are whole"
                what = "batch_norm: what this rank holds of running statistics"
                raise ValueError(explain(what, got=running.data.shape, expected=now.shape, do=do))
            running.data[...] = (1 - momentum) * running.data + momentum * now
    result: Tensor = y
    return result


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Return the norm of x (n, c, ...) over each sample's ``num_groups`` groups of channels: weight and bias (c,)."""
    return apply(ops.GROUP_NORM, x, *_gain_and_shift(x, weight, bias), num_groups=num_groups, eps=eps)


def _gain_and_shift(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    if x.ndim < 2:
        raise ValueError(explain("norm of channels: x", got=x.shape, expected="(batch, channels, ...)"))
    channels = x.shape[1:2]
    return x.new_ones(channels) if weight is None else weight, x.new_zeros(channels) if bias is None else bias
