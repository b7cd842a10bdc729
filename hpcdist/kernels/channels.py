"""Norms whose statistics belong to a channel, of which batch, group and instance norm are made.

x is (n, c, l): channel k is all ``x[:, k]``. Statistics and coefficients are (c,). A group norm is one of fewer and
longer channels, of which each sample has its own.
"""

from __future__ import annotations

from hpcdist.array import Array
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel

__all__ = ["channel_moments", "channel_norm", "channel_norm_grad", "channel_sums"]


@kernel("channels")
def channel_moments(x: Array, mean: Array, var: Array) -> None:
    """Set ``mean`` and ``var`` to those of each channel: the mean square of the distance from the mean."""
    wx = wide(x)
    mean[...] = wx.mean((0, 2))
    var[...] = ((wx - wide(mean)[:, None]) ** 2).mean((0, 2))


@kernel("channels")
def channel_norm(x: Array, mean: Array, scale: Array, shift: Array, y: Array) -> None:
    """Set ``y = (x - mean) * scale + shift``."""
    y[...] = (wide(x) - wide(mean)[:, None]) * wide(scale)[:, None] + wide(shift)[:, None]


@kernel("channels")
def channel_sums(g: Array, x: Array, mean: Array, first: Array, second: Array) -> None:
    """Set ``first`` to each channel's sum of ``g``, and ``second`` to that of ``g * (x - mean)``."""
    wg = wide(g)
    first[...] = wg.sum((0, 2))
    second[...] = (wg * (wide(x) - wide(mean)[:, None])).sum((0, 2))


@kernel("channels")
def channel_norm_grad(g: Array, x: Array, mean: Array, a: Array, b: Array, c: Array, gx: Array) -> None:
    """Set ``gx = a * g + b * (x - mean) + c``."""
    gx[...] = wide(a)[:, None] * wide(g) + wide(b)[:, None] * (wide(x) - wide(mean)[:, None]) + wide(c)[:, None]
