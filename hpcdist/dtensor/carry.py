"""Cuts that follow their elements into an array of another shape: the Shards by which ranks hold the same there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from hpcdist.dtensor.layout import Layout, Ranges
from hpcdist.dtensor.placements import Invariant, Placement, Shard

__all__ = ["Held", "carried", "coordinates", "follow", "joined", "pieces", "rescaled", "scaled", "times", "together"]

Held: TypeAlias = Callable[[tuple[int, ...]], Ranges]
"""What the rank at a coordinate of the mesh holds, in ascending order, without gaps of no extent."""


def carried(x: Layout, moved: Mapping[int, int], shape: Sequence[int]) -> Layout | None:
    """Return the layout of an array in which dimension ``d`` has become ``moved[d]``; None: a cut one has gone."""
    placements: list[Placement] = []
    for p in x.placements:
        if isinstance(p, Shard) and p.dim not in moved:
            return None
        placements.append(replace(p, dim=moved[p.dim]) if isinstance(p, Shard) else p)
    return Layout.of(x.mesh, placements, shape, x.order)


def rescaled(x: Layout, dim: int, old: int, shape: Sequence[int], new: int) -> dict[int, Shard] | None:
    """Return how axes that cut ``dim`` in steps of ``old`` elements cut that of ``shape`` in steps of ``new``, if so.

    An attention over heads of packed q, k and v turns ``3 * width`` elements of each into ``width``.
    """
    axes = x.cutters(dim)
    options = [list(scaled(x, axis, new, old, dim, shape[dim])) for axis in axes]
    return follow(x, axes, lambda c: times(x.ranges_at(dim, c), new), shape, options, old)


def pieces(x: Layout, dim: int, sizes: Sequence[int]) -> list[Layout] | None:
    """Return the layouts of pieces of ``sizes`` along ``dim``, if ranks hold a chunk of each; None: they do not."""
    layouts, axes, start = [], x.cutters(dim), 0
    for n in sizes:
        stop, shape = start + n, (*x.shape[:dim], n, *x.shape[dim + 1 :])
        options = [list(_sections(x.placements[axis], x.shape[dim], start, stop)) for axis in axes]
        found = follow(x, axes, _part(x, dim, start, stop), shape, options)
        if found is None:
            return None
        placements = [found.get(axis, p) for axis, p in enumerate(x.placements)]
        layouts.append(Layout.of(x.mesh, placements, shape, x.order))
        start = stop
    return layouts


def together(parts: Sequence[Layout], dim: int) -> dict[int, Shard] | None:
    """Return how the array is cut that is made of ``parts`` along ``dim``, of which ranks hold a chunk of each."""
    first, starts = parts[0], list(itertools.accumulate((x.shape[dim] for x in parts), initial=0))
    axes, options = first.cutters(dim), []
    if any(x.cutters(dim) != axes for x in parts):
        return None
    for axis in axes:
        each = [_parts(x.placements[axis], x.shape[dim]) for x in parts]
        sections, units = (tuple(itertools.chain.from_iterable(e[i] for e in each)) for i in (0, 1))
        options.append([Shard(dim, units, sections)])

    def held(coordinate: tuple[int, ...]) -> Ranges:
        each = [x.ranges_at(dim, coordinate) for x in parts]
        return joined([(a + start, b + start) for start, ranges in zip(starts, each, strict=False) for a, b in ranges])

    return follow(first, axes, held, (*first.shape[:dim], starts[-1], *first.shape[dim + 1 :]), options)


def follow(
    x: Layout, axes: Sequence[int], held: Held, shape: Sequence[int], options: Sequence[Sequence[Shard]], step: int = 1
) -> dict[int, Shard] | None:
    """Return the first of ``options``, one an axis, by which ranks hold ``held``; there, elements count ``step``."""
    if not axes:
        return {}
    for chosen in itertools.product(*options):
        cut = dict(zip(axes, chosen, strict=True))
        try:
            there = Layout.of(x.mesh, [cut.get(a, Invariant()) for a in range(x.mesh.ndim)], shape, x.order)
        except ValueError:  # units or sections do not fit
            continue
        if all(times(there.ranges_at(chosen[0].dim, c), step) == held(c) for c in coordinates(x, axes)):
            return cut
    return None


def coordinates(x: Layout, axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of the ranks that differ along ``axes``."""
    return itertools.product(*(range(n) if axis in axes else (0,) for axis, n in enumerate(x.mesh.shape)))


