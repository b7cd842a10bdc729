"""Ranks arranged along named axes: the arithmetic of a mesh, without communication."""

from __future__ import annotations

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

    def color_and_key(self, axes: Sequence[int], coordinate: Sequence[int]) -> tuple[int, int]:
        """Return the number of the group along ``axes`` that ``coordinate`` is in, and its place in it."""
        others = [axis for axis in range(self.ranks.ndim) if axis not in axes]
        color, key = (
            position([coordinate[axis] for axis in some], [self.shape[axis] for axis in some])
            for some in (others, axes)
        )
        return color, key


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
