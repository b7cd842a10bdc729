"""Convolutions of lines and planes of channels, (batch, channels, ...), under the names of torch.nn.functional."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from hpcdist.autograd import Tensor, apply, ops
from hpcdist.autograd.arrangement import pad
from hpcdist.errors import explain

__all__ = [
    "Sizes",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "numbers",
    "padded",
    "paddings",
    "versions",
]

Sizes: TypeAlias = int | Sequence[int]
"""One number for all dimensions, or one each."""
Ends: TypeAlias = tuple[tuple[int, int], ...]
"""Elements to add before and after each dimension."""
P = ParamSpec("P")
R = TypeVar("R")


def numbers(what: str, value: Any, dims: int, least: int = 0) -> tuple[int, ...]:
    """Return ``value`` as ``dims`` numbers; ``what`` names it if it is something else."""
    try:
        values = tuple(map(operator.index, value if isinstance(value, Iterable) else (value,) * dims))
    except TypeError:
        values = ()
    if len(values) != dims or min(values) < least:
        raise ValueError(explain(what, got=value, expected=f"an integer, or {dims}, of at least {least}"))
    return values


def versions(name: str, function: Callable[Concatenate[str, int, P], R]) -> tuple[Callable[P, R], Callable[P, R]]:
    """Return ``function(name, dims, ...)`` for lines and for planes: two functions, called name1d and name2d."""
    return _version(f"{name}1d", 1, function), _version(f"{name}2d", 2, function)


def _version(name: str, dims: int, function: Callable[Concatenate[str, int, P], R]) -> Callable[P, R]:
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(name, dims, *args, **kwargs)

    own = inspect.signature(function)
    shown: dict[str, Any] = {"__signature__": own.replace(parameters=list(own.parameters.values())[2:])}
    shown |= {"__name__": name, "__qualname__": name, "__module__": function.__module__, "__doc__": function.__doc__}
    for attribute, value in shown.items():
        setattr(call, attribute, value)
    return call


# ---------------------------------------------------------------- padding
def paddings(what: str, padding: Sizes | str, size: Sequence[int], stride: Sizes, dilation: Sequence[int]) -> Ends:
    """Return how much is added at the ends of each dimension: ``"same"`` puts an odd element at the end."""
    if not isinstance(padding, str):
        return tuple((n, n) for n in numbers(what, padding, len(size)))
    if padding == "valid":
        return ((0, 0),) * len(size)
    if padding != "same" or stride != (1,) * len(size):
        got = f"{padding!r} with stride {stride}"
        raise ValueError(explain(what, got=got, expected="a number, 'valid', or 'same' with stride 1"))
    both = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
    return tuple((n // 2, n - n // 2) for n in both)


def padded(x: Tensor, ends: Ends, mode: str = "constant") -> Tensor:
    """Return ``x`` with elements added at the ends of its last dimensions."""
    return pad(x, [n for pair in reversed(ends) for n in pair], mode)


# ---------------------------------------------------------------- convolution
def _conv(
    name: str,
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of x (n, c, ...) with weight (out, c / groups, ...), plus bias (out,).

    Lines have one dimension more, width; planes have two, height and width.

    Parameters
    ----------
    stride, padding, dilation : int or sequence of int
        Step between windows, zeros added at either side, step between a window's elements. ``padding="same"`` keeps
        the extents (stride 1 only; of an odd number of zeros one more comes last); ``"valid"`` is 0.
    groups : int
        Input and output channels are cut into so many groups that do not see each other.
    """
    steps = numbers(f"{name}: stride", stride, dims, 1)
    spread = numbers(f"{name}: dilation", dilation, dims, 1)
    ends = paddings(f"{name}: padding", padding, weight.shape[-dims:], steps, spread)
    if any(before != after for before, after in ends):
        x, ends = padded(x, ends), ((0, 0),) * dims
    (one,) = numbers(f"{name}: groups", groups, 1, 1)
    inputs = (x, weight) if bias is None else (x, weight, bias)
    around = tuple(before for before, _ in ends)
    return apply(ops.CONV, *inputs, stride=steps, padding=around, dilation=spread, groups=one)


conv1d, conv2d = versions("conv", _conv)


def _conv_transpose(
    name: str,
    dims: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Return the transpose of a convolution at x (n, c, ...), plus bias (out,): weight is (c, out / groups, ...).

    Lines have one dimension more, width; planes have two, height and width.

    Parameters
    ----------
    stride, groups, dilation
        Those of the convolution that is transposed.
    padding : int or sequence of int
        Elements cut off at either side of the result.
    output_padding : int or sequence of int
        Elements more at the end of the result, below stride or dilation.
    """
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


conv_transpose1d, conv_transpose2d = versions("conv_transpose", _conv_transpose)
