"""Layer norm (Ba, Kiros, Hinton 2016, section 3) and RMS norm (Zhang, Sennrich 2019, eq. 4) of rows.

All matrices are (m, n), ``gain`` and ``shift`` (n,), the statistics ``mean`` and ``rstd`` (m,).
"""

from __future__ import annotations

from hpcdist.array import Array, namespace
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "layer_norm",
    "layer_norm_again",
    "layer_norm_grad",
    "rms_norm",
    "rms_norm_again",
    "rms_norm_grad",
]


@kernel("norm")
def layer_norm(x: Array, gain: Array, shift: Array, eps: float, y: Array, mean: Array, rstd: Array) -> None:
    """Set ``y = (x - mean) * rstd * gain + shift`` with ``rstd = (variance of the row + eps) ** -0.5``."""
    wx = wide(x)
    mean[...] = wx.mean(1)
    rstd[...] = (((wx - wide(mean)[:, None]) ** 2).mean(1) + eps) ** -0.5
    _normalise(x, mean, rstd, gain, shift, y)


@kernel("norm")
def add_layer_norm(
    x: Array,
    h: Array,
    gain: Array,
    shift: Array,
    eps: float,
    total: Array,
    y: Array,
    mean: Array,
    rstd: Array,
) -> None:
    """Set ``total = x + h`` and ``y`` to its layer norm, with the statistics."""
    namespace(x, total).add(x, h, out=total)
    layer_norm.reference(total, gain, shift, eps, y, mean, rstd)


@kernel("norm")
def layer_norm_again(x: Array, mean: Array, rstd: Array, gain: Array, shift: Array, y: Array) -> None:
    """Set ``y`` to the layer norm of ``x`` whose statistics are known."""
    _normalise(x, mean, rstd, gain, shift, y)


def _normalise(x: Array, mean: Array, rstd: Array, gain: Array, shift: Array, y: Array) -> None:
    scaled = (wide(x) - wide(mean)[:, None]) * wide(rstd)[:, None]
    y[...] = scaled * wide(gain) + wide(shift)


@kernel("norm")
def layer_norm_grad(
    gy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gain: Array,
    gx: Array,
    add: bool,
    ggain: Array,
    gshift: Array,
) -> None:
    """Set ``gx`` to the gradient of layer norm's input, or add it if ``add``; set ``ggain`` and ``gshift``.

    With ``u = (x - mean) * rstd`` and ``w = gy * gain`` it is ``rstd * (w - mean(w) - u * mean(w * u))``.
    """
    wgy, scale = wide(gy), wide(rstd)[:, None]
    u = (wide(x) - wide(mean)[:, None]) * scale
    w = wgy * wide(gain)
    gradient = scale * (w - w.mean(1, keepdims=True) - u * (w * u).mean(1, keepdims=True))
    gx[...] = wide(gx) + gradient if add else gradient
    ggain[...] = (wgy * u).sum(0)
    gshift[...] = wgy.sum(0)


@kernel("norm")
def rms_norm(x: Array, gain: Array, eps: float, y: Array, rstd: Array) -> None:
    """Set ``y = x * rstd * gain`` with ``rstd = (mean of the row's squares + eps) ** -0.5``."""
    rstd[...] = ((wide(x) ** 2).mean(1) + eps) ** -0.5
    rms_norm_again.reference(x, rstd, gain, y)


@kernel("norm")
def add_rms_norm(x: Array, h: Array, gain: Array, eps: float, total: Array, y: Array, rstd: Array) -> None:
    """Set ``total = x + h`` and ``y`` to its RMS norm, with the statistics."""
    namespace(x, total).add(x, h, out=total)
    rms_norm.reference(total, gain, eps, y, rstd)


@kernel("norm")
def rms_norm_again(x: Array, rstd: Array, gain: Array, y: Array) -> None:
    """Set ``y`` to the RMS norm of ``x`` whose statistics are known."""
    y[...] = wide(x) * wide(rstd)[:, None] * wide(gain)


@kernel("norm")
def rms_norm_grad(gy: Array, x: Array, rstd: Array, gain: Array, gx: Array, add: bool, ggain: Array) -> None:
    """Set ``gx`` to the gradient of the RMS norm's input, or add it if ``add``; set ``ggain``.

    With ``u = x * rstd`` and ``w = gy * gain`` the gradient is ``rstd * (w - u * mean(w * u))``.
    """
    wgy, scale = wide(gy), wide(rstd)[:, None]
    u = wide(x) * scale
    w = wgy * wide(gain)
    gradient = scale * (w - u * (w * u).mean(1, keepdims=True))
    gx[...] = wide(gx) + gradient if add else gradient
    ggain[...] = (wgy * u).sum(0)
