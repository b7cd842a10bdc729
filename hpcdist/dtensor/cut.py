"""How a Shard cuts one dimension: the runs of neighbouring elements that each rank holds, and arrays taken along them.

A run is the index of its first element in the whole dimension, and the index after its last. A rank has more than one
run only where sections are cut each for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from hpcdist.array import Array, namespace
from hpcdist.dtensor.placements import Shard

__all__ = ["Cut", "Runs", "cut", "join", "length", "merged", "places", "put", "shared", "take"]

Runs: TypeAlias = tuple[tuple[int, int], ...]


class Cut(NamedTuple):
    """What each rank holds of a dimension.

    Attributes
    ----------
    runs : tuple of Runs
        Of each rank, ascending; as few as possible and none empty, so that equal cuts have equal runs.
    sizes : tuple of int
        How many elements each rank holds.
    order : Runs
        Those of the first rank, then those of the second, ...: how a collective lines the elements up.
    ordered : bool
        Whether that is the order of the whole, too.
    """

    runs: tuple[Runs, ...]
    sizes: tuple[int, ...]
    order: Runs
    ordered: bool


@lru_cache(maxsize=256)
def cut(placement: Shard, n: int, size: int) -> Cut:
    """Return what each of ``size`` ranks holds of a dimension of ``n`` elements.

    Raises
    ------
    ValueError
        If units or sections do not add up to ``n``.
    """
    runs = tuple(merged(placement.ranges(n, size, coord)) for coord in range(size))
    order = merged(run for held in runs for run in held)
    return Cut(runs, tuple(map(length, runs)), order, ordered=len(order) < 2)


def take(x: Array, dim: int, runs: Runs) -> Array:
    """Return the given runs of ``dim``, one after the other: a view of ``x`` if there is but one."""
    views = [x[_at(dim, run)] for run in runs or ((0, 0),)]
    return views[0] if len(views) == 1 else namespace(x).concatenate(views, axis=dim)


def put(whole: Array, dim: int, runs: Runs, part: Array) -> None:
    """Write ``part``, which is the given runs one after the other, to its places in ``dim`` of ``whole``."""
    for run, place in zip(runs, places(runs), strict=True):
        whole[_at(dim, run)] = part[_at(dim, place)]


def join(parts: Sequence[Array], dim: int, runs: Sequence[Runs]) -> Array:
    """Concatenate parts in the order of the whole, where ``runs`` says which ones each part is. Copies once."""
    views = {
        run[0]: part[_at(dim, place)]
        for part, held in zip(parts, runs, strict=True)
        for run, place in zip(held, places(held), strict=True)
    }
    in_order = [views[start] for start in sorted(views)] or parts
    whole: Array = namespace(parts[0]).concatenate(in_order, axis=dim)
    return whole


def shared(held: Runs, wanted: Runs) -> tuple[Runs, Runs]:
    """Return the runs of the whole that lie in both, and where they lie in an array of those ``held``."""
    both, there = [], []
    for (start, stop), (place, _) in zip(held, places(held), strict=True):
        for first, last in wanted:
            low, high = max(start, first), min(stop, last)
            if low < high:
                both.append((low, high))
                there.append((place + low - start, place + high - start))
    return tuple(both), tuple(there)


def merged(runs: Iterable[tuple[int, int]]) -> Runs:
    """Leave empty runs out, and make one of two that touch."""
    found: list[tuple[int, int]] = []
    for start, stop in runs:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        elif start < stop:
            found.append((start, stop))
    return tuple(found)


def length(runs: Runs) -> int:
    """Return how many elements runs have."""
    return sum(stop - start for start, stop in runs)


def places(runs: Runs) -> Runs:
    """Say where in an array of these runs each one lies."""
    lengths = [stop - start for start, stop in runs]
    return tuple((end - length, end) for end, length in zip(accumulate(lengths), lengths, strict=True))


def _at(dim: int, run: tuple[int, int]) -> tuple[slice, ...]:
    return (*(slice(None),) * dim, slice(*run))
