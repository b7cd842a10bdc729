"""Questions to a group, which never communicate: who is in it, which rank is which.

Where this rank is not in the group its rank and size are -1, and names are None, as in PyTorch.
"""

from __future__ import annotations

import os

from hpcdist.comm import arguments
from hpcdist.comm.addressing import GroupLike, NonMember, known, rank_in
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.init import current
from hpcdist.comm.launched import launched
from hpcdist.errors import explain

__all__ = [
    "get_backend",
    "get_backend_config",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
]


def get_rank(group: GroupLike = None) -> int:
    """Return this process's rank in ``group``; -1 if it is not in it."""
    found = known("get_rank", group)
    return found.rank if isinstance(found, Communicator) else -1


def get_world_size(group: GroupLike = None) -> int:
    """Return the number of ranks in ``group``; -1 if this process is not in it."""
    found = known("get_world_size", group)
    return found.size if isinstance(found, Communicator) else -1


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Return this process's rank among those on its node: as the launcher says, else as the default group knows.

    Raises
    ------
    RuntimeError
        If neither knows and there is no ``fallback_rank``.
    """
    placed, world = launched(os.environ), current()
    if placed is not None:
        return placed.local_rank
    if world is not None and len(world.nodes) == world.size:
        return list(world.nodes[: world.rank]).count(world.nodes[world.rank])
    if fallback_rank is None:
        do = "start with a launcher, call hpcdist.init() first, or pass fallback_rank"
        raise RuntimeError(explain("get_node_local_rank: nobody knows", do=do))
    return fallback_rank


def get_backend(group: GroupLike = None) -> str | None:
    """Return what carries the messages of ``group``: "mpi", or "threads"; None if this process is not in it."""
    found = known("get_backend", group)
    return None if isinstance(found, NonMember) else found.backend


def get_backend_config(group: GroupLike = None) -> str | None:
    """Return what carries the messages of each device's arrays: ``"cpu:mpi,cuda:mpi"``."""
    name = get_backend(group)
    return None if name is None else f"cpu:{name},cuda:{name}"


def get_process_group_ranks(group: GroupLike) -> list[int]:
    """Return the global ranks of ``group``, in its order, also where this process is not in it."""
    return list(known("get_process_group_ranks", group).members)


def get_global_rank(group: GroupLike, group_rank: int) -> int:
    """Return the global rank of a rank in ``group``.

    Raises
    ------
    ValueError
        If it has no such rank.
    """
    members = known("get_global_rank", group).members
    arguments.check_rank("get_global_rank", "group_rank", group_rank, len(members))
    return members[group_rank]


def get_group_rank(group: GroupLike, global_rank: int) -> int:
    """Return the rank in ``group`` of a global rank.

    Raises
    ------
    ValueError
        If it is not in it.
    """
    return rank_in("get_group_rank", known("get_group_rank", group), global_rank, "global_rank")
