"""PyTorch's messages from one rank to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcdist.comm.addressing import GroupLike, array, member, place, written
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.future import Pending
from hpcdist.errors import explain

__all__ = ["P2POp", "batch_isend_irecv", "irecv", "isend", "recv", "send"]


def send(
    tensor: Any, dst: int | None = None, group: GroupLike = None, tag: int = 0, group_dst: int | None = None
) -> None:
    """Send ``tensor`` and wait until it may be changed. Point to point.

    Parameters
    ----------
    tensor : array or Tensor
        May be strided.
    dst, group_dst : int
        Global rank of the receiver, or its rank in the group; not this one, which could not receive meanwhile.
    group : optional
        Default: the default group.
    tag : int
        A receive takes messages of its own tag only.
    """
    comm = member("send", group)
    dest = place("send", comm, "dst", dst, group_dst)
    if dest == comm.rank:
        do = "post isend, then receive, then wait"
        raise ValueError(explain("send: dst", got=f"this rank, {comm.members[dest]}", expected="another rank", do=do))
    comm.send(array("send", "tensor", tensor), dest, tag)


def recv(
    tensor: Any, src: int | None = None, group: GroupLike = None, tag: int = 0, group_src: int | None = None
) -> int:
    """Receive into ``tensor``; return the global rank that sent it. Point to point.

    Parameters
    ----------
    tensor : array or Tensor
        Of the shape and dtype that is sent; may be strided.
    src, group_src : int, optional
        Global rank of the sender, or its rank in the group. Default: whoever sends first.
    group, tag
        As for :func:`send`.
    """
    work = irecv(tensor, src, group, tag, group_src)
    work.wait()
    return work.source_rank()


def isend(
    tensor: Any, dst: int | None = None, group: GroupLike = None, tag: int = 0, group_dst: int | None = None
) -> Pending:
    """Post :func:`send`, also to this rank itself. Point to point."""
    comm, x = member("isend", group), array("isend", "tensor", tensor)
    return Pending(comm.isend(x, place("isend", comm, "dst", dst, group_dst), tag), [x], comm.members)


def irecv(
    tensor: Any, src: int | None = None, group: GroupLike = None, tag: int = 0, group_src: int | None = None
) -> Pending:
    """Post :func:`recv`. Point to point."""
    comm, x = member("irecv", group), written("irecv", "tensor", tensor)
    source = None if src is None and group_src is None else place("irecv", comm, "src", src, group_src)
    return Pending(comm.irecv(x, source, tag), [x], comm.members)


class P2POp:
    """One message of a batch.

    Parameters
    ----------
    op : callable
        :func:`isend` or :func:`irecv`.
    tensor : array or Tensor
        What is sent, or receives.
    peer, group_peer : int
        Global rank of the other one, or its rank in the group.
    group, tag
        As for :func:`send`.

    Raises
    ------
    ValueError
        If ``op`` is another function, or the peer is none of the group.
    """

    def __init__(
        self,
        op: Callable[..., Pending],
        tensor: Any,
        peer: int | None = None,
        group: GroupLike = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ValueError(explain("P2POp: op", got=getattr(op, "__name__", op), expected="isend or irecv"))
        self.op, self.tensor, self.tag = op, tensor, tag
        self.group: Communicator = member("P2POp", group)
        self.group_peer = place("P2POp", self.group, "peer", peer, group_peer)
        self.peer = self.group.members[self.group_peer]

    def __repr__(self) -> str:
        return f"P2POp({self.op.__name__}, peer {self.peer}, group {self.group.name!r}, tag {self.tag})"


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Pending]:
    """Post several messages in their order; return their works, none for none. Point to point.

    Raises
    ------
    TypeError, ValueError
        If one is no P2POp, or they are of different groups; nothing is posted then.
    """
    if not all(isinstance(op, P2POp) for op in p2p_op_list):
        got = sorted({type(op).__name__ for op in p2p_op_list})
        raise TypeError(explain("batch_isend_irecv: p2p_op_list", got=got, expected="P2POp"))
    if any(op.group is not p2p_op_list[0].group for op in p2p_op_list):
        got = sorted({op.group.name for op in p2p_op_list})
        raise ValueError(explain("batch_isend_irecv: groups", got=got, expected="one for all"))
    return [op.op(op.tensor, None, op.group, op.tag, op.group_peer) for op in p2p_op_list]
