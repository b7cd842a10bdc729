"""Cuts that follow their elements into an array of another shape: the Shards by which ranks hold the same there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from hpcdist.dtensor.cut import Runs, length, merged
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Placement, Shard

__all__ = [
    "carried", "coordinates", "follow", "in_chunks", "in_units", "pieces", "rescaled", "times", "together",
]  # fmt: skip


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

    def held(coordinate: tuple[int, ...]) -> Runs:
        return times(x.runs_at(dim, coordinate), new)

    def there(layout: Layout, coordinate: tuple[int, ...]) -> Runs:
        return times(layout.runs_at(dim, coordinate), old)

    axes = x.cutters(dim)
    options = [[*in_units(x, a, new, old, dim), *in_chunks(x, a, new, old, dim, shape[dim])] for a in axes]
    return follow(x, axes, shape, options, held, there)


def pieces(x: Layout, dim: int, sizes: Sequence[int]) -> list[Layout] | None:
    """Return the layouts of pieces of ``sizes`` along ``dim``, if ranks hold a chunk of each; None: they do not."""
    layouts, axes, start = [], x.cutters(dim), 0
    for n in sizes:
        stop, shape = start + n, (*x.shape[:dim], n, *x.shape[dim + 1 :])
        options = [list(_sections(x.placements[axis], x.shape[dim], start, stop)) for axis in axes]
        found = follow(x, axes, shape, options, _part(x, dim, start, stop), _along(dim))
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

    def held(coordinate: tuple[int, ...]) -> Runs:
        each = [x.runs_at(dim, coordinate) for x in parts]
        return merged([(a + start, b + start) for start, runs in zip(starts, each, strict=False) for a, b in runs])

    return follow(first, axes, (*first.shape[:dim], starts[-1], *first.shape[dim + 1 :]), options, held, _along(dim))


def follow(
    x: Layout,
    axes: Sequence[int],
    shape: Sequence[int],
    options: Sequence[Sequence[Shard]],
    held: Callable[[tuple[int, ...]], Runs],
    there: Callable[[Layout, tuple[int, ...]], Runs],
) -> dict[int, Shard] | None:
    """Return the first of ``options``, one an axis, by which all ranks hold the same of an array of ``shape`` as of x.

    ``held`` and ``there`` tell what the rank at a coordinate does.
    """
    if not axes:
        return {}
    for chosen in itertools.product(*options):
        cut = dict(zip(axes, chosen, strict=True))
        try:
            layout = Layout.of(x.mesh, [cut.get(a, Invariant()) for a in range(x.mesh.ndim)], shape, x.order)
        except ValueError:  # units or sections do not fit
            continue
        if all(there(layout, c) == held(c) for c in coordinates(x, axes)):
            return cut
    return None


def coordinates(x: Layout, axes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the coordinates of the ranks that differ along ``axes``."""
    return itertools.product(*(range(n) if axis in axes else (0,) for axis, n in enumerate(x.mesh.shape)))


def times(held: Iterable[tuple[int, int]], step: int) -> Runs:
    """Return runs of elements that are ``step`` as large, those that meet as one."""
    return merged([(start * step, stop * step) for start, stop in held])


def _along(dim: int) -> Callable[[Layout, tuple[int, ...]], Runs]:
    return lambda layout, coordinate: layout.runs_at(dim, coordinate)


def _part(x: Layout, dim: int, start: int, stop: int) -> Callable[[tuple[int, ...]], Runs]:
    def held(coordinate: tuple[int, ...]) -> Runs:
        clipped = [(max(a, start), min(b, stop)) for a, b in x.runs_at(dim, coordinate)]
        return merged([(a - start, b - start) for a, b in clipped if a < b])

    return held


def _parts(p: Placement, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sections and units, one a section, of a Shard of ``n`` elements."""
    assert isinstance(p, Shard)
    sections = p.sections or (n,)
    return sections, p.unit if isinstance(p.unit, tuple) else (p.unit,) * len(sections)


def in_units(x: Layout, axis: int, up: int, down: int, dim: int, blocks: tuple[int, int] = (1, 1)) -> Iterator[Shard]:
    """Yield the Shard of ``dim``, of which an element counts ``down / up`` as much as one of what ``axis`` cuts.

    ``blocks`` is how often the dimension that is cut, and ``dim``, are there, one after the other.
    """
    p = x.placements[axis]
    sections, units = (each * blocks[0] for each in _parts(p, x.shape[cast(Shard, p).dim]))
    num, rest = divmod(len(sections), blocks[1])
    sections, units = sections[:num], units[:num]
    if (
        rest
        or not num
        or not down
        or any(n * up % down for n in sections)
        or any(u * up % down or not u * up for u in units)
    ):
        return
    parts = tuple(n * up // down for n in sections) if num > 1 else ()
    yield Shard(dim, tuple(u * up // down for u in units) if parts else units[0] * up // down, parts)


def in_chunks(x: Layout, axis: int, up: int, down: int, dim: int, extent: int) -> Iterator[Shard]:
    """Yield Shards of ``dim`` in other units than those of ``axis``, by which a rank may hold as much."""
    p = x.placements[axis]
    assert isinstance(p, Shard)
    if p.sections and down and not any(n * up % down for n in p.sections):
        yield Shard(dim, 1, tuple(n * up // down for n in p.sections))
    yield Shard(dim)
    yield from _chunked(dim, _first(x, axis, p.dim) * up // max(down, 1), extent)


def _first(x: Layout, axis: int, dim: int) -> int:
    """Return how many elements the first ranks of ``axis``, and of those that cut ``dim`` before it, hold of it."""
    cutters = x.cutters(dim)
    later = cutters[cutters.index(axis) + 1 :]
    return sum(length(x.runs_at(dim, c)) for c in coordinates(x, later))


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
        parts = tuple(sections[i] for i in inside) if len(inside) > 1 else ()
        yield Shard(p.dim, tuple(units[i] for i in inside) if parts else units[inside[0]], parts)
    yield Shard(p.dim)
    yield from _chunked(p.dim, 0, stop - start)
