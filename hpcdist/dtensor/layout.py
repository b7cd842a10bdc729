"""The layout of an array on a mesh: one placement an axis, and what each rank holds because of them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.mesh import DeviceMesh
from hpcdist.dtensor.cut import Runs, cut, length, merged, places
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard
from hpcdist.errors import explain

__all__ = ["Layout"]


class Layout:
    """How the ranks of a mesh hold an array. Equal layouts are one object: see :meth:`of`.

    Attributes
    ----------
    mesh : DeviceMesh
    placements : tuple of Placement
        One an axis; dimensions are counted from the front, and what makes no difference is left out of a Shard.
    shape : tuple of int
        Of the whole array.
    order : tuple of int
        All axes; of those that cut one dimension the first one cuts the whole array, the next one what is left of it.
        FSDP over tensor parallelism on a mesh (dp, tp) cuts rows in the order (1, 0).
    local_shape : tuple of int
        Of what this rank holds.
    """

    def __init__(
        self, mesh: DeviceMesh, placements: tuple[Placement, ...], shape: tuple[int, ...], order: tuple[int, ...]
    ) -> None:
        self.mesh, self.placements, self.shape, self.order = mesh, placements, shape, order
        self.groups: tuple[Communicator, ...] = mesh.get_all_groups()
        self.coordinate: tuple[int, ...] = mesh.get_coordinate() or ()
        self.local_shape = tuple(map(length, self.runs))

    @classmethod
    def of(
        cls,
        mesh: DeviceMesh,
        placements: Sequence[Placement],
        shape: Sequence[int],
        order: Sequence[int] | None = None,
    ) -> Layout:
        """Return the layout of an array of ``shape``; the default ``order`` is that of the axes.

        Raises
        ------
        ValueError
            If there is not one placement an axis, a dimension does not exist, or units do not fit its extent.
        DistError
            On a rank that is not in the mesh.
        """
        table: WeakValueDictionary[Any, Layout] = mesh.memo.get(cls) or mesh.memo.setdefault(cls, WeakValueDictionary())
        asked = (mesh.axis_names, tuple(placements), tuple(shape), None if order is None else tuple(order))
        known = table.get(asked)
        if known is None:
            checked = _checked(mesh, placements, asked[2], asked[3])
            key = (mesh.axis_names, *checked)
            known = table.get(key) or cls(mesh, *checked)
            table[asked] = table[key] = known
        return known

    def placed(self, placements: Sequence[Placement], order: Sequence[int] | None = None) -> Layout:
        """Return the layout of the same array with other placements."""
        return Layout.of(self.mesh, placements, self.shape, self.order if order is None else order)

    def at(self, axis: int, placement: Placement) -> Layout:
        """Return the layout with another placement on one axis, which then is the last one to cut its dimension."""
        placements = (*self.placements[:axis], placement, *self.placements[axis + 1 :])
        return self.placed(placements, (*(a for a in self.order if a != axis), axis))

    def cutters(self, dim: int) -> tuple[int, ...]:
        """Return the axes that cut ``dim``, in their order."""
        return tuple(axis for axis in self.order if self.placements[axis].is_shard(dim))

    def groups_along(self, axes: Iterable[int]) -> tuple[Communicator, ...]:
        """Return the groups of those of ``axes`` that have more than one rank."""
        return tuple(self.groups[axis] for axis in axes if self.mesh.shape[axis] > 1)

    @functools.cached_property
    def size(self) -> int:
        """Number of elements of the whole array."""
        return math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether every rank holds the whole array."""
        return all(isinstance(p, (Replicate, Invariant)) for p in self.placements)

    @property
    def settled(self) -> Layout:
        """The layout with Invariant in place of Partial: combinations over ranks are finished."""
        return self.placed([Invariant() if isinstance(p, Partial) else p for p in self.placements])

    # ---- what ranks hold
    @functools.cached_property
    def runs(self) -> list[Runs]:
        """Global indices that this rank holds along every dimension."""
        return [self.runs_at(dim, self.coordinate) for dim in range(len(self.shape))]

    def runs_at(self, dim: int, coordinate: Sequence[int]) -> Runs:
        """Return the global indices that the rank at ``coordinate`` holds along ``dim``."""
        held = merged([(0, self.shape[dim])])
        for axis in self.cutters(dim):
            shard = self.placements[axis]
            assert isinstance(shard, Shard)
            part = cut(shard, length(held), self.mesh.shape[axis]).runs[coordinate[axis]]
            held = merged(run for start, stop in part for run in _within(held, start, stop))
        return held

    def places_along(self, axes: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the coordinates of the ranks that differ from this one along ``axes`` only, the last axis fastest."""
        places = []
        for part in np.ndindex(*(self.mesh.shape[axis] for axis in axes)):
            place = dict(enumerate(self.coordinate)) | dict(zip(axes, part, strict=True))
            places.append(tuple(place.values()))
        return places

    def indices_at(self, dim: int, coordinate: Sequence[int]) -> Array:
        """Return :meth:`runs_at` as an array of integers."""
        return np.concatenate([np.arange(0), *(np.arange(*run) for run in self.runs_at(dim, coordinate))])

    @property
    def boxes(self) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Where what this rank holds lies: (place in the whole array, place in what it holds) of every box of it."""
        along = [
            [(slice(*there), slice(*here)) for there, here in zip(held, places(held), strict=True)]
            for held in self.runs
        ]
        return [(tuple(t for t, _ in box), tuple(h for _, h in box)) for box in itertools.product(*along)]

    def part_of(self, whole: Array) -> Array:
        """Return a copy of what this rank holds of an array that it has all of."""
        part: Array = namespace(whole).empty(self.local_shape, whole.dtype)
        for there, here in self.boxes:
            part[here] = whole[there]
        return part

    @functools.cached_property
    def flat_index(self) -> Array | None:
        """Flat index in the whole array of every element that this rank holds (uint64); None: it holds all of it."""
        if self.local_shape == self.shape:
            return None
        total: Any = np.zeros(self.local_shape, np.uint64)
        stride = 1
        for dim in reversed(range(len(self.shape))):
            line = self.indices_at(dim, self.coordinate).astype(np.uint64) * np.uint64(stride)
            total = total + line.reshape([-1 if i == dim else 1 for i in range(len(self.shape))])
            stride *= self.shape[dim]
        index: Array = total
        return index

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}: {p}" for name, p in zip(self.mesh.axis_names, self.placements, strict=True))
        nested = [d for d in range(len(self.shape)) if len(self.cutters(d)) > 1]
        orders = [", then ".join(self.mesh.axis_names[a] for a in self.cutters(d)) for d in nested]
        return f"{self.shape} {axes}" + "".join(f"; {o} cut dim {d}" for d, o in zip(nested, orders, strict=True))


