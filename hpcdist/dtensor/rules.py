"""Rules of operations that their signatures do not describe: shapes, indices, attributes that differ between ranks.

Each rule is ``(op, layouts, attrs) -> Placed``, or None where the signature says all; see ``hpcdist.dtensor.dispatch``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcdist.autograd import Op
from hpcdist.autograd.ops.elementwise import LETTERS
from hpcdist.autograd.ops.reduce import reduced
from hpcdist.dtensor.carry import carried, follow, in_chunks, in_units, pieces, times, together
from hpcdist.dtensor.choice import Choice, Placed, best
from hpcdist.dtensor.cut import Runs
from hpcdist.dtensor.dispatch import LayoutError, rule
from hpcdist.dtensor.index import Index
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Shard
from hpcdist.dtensor.signature import Row, Terms
from hpcdist.errors import explain

__all__ = ["dropout", "impossible"]


def impossible(name: str, x: Layout, dims: Sequence[int], why: str, do: str = "") -> LayoutError:
    """Return the error for the first input, of which dimensions must not be cut as they are: it names axes, ranks."""
    cut = ", ".join(f"dim {dim} is cut on {_axes(x, dim)}" for dim in dims)
    placements = [Invariant() if any(p.is_shard(dim) for dim in dims) else p for p in x.placements]
    do = f"{do}, or " * bool(do) + f"call redistribute(placements={placements}) of input 0 before"
    return LayoutError(explain(f"{name}: {why}; {cut}", got=f"input 0: {x}", do=do))


def _axes(x: Layout, dim: int) -> str:
    return " and ".join(f"{x.mesh.axis_names[a]} ({x.mesh.shape[a]} ranks)" for a in x.cutters(dim))


# ---------------------------------------------------------------- the same elements in another shape
@rule("reshape")
def _reshape(_op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed:
    (x,) = layouts
    shape = _resolved(x.shape, attrs["shape"])
    placements: list[Placement] = list(x.placements)
    stuck: list[int] = []
    for old, new in _groups(x.shape, shape):
        found = _regrouped(x, old, shape, new)
        stuck += [dim for dim in old if found is None and x.cutters(dim)]
        for axis, shard in (found or {}).items():
            placements[axis] = shard
    if stuck:
        raise impossible("reshape", x, stuck, f"what ranks hold are no chunks of a dimension of {shape}")
    result = Layout.of(x.mesh, placements, shape, x.order)
    return Placed([x], [result], {"shape": result.local_shape})


def _resolved(old: tuple[int, ...], new: Sequence[int]) -> tuple[int, ...]:
    """Return the new shape without -1."""
    rest = math.prod(n for n in new if n != -1)
    shape = tuple(math.prod(old) // max(rest, 1) if n == -1 else int(n) for n in new)
    if list(new).count(-1) > 1 or min(shape, default=0) < 0 or math.prod(shape) != math.prod(old):
        raise ValueError(explain("reshape: shape", got=tuple(new), expected=f"{math.prod(old)} elements, as {old} has"))
    return shape


def _groups(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[range, range]]:
    """Return the dimensions, before and after, that have the same elements: the smallest such groups."""
    if 0 in old:
        return _groups_of_nothing(old, new)
    found: list[tuple[range, range]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        first, second = i, j
        i, j = _matched(old, new, i, j)
        if found and (i == first or j == second):  # extents of one that have gone, or are new
            (first, second) = found[-1][0].start, found.pop()[1].start
        found.append((range(first, i), range(second, j)))
    return found


def _groups_of_nothing(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[range, range]]:
    """Return the leading dimensions that stay as they are one by one, and the others, with an extent of 0, in one."""
    same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    if old != new and not (0 in old[same:] and 0 in new[same:]):
        same = old.index(0)
    groups = [(range(i, i + 1), range(i, i + 1)) for i in range(same)]
    return groups if old == new else [*groups, (range(same, len(old)), range(same, len(new)))]


def _matched(old: tuple[int, ...], new: tuple[int, ...], i: int, j: int) -> tuple[int, int]:
    """Return where the group that begins with ``old[i]`` and ``new[j]`` ends."""
    stops = [min(i + 1, len(old)), min(j + 1, len(new))]
    while (a := math.prod(old[i : stops[0]])) != (b := math.prod(new[j : stops[1]])):
        stops[a > b] += 1
    return stops[0], stops[1]


def _regrouped(x: Layout, old: range, shape: tuple[int, ...], new: range) -> dict[int, Shard] | None:
    """Return how the axes that cut one of the ``old`` dimensions cut one of the ``new`` ones; None: they cannot."""
    cut = [dim for dim in old if x.cutters(dim)]
    if not cut:
        return {}
    axes, before = x.cutters(cut[0]), _Group(x.shape, old, cut[0])
    targets = [_Group(shape, new, dim) for dim in new]
    if len(cut) > 1 or before.blocks > _MOST_BLOCKS:
        targets = []
    for in_the_same, target in itertools.product((True, False), [t for t in targets if 0 < t.blocks <= _MOST_BLOCKS]):
        up, down, dim = before.step, target.step, target.dim
        if in_the_same:
            options = [list(in_units(x, a, up, down, dim, (before.blocks, target.blocks))) for a in axes]
        else:
            options = [list(in_chunks(x, a, up, down, dim, shape[dim])) for a in axes]
        found = follow(x, axes, shape, options, functools.partial(before.held, x), target.held)
        if found is not None:
            return found
    return None


_MOST_BLOCKS = 64
"""How often a dimension that is cut may be there, one after the other: its Shard has as many sections."""


class _Group(NamedTuple):
    """Dimensions that have the same elements before and after, one of which is cut."""

    shape: tuple[int, ...]
    dims: range
    dim: int

    @property
    def step(self) -> int:
        """How many elements of the group an element of the dimension is."""
        return math.prod(self.shape[self.dim + 1 : self.dims.stop])

    @property
    def blocks(self) -> int:
        """How often the dimension is there, one after the other."""
        return math.prod(self.shape[self.dims.start : self.dim])

    def held(self, x: Layout, coordinate: tuple[int, ...]) -> Runs:
        """Return which elements of the group a rank holds."""
        held, n = x.runs_at(self.dim, coordinate), self.shape[self.dim]
        return times([(i * n + a, i * n + b) for i in range(self.blocks) for a, b in held], self.step)


@rule("broadcast_to")
def _broadcast_to(_op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed | None:
    (x,) = layouts
    shape = tuple(attrs["shape"])
    new = len(shape) - len(x.shape)
    if new < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[new:], strict=True)):
        raise ValueError(explain("broadcast_to: shape", got=shape, expected=f"one that {x.shape} stretches to"))
    result = carried(x, {d: d + new for d, n in enumerate(x.shape) if n == shape[d + new]}, shape)
    return None if result is None else Placed([x], [result], {"shape": result.local_shape})


# ---------------------------------------------------------------- element by element
@rule("dropout")
def dropout(_: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed:  # noqa: ARG001 (every rule has them)
    """Draw by the place in the whole array: one mask in every layout. The terms of a sum are masked alike."""
    held = _finished(layouts[0], (Partial("sum"), Partial("avg")))
    return Placed([held], [held], {"index": held.flat_index})


@rule("cast")
def _cast(_op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed:
    """Finish what a cast would not let pass: sums before one to integers, which rounds."""
    held = _finished(layouts[0], (Partial("sum"), Partial("avg")) if attrs["dtype"].kind in "fcV" else ())
    return Placed([held], [held], {})


def _finished(x: Layout, passing: tuple[Partial, ...]) -> Layout:
    """Return the layout with combinations over ranks finished, except for those that pass."""
    return x.placed([Invariant() if isinstance(p, Partial) and p not in passing else p for p in x.placements])


# ---------------------------------------------------------------- indices
@rule("getitem")
def _getitem(_op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed:
    (x,) = layouts
    index = Index.of(attrs["index"], x.shape)
    _check_cuts("getitem", x, index.moved)
    result = carried(x, index.moved, index.shape)
    assert result is not None
    return Placed([x], [result], {"index": index.parts})


@rule("put")
def _put(_op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed | None:
    (x,) = layouts
    if any(isinstance(p, Partial) and p.op not in ("sum", "avg") for p in x.placements):
        return None
    index = Index.of(attrs["index"], tuple(attrs["shape"]))
    back = {place: dim for dim, place in index.moved.items()}
    _check_cuts("put", x, back)
    result = carried(x, back, attrs["shape"])
    assert result is not None
    return Placed([x], [result], {"index": index.parts, "shape": result.local_shape})


def _check_cuts(name: str, x: Layout, moved: Mapping[int, int]) -> None:
    cut = [dim for dim in range(len(x.shape)) if x.cutters(dim) and dim not in moved]
    if cut:
        raise impossible(name, x, cut, "elements are picked that other ranks may hold")


# ---------------------------------------------------------------- joining and splitting along a dimension that is cut
@rule("split")
def _split(_op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed | None:
    (x,) = layouts
    (dim,), sizes = reduced(len(x.shape), attrs["dim"]), tuple(attrs["sizes"])
    if sum(sizes) != x.shape[dim] or min(sizes, default=0) < 0:
        raise ValueError(explain("split: sizes", got=sizes, expected=f"numbers that add up to {x.shape[dim]}"))
    found = pieces(x, dim, sizes)
    if found is None:
        why = f"what ranks hold are not chunks of each of the pieces {sizes}"
        raise impossible("split", x, [dim], why, f"cut it by Shard({dim}, sections={sizes})")
    return Placed([x], list(found), {"sizes": tuple(piece.local_shape[dim] for piece in found)})


@rule("cat")
def _cat(op: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed | None:
    """Where one is cut along the dimension, cut all: the result has a section for each."""
    ndim, others = len(layouts[0].shape), {len(x.shape) for x in layouts[1:]}
    if not ndim or others - {ndim} or not -ndim <= attrs["dim"] < ndim:
        return None
    dim = attrs["dim"] % ndim
    axes = {axis for x in layouts for axis in x.cutters(dim)}
    names = tuple(LETTERS[:ndim])
    fixed = {}
    for axis in axes:
        own = tuple(p if (p := x.placements[axis]).is_shard(dim) else Shard(dim) for x in layouts)
        fixed[axis] = Row(own, (Shard(dim),), names[dim])
    terms = Terms((names,) * len(layouts), (names,))
    found = best(Choice.by(terms, op.linear, layouts, fixed=fixed)) if axes else None
    if found is None or found.way is None:
        return None
    cuts = together(found.inputs, dim)
    if cuts is None:
        return None
    placements = [cuts.get(axis, row.outputs[0]) for axis, row in enumerate(found.way[1].rows)]
    extent = sum(x.shape[dim] for x in layouts)
    shape = (*layouts[0].shape[:dim], extent, *layouts[0].shape[dim + 1 :])
    return found._replace(outputs=[Layout.of(layouts[0].mesh, placements, shape, found.way[1].order)])
