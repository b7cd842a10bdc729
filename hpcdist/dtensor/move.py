"""One table for every change of placement on one mesh axis; it is its own transpose.

=================== ================ ======================= ==================
from                to Shard         to Replicate, Invariant to Partial
=================== ================ ======================= ==================
Shard               all_to_all       all_gather              own slice in zeros
Replicate,Invariant own slice        the same array          coordinate 0 keeps
Partial             reduce_scatter   all_reduce              the same array
=================== ================ ======================= ==================

With the duals Shard - Shard, Partial - Replicate, Invariant - Invariant and Partial("avg") - Share, the gradient of
``move(src, dst)`` is ``move(dual(dst), dual(src))``: see :func:`transpose`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hpcdist.array import Array, namespace
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.work import Done, Then, Work
from hpcdist.dtensor.placements import (
    Invariant,
    Partial,
    Placement,
    Replicate,
    Shard,
    Share,
    chunk_range,
    chunk_sizes,
    dual,
    local_shape,
)
from hpcdist.errors import explain

__all__ = ["imove", "move", "transpose"]


def transpose(src: Placement, dst: Placement) -> tuple[Placement, Placement]:
    """Return the move that gradients make when the array moves from ``src`` to ``dst``.

    Raises
    ------
    ValueError
        If one is a Partial that is not linear.
    """
    return dual(dst), dual(src)


def move(x: Array, src: Placement, dst: Placement, comm: Communicator, shape: Sequence[int]) -> Array:
    """Change how the ranks of ``comm`` hold an array.

    Collective over ``comm``, unless the move is free: see the table of this module. Moves what the collective says.

    Parameters
    ----------
    x : array, shape ``local_shape(shape, src, comm.size, comm.rank)``
        What this rank holds. Not modified; a move that changes nothing returns it.
    src, dst : Placement
        How the array is held, and how it shall be.
    comm : Communicator
        The ranks of one mesh axis, in the order of their coordinates.
    shape : sequence of int
        Shape of the whole array, as seen on this axis.

    Returns
    -------
    array, shape ``local_shape(shape, dst, comm.size, comm.rank)``

    Raises
    ------
    ValueError
        If ``x`` has another shape, or for a move to a Partial from or to one that is not linear.
    """
    return imove(x, src, dst, comm, shape).wait()


def imove(x: Array, src: Placement, dst: Placement, comm: Communicator, shape: Sequence[int]) -> Work[Array]:
    """Post :func:`move`. Collective over ``comm``, unless the move is free."""
    src, dst = (p.counted(len(shape)) if isinstance(p, Shard) else p for p in (src, dst))
    expected = local_shape(shape, src, comm.size, comm.rank)
    if x.shape != expected:
        what = f"move: what rank {comm.rank} of {comm.size} holds by {src} of an array of {tuple(shape)}"
        raise ValueError(explain(what, got=f"shape {x.shape}", expected=f"shape {expected}"))
    return Done(x) if src == dst else _post(_Move(x, src, dst, comm, tuple(shape)))


class _Move(NamedTuple):
    x: Array
    src: Placement
    dst: Placement
    comm: Communicator
    shape: tuple[int, ...]

    def by(self, src: Placement, dst: Placement) -> Work[Array]:
        """Post another move of the same array."""
        return imove(self.x, src, dst, self.comm, self.shape)

    def sizes(self, dim: int) -> list[int]:
        """Return how much of ``dim`` each rank holds where it is sharded."""
        return chunk_sizes(self.shape[dim], self.comm.size)

    def part(self, dim: int, coord: int) -> tuple[slice, ...]:
        """Return the index of what ``coord`` holds where ``dim`` is sharded."""
        return (*(slice(None),) * dim, slice(*chunk_range(self.shape[dim], self.comm.size, coord)))


def _post(m: _Move) -> Work[Array]:
    """Lead placements that are scaled by the number of ranks back to those that are not, and look those up."""
    size = m.comm.size
    if isinstance(m.src, Share):
        return m._replace(x=m.x * size).by(Replicate(), m.dst)
    if isinstance(m.dst, Share):
        return Then(m.by(m.src, Replicate()), lambda y: y / size)
    if isinstance(m.dst, Partial):
        return _to_partial(m, m.dst)
    return _TABLE[type(m.src), type(m.dst)](m)


def _to_partial(m: _Move, dst: Partial) -> Work[Array]:
    transpose(m.src, dst)  # raises unless both are linear
    size = m.comm.size
    if m.src == Partial("avg"):
        return Done(m.x / size)
    if dst == Partial("sum"):
        return _TABLE[type(m.src), Partial](m)
    if m.src in (Replicate(), Invariant()):
        return Done(m.x)
    return Then(m.by(m.src, Partial("sum")), lambda y: y * size)


# ---- the table
def _same(m: _Move) -> Work[Array]:
    return Done(m.x)


def _gather(m: _Move) -> Work[Array]:
    dim = _dim(m.src)
    return m.comm.iall_gather(m.x, dim, sizes=m.sizes(dim))


def _exchange(m: _Move) -> Work[Array]:
    old, new = _dim(m.src), _dim(m.dst)
    shapes = [list(local_shape(m.shape, m.dst, m.comm.size, m.comm.rank)) for _ in range(m.comm.size)]
    for extents, extent in zip(shapes, m.sizes(old), strict=True):
        extents[old] = extent
    parts = [m.x[m.part(new, coord)] for coord in range(m.comm.size)]
    work = m.comm.iall_to_all(parts, [tuple(extents) for extents in shapes])
    return Then(work, lambda received: namespace(m.x).concatenate(received, axis=old))


def _pad(m: _Move) -> Work[Array]:
    whole = namespace(m.x).zeros(m.shape, m.x.dtype)
    whole[m.part(_dim(m.src), m.comm.rank)] = m.x
    return Done(whole)


def _finish(m: _Move) -> Work[Array]:
    return m.comm.iall_reduce(m.x, _op(m.src))


def _finish_slice(m: _Move) -> Work[Array]:
    dim = _dim(m.dst)
    return m.comm.ireduce_scatter(m.x, dim, _op(m.src), sizes=m.sizes(dim))


def _slice(m: _Move) -> Work[Array]:
    # a copy: a view would keep the whole array alive
    return Done(m.x[m.part(_dim(m.dst), m.comm.rank)].copy())


def _first(m: _Move) -> Work[Array]:
    return Done(m.x if m.comm.rank == 0 else namespace(m.x).zeros_like(m.x))


_TABLE: dict[tuple[type[Placement], type[Placement]], Callable[[_Move], Work[Array]]] = {
    (Shard, Shard): _exchange,
    (Shard, Replicate): _gather,
    (Shard, Invariant): _gather,
    (Shard, Partial): _pad,
    (Replicate, Shard): _slice,
    (Replicate, Invariant): _same,
    (Replicate, Partial): _first,
    (Invariant, Shard): _slice,
    (Invariant, Replicate): _same,
    (Invariant, Partial): _first,
    (Partial, Shard): _finish_slice,
    (Partial, Replicate): _finish,
    (Partial, Invariant): _finish,
}


def _dim(placement: Placement) -> int:
    assert isinstance(placement, Shard)
    return placement.dim


def _op(placement: Placement) -> ReduceOp:
    assert isinstance(placement, Partial)
    return ReduceOp(placement.op)
