"""Exchange what ranks hold where several axes cut an array, and no axis can be moved by itself: one all-to-all."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd import define
from hpcdist.comm.communicator import Communicator
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Shard

__all__ = ["EXCHANGE", "exchange"]


def exchange(x: Array, src: Layout, dst: Layout) -> Array:
    """Take an array from one layout to another in which the same axes cut it.

    Collective over the axes that do. Each rank sends what others shall hold, and nothing else.
    """
    axes = tuple(axis for axis, p in enumerate(src.placements) if isinstance(p, Shard))
    if all(src.mesh.shape[axis] == 1 for axis in axes):
        return x
    group, places = _group(src, axes)
    xp = namespace(x)
    mine = [[there.indices_at(dim, src.coordinate) for dim in range(x.ndim)] for there in (src, dst)]
    parts, shapes, into = [], [], []
    for place in places:
        wanted = [dst.indices_at(dim, place) for dim in range(x.ndim)]
        parts.append(x[_grid([_where(held, w) for held, w in zip(mine[0], wanted, strict=True)])])
        offered = [src.indices_at(dim, place) for dim in range(x.ndim)]
        common = [o[np.isin(o, kept)] for o, kept in zip(offered, mine[1], strict=True)]
        shapes.append(tuple(map(len, common)))
        into.append(_grid([_positions(kept, c) for kept, c in zip(mine[1], common, strict=True)]))
    received = group.all_to_all(parts, shapes)
    out: Array = xp.empty(dst.local_shape, x.dtype)
    for place, part in zip(into, received, strict=True):
        out[place] = part
    return out


def _group(layout: Layout, axes: tuple[int, ...]) -> tuple[Communicator, list[tuple[int, ...]]]:
    """Return the ranks that differ from this one along ``axes`` only, and their coordinates, in their order."""
    mesh = layout.mesh
    names = tuple(mesh.axis_names[axis] for axis in axes)
    group = mesh.get_mesh_group() if len(axes) == mesh.ndim else mesh[names].get_mesh_group()
    return group, layout.places_along(axes)


def _where(held: Array, wanted: Array) -> Array:
    """Return the positions in ``held`` of what is wanted, too."""
    return np.flatnonzero(np.isin(held, wanted))


def _positions(kept: Array, values: Array) -> Array:
    """Return where in ``kept`` each of ``values``, all of which are there, is."""
    order = np.argsort(kept, kind="stable")
    return order[np.searchsorted(kept, values, sorter=order)]


def _grid(indices: list[Array]) -> Any:
    """Return the index of a box: by slices where indices are neighbours, which copies faster."""
    slices = [_as_slice(i) for i in indices]
    return tuple(slices) if all(s is not None for s in slices) else np.ix_(*indices)


def _as_slice(indices: Array) -> slice | None:
    if not len(indices):
        return slice(0, 0)
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1) if last - first + 1 == len(indices) and (np.diff(indices) == 1).all() else None


def _forward(x: Array, *, src: Layout, dst: Layout) -> Any:
    return exchange(x, src, dst), ()


def _vjp(into: Any, grads: Any, _saved: Any, *, src: Layout, dst: Layout) -> None:
    into[0].give(exchange(grads[0], dst, src))


EXCHANGE = define("exchange", _forward, _vjp)
