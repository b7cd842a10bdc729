"""Layers that change the resolution of lines and planes of channels: pooling and upsampling."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.autograd import Tensor
from hpcdist.nn import functional as F
from hpcdist.nn.functional_conv import Sizes
from hpcdist.nn.module import Module

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "MaxPool1d", "MaxPool2d", "Upsample"]


class MaxPool1d(Module):
    """The largest element of each window on lines; parameters as in ``functional.max_pool1d``."""

    pool = staticmethod(F.max_pool1d)

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        *,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.dilation, self.ceil_mode = dilation, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class MaxPool2d(MaxPool1d):
    """The largest element of each window on planes; parameters as in ``functional.max_pool2d``."""

    pool = staticmethod(F.max_pool2d)


class AvgPool1d(Module):
    """The mean of each window on lines; parameters as in ``functional.avg_pool1d``."""

    pool = staticmethod(F.avg_pool1d)

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class AvgPool2d(AvgPool1d):
    """The mean of each window on planes; parameters as in ``functional.avg_pool2d``."""

    pool = staticmethod(F.avg_pool2d)


class AdaptiveAvgPool1d(Module):
    """The means of ``output_size`` stretches of lines."""

    pool = staticmethod(F.adaptive_avg_pool1d)

    def __init__(self, output_size: Sizes) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x, self.output_size)


class AdaptiveAvgPool2d(AdaptiveAvgPool1d):
    """The means of ``output_size`` patches of planes."""

    pool = staticmethod(F.adaptive_avg_pool2d)


class Upsample(Module):
    """Lines or planes in another resolution; parameters as in ``functional.interpolate``."""

    def __init__(
        self,
        size: Sizes | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)
