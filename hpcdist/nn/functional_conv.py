"""Convolutions of lines and planes of channels, (batch, channels, ...), under the names of torch.nn.functional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from hpcdist.autograd import Tensor, apply, ops
from hpcdist.errors import explain

__all__ = ["Sizes", "conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d", "numbers"]

Sizes: TypeAlias = int | Sequence[int]
"""One number for all dimensions, or one each."""


def numbers(what: str, value: Sizes, dims: int, least: int = 0) -> tuple[int, ...]:
    """Return ``value`` as ``dims`` numbers; ``what`` names it if it is something else."""
    values = (value,) * dims if isinstance(value, int) else tuple(value)
    if len(values) != dims or not all(isinstance(v, int) and v >= least for v in values):
        raise ValueError(explain(what, got=value, expected=f"an integer, or {dims}, of at least {least}"))
    return values


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of x (n, c, width) with weight (out, c / groups, k), plus bias (out,).

    Parameters
    ----------
    stride, padding, dilation : int or sequence of int
        Step between windows, zeros added at either side, step between a window's elements. ``padding="same"`` keeps
        the width (stride 1, a window whose padding is the same on both sides); ``"valid"`` is 0.
    groups : int
        Input and output channels are cut into so many groups that do not see each other.
    """
    return _conv("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of x (n, c, height, width) with weight (out, c / groups, kh, kw), plus bias (out,).

    Parameters are those of :func:`conv1d`.
    """
    return _conv("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def _conv(
    name: str,
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    steps = numbers(f"{name}: stride", stride, dims, 1)
    spread = numbers(f"{name}: dilation", dilation, dims, 1)
    around = (
        _named_padding(name, padding, weight.shape[2:], steps, spread)
        if isinstance(padding, str)
        else numbers(f"{name}: padding", padding, dims)
    )
    (one,) = numbers(f"{name}: groups", groups, 1, 1)
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return apply(ops.CONV, *inputs, stride=steps, padding=around, dilation=spread, groups=one)


def _named_padding(
    name: str, padding: str, size: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    if padding == "valid":
        return (0,) * len(size)
    both = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
    if padding != "same" or set(stride) != {1} or any(n % 2 for n in both):
        raise ValueError(
            explain(
                f"{name}: padding",
                got=f"{padding!r} with a window of {size}, stride {stride}, dilation {dilation}",
                expected="a number, 'valid', or 'same' with stride 1 and the same padding on both sides",
            )
        )
    return tuple(n // 2 for n in both)


def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Return the transpose of :func:`conv1d` at x (n, c, width), plus bias (out,): weight (c, out / groups, k).

    Parameters
    ----------
    padding : int or sequence of int
        Elements cut off at either side of the result.
    output_padding : int or sequence of int
        Elements more at the end of the result, below stride or dilation.
    """
    return _conv_transpose("conv_transpose1d", 1, x, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Return the transpose of :func:`conv2d` at x (n, c, height, width), plus bias: weight (c, out / groups, kh, kw).

    Parameters are those of :func:`conv_transpose1d`.
    """
    return _conv_transpose("conv_transpose2d", 2, x, weight, bias, stride, padding, output_padding, groups, dilation)


def _conv_transpose(
    name: str,
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
) -> Tensor:
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return apply(
        ops.CONV_TRANSPOSE,
        *inputs,
        stride=numbers(f"{name}: stride", stride, dims, 1),
        padding=numbers(f"{name}: padding", padding, dims),
        output_padding=numbers(f"{name}: output_padding", output_padding, dims),
        dilation=numbers(f"{name}: dilation", dilation, dims, 1),
        groups=numbers(f"{name}: groups", groups, 1, 1)[0],
    )