def _within(held: Runs, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield elements ``start`` to ``stop`` of what is held."""
    for (first, _), (before, after) in zip(held, places(held), strict=True):
        low, high = max(start, before), min(stop, after)
        if low < high:
            yield first + low - before, first + high - before


def _checked(
    mesh: DeviceMesh, placements: Sequence[Placement], shape: tuple[int, ...], order: tuple[int, ...] | None
) -> tuple[tuple[Placement, ...], tuple[int, ...], tuple[int, ...]]:
    """Return placements, shape and order in the one form that equal layouts share."""
    allowed = (Shard, Replicate, Invariant, Partial)
    if len(placements) != mesh.ndim or not all(isinstance(p, allowed) for p in placements):
        expected = f"one of Shard, Replicate, Invariant, Partial for each axis: {', '.join(mesh.axis_names)}"
        raise ValueError(explain("placements", got=list(placements), expected=expected))
    counted = [p.counted(len(shape)) if isinstance(p, Shard) else p for p in placements]
    axes = tuple(range(mesh.ndim)) if order is None else order
    if sorted(axes) != list(range(mesh.ndim)):
        raise ValueError(explain("order of axes", got=order, expected=f"each of 0 to {mesh.ndim - 1} once"))
    ordered = list(range(mesh.ndim))
    for dim, n in enumerate(shape):
        cutters = [a for a in axes if counted[a].is_shard(dim)]
        for place, axis in zip(sorted(cutters), cutters, strict=True):
            ordered[place] = axis
        extents = {n}
        for axis in cutters:
            shard = counted[axis]
            assert isinstance(shard, Shard)
            counted[axis] = _simplest(shard, extents, mesh.shape[axis])
            extents = {m for extent in extents for m in shard.sizes(extent, mesh.shape[axis])}
    return tuple(counted), shape, tuple(ordered)


def _simplest(shard: Shard, extents: set[int], size: int) -> Shard:
    """Return the simplest Shard that holds the same: a plain one if possible, else one of the smallest unit."""
    units = [u for u in range(1, shard.unit) if shard.unit % u == 0] if isinstance(shard.unit, int) else [1]
    for simpler in (Shard(shard.dim), *(replace(shard, unit=u) for u in units)):
        if simpler != shard and all(cut(shard, n, size).runs == cut(simpler, n, size).runs for n in extents):
            return simpler
    return shard
