"""What an index of an array does to its dimensions, by NumPy's rules."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from hpcdist.errors import explain

__all__ = ["Index"]


class Index(NamedTuple):
    """An index, read.

    Attributes
    ----------
    parts : tuple
        The same index, for ranks that hold slices of the dimensions that are kept whole, too.
    moved : dict of int to int
        Where the dimensions go that are kept whole.
    shape : tuple of int
        Of the result.
    """

    parts: tuple[Any, ...]
    moved: dict[int, int]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, index: Any, shape: tuple[int, ...]) -> Index:
        """Read an index of an array of ``shape``.

        Raises
        ------
        IndexError, TypeError
            If it does not fit.
        """
        parts = _expanded(index, len(shape))
        arrays = [i for i, part in enumerate(parts) if _is_array(part)]
        picked = [i for i, part in enumerate(parts) if i in arrays or (arrays and isinstance(part, int))]
        dims: list[tuple[int | None, int]] = []  # of the result: the dimension it comes from, and its extent
        place, dim = 0, 0
        for i, part in enumerate(parts):
            if picked and i == picked[0]:
                place = len(dims)
            if part is None:
                dims.append((None, 1))
            elif isinstance(part, slice):
                taken = part.indices(shape[dim])
                whole = taken == (0, shape[dim], 1)
                dims.append((dim if whole else None, len(range(*taken))))
                parts[i] = slice(None) if whole else part
            elif isinstance(part, int):
                _check(part, shape[dim], index)
            dim += _consumed(part)
        if picked and picked[-1] - picked[0] + 1 != len(picked):
            place = 0
        if arrays:
            dims[place:place] = [(None, n) for n in np.broadcast_shapes(*map(_picks, map(parts.__getitem__, arrays)))]
        moved = {d: to for to, (d, _) in enumerate(dims) if d is not None}
        return cls(tuple(parts), moved, tuple(n for _, n in dims))


def _expanded(index: Any, ndim: int) -> list[Any]:
    """Return a part for each dimension, or several of them, and each new one; numbers as int."""
    parts = [_plain(part) for part in (index if isinstance(index, tuple) else (index,))]
    dots = [i for i, part in enumerate(parts) if part is Ellipsis]
    rest = ndim - sum(map(_consumed, parts))
    if len(dots) > 1 or rest < 0:
        raise IndexError(explain("getitem: index", got=index, expected=f"one for {ndim} dimensions"))
    at = dots[0] if dots else len(parts)
    middle: list[Any] = [slice(None)] * rest or [Ellipsis] * len(dots)  # which separates even if it stands for nothing
    return [*parts[:at], *middle, *parts[at + 1 :]]


def _plain(part: Any) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if getattr(part, "ndim", 0) == 0 and np.asarray(part).dtype.kind == "b":
        do = "use where, or an array of bool"
        raise TypeError(explain("getitem: one bool as an index of a distributed tensor", got=part, do=do))
    if isinstance(part, (list, tuple)):
        part = np.asarray(part)
        return part if part.size else part.astype(np.intp)
    return part if getattr(part, "ndim", 0) else operator.index(part)


def _is_array(part: Any) -> bool:
    return hasattr(part, "dtype")


def _consumed(part: Any) -> int:
    """Return how many dimensions a part of an index is for."""
    if part is None or part is Ellipsis:
        return 0
    return int(part.ndim) if _is_array(part) and part.dtype.kind == "b" else 1


def _picks(array: Any) -> tuple[int, ...]:
    """Return the extents that an array of indices makes."""
    return (int(array.sum()),) if array.dtype.kind == "b" else tuple(array.shape)


def _check(i: int, n: int, index: Any) -> None:
    if not -n <= i < n:
        raise IndexError(explain("getitem: index", got=index, expected=f"{-n} to {n - 1} for a dimension of {n}"))
