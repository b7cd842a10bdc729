"""Convolutions in Fourier space, of which only the lowest modes are kept: Li et al. 2021, arXiv:2010.08895, section 4.

Weights are pairs of real numbers, so that every optimizer and checkpoint can hold them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hpcdist.autograd import Tensor, apply, arrangement, fft, functions, ops
from hpcdist.errors import explain
from hpcdist.nn import init
from hpcdist.nn.deferral import empty
from hpcdist.nn.module import Module, Parameter

__all__ = ["SpectralConv1d", "SpectralConv2d"]


def _weight(in_channels: int, out_channels: int, modes: tuple[int, ...], dtype: npt.DTypeLike) -> Tensor:
    """Return a weight (in, out, *modes, 2), uniform in [0, 1 / (in * out))."""
    if min(in_channels, out_channels, *modes) < 1:
        raise ValueError(
            explain("spectral convolution", got=(in_channels, out_channels, *modes), expected="at least 1 each")
        )
    parameter = Parameter(empty((in_channels, out_channels, *modes, 2), dtype))
    return init.uniform_(parameter, 0.0, 1 / (in_channels * out_channels))


def _check(name: str, x: Tensor, in_channels: int, least: tuple[int, ...]) -> None:
    """Refuse inputs that are not (batch, in_channels, *extents), or whose extents lack modes."""
    fits = x.ndim == 2 + len(least) and x.shape[1] == in_channels
    if not fits or any(n < m for n, m in zip(x.shape[2:], least, strict=True)):
        raise ValueError(
            explain(
                f"{name}: input",
                got=x.shape,
                expected=f"(batch, {in_channels}, {', '.join(f'{m} or more' for m in least)})",
            )
        )


def _mixed(z: Tensor, weight: Tensor) -> Tensor:
    """Multiply the channels of each mode by its matrix: z (batch, in, *modes), to (batch, out, *modes)."""
    modes = z.shape[2:]
    by_mode = (
        a.reshape(*a.shape[:2], math.prod(modes)).transpose(2, 0, 1) for a in (z, apply(ops.VIEW_AS_COMPLEX, weight))
    )
    product = functions.matmul(*by_mode)
    return product.transpose(1, 2, 0).reshape(z.shape[0], weight.shape[1], *modes)


class SpectralConv1d(Module):
    """Multiply the lowest modes of lines by matrices, and drop the others: (n, in, width) to (n, out, width).

    Works at every resolution that has these modes.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels.
    modes : int
        Frequencies that are kept, 0 among them; inputs need twice as many elements, less 2.

    Attributes
    ----------
    weight : Tensor, shape (in_channels, out_channels, modes, 2)
        Real and imaginary parts.
    """

    def __init__(self, in_channels: int, out_channels: int, modes: int, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__()
        self.in_channels, self.modes = in_channels, modes
        self.weight = _weight(in_channels, out_channels, (modes,), dtype)

    def forward(self, x: Tensor) -> Tensor:
        _check("SpectralConv1d", x, self.in_channels, (2 * self.modes - 2,))
        low = fft.rfft(x)[:, :, : self.modes]
        return fft.irfft(_mixed(low, self.weight), x.shape[-1])  # fills up with zeros


class SpectralConv2d(Module):
    """Multiply the lowest modes of planes by matrices, and drop the others: (n, in, h, w) to (n, out, h, w).

    Works at every resolution that has these modes.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels.
    modes1, modes2 : int
        Frequencies along height that are kept on either side of 0, which is with those above it, and along width from
        0 on. Inputs need twice as many elements; along width 2 less do.

    Attributes
    ----------
    weight1, weight2 : Tensor, shape (in_channels, out_channels, modes1, modes2, 2)
        Real and imaginary parts, for frequencies along height of 0 and above, and below 0.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        modes1: int,
        modes2: int,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.modes = in_channels, out_channels, (modes1, modes2)
        self.weight1 = _weight(in_channels, out_channels, self.modes, dtype)
        self.weight2 = _weight(in_channels, out_channels, self.modes, dtype)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.modes
        _check("SpectralConv2d", x, self.in_channels, (2 * rows, 2 * columns - 2))
        height, width = x.shape[2:]
        z = fft.rfft2(x)[:, :, :, :columns]
        above = _mixed(z[:, :, :rows], self.weight1)
        below = _mixed(z[:, :, height - rows :], self.weight2)
        gap = above.new_zeros((x.shape[0], self.out_channels, height - 2 * rows, columns))
        return fft.irfft2(arrangement.cat([above, gap, below], 2), (height, width))
