"""A U-Net: fields in, fields of the same resolution out (Ronneberger, Fischer, Brox 2015, arXiv:1505.04597, figure 1).

Differs from that one: group norm, SiLU, padded convolutions, bilinear upsampling.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcdist.autograd import Tensor, apply, ops
from hpcdist.errors import explain
from hpcdist.nn import functional as F
from hpcdist.nn.activation import SiLU
from hpcdist.nn.channelnorm import GroupNorm
from hpcdist.nn.convolution import Conv2d
from hpcdist.nn.layers import ModuleList, Sequential
from hpcdist.nn.module import Module

__all__ = ["UNet"]

GROUPS = 4


class UNet(Module):
    """Convolutions at resolutions that halve ``depth`` times and double again, with a bridge at each.

    Parameters
    ----------
    in_channels, out_channels : int
        (n, in_channels, height, width) becomes (n, out_channels, height, width); both extents are divisible by
        2**depth.
    width : int
        Channels at the full resolution, a multiple of 4; each halving doubles them.
    """

    def __init__(
        self, in_channels: int, out_channels: int, width: int = 16, depth: int = 3, dtype: npt.DTypeLike = np.float32
    ) -> None:
        super().__init__()
        if width < 1 or width % GROUPS or depth < 0:
            raise ValueError(
                explain(
                    "UNet: width, depth", got=f"{width}, {depth}", expected=f"a multiple of {GROUPS}, and 0 or more"
                )
            )
        self.depth = depth
        widths = [width << level for level in range(depth + 1)]
        befores = [in_channels, *widths[:-1]]
        self.down = ModuleList(_block(a, b, dtype) for a, b in zip(befores, widths, strict=True))
        self.up = ModuleList(_block(3 * w, w, dtype) for w in reversed(widths[:-1]))
        self.head = Conv2d(width, out_channels, 1, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if any(n % (1 << self.depth) for n in x.shape[2:]):
            raise ValueError(explain("UNet: extents", got=x.shape[2:], expected=f"multiples of {1 << self.depth}"))
        bridges = []
        for level, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if level else x)
            bridges.append(x)
        for block, bridge in zip(self.up, reversed(bridges[:-1]), strict=True):
            larger = F.interpolate(x, scale_factor=2, mode="bilinear")
            x = block(apply(ops.CAT, larger, bridge, dim=1))
        y: Tensor = self.head(x)
        return y


def _block(before: int, after: int, dtype: npt.DTypeLike) -> Sequential:
    return Sequential(
        Conv2d(before, after, 3, padding=1, bias=False, dtype=dtype),
        GroupNorm(GROUPS, after, dtype=dtype),
        SiLU(),
        Conv2d(after, after, 3, padding=1, bias=False, dtype=dtype),
        GroupNorm(GROUPS, after, dtype=dtype),
        SiLU(),
    )
