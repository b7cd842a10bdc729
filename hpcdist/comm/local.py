"""Ranks as threads of one process: the communicator for tests at any size, and for runs without MPI."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from hpcdist.comm import arguments
from hpcdist.comm.local_verbs import LocalVerbs
from hpcdist.comm.objects import refusal
from hpcdist.comm.rendezvous import Group, LocalWork, Meeting, Post, World

__all__ = ["LocalCommunicator", "run", "solo"]

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_TIMEOUT_S = 1800.0


class LocalCommunicator(LocalVerbs):
    """One rank of a group of threads. Posting never blocks; arrays are copied when posted.

    Attributes
    ----------
    counts, payload_bytes : Counter
        How often this rank has posted each verb on this group, and how many bytes it brought.
    """

    def __init__(self, group: Group, rank: int, *, timeout_s: float, reproducible: bool = False) -> None:
        self.group, self.rank, self.size, self.name = group, rank, len(group.members), group.name
        self.timeout_s, self.reproducible = timeout_s, reproducible
        self.members, self.nodes = group.members, (0,) * self.size
        self.counts = Counter()
        self.payload_bytes = Counter()
        self._created: Counter[tuple[int, ...]] = Counter()

    def __repr__(self) -> str:
        return f"LocalCommunicator({self.name!r}, rank {self.rank} of {self.size})"

    # ---- objects
    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the picklable ``value`` of every rank, in rank order. Collective over the group.

        Raises
        ------
        TypeError
            On every rank, if the value of one cannot be pickled.
        """

        def finish(meeting: Meeting) -> list[Any]:
            return [_unpickled("all_gather_object", rank, *told) for rank, told in enumerate(meeting.values())]

        return self._collective("all_gather_object", (), _pickled(value), finish).wait()

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the root's picklable ``value``. Collective over the group.

        Raises
        ------
        TypeError
            On every rank, if it cannot be pickled.
        """
        arguments.check_rank("broadcast_object", "root", root, self.size)

        def finish(meeting: Meeting) -> Any:
            return _unpickled("broadcast_object", root, *meeting.posts[root].value)

        mine = _pickled(value) if self.rank == root else None
        return self._collective("broadcast_object", (root,), mine, finish).wait()

    def split(self, color: int | None, key: int = 0) -> LocalCommunicator | None:
        """Form one new group a color (0 or more), ordered by ``key``, then rank; None with color None.

        Collective over the group: ranks that want no part call it with ``color=None``.
        """
        arguments.check_split(color, key)

        def finish(meeting: Meeting) -> LocalCommunicator | None:
            if color is None:
                return None
            order = sorted((k, rank) for rank, (c, k) in enumerate(meeting.values()) if c == color)
            members = tuple(self.group.members[rank] for _, rank in order)
            with self.group.world.condition:
                group = meeting.groups.setdefault(color, Group(self.group.world, members, f"{self.name}/{color}"))
            return self._within(group)

        return self._collective("split", (), (color, key), finish).wait()

    def create_group(self, ranks: Sequence[int]) -> LocalCommunicator:
        """Return the group of these ``ranks``, in this order. Collective over ``ranks``."""
        arguments.check_members(ranks, self.rank, self.size)
        self._count("create_group")
        everyone = tuple(sorted(ranks))
        self._created[everyone] += 1
        operation = self._operation("create_group", (tuple(ranks),), f"rank {', '.join(map(str, everyone))}")
        key = (everyone, self._created[everyone])
        meeting = self.group.meet(key, self.rank, Post(operation, None), everyone)

        def finish() -> LocalCommunicator:
            members = tuple(self.group.members[rank] for rank in ranks)
            with self.group.world.condition:
                group = meeting.groups.setdefault(0, Group(self.group.world, members, f"{self.name}/{list(ranks)}"))
            return self._within(group)

        return LocalWork(self.group, operation, meeting.missing, finish, self.timeout_s).wait()

    def split_node(self) -> LocalCommunicator:
        """Return the group of ranks that share this rank's memory: all of them. Collective over the group."""
        group = self.split(0, self.rank)
        assert group is not None
        return group

    def _within(self, group: Group) -> LocalCommunicator:
        places = [self.group.members.index(member) for member in group.members]
        rank = places.index(self.rank)
        part = LocalCommunicator(group, rank, timeout_s=self.timeout_s, reproducible=self.reproducible)
        part.members = tuple(self.members[place] for place in places)
        return part


def _pickled(value: Any) -> tuple[bytes, str | None]:
    """Return the bytes of ``value``, or why there are none."""
    try:
        return pickle.dumps(value), None
    except Exception as e:
        return b"", f"{type(value).__name__}: {e}"


def _unpickled(verb: str, rank: int, data: bytes, reason: str | None) -> Any:
    """Return the value that ``rank`` has pickled."""
    if reason is not None:
        raise refusal(verb, rank, reason)
    return pickle.loads(data)


def solo(*, timeout_s: float = DEFAULT_TIMEOUT_S, reproducible: bool = False) -> LocalCommunicator:
    """Return a group of one rank, this thread. Communicates with nobody."""
    return LocalCommunicator(Group(World(), (0,), "solo"), 0, timeout_s=timeout_s, reproducible=reproducible)


def run(
    size: int,
    fn: Callable[Concatenate[LocalCommunicator, P], T],
    /,
    *args: Any,
    timeout_s: float = 60.0,
    reproducible: bool = False,
) -> list[T]:
    """Call ``fn(comm, *args)`` on ``size`` ranks, each a thread; return what each returned, in rank order.

    If one raises, those that wait for it fail at once, and its error is raised here, noting the rank.
    """
    world, results = World(), dict[int, T]()
    group = Group(world, tuple(range(size)), "world")

    def main(rank: int) -> None:
        error: BaseException | None = None
        try:
            comm = LocalCommunicator(group, rank, timeout_s=timeout_s, reproducible=reproducible)
            results[rank] = fn(comm, *args)  # type: ignore[call-arg]
        except BaseException as e:
            error = e
        world.leave(rank, error)

    threads = [threading.Thread(target=main, args=(rank,), name=f"rank-{rank}", daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, error in world.failures().items():
        error.add_note(f"on rank {rank} of {size}")
        raise error
    return [results[rank] for rank in range(size)]
