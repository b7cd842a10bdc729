"""The table of moves as operations that autograd knows: gradients move the transposed way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor, apply, define
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.dtensor.move import move, transpose
from hpcdist.dtensor.placements import Partial, Placement, Replicate, Shard, dual
from hpcdist.errors import explain

__all__ = ["FINISH", "MOVE", "redistribute"]


def redistribute(
    x: Tensor,
    src: Placement,
    dst: Placement,
    comm: Communicator,
    shape: Sequence[int],
    *,
    moved: Array | None = None,
) -> Tensor:
    """Change how the ranks of ``comm`` hold a tensor; differentiable form of :func:`hpcdist.dtensor.move`.

    Collective over ``comm``, unless the move is free; in backward again, unless the transposed move is free.

    The gradient of a maximum or minimum goes to the rank that holds the value, the first one where several do.

    Parameters
    ----------
    x, src, dst, comm, shape
        As for ``move``.
    moved : array, optional
        What ``imove`` has made of ``x.data`` already; for linear moves.

    Raises
    ------
    ValueError
        As ``move``, and for a Partial("product") that needs gradients.
    """
    if src == dst:
        return x
    linear = not isinstance(src, Partial) or src.op in ("sum", "avg")
    done = {} if moved is None else {"moved": [moved]}  # a list: the tape must not keep the array alive
    result: Tensor = apply(MOVE if linear else FINISH, x, src=src, dst=dst, comm=comm, shape=tuple(shape), **done)
    return result


def _forward(
    x: Array,
    *,
    src: Placement,
    dst: Placement,
    comm: Communicator,
    shape: tuple[int, ...],
    moved: list[Array] | None = None,
) -> Any:
    return moved.pop() if moved else move(x, src, dst, comm, shape), ()


def _vjp(
    into: Any,
    grads: Any,
    _saved: Any,
    *,
    src: Placement,
    dst: Placement,
    comm: Communicator,
    shape: tuple[int, ...],
    **_: Any,
) -> None:
    gradient = move(grads[0], *transpose(src, dst), comm, shape)
    if into[0] is not None:
        into[0].give(gradient)


def _finish_forward(
    x: Array, *, recording: bool, src: Partial, dst: Placement, comm: Communicator, shape: tuple[int, ...]
) -> Any:
    if not recording:
        return move(x, src, dst, comm, shape), ()
    if src.op == "product":
        raise ValueError(explain("a product over ranks has no gradient here", do="detach it, or sum logarithms"))
    whole = move(x, src, Replicate(), comm, shape)
    finished = move(whole, Replicate(), dst, comm, shape) if isinstance(dst, Shard) else whole
    return finished, (_owned(x, whole, comm),)


def _owned(x: Array, whole: Array, comm: Communicator) -> Array:
    """Mark the elements that this rank is the first to hold the value of. Collective over ``comm``."""
    xp = namespace(x)
    owned: Array
    if comm.size == 1:
        owned = xp.ones(x.shape, bool)
        return owned
    holds = (x == whole) | ((x != x) & (whole != whole))  # NaN is held by those who hold NaN
    first = comm.all_reduce(xp.where(holds, comm.rank, comm.size).astype(xp.int32), ReduceOp.MIN)
    owned = first == comm.rank
    return owned


def _finish_vjp(
    into: Any, grads: Any, saved: Any, *, dst: Placement, comm: Communicator, shape: tuple[int, ...], **_: Any
) -> None:
    whole = move(grads[0], dual(dst), Replicate(), comm, shape)
    if into[0] is not None:
        into[0].give(namespace(whole).where(saved[0], whole, 0).astype(whole.dtype, copy=False))


MOVE = define("move", _forward, _vjp)
FINISH = define("finish", _finish_forward, _finish_vjp)
