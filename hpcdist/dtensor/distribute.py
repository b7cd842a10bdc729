"""From plain arrays to distributed ones: what ranks hold already, or what one rank sends to all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hpcdist.array import Array, is_array, namespace, to_host
from hpcdist.autograd import Tensor, no_grad, tensor
from hpcdist.comm.agreement import on_every_rank
from hpcdist.comm.mesh import DeviceMesh, current_mesh
from hpcdist.dtensor.cut import cut, length, take
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard
from hpcdist.dtensor.target import with_gradients
from hpcdist.dtensor.tensor import DTensor, relaid
from hpcdist.errors import explain

__all__ = ["as_leaf", "chosen", "distribute_tensor", "from_local", "placed_as"]

Place: TypeAlias = tuple[int, ...]


def chosen(
    what: str, mesh: DeviceMesh | None, placements: Sequence[Placement] | None
) -> tuple[DeviceMesh, Sequence[Placement]]:
    """Return the mesh, or else the current one, and the placements, or else Invariant on every axis.

    Raises
    ------
    ValueError
        If there is no mesh.
    """
    mesh = current_mesh() if mesh is None else mesh
    if mesh is None:
        raise ValueError(explain(f"{what}: device_mesh", got=None, do="pass one, or call it in a `with mesh:` block"))
    return mesh, (Invariant(),) * mesh.ndim if placements is None else placements


def _as_tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else Tensor(x) if is_array(x) else tensor(x)


# ---------------------------------------------------------------- what ranks hold already
def from_local(
    local: Any,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    run_check: bool = False,
    shape: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
    grad_placements: Sequence[Placement] | None = None,
) -> DTensor:
    """Return the distributed tensor of what every rank holds; see :meth:`DTensor.from_local`.

    Collective over the mesh where a placement is a Shard and ``shape`` is not given, or with ``run_check``: one small
    exchange.
    """
    mesh, placements = chosen("from_local", device_mesh, placements)
    if run_check or (shape is None and any(isinstance(p, Shard) for p in placements)):
        layout = _agreed_layout(local, mesh, placements, shape, order, run_check)
    else:
        layout = Layout.of(mesh, placements, _as_tensor(local).shape if shape is None else shape, order)
    if grad_placements is None:
        return DTensor(_as_tensor(local), layout)
    return relaid(DTensor(_as_tensor(local), with_gradients("from_local", layout, grad_placements)), layout)


class _Held(NamedTuple):
    """What a rank tells of what it holds."""

    shape: tuple[int, ...]
    dtype: str
    placements: tuple[Placement, ...]
    order: tuple[int, ...] | None
    digest: bytes


def _agreed_layout(
    local: Any,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: Sequence[int] | None,
    order: Sequence[int] | None,
    run_check: bool,
) -> Layout:
    """Return one layout on every rank, or raise one error. Collective over the mesh."""

    def tell() -> _Held:
        x = _as_tensor(local)
        plain = [Shard(p.dim) if isinstance(p, Shard) else p for p in placements]
        Layout.of(mesh, plain, x.shape, order)  # raises if they are wrong for any extents
        counted = tuple(p.counted(x.ndim) if isinstance(p, Shard) else p for p in placements)
        digest = hashlib.blake2b(to_host(x.data).tobytes()).digest() if run_check else b""
        return _Held(x.shape, str(x.dtype), counted, None if order is None else tuple(order), digest)

    everyone = on_every_rank(mesh.get_mesh_group(), tell)
    held = dict(zip(np.ndindex(mesh.shape), everyone, strict=True))
    _check_alike(held)
    agreed = everyone[0].placements
    layout = Layout.of(mesh, agreed, _whole_shape(mesh, agreed, held) if shape is None else shape, order)
    _check_shapes(layout, held)
    if run_check:
        _check_copies(layout, held)
    return layout


def _check_alike(held: dict[Place, _Held]) -> None:
    (first, expected), *others = held.items()
    for place, told in others:
        for what, mine, theirs in (
            ("number of dimensions", len(told.shape), len(expected.shape)),
            ("dtype", told.dtype, expected.dtype),
            ("placements", told.placements, expected.placements),
            ("order", told.order, expected.order),
        ):
            if mine != theirs:
                text = f"from_local: {what} on the rank at {place}"
                raise ValueError(explain(text, got=mine, expected=f"{theirs}, as on the rank at {first}"))


def _whole_shape(mesh: DeviceMesh, placements: Sequence[Placement], held: dict[Place, _Held]) -> tuple[int, ...]:
    """Return the shape of the whole: along each dimension the sum over the axes that cut it."""
    shape = []
    for dim in range(len(held[(0,) * mesh.ndim].shape)):
        cutters = [n if p.is_shard(dim) else 1 for n, p in zip(mesh.shape, placements, strict=True)]
        shape.append(sum(held[place].shape[dim] for place in np.ndindex(*cutters)))
    return tuple(shape)


def _check_shapes(layout: Layout, held: dict[Place, _Held]) -> None:
    for place, told in held.items():
        expected = tuple(length(layout.runs_at(dim, place)) for dim in range(len(layout.shape)))
        if told.shape != expected:
            what = f"from_local: what the rank at {place} holds of {layout}"
            do = "cut by the ceil rule, ceil(n / ranks) as long as there are any; distribute_tensor does"
            raise ValueError(explain(what, got=told.shape, expected=expected, do=do))


def _check_copies(layout: Layout, held: dict[Place, _Held]) -> None:
    """Raise if ranks that should hold the same do not, bit for bit."""
    copied = [isinstance(p, (Replicate, Invariant)) for p in layout.placements]
    for place, told in held.items():
        first = tuple(0 if is_copy else c for c, is_copy in zip(place, copied, strict=True))
        if told.digest != held[first].digest:
            what = f"from_local: what the rank at {place} holds of {layout}"
            raise ValueError(explain(what, got="other values", expected=f"a copy of those of the rank at {first}"))


# ---------------------------------------------------------------- what one rank sends to all
def distribute_tensor(
    tensor: Any,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    src_data_rank: int | None = 0,
    order: Sequence[int] | None = None,
) -> DTensor:
    """Return a distributed tensor with the values that one rank has. Collective over the mesh.

    Shards are scattered, axis by axis, before what is left is broadcast, so that no rank gets more than it keeps or
    hands on. With ``src_data_rank=None`` communicates with nobody. The result shares no memory with ``tensor``.

    Parameters
    ----------
    tensor : array or leaf Tensor
        The whole, of the same shape and dtype on every rank; its values count on the source only. The result is a leaf,
        too, that needs a gradient if this does.
    device_mesh : DeviceMesh, optional
        Default: that of the ``with`` block.
    placements : sequence of Placement, optional
        One an axis; default: Invariant. Of a Partial (sum or avg) coordinate 0 keeps the values, the others zeros.
    src_data_rank : int, optional
        Whose values count: a position in the mesh, the last axis fastest. None: each rank takes its part of its own.
    order : sequence of int, optional
        See :class:`Layout`.

    Raises
    ------
    ValueError
        The same on every rank: for arguments that differ between ranks, a tensor that was computed, one that is
        distributed in another way, or a Partial that is not linear.
    DistError
        On a rank that is not in the mesh.
    """
    mesh, placements = chosen("distribute_tensor", device_mesh, placements)
    if isinstance(tensor, DTensor):
        return _unchanged(tensor, mesh, placements, order)

    def checked() -> Layout:
        x = _as_tensor(tensor)
        if not x.is_leaf:
            do = "say DTensor.from_local for what was computed, or detach() it"
            raise ValueError(explain("distribute_tensor: tensor", got="a computed one", expected="a leaf", do=do))
        return placed_as(mesh, placements, x.shape, order)

    if src_data_rank is None:
        target = checked()
        held = target.settled.part_of(_as_tensor(tensor).data)
    else:
        target = _agreed_target(checked, mesh, tensor, src_data_rank)
        root = tuple(map(int, np.unravel_index(src_data_rank, mesh.shape)))
        held = _sent(_as_tensor(tensor).data, target.settled, root)
    return as_leaf(held, target, _as_tensor(tensor).requires_grad)


def placed_as(
    mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int], order: Sequence[int] | None
) -> Layout:
    """Return the layout of a new array.

    Raises
    ------
    ValueError
        For a Partial that is not linear: its parts cannot be chosen.
    """
    layout = Layout.of(mesh, placements, shape, order)
    for p in layout.placements:
        if isinstance(p, Partial) and p.op not in ("sum", "avg"):
            raise ValueError(explain("placements of a new array", got=p, expected='Partial("sum") or Partial("avg")'))
    return layout


def as_leaf(held: Array, target: Layout, requires_grad: bool) -> DTensor:
    """Return a leaf of what this rank holds while nothing is Partial; of what is, coordinate 0 keeps the values."""
    with no_grad():
        moved = relaid(DTensor(Tensor(held), target.settled), target)
    return DTensor(Tensor(moved.data, requires_grad), target)


def _unchanged(x: DTensor, mesh: DeviceMesh, placements: Sequence[Placement], order: Sequence[int] | None) -> DTensor:
    if x.device_mesh != mesh or Layout.of(mesh, placements, x.shape, order) is not x.layout:
        got, expected = f"{list(placements)} on {mesh}", f"{list(x.placements)} on {x.device_mesh}, as it is"
        do = "say redistribute() for another layout"
        raise ValueError(explain("distribute_tensor: it is distributed already", got=got, expected=expected, do=do))
    return x


def _agreed_target(checked: Callable[[], Layout], mesh: DeviceMesh, tensor: Any, source: int) -> Layout:
    """Return the layout if all ranks say the same, or raise one error. Collective over the mesh."""

    def tell() -> tuple[Any, ...]:
        layout = checked()
        if not 0 <= source < mesh.size():
            expected = f"a position in the mesh, 0 to {mesh.size() - 1}, or None"
            raise ValueError(explain("distribute_tensor: src_data_rank", got=source, expected=expected))
        return layout.shape, str(_as_tensor(tensor).dtype), layout.placements, layout.order, source

    everyone = on_every_rank(mesh.get_mesh_group(), tell)
    for place, told in enumerate(everyone):
        if told != everyone[0]:
            text = f"distribute_tensor: shape, dtype, placements, order and source on rank {place} of the mesh"
            raise ValueError(explain(text, got=told, expected=f"{everyone[0]}, as on rank 0"))
    return checked()


def _sent(x: Array, layout: Layout, root: Place) -> Array:
    """Return what this rank holds of the root's ``x``. Collective over the mesh.

    An axis after the other: those take part that have, on the axes still to come, the place of the root.
    """
    shape, here = list(layout.shape), layout.coordinate
    for axis, waiting in _turns(layout):
        placement, group = layout.placements[axis], layout.groups[axis]
        takes_part = all(here[a] == root[a] for a in waiting)
        sends = here[axis] == root[axis]
        if isinstance(placement, Shard):
            parts = cut(placement, shape[placement.dim], group.size)
            shape[placement.dim] = parts.sizes[group.rank]
            if takes_part:
                offered = [take(x, placement.dim, runs) for runs in parts.runs] if sends else None
                x = group.scatter(offered, namespace(x).empty(shape, x.dtype), root[axis])
        elif takes_part:
            out = namespace(x).empty(shape, x.dtype)
            x = group.broadcast(x if sends else out, root[axis], out=out)
    return x


def _turns(layout: Layout) -> Iterator[tuple[int, list[int]]]:
    """Yield axes, those that cut first, and after each one the axes still to come."""
    cutting = [axis for axis in layout.order if isinstance(layout.placements[axis], Shard)]
    waiting = [*cutting, *(axis for axis in layout.order if axis not in cutting)]
    while waiting:
        axis = waiting.pop(0)
        yield axis, list(waiting)
