"""Layers that convolve lines and planes of channels."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.nn import functional as F
from hpcdist.nn import init
from hpcdist.nn.deferral import empty
from hpcdist.nn.functional_conv import Sizes, numbers, padded, paddings
from hpcdist.nn.module import Module, Parameter

__all__ = ["Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d"]

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _Convolution(Module):
    """Weight and bias of a convolution, which start uniform in +-1/sqrt(fan), as torch's.

    The fan is the number of elements of one of the weight's rows.
    """

    dims = 0
    transposed = False

    def _make(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        groups: int,
        bias: bool,
        dtype: npt.DTypeLike,
    ) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                explain(
                    f"{type(self).__name__}: groups",
                    got=f"{groups} of {in_channels} and {out_channels} channels",
                    expected="a number that divides both",
                )
            )
        size = numbers(f"{type(self).__name__}: kernel_size", kernel_size, self.dims, 1)
        rows, each = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = Parameter(empty((rows, each // groups, *size), dtype))
        self.bias = Parameter(empty(out_channels, dtype)) if bias else None
        bound = max(each // groups * math.prod(size), 1) ** -0.5
        for parameter in self.slots.values():
            init.uniform_(parameter, -bound, bound)

    def _numbers(self, name: str, value: Sizes, least: int = 0) -> tuple[int, ...]:
        return numbers(f"{type(self).__name__}: {name}", value, self.dims, least)


class Conv1d(_Convolution):
    """Cross-correlation over lines: (n, in_channels, width) to (n, out_channels, ...).

    Parameters
    ----------
    in_channels, out_channels : int
        weight is (out_channels, in_channels / groups, kernel_size), bias (out_channels,).
    kernel_size, stride, padding, dilation, groups
        See ``functional.conv1d``.
    padding_mode : str
        What the padding is: ``"zeros"``, or elements of the input, ``"reflect"``, ``"replicate"`` or ``"circular"``.
    """

    dims = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self._make(in_channels, out_channels, kernel_size, groups, bias, dtype)
        self.stride, self.dilation = self._numbers("stride", stride, 1), self._numbers("dilation", dilation, 1)
        name, size = type(self).__name__, self.weight.shape[2:]
        if padding_mode not in PADDING_MODES:
            raise ValueError(
                explain(f"{name}: padding_mode", got=repr(padding_mode), expected=" or ".join(PADDING_MODES))
            )
        self.ends = paddings(f"{name}: padding", padding, size, self.stride, self.dilation)
        self.padding, self.padding_mode, self.groups = padding, padding_mode, groups

    def forward(self, x: Tensor) -> Tensor:
        convolve, padding = F.conv1d if self.dims == 1 else F.conv2d, self.padding
        if self.padding_mode != "zeros":
            x, padding = padded(x, self.ends, self.padding_mode), 0
        return convolve(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Conv2d(Conv1d):
    """Cross-correlation over planes: (n, in_channels, height, width) to (n, out_channels, ...).

    Parameters are those of :class:`Conv1d`, numbers or pairs: weight (out_channels, in_channels / groups, kh, kw).
    """

    dims = 2


class ConvTranspose1d(_Convolution):
    """The transpose of :class:`Conv1d`, which makes lines longer: (n, in_channels, width) to (n, out_channels, ...).

    Parameters
    ----------
    in_channels, out_channels : int
        weight is (in_channels, out_channels / groups, kernel_size), bias (out_channels,).
    kernel_size, stride, padding, output_padding, groups, dilation
        See ``functional.conv_transpose1d``.
    """

    dims = 1
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self._make(in_channels, out_channels, kernel_size, groups, bias, dtype)
        self.stride, self.dilation = self._numbers("stride", stride, 1), self._numbers("dilation", dilation, 1)
        self.padding, self.output_padding = (
            self._numbers("padding", padding),
            self._numbers("output_padding", output_padding),
        )
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        spread = F.conv_transpose1d if self.dims == 1 else F.conv_transpose2d
        more = self.stride, self.padding, self.output_padding, self.groups, self.dilation
        return spread(x, self.weight, self.bias, *more)


class ConvTranspose2d(ConvTranspose1d):
    """The transpose of :class:`Conv2d`: (n, in_channels, height, width) to (n, out_channels, ...).

    Parameters are those of :class:`ConvTranspose1d`, numbers or pairs.
    """

    dims = 2
