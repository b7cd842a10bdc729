"""A window that moves over the last two dimensions of an array: what convolution and pooling have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

__all__ = ["Pair", "Window", "extent", "overlaps", "reach"]

Pair: TypeAlias = tuple[int, int]
Window: TypeAlias = tuple[Pair, Pair, Pair, Pair]
"""Size, stride, padding on either side and dilation, each down and across; a plain tuple, which compiled code takes."""


def extent(n: int, size: int, stride: int, padding: int, dilation: int = 1, *, ceil: bool = False) -> int:
    """Return how many places a window has along ``n`` elements.

    Parameters
    ----------
    ceil : bool
        Count a last place that reaches past the end too, if it begins before the padding there.

    Raises
    ------
    ValueError
        If it has none.
    """
    room = n + 2 * padding - dilation * (size - 1) - 1
    if room < 0:
        raise ValueError(f"a window over {dilation * (size - 1) + 1} elements does not fit in {n} + 2 * {padding}")
    if not ceil:
        return room // stride + 1
    count = -(-room // stride) + 1
    return count - ((count - 1) * stride >= n + padding)


def reach(count: int, n: int, stride: int, padding: int, offset: int) -> range:
    """Return the places, of ``count``, at which element ``offset`` of the window is one of the ``n`` elements."""
    first = min(max(0, -((offset - padding) // stride)), count)
    return range(first, max(first, min(count, (n - 1 + padding - offset) // stride + 1)))


def overlaps(
    plane: tuple[int, ...], window: Window, places: tuple[int, ...]
) -> Iterator[tuple[Pair, tuple[slice, ...], tuple[slice, ...]]]:
    r"""Yield (element of the window, the places at which it is inside, what it sees there), row by row.

    The last two index arrays (m, \*places) and (m, \*plane).
    """
    (kh, kw), stride, padding, dilation = window
    for i, j in ((i, j) for i in range(kh) for j in range(kw)):
        down = _overlap(plane[0], stride[0], padding[0], i * dilation[0], places[0])
        across = _overlap(plane[1], stride[1], padding[1], j * dilation[1], places[1])
        yield (i, j), (slice(None), down[0], across[0]), (slice(None), down[1], across[1])


def _overlap(n: int, stride: int, padding: int, offset: int, count: int) -> tuple[slice, slice]:
    inside = reach(count, n, stride, padding, offset)
    if not inside:
        return slice(0, 0), slice(0, 0)
    start = inside.start * stride - padding + offset
    return slice(inside.start, inside.stop), slice(start, start + (len(inside) - 1) * stride + 1, stride)
