"""Collectives as operations that autograd knows, where the table of moves has no row for them.

A gradient goes the way back: what came from one rank is summed there, what went to one rank is sent from there, and
joining is the transpose of summing and cutting. Each vjp is collective as its forward is: all ranks of the group have
to record, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd import define
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.reduce_op import ReduceOp

__all__ = ["ALL_GATHER", "ALL_TO_ALL", "BROADCAST", "GATHER", "ON_ROOT", "REDUCE", "REDUCE_SCATTER", "SCATTER"]


# ---- with all ranks
def _all_gather(x: Array, *, comm: Communicator, dim: int, sizes: Sequence[int]) -> Any:
    return comm.all_gather(x, dim, sizes=sizes), ()


def _all_gather_vjp(into: Any, grads: Any, _saved: Any, *, comm: Communicator, dim: int, sizes: Sequence[int]) -> None:
    into[0].give(comm.reduce_scatter(grads[0], dim, sizes=sizes))


def _reduce_scatter(x: Array, *, comm: Communicator, dim: int, sizes: Sequence[int], how: ReduceOp) -> Any:
    return comm.reduce_scatter(x, dim, how, sizes=sizes), ()


def _reduce_scatter_vjp(
    into: Any, grads: Any, _saved: Any, *, comm: Communicator, dim: int, sizes: Sequence[int], how: ReduceOp
) -> None:
    into[0].give(_shared(comm.all_gather(grads[0], dim, sizes=sizes), comm, how))


def _all_to_all(*parts: Array, comm: Communicator, shapes: Sequence[tuple[int, ...]]) -> Any:
    return tuple(comm.all_to_all(parts, shapes)), ([part.shape for part in parts],)


def _all_to_all_vjp(
    into: Any, grads: Any, saved: Any, *, comm: Communicator, shapes: Sequence[tuple[int, ...]]
) -> None:
    _give(into, comm.all_to_all(_filled(grads, shapes), saved[0]))


# ---- with one rank
def _broadcast(x: Array, *, comm: Communicator, root: int) -> Any:
    return comm.broadcast(x, root), ()


def _broadcast_vjp(into: Any, grads: Any, _saved: Any, *, comm: Communicator, root: int) -> None:
    total = comm.reduce(grads[0], root)
    into[0].give(namespace(grads[0]).zeros_like(grads[0]) if total is None else total)


def _reduce(x: Array, *, comm: Communicator, root: int, how: ReduceOp) -> Any:
    total = comm.reduce(x, root, how)
    return namespace(x).zeros_like(x) if total is None else total, ()


def _reduce_vjp(into: Any, grads: Any, _saved: Any, *, comm: Communicator, root: int, how: ReduceOp) -> None:
    into[0].give(_shared(comm.broadcast(grads[0], root), comm, how))


def _gather(x: Array, *, comm: Communicator, root: int, shapes: Sequence[tuple[int, ...]]) -> Any:
    return tuple(_received(x, comm, root, shapes)), ()


def _gather_vjp(
    into: Any, grads: Any, _saved: Any, *, comm: Communicator, root: int, shapes: Sequence[tuple[int, ...]]
) -> None:
    parts = _filled(grads, shapes)
    out = namespace(parts[0]).empty(into[0].shape, parts[0].dtype)
    into[0].give(comm.scatter(parts if comm.rank == root else None, out, root))


def _scatter(*parts: Array, comm: Communicator, root: int) -> Any:
    mine = parts[comm.rank]
    out = namespace(mine).empty(mine.shape, mine.dtype)
    return comm.scatter(parts if comm.rank == root else None, out, root), ([part.shape for part in parts],)


def _scatter_vjp(into: Any, grads: Any, saved: Any, *, comm: Communicator, root: int) -> None:
    _give(into, _received(grads[0], comm, root, saved[0]))


def _on_root(x: Array, *, is_root: bool) -> Any:
    return x if is_root else namespace(x).zeros_like(x), ()


def _on_root_vjp(into: Any, grads: Any, _saved: Any, *, is_root: bool) -> None:
    into[0].give(grads[0] if is_root else namespace(grads[0]).zeros_like(grads[0]))


# ---- shared by them
def _received(x: Array, comm: Communicator, root: int, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return what every rank brings, of these shapes, on the root, and zeros elsewhere. Collective over ``comm``."""
    make = namespace(x).empty if comm.rank == root else namespace(x).zeros
    outs = [make(shape, x.dtype) for shape in shapes]
    comm.gather(x, root, out=outs if comm.rank == root else None)
    return outs


def _filled(grads: Sequence[Array | None], shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return the gradients, with zeros for those of outputs that nobody used."""
    one = next(g for g in grads if g is not None)
    zeros, dtype = namespace(one).zeros, one.dtype
    return [zeros(shape, dtype) if g is None else g for g, shape in zip(grads, shapes, strict=True)]


def _give(into: Any, gradients: Sequence[Array]) -> None:
    for target, gradient in zip(into, gradients, strict=True):
        if target is not None:
            target.give(gradient)


def _shared(gradient: Array, comm: Communicator, how: ReduceOp) -> Array:
    """Return the gradient of one term of a sum, or of a mean."""
    return gradient / comm.size if how == ReduceOp.AVG else gradient


ALL_GATHER = define("comm.all_gather", _all_gather, _all_gather_vjp)
REDUCE_SCATTER = define("comm.reduce_scatter", _reduce_scatter, _reduce_scatter_vjp)
ALL_TO_ALL = define("comm.all_to_all", _all_to_all, _all_to_all_vjp)
BROADCAST = define("comm.broadcast", _broadcast, _broadcast_vjp)
REDUCE = define("comm.reduce", _reduce, _reduce_vjp)
GATHER = define("comm.gather", _gather, _gather_vjp)
SCATTER = define("comm.scatter", _scatter, _scatter_vjp)
ON_ROOT = define("comm.on_root", _on_root, _on_root_vjp)
