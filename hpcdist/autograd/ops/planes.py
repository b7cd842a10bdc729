"""Arrays of one or two dimensions a channel, seen as planes: kernels know two only."""

from __future__ import annotations

from typing import TypeAlias

from hpcdist.array import Array
from hpcdist.autograd.ops.elementwise import LETTERS, check_floating
from hpcdist.kernels.window import Pair, Window

__all__ = ["Dims", "as_planes", "check_planes", "planes_signature", "window_of"]

Dims: TypeAlias = tuple[int, ...]
"""One number a dimension of a plane, or of the line that a channel is."""


def as_planes(a: Array) -> Array:
    """Return ``a``, (batch, channels, width) with a height of 1, as (batch, channels, height, width)."""
    return a if a.ndim == 4 else a.reshape(*a.shape[:2], 1, a.shape[2])


def window_of(size: Dims, stride: Dims, padding: Dims, dilation: Dims) -> Window:
    """Return the window of two dimensions that does what one of ``len(size)`` does on lines or planes."""
    return _pair(size, 1), _pair(stride, 1), _pair(padding, 0), _pair(dilation, 1)


def _pair(values: Dims, fill: int) -> Pair:
    down, across = (fill, *values)[-2:]
    return down, across


def check_planes(x: Array, dims: Dims) -> None:
    """Refuse what has not (batch, channels) and one dimension more a number of ``dims``."""
    check_floating(x)
    if x.ndim != len(dims) + 2 or not 1 <= len(dims) <= 2:
        raise ValueError(f"expected x (batch, channels, ...) with {len(dims)} dimensions more")


def planes_signature(shapes: list[tuple[int, ...]], **_: object) -> str:
    """Batch and channels may be cut; where an element stands in its plane matters."""
    dims = len(shapes[0]) - 2
    inside, outside = ("".join(f"[{x}]" for x in LETTERS[k : k + dims]) for k in (2, 2 + dims))
    return f"ab{inside}->ab{outside}"
