"""Boxes of a distributed tensor: what a rank has to save, and what it has to read to have its values again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hpcdist.array import Array
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Partial, Shard
from hpcdist.dtensor.tensor import DTensor
from hpcdist.errors import explain

__all__ = ["Chunk", "chunks", "fill"]

Place = tuple[int, ...]


class Chunk(NamedTuple):
    """A box of the whole array.

    Attributes
    ----------
    offsets, sizes : tuple of int
        Where it begins in the whole, and its extents.
    data : array, shape ``sizes``
        The values: a view of what the rank holds.
    """

    offsets: Place
    sizes: Place
    data: Array


def chunks(x: DTensor) -> list[Chunk]:
    """Return what this rank has to save; see :meth:`DTensor.chunks`."""
    _check_settled("chunks", x.layout)
    return list(_held(x)) if _saves(x.layout) else []


def fill(x: DTensor, read: Callable[[Place, Place], Array]) -> None:
    """Write what ``read(offsets, sizes)`` returns to all boxes that this rank holds; see :meth:`DTensor.fill`."""
    _check_settled("fill", x.layout)
    for chunk in _held(x):
        values = read(chunk.offsets, chunk.sizes)
        if values.shape != chunk.sizes:
            text = f"fill: what was read at {chunk.offsets} of {x.layout}"
            raise ValueError(explain(text, got=values.shape, expected=chunk.sizes))
        chunk.data[...] = values


def _check_settled(what: str, layout: Layout) -> None:
    if any(isinstance(p, Partial) for p in layout.placements):
        do = "redistribute it first: the parts of a sum are no part of the array"
        raise ValueError(explain(f"{what}: it is not reduced", got=layout, do=do))


def _held(x: DTensor) -> Iterator[Chunk]:
    """Yield the boxes that this rank holds, without empty ones."""
    for there, here in x.layout.boxes:
        sizes = tuple(s.stop - s.start for s in there)
        if 0 not in sizes:
            box: Any = (*here, ...)  # what has no dimension stays an array
            yield Chunk(tuple(s.start for s in there), sizes, x.data[box])


def _saves(layout: Layout) -> bool:
    """Say whether this rank is the first of those that hold the same."""
    return all(c == 0 or isinstance(p, Shard) for c, p in zip(layout.coordinate, layout.placements, strict=True))
