"""Layer norm and RMS norm over the last dimension, alone and after a residual sum.

Saved are the input and one or two statistics a row; the output is cheap and computed again. Layer norm: Ba et al.
2016, arXiv:1607.06450, equation 3. RMS norm: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4 (with eps inside
the root).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS, check_floating
from hpcdist.autograd.ops.linalg import rows_of
from hpcdist.autograd.pool import empty
from hpcdist.kernels import norm as kernels

__all__ = ["ADD_LAYER_NORM", "ADD_RMS_NORM", "LAYER_NORM", "RMS_NORM", "contiguous"]


def contiguous(a: Array) -> Array:
    """Return ``a`` itself, or a C-ordered copy."""
    return a if a.flags.c_contiguous else a.copy(order="C")


def _signature(num_streams: int, num_weights: int) -> Any:
    def signature(shapes: list[tuple[int, ...]], **_: Any) -> str:
        names = LETTERS[: len(shapes[0]) - 1] + "[z]"
        return ",".join([names] * num_streams + ["[z]"] * num_weights) + "->" + ",".join([names] * num_streams)

    return signature


def _check(x: Array, h: Array | None, *weights: Array) -> None:
    check_floating(x, h, *weights)
    if x.ndim < 1 or any(w.shape != x.shape[-1:] for w in weights) or (h is not None and h.shape != x.shape):
        raise ValueError("expected x (..., n), a branch of the same shape, and weights (n,)")


def _statistics(x: Array) -> Array:
    return empty((x.size // max(x.shape[-1], 1),), x.dtype, x)


def _weight_grads(into: Any, *values: Array) -> None:
    for target, value in zip(into, values, strict=True):
        if target is not None:
            target.give(value)


def _stream_grads(into: Any, gx: Array) -> None:
    # both get the same array: whoever overwrites it gets a copy while it is shared
    for target in into:
        if target is not None:
            target.give(gx)


# ---------------------------------------------------------------- layer norm
def _layer_again(saved: Any, eps: float) -> Array:
    x, mean, rstd, gain, shift = saved
    y = empty(x.shape, x.dtype, x)
    kernels.layer_norm_again(rows_of(x), mean, rstd, gain, shift, rows_of(y))
    return y


def _layer_grad(g: Array | None, gy: Array | None, saved: Any) -> tuple[Array, Array, Array]:
    """Return the gradients of stream, gain and shift; ``g``, which reaches the stream past the norm, is overwritten."""
    x, mean, rstd, gain, _ = saved
    gx = empty(x.shape, x.dtype, x) if g is None else contiguous(g)
    if gy is None:
        return gx, np.zeros_like(gain), np.zeros_like(gain)
    ggain, gshift = np.empty_like(gain), np.empty_like(gain)
    kernels.layer_norm_grad(
        rows_of(contiguous(gy)), rows_of(x), mean, rstd, gain, rows_of(gx), g is not None, ggain, gshift
    )
    return gx, ggain, gshift


@row(_signature(1, 2), again={0: _layer_again})
def layer_norm(x: Array, gain: Array, shift: Array, *, eps: float) -> tuple[Array, tuple[Array, ...]]:
    """Return ``(x - mean) / sqrt(variance + eps) * gain + shift``."""
    _check(x, None, gain, shift)
    x = contiguous(x)
    y, mean, rstd = empty(x.shape, x.dtype, x), _statistics(x), _statistics(x)
    kernels.layer_norm(rows_of(x), gain, shift, eps, rows_of(y), mean, rstd)
    return y, (x, mean, rstd, gain, shift)


@layer_norm
def LAYER_NORM(into: Any, grads: Any, saved: Any, eps: float) -> None:
    gx, *weights = _layer_grad(None, grads[0], saved)
    _stream_grads(into[:1], gx)
    _weight_grads(into[1:], *weights)


@row(_signature(2, 2), again={1: _layer_again}, overwrites=(0,))
def add_layer_norm(x: Array, h: Array, gain: Array, shift: Array, *, eps: float) -> tuple[Any, tuple[Array, ...]]:
    """Return ``x + h`` and its layer norm."""
    _check(x, h, gain, shift)
    x, h = contiguous(x), contiguous(h)
    total, y, mean, rstd = (
        empty(x.shape, x.dtype, x),
        empty(x.shape, x.dtype, x),
        _statistics(x),
        _statistics(x),
    )
    kernels.add_layer_norm(rows_of(x), rows_of(h), gain, shift, eps, rows_of(total), rows_of(y), mean, rstd)
    return (total, y), (total, mean, rstd, gain, shift)


@add_layer_norm
def ADD_LAYER_NORM(into: Any, grads: Any, saved: Any, eps: float) -> None:
    gx, *weights = _layer_grad(grads[0], grads[1], saved)
    _stream_grads(into[:2], gx)
    _weight_grads(into[2:], *weights)


# ---------------------------------------------------------------- RMS norm
def _rms_again(saved: Any, eps: float) -> Array:
    x, rstd, gain = saved
    y = empty(x.shape, x.dtype, x)
    kernels.rms_norm_again(rows_of(x), rstd, gain, rows_of(y))
    return y


def _rms_grad(g: Array | None, gy: Array | None, saved: Any) -> tuple[Array, Array]:
    x, rstd, gain = saved
    gx = empty(x.shape, x.dtype, x) if g is None else contiguous(g)
    if gy is None:
        return gx, np.zeros_like(gain)
    ggain = np.empty_like(gain)
    kernels.rms_norm_grad(rows_of(contiguous(gy)), rows_of(x), rstd, gain, rows_of(gx), g is not None, ggain)
    return gx, ggain


@row(_signature(1, 1), again={0: _rms_again})
def rms_norm(x: Array, gain: Array, *, eps: float) -> tuple[Array, tuple[Array, ...]]:
    """Return ``x / sqrt(mean(x * x) + eps) * gain``."""
    _check(x, None, gain)
    x = contiguous(x)
    y, rstd = empty(x.shape, x.dtype, x), _statistics(x)
    kernels.rms_norm(rows_of(x), gain, eps, rows_of(y), rstd)
    return y, (x, rstd, gain)


@rms_norm
def RMS_NORM(into: Any, grads: Any, saved: Any, eps: float) -> None:
    gx, ggain = _rms_grad(None, grads[0], saved)
    _stream_grads(into[:1], gx)
    _weight_grads(into[1:], ggain)


@row(_signature(2, 1), again={1: _rms_again}, overwrites=(0,))
def add_rms_norm(x: Array, h: Array, gain: Array, *, eps: float) -> tuple[Any, tuple[Array, ...]]:
    """Return ``x + h`` and its RMS norm."""
    _check(x, h, gain)
    x, h = contiguous(x), contiguous(h)
    total, y, rstd = empty(x.shape, x.dtype, x), empty(x.shape, x.dtype, x), _statistics(x)
    kernels.add_rms_norm(rows_of(x), rows_of(h), gain, eps, rows_of(total), rows_of(y), rstd)
    return (total, y), (total, rstd, gain)


@add_rms_norm
def ADD_RMS_NORM(into: Any, grads: Any, saved: Any, eps: float) -> None:
    gx, ggain = _rms_grad(grads[0], grads[1], saved)
    _stream_grads(into[:2], gx)
    _weight_grads(into[2:], ggain)