def times(held: Ranges, step: int) -> Ranges:
    """Return ranges of elements that are ``step`` as large, those that meet as one."""
    return joined([(start * step, stop * step) for start, stop in held])


def joined(held: Ranges) -> Ranges:
    """Return ranges, neighbours made one, without empty ones."""
    parts: Ranges = []
    for start, stop in held:
        if start == stop:
            continue
        if parts and parts[-1][1] == start:
            parts[-1] = (parts[-1][0], stop)
        else:
            parts.append((start, stop))
    return parts


def _part(x: Layout, dim: int, start: int, stop: int) -> Held:
    def held(coordinate: tuple[int, ...]) -> Ranges:
        clipped = [(max(a, start), min(b, stop)) for a, b in x.ranges_at(dim, coordinate)]
        return joined([(a - start, b - start) for a, b in clipped if a < b])

    return held


def _parts(p: Placement, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sections and units, one a section, of a Shard of ``n`` elements."""
    assert isinstance(p, Shard)
    sections = p.sections or (n,)
    return sections, p.unit if isinstance(p.unit, tuple) else (p.unit,) * len(sections)


def scaled(x: Layout, axis: int, up: int, down: int, dim: int, extent: int) -> Iterator[Shard]:
    """Yield Shards of ``dim``, of which an element counts ``down / up`` as much as one of what ``axis`` cuts."""
    p = x.placements[axis]
    assert isinstance(p, Shard)
    sections, units = _parts(p, x.shape[p.dim])
    if down and all(n * up % down == 0 for n in sections):
        parts = tuple(n * up // down for n in sections) if p.sections else ()
        if all(u * up and u * up % down == 0 for u in units):
            yield Shard(dim, tuple(u * up // down for u in units) if parts else units[0] * up // down, parts)
        yield Shard(dim, 1, parts)
    yield from _chunked(dim, _first(x, axis, p.dim) * up // max(down, 1), extent)


def _first(x: Layout, axis: int, dim: int) -> int:
    """Return how many elements the first ranks of ``axis``, and of those that cut ``dim`` before it, hold of it."""
    cutters = x.cutters(dim)
    later = cutters[cutters.index(axis) + 1 :]
    held = (x.ranges_at(dim, c) for c in coordinates(x, later))
    return sum(stop - start for ranges in held for start, stop in ranges)


def _chunked(dim: int, chunk: int, extent: int) -> Iterator[Shard]:
    """Yield Shards whose chunks have ``chunk`` elements, or all."""
    for unit in (chunk, extent):
        if unit > 0:
            yield Shard(dim, unit)


def _sections(p: Placement, n: int, start: int, stop: int) -> Iterator[Shard]:
    """Yield Shards that may cut elements ``start`` to ``stop`` as ``p`` cuts the ``n`` elements around them."""
    assert isinstance(p, Shard)
    sections, units = _parts(p, n)
    ends = list(itertools.accumulate(sections, initial=0))
    inside = [i for i, (a, b) in enumerate(itertools.pairwise(ends)) if start <= a and b <= stop and a < b]
    if sum(sections[i] for i in inside) == stop - start and inside:
        parts = tuple(sections[i] for i in inside)
        yield Shard(p.dim, tuple(units[i] for i in inside), parts)
    yield Shard(p.dim)
    yield from _chunked(p.dim, 0, stop - start)
