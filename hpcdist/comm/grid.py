"""Ranks arranged along named axes: the arithmetic of a mesh, without communication."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hpcdist.errors import explain

__all__ = ["Grid", "Names", "position"]

Names: TypeAlias = str | Sequence[str] | None


def position(coordinate: Sequence[int], shape: Sequence[int]) -> int:
    """Return the row-major position of ``coordinate`` in ``shape``."""
    place = 0
    for coord, size in zip(coordinate, shape, strict=True):
        place = place * size + coord
    return place


@dataclass(frozen=True, eq=False)
class Grid:
    """Ranks in an array with one named axis a dimension.

    Attributes
    ----------
    ranks : int array
    names : tuple of str
        One an axis.
    """

    ranks: npt.NDArray[np.intp]
    names: tuple[str, ...]

    @classmethod
    def checked(cls, ranks: Any, names: Names, num_ranks: int) -> Grid:
        """Build from a nested sequence; names default to axis0, axis1 ...

        Raises
        ------
        TypeError, ValueError
            If ``ranks`` is no regular list of different ranks below ``num_ranks``, or names do not fit.
        """
        array = _checked_ranks(ranks, num_ranks)
        return cls(array, _checked_names(names, array.ndim))

    @classmethod
    def within(cls, sizes: Sequence[int], names: Names, extent: int) -> Grid:
        """Arrange the numbers below ``extent``, the last axis fastest; ValueError if sizes or names do not fit."""
        found = tuple(operator.index(n) for n in sizes)
        if not found or min(found) < 1 or math.prod(found) != extent:
            expected = f"numbers from 1, whose product is {extent}"
            raise ValueError(explain("DeviceMesh.unflatten: sizes", got=found, expected=expected))
        return cls(np.arange(extent).reshape(found), _checked_names(names, len(found)))

    @staticmethod
    def places(members: Any, known: Sequence[int]) -> npt.NDArray[Any]:
        """Return where in ``known`` each of an array of global ranks is; ValueError if one is not there."""
        array = np.array(members)
        found = {member: place for place, member in enumerate(known)}
        if not all(member in found for member in array.reshape(-1).tolist()):
            expected = f"some of {list(known)}, the global ranks of the communicator"
            raise ValueError(explain("DeviceMesh: members", got=array.tolist(), expected=expected))
        return np.reshape([found[member] for member in array.reshape(-1).tolist()], array.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of ranks along every axis."""
        return self.ranks.shape

    def axis(self, axis: int | str | None) -> int:
        """Return the index of ``axis``; None means the only one."""
        if axis is None and len(self.names) == 1:
            return 0
        if isinstance(axis, str) and axis in self.names:
            return self.names.index(axis)
        if isinstance(axis, (int, np.integer)) and -len(self.names) <= axis < len(self.names):
            return int(axis) % len(self.names)
        raise ValueError(explain("DeviceMesh: axis", got=repr(axis), expected=f"one of {', '.join(self.names)}"))

    def coordinate(self, rank: int) -> tuple[int, ...] | None:
        """Return the place of ``rank``, None if it has none."""
        found = np.argwhere(self.ranks == rank)
        return tuple(map(int, found[0])) if len(found) else None

    def part(self, axes: Sequence[int], coordinate: Sequence[int]) -> Grid:
        """Return the ranks that share ``coordinate`` on all but ``axes``."""
        row = tuple(slice(None) if axis in axes else coordinate[axis] for axis in range(self.ranks.ndim))
        return Grid(self.ranks[row], tuple(self.names[axis] for axis in axes))

    def flat(self, name: str) -> Grid:
        """Return the same ranks along one axis."""
        return Grid(self.ranks.reshape(-1), (name,))

    def unflat(self, axis: int, inner: Grid) -> Grid:
        """Return the same ranks with the axes of ``inner``, which has as many places, instead of ``axis``."""
        before, after = slice(None, axis), slice(axis + 1, None)
        ranks = self.ranks.reshape((*self.shape[before], *inner.shape, *self.shape[after]))
        return Grid(ranks, (*self.names[before], *inner.names, *self.names[after]))

    def rows(self, coordinate: Sequence[int] | None) -> list[list[int]]:
        """Return the ranks of the row through ``coordinate`` along every axis; of none if that is None."""
        if coordinate is None:
            return []
        return [self.part((axis,), coordinate).ranks.tolist() for axis in range(self.ranks.ndim)]

    def joined(self, parts: Sequence[Grid], rank: int) -> Grid:
        """Return the ranks that are reached from ``rank`` along the axes of all ``parts``, in which it is.

        Raises
        ------
        ValueError
            If some of their axes are the same, or have the same name.
        """
        places = {other: place for place, other in enumerate(self.ranks.reshape(-1).tolist())}
        reached = np.array(places[rank])
        for part in parts:
            steps = [places[other] - places[rank] for other in part.ranks.reshape(-1).tolist()]
            reached = np.add.outer(reached, np.reshape(steps, part.shape))
        names = [name for part in parts for name in part.names]
        if len(np.unique(reached)) != reached.size:
            expected = "axes of which none runs along another"
            raise ValueError(explain("DeviceMesh.concatenate: axes", got=names, expected=expected))
        return Grid(self.ranks.reshape(-1)[reached], _checked_names(names, reached.ndim))

    def color_and_key(self, axis: int, coordinate: Sequence[int]) -> tuple[int, int]:
        """Return the number of the row along ``axis`` that ``coordinate`` is in, and its place in it."""
        others = [other for other in range(self.ranks.ndim) if other != axis]
        color = position([coordinate[other] for other in others], [self.shape[other] for other in others])
        return color, coordinate[axis]


def _checked_ranks(ranks: Any, num_ranks: int) -> npt.NDArray[np.intp]:
    array = np.array(ranks)
    if array.dtype.kind not in "iu" or array.ndim == 0:
        raise TypeError(explain("DeviceMesh: ranks", got=repr(ranks), expected="a nested list of integers"))
    if array.size == 0 or array.min() < 0 or array.max() >= num_ranks:
        raise ValueError(explain("DeviceMesh: ranks", got=array.tolist(), expected=f"ranks from 0 to {num_ranks - 1}"))
    if len(np.unique(array)) != array.size:
        raise ValueError(explain("DeviceMesh: ranks", got=array.tolist(), expected="every rank at most once"))
    return array.astype(np.intp)


def _checked_names(names: Names, ndim: int) -> tuple[str, ...]:
    if names is None:
        names = [f"axis{i}" for i in range(ndim)]
    checked = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in checked):
        raise TypeError(explain("DeviceMesh: names", got=checked, expected="strings"))
    if len(checked) != ndim or len(set(checked)) != ndim:
        raise ValueError(explain("DeviceMesh: names", got=checked, expected=f"{ndim} different names, one an axis"))
    return checked
