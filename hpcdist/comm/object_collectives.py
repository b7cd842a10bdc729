"""PyTorch's collectives on Python objects.

Objects are pickled, large arrays in them are not: they travel beside the pickle. All of them block. A leading or named
device is accepted and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcdist.comm import objects
from hpcdist.comm.addressing import GroupLike, check_device, member, on_root, place
from hpcdist.errors import explain

__all__ = [
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
    "send_object_list",
]


def all_gather_object(object_list: list[Any], obj: Any, group: GroupLike = None) -> None:
    """Put the ``obj`` of every rank into a list, in rank order. Collective over ``group``.

    Parameters
    ----------
    object_list : list
        With one place a rank.
    obj : object
        Picklable.
    group : optional
        Default: the default group.
    """
    comm = member("all_gather_object", group)
    _check_length("all_gather_object", "object_list", object_list, comm.size)
    object_list[:] = comm.all_gather_object(obj)


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: GroupLike = None,
    group_dst: int | None = None,
) -> None:
    """Put the ``obj`` of every rank into a list on one rank. Collective over ``group``.

    Parameters
    ----------
    obj : object
        Picklable.
    object_gather_list : list
        On the receiver: with one place a rank. Nothing elsewhere.
    dst, group_dst : int
        Global rank of the receiver (default: 0), or its rank in the group.
    group : optional
        Default: the default group.
    """
    comm = member("gather_object", group)
    root = place("gather_object", comm, "dst", dst, group_dst, default=0)
    found = on_root("gather_object", "object_gather_list", object_gather_list, comm, root)
    if found is not None:
        _check_length("gather_object", "object_gather_list", found, comm.size)
    gathered = objects.gather(comm, obj, root)
    if found is not None and gathered is not None:
        found[:] = gathered


def broadcast_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: GroupLike = None,
    device: object = None,
    group_src: int | None = None,
) -> None:
    """Put the objects of one rank's list into that of all. Collective over ``group``.

    Parameters
    ----------
    object_list : list
        Of one length on all ranks; on the sender of picklable objects, which stay as they are.
    src, group_src : int
        Global rank of the sender (default: 0), or its rank in the group.
    group : optional
        Default: the default group.

    Raises
    ------
    ValueError
        On every rank, if lengths differ.
    """
    comm = member("broadcast_object_list", group)
    check_device("broadcast_object_list", device)
    root = place("broadcast_object_list", comm, "src", src, group_src, default=0)
    told = comm.broadcast_object(object_list if comm.rank == root else None, root)
    with comm.agreed():
        _check_length("broadcast_object_list", "object_list", object_list, len(told))
    if comm.rank != root:
        object_list[:] = told


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: GroupLike = None,
    group_src: int | None = None,
) -> None:
    """Put into a list's first place this rank's one of another rank's objects. Collective over ``group``.

    Parameters
    ----------
    scatter_object_output_list : list
        With one place or more.
    scatter_object_input_list : sequence of object
        On the sender: picklable, one a rank.
    src, group_src : int
        Global rank of the sender (default: 0), or its rank in the group.
    group : optional
        Default: the default group.

    Raises
    ------
    ValueError, TypeError
        On every rank, if there is not one object a rank, or one cannot be pickled.
    """
    comm = member("scatter_object_list", group)
    root = place("scatter_object_list", comm, "src", src, group_src, default=0)
    if not scatter_object_output_list:
        text = "scatter_object_list: scatter_object_output_list"
        raise ValueError(explain(text, got="no place", expected="one or more"))
    scatter_object_output_list[0] = objects.scatter(comm, scatter_object_input_list, root)


def send_object_list(
    object_list: Sequence[Any],
    dst: int | None = None,
    group: GroupLike = None,
    device: object = None,
    group_dst: int | None = None,
    use_batch: bool = False,  # noqa: ARG001 (always so)
) -> None:
    """Send a list of picklable objects to another rank. Point to point.

    Parameters
    ----------
    object_list : sequence of object
    dst, group_dst : int
        Global rank of the receiver, or its rank in the group.
    group : optional
        Default: the default group.
    use_batch : bool
        Accepted: all that belongs to the list is posted at once.
    """
    comm = member("send_object_list", group)
    check_device("send_object_list", device)
    dest = place("send_object_list", comm, "dst", dst, group_dst)
    if dest == comm.rank:
        got = f"this rank, {comm.members[dest]}"
        raise ValueError(explain("send_object_list: dst", got=got, expected="another rank"))
    objects.send(comm, list(object_list), dest, _TAG)


def recv_object_list(
    object_list: list[Any],
    src: int | None = None,
    group: GroupLike = None,
    device: object = None,
    group_src: int | None = None,
    use_batch: bool = False,  # noqa: ARG001 (always so)
) -> int:
    """Receive a list of objects; return the global rank that sent it. Point to point.

    Parameters
    ----------
    object_list : list
        With as many places as objects are sent.
    src, group_src : int, optional
        Global rank of the sender, or its rank in the group. Default: whoever sends first.
    group, use_batch
        As for :func:`send_object_list`.

    Raises
    ------
    ValueError
        If there are more or fewer objects.
    """
    comm = member("recv_object_list", group)
    check_device("recv_object_list", device)
    source = None if src is None and group_src is None else place("recv_object_list", comm, "src", src, group_src)
    told, who = objects.recv(comm, source, _TAG)
    _check_length("recv_object_list", "object_list", object_list, len(told))
    object_list[:] = told
    return comm.members[who]


_TAG = 32_002
"""Below the tags that MPI guarantees, and unlikely to be a caller's."""


def _check_length(verb: str, name: str, places: list[Any], length: int) -> None:
    if not isinstance(places, list) or len(places) != length:
        got = f"{len(places)} places" if isinstance(places, list) else type(places).__name__
        raise ValueError(explain(f"{verb}: {name}", got=got, expected=f"a list of {length} places"))
