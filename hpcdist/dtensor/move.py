"""One table for every change of placement on one mesh axis; it is its own transpose.

=================== ================ ======================= ==================
from                to Shard         to Replicate, Invariant to Partial
=================== ================ ======================= ==================
Shard               all_to_all       all_gather              own slice in zeros
Replicate,Invariant own slice        the same array          coordinate 0 keeps
Partial             reduce_scatter   all_reduce              the same array
=================== ================ ======================= ==================

A Shard may count in units and cut sections each for itself; elements that the collective lines up in another order than
the whole array are put in order before it or after it, with one copy. Two Shards of one dimension that cut it the same
way for this extent and number of ranks are the same.

On an axis of one rank every placement is the whole array, and every move is free.

With the duals Shard - Shard, Partial - Replicate, Invariant - Invariant and Partial("avg") - Share, the gradient of
``move(src, dst)`` is ``move(dual(dst), dual(src))``: see :func:`transpose`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from hpcdist.array import Array, namespace
from hpcdist.autograd import empty
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.work import Done, Then, Work
from hpcdist.dtensor.cut import Cut, cut, join, put, shared, take
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard, Share, dual, local_shape
from hpcdist.errors import explain

__all__ = ["imove", "move", "transpose"]


_SUM, _AVG = Partial("sum"), Partial("avg")


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
    src, dst, expected = _checked(src, dst, comm.size, comm.rank, tuple(shape))
    if x.shape != expected:
        what = f"move: what rank {comm.rank} of {comm.size} holds by {src} of an array of {tuple(shape)}"
        raise ValueError(explain(what, got=f"shape {x.shape}", expected=f"shape {expected}"))
    return Done(x) if src == dst or comm.size == 1 else _post(_Move(x, src, dst, comm, tuple(shape)))


@lru_cache(maxsize=1024)
def _checked(
    src: Placement, dst: Placement, size: int, rank: int, shape: tuple[int, ...]
) -> tuple[Placement, Placement, tuple[int, ...]]:
    """Return placements whose dimensions are counted from the front, and the shape of what this rank holds."""
    src, dst = (p.counted(len(shape)) if isinstance(p, Shard) else p for p in (src, dst))
    if isinstance(dst, Shard):
        dst.sizes(shape[dst.dim], size)  # raises if units do not fit
    if isinstance(dst, (Partial, Share)) and src != dst:
        transpose(src, dst)  # raises unless both are linear
    return src, dst, local_shape(shape, src, size, rank)


class _Move(NamedTuple):
    x: Array
    src: Placement
    dst: Placement
    comm: Communicator
    shape: tuple[int, ...]

    def by(self, src: Placement, dst: Placement) -> Work[Array]:
        """Post another move of the same array."""
        return imove(self.x, src, dst, self.comm, self.shape)

    def cut(self, placement: Placement) -> tuple[int, Cut]:
        """Return which dimension is sharded, and what each rank holds of it."""
        assert isinstance(placement, Shard)
        return placement.dim, cut(placement, self.shape[placement.dim], self.comm.size)

    def extents(self, *extents: tuple[int, int]) -> tuple[int, ...]:
        """Return the shape of the whole array with other extents, each given as (dim, extent)."""
        changed = dict(extents)
        return tuple(changed.get(dim, extent) for dim, extent in enumerate(self.shape))

    def empty(self, shape: tuple[int, ...]) -> Array:
        """Return memory for what arrives, of the pool: a steady step touches no fresh page."""
        return empty(shape, self.x.dtype, self.x)


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
    size = m.comm.size
    if m.src == _AVG:
        return Done(m.x / size)
    if dst == _SUM:
        return _TABLE[type(m.src), Partial](m)
    if isinstance(m.src, (Replicate, Invariant)):
        return Done(m.x)
    return Then(m.by(m.src, _SUM), lambda y: y * size)


# ---- the table
def _same(m: _Move) -> Work[Array]:
    return Done(m.x)


def _gather(m: _Move) -> Work[Array]:
    dim, held = m.cut(m.src)
    work = m.comm.iall_gather(m.x, dim, sizes=held.sizes, out=m.empty(m.shape))
    return work if held.ordered else Then(work, lambda gathered: join([gathered], dim, [held.order]))


def _exchange(m: _Move) -> Work[Array]:
    (old, held), (new, wanted) = m.cut(m.src), m.cut(m.dst)
    if old == new:
        return _recut(m, old, held, wanted)
    parts = [take(m.x, new, runs) for runs in wanted.runs]
    shapes = [m.extents((old, extent), (new, wanted.sizes[m.comm.rank])) for extent in held.sizes]
    work = m.comm.iall_to_all(parts, shapes, out=list(map(m.empty, shapes)))
    return Then(work, lambda received: join(received, old, held.runs))


def _recut(m: _Move, dim: int, held: Cut, wanted: Cut) -> Work[Array]:
    """Cut the same dimension in another way: each rank sends what others shall hold of its elements."""
    if held.runs == wanted.runs:
        return Done(m.x)
    mine, soon_mine = held.runs[m.comm.rank], wanted.runs[m.comm.rank]
    parts = [take(m.x, dim, shared(mine, runs)[1]) for runs in wanted.runs]
    coming = [shared(runs, soon_mine)[0] for runs in held.runs]
    shapes = [m.extents((dim, sum(stop - start for start, stop in runs))) for runs in coming]
    work = m.comm.iall_to_all(parts, shapes, out=list(map(m.empty, shapes)))
    return Then(work, lambda received: join(received, dim, coming))


def _pad(m: _Move) -> Work[Array]:
    dim, held = m.cut(m.src)
    whole = namespace(m.x).zeros(m.shape, m.x.dtype)
    put(whole, dim, held.runs[m.comm.rank], m.x)
    return Done(whole)


def _finish(m: _Move) -> Work[Array]:
    return m.comm.iall_reduce(m.x, _op(m.src), out=m.empty(m.x.shape))


def _finish_slice(m: _Move) -> Work[Array]:
    dim, wanted = m.cut(m.dst)
    x = m.x if wanted.ordered else take(m.x, dim, wanted.order)
    out = m.empty(m.extents((dim, wanted.sizes[m.comm.rank])))
    return m.comm.ireduce_scatter(x, dim, _op(m.src), sizes=wanted.sizes, out=out)


def _slice(m: _Move) -> Work[Array]:
    dim, wanted = m.cut(m.dst)
    runs = wanted.runs[m.comm.rank]
    mine = take(m.x, dim, runs)
    return Done(mine if len(runs) > 1 else mine.copy())  # a view would keep the whole array alive


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


def _op(placement: Placement) -> ReduceOp:
    assert isinstance(placement, Partial)
    return ReduceOp(placement.op)
