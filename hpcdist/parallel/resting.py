"""How a parameter rests on a rank: a shard, of what other strategies have left of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

from hpcdist.array import Array, to_host
from hpcdist.autograd import Tensor, empty
from hpcdist.comm import DeviceMesh
from hpcdist.dtensor import DTensor, Invariant, Layout, Placement, Shard
from hpcdist.dtensor.cut import cut, take
from hpcdist.nn.deferral import Deferred
from hpcdist.parallel.drawing import drawn
from hpcdist.parallel.spread import Piece

__all__ = ["Chooses", "Resting", "computing", "rest", "resting_layout", "whole_shape"]

Chooses = Callable[[Any], Shard | None]
"""Says which dimension of a parameter is cut."""

_made: WeakKeyDictionary[Tensor, ref[DTensor]] = WeakKeyDictionary()
"""What was made of tensors that other slots may hold still: they are tied."""


class Resting:
    """A parameter that is sharded.

    Attributes
    ----------
    parameter : DTensor
        What is in the slot between uses.
    piece : Piece
        As messages see it.
    is_new : bool
        Whether it was made for this unit: one that is tied to another unit's was not.
    like : array, (0,)
        Where it is computed with.
    """

    def __init__(self, parameter: DTensor, mesh: DeviceMesh, *, is_new: bool, like: Array) -> None:
        shard, shape = _shard_of(parameter.layout, mesh)
        self.parameter, self.is_new, self.like = parameter, is_new, like
        self.piece = Piece.of(parameter.local, shape, shard, mesh.shape[-1])


def rest(p: Any, mesh: DeviceMesh, chooses: Chooses, *, offloads: bool) -> Resting:
    """Return a parameter as it rests: the tensor is the one that it was, unless it was deferred."""
    made = _tied(p)
    if made is not None and set(mesh.axis_names) <= set(made.device_mesh.axis_names):
        return Resting(made, mesh, is_new=False, like=_beside(made.data))
    layout = resting_layout(p, mesh, chooses)
    if isinstance(p, Deferred):
        leaf = p.stored(drawn(p, layout))
        like = _beside(leaf.data)
    else:
        leaf = p.local if isinstance(p, DTensor) else p  # an optimizer may have it already
        like = _beside(leaf.data)
        for name in ("data", "grad"):
            whole = getattr(leaf, name)
            if whole is not None:
                part = _cut(layout, mesh, whole)
                setattr(leaf, name, to_host(part) if offloads else part)
    resting = DTensor(leaf, layout)
    for key in {leaf, p.local if isinstance(p, DTensor) else p}:
        _made[key] = ref(resting)
    return Resting(resting, mesh, is_new=True, like=like)


def _beside(x: Array) -> Array:
    """Return an array without elements where ``x`` is: it does not keep the memory of ``x``."""
    return empty((0,), x.dtype, x)


def whole_shape(p: Any) -> tuple[int, ...]:
    """Return the shape of the whole parameter."""
    made = _tied(p)
    shape: tuple[int, ...] = p.shape if made is None else made.shape
    return shape


def computing(p: DTensor, mesh: DeviceMesh) -> Layout | None:
    """Return how a gathered parameter is laid out on the axes that are not in ``mesh``; None: it is plain."""
    others = [axis for axis, name in enumerate(p.device_mesh.axis_names) if name not in mesh.axis_names]
    if not others:
        return None
    part = p.device_mesh[tuple(p.device_mesh.axis_names[axis] for axis in others)]
    order = sorted(range(len(others)), key=lambda i: p.layout.order.index(others[i]))
    return Layout.of(part, [p.placements[axis] for axis in others], p.shape, order)


def _tied(p: Any) -> DTensor | None:
    """Return what was made of a parameter for another unit; a distributed one is that itself."""
    found = _made.get(p.local if isinstance(p, DTensor) else p)
    made = None if found is None else found()
    return p if made is None and isinstance(p, DTensor) else made


def resting_layout(p: Any, mesh: DeviceMesh, chooses: Chooses) -> Layout:
    """Return shards along the last axis of ``mesh``, copies along one before it, and else what there is."""
    shard: Placement = Invariant()
    if p.ndim:
        shard = chooses(p) or Shard(0)
    mine = (*[Invariant()] * (mesh.ndim - 1), shard)
    if not isinstance(p, DTensor):
        return Layout.of(mesh, mine, p.shape)
    joined = DeviceMesh.concatenate([mesh, p.device_mesh])
    inner = [mesh.ndim + axis for axis in p.layout.order]
    return Layout.of(joined, (*mine, *p.placements), p.shape, (*inner, *range(mesh.ndim)))


def _shard_of(layout: Layout, mesh: DeviceMesh) -> tuple[Shard | None, tuple[int, ...]]:
    """Return how the shard axis cuts, and the shape of what its ranks hold together."""
    axis = layout.mesh.axis_names.index(mesh.axis_names[-1])
    placement = layout.placements[axis]
    return placement if isinstance(placement, Shard) else None, layout.at(axis, Invariant()).local_shape


def _cut(layout: Layout, mesh: DeviceMesh, whole: Array) -> Array:
    """Return a copy of this rank's shard of what the ranks of the shard axis hold together."""
    shard, shape = _shard_of(layout, mesh)
    if shard is None:
        return whole.copy()
    size, here = mesh.shape[-1], mesh.get_local_rank(mesh.ndim - 1)
    return take(whole, shard.dim, cut(shard, shape[shard.dim], size).runs[here]).copy()
