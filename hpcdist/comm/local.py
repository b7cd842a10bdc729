"""Ranks as threads of one process: the communicator for tests at any size, and for runs without MPI."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from hpcdist.array import Array, namespace
from hpcdist.comm import arguments
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.operation import Operation, call_site
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.reduction import fold
from hpcdist.comm.rendezvous import Group, LocalWork, Meeting, Post, World
from hpcdist.comm.work import Done, Work
from hpcdist.errors import CollectiveMismatchError, explain

__all__ = ["LocalCommunicator", "run", "solo"]

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_TIMEOUT_S = 1800.0


class LocalCommunicator(Communicator):
    """One rank of a group of threads. Posting never blocks; arrays are copied when posted.

    Attributes
    ----------
    counts, payload_bytes : Counter
        How often this rank has posted each verb on this group, and how many bytes it brought.
    """

    backend = "threads"

    def __init__(self, group: Group, rank: int, *, timeout_s: float, reproducible: bool = False) -> None:
        self.group, self.rank, self.size, self.name = group, rank, len(group.members), group.name
        self.timeout_s, self.reproducible = timeout_s, reproducible
        self.members, self.nodes = group.members, (0,) * self.size
        self.counts: Counter[str] = Counter()
        self.payload_bytes: Counter[str] = Counter()
        self._posted = 0
        self._created: Counter[tuple[int, ...]] = Counter()

    def __repr__(self) -> str:
        return f"LocalCommunicator({self.name!r}, rank {self.rank} of {self.size})"

    # ---- reductions
    def iall_reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`all_reduce`. Collective over the group."""
        op = ReduceOp(op)
        terms = arguments.all_reduce(x, op, out)
        if self.size == 1 and out is x:
            self._count("all_reduce", x)
            return Done(x)

        def finish(meeting: Meeting) -> Array:
            return _into(out, fold(meeting.values(), op))

        return self._collective("all_reduce", terms, _copy(x), finish, x)

    def ireduce(
        self, x: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None
    ) -> Work[Array | None]:
        """Post :meth:`reduce`. Collective over the group."""
        op = ReduceOp(op)
        terms = arguments.reduce(x, root, op, out, self.rank, self.size)

        def finish(meeting: Meeting) -> Array | None:
            return _into(out, fold(meeting.values(), op)) if self.rank == root else None

        return self._collective("reduce", terms, _copy(x), finish, x)

    def ireduce_scatter(
        self,
        x: Array,
        dim: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        *,
        sizes: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Work[Array]:
        """Post :meth:`reduce_scatter`. Collective over the group."""
        op = ReduceOp(op)
        dim, extents, terms = arguments.reduce_scatter(x, dim, op, sizes, out, self.rank, self.size)
        start = sum(extents[: self.rank])
        mine = (*(slice(None),) * dim, slice(start, start + extents[self.rank]))

        def finish(meeting: Meeting) -> Array:
            return _into(out, fold([value[mine] for value in meeting.values()], op))

        return self._collective("reduce_scatter", terms, _copy(x), finish, x)

    # ---- moves
    def iall_gather(
        self, x: Array, dim: int = 0, *, sizes: Sequence[int] | None = None, out: Array | None = None
    ) -> Work[Array]:
        """Post :meth:`all_gather`. Collective over the group."""
        dim, _, terms = arguments.all_gather(x, dim, sizes, out, self.rank, self.size)

        def finish(meeting: Meeting) -> Array:
            return _into(out, namespace(x).concatenate(meeting.values(), axis=dim))

        return self._collective("all_gather", terms, _copy(x), finish, x)

    def iall_to_all(
        self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], *, out: Sequence[Array] | None = None
    ) -> Work[list[Array]]:
        """Post :meth:`all_to_all`. Collective over the group."""
        terms = arguments.all_to_all(parts, shapes, out, self.rank, self.size)
        value = ([_copy(part) for part in parts], [tuple(shape) for shape in shapes])

        def finish(meeting: Meeting) -> list[Array]:
            received = self._take_parts(meeting)
            return received if out is None else list(map(_into, out, received))

        return self._collective("all_to_all", terms, value, finish, *parts)

    def _take_parts(self, meeting: Meeting) -> list[Array]:
        brought = meeting.values()
        for source, (parts, _) in enumerate(brought):
            for dest, (part, (_, shapes)) in enumerate(zip(parts, brought, strict=True)):
                if part.shape != shapes[source]:
                    text = f"all_to_all: shape of what rank {source} sends to rank {dest}"
                    expected = f"{shapes[source]}, as rank {dest} says"
                    raise CollectiveMismatchError(explain(text, got=part.shape, expected=expected))
        return [parts[self.rank] for parts, _ in brought]

    def ibroadcast(self, x: Array, root: int = 0, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`broadcast`. Collective over the group."""
        terms = arguments.broadcast(x, root, out, self.size)

        def finish(meeting: Meeting) -> Array:
            return _into(out, meeting.posts[root].value.copy())

        return self._collective("broadcast", terms, _copy(x), finish, x)

    def igather(self, x: Array, root: int = 0, *, out: Sequence[Array] | None = None) -> Work[list[Array] | None]:
        """Post :meth:`gather`. Collective over the group."""
        terms = arguments.gather(x, root, out, self.rank, self.size)
        wanted = [o.shape for o in out or ()] if self.rank == root else None

        def finish(meeting: Meeting) -> list[Array] | None:
            brought = [value for value, _ in meeting.values()]
            shapes = meeting.posts[root].value[1] or [brought[root].shape] * self.size
            for rank, (value, shape) in enumerate(zip(brought, shapes, strict=True)):
                if value.shape != shape:
                    text = f"gather: shape of what rank {rank} sends"
                    raise CollectiveMismatchError(explain(text, got=value.shape, expected=f"{shape}, as the root says"))
            if self.rank != root:
                return None
            return [_into(None, value.copy()) for value in brought] if out is None else list(map(_into, out, brought))

        return self._collective("gather", terms, (_copy(x), wanted), finish, x)

    def iscatter(self, parts: Sequence[Array] | None, out: Array, root: int = 0) -> Work[Array]:
        """Post :meth:`scatter`. Collective over the group."""
        terms = arguments.scatter(parts, out, root, self.rank, self.size)
        value = ([_copy(part) for part in parts or ()], out.shape)

        def finish(meeting: Meeting) -> Array:
            brought, _ = meeting.posts[root].value
            for rank, (part, (_, shape)) in enumerate(zip(brought, meeting.values(), strict=True)):
                if part.shape != shape:
                    text = f"scatter: shape of part {rank}"
                    raise CollectiveMismatchError(
                        explain(text, got=part.shape, expected=f"{shape}, as rank {rank} says")
                    )
            return _into(out, brought[self.rank])

        return self._collective("scatter", terms, value, finish, *(parts or ()))

    def ibarrier(self) -> Work[None]:
        """Post :meth:`barrier`. Collective over the group."""
        return self._collective("barrier", (), None, lambda _: None)

    # ---- messages
    def isend(self, x: Array, dest: int, tag: int = 0) -> Work[None]:
        """Post :meth:`send`: the message is buffered, so this is done at once. Point to point."""
        arguments.message("send", "dest", x, dest, self.size)
        message = _copy(x)
        self._count("send", x)
        self.group.send(self.rank, dest, tag, message)
        return Done(None)

    def irecv(self, out: Array, source: int | None = None, tag: int = 0) -> Work[Array]:
        """Post :meth:`recv`. Point to point."""
        arguments.message("recv", "source", out, source, self.size)
        self._count("recv", out)
        operation = self._operation("recv", (), f"rank {source}" if source is not None else "any rank", out)
        receive = self.group.expect(source, self.rank, tag)

        def finish() -> Array:
            x = receive.message
            assert x is not None
            if (x.shape, x.dtype) != (out.shape, out.dtype.newbyteorder("=")):
                raise operation.mismatched(f"{x.dtype} {x.shape}")
            work.source = receive.source
            return _into(out, x)

        def missing() -> list[int]:
            if receive.message is not None:
                return []
            return self._able_to_send() if source is None else [source]

        work = LocalWork(self.group, operation, missing, finish, self.timeout_s)
        return work

    def _able_to_send(self) -> list[int]:
        """Return the other ranks that have not ended well; all if none is left, and this one if it is alone."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        gone = self.group.world.gone
        staying = [rank for rank in others if gone.get(self.group.members[rank], self) is not None]
        return staying or others or [self.rank]

    # ---- objects and groups
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

    # ---- shared by the verbs
    def _collective(
        self, verb: str, terms: arguments.Terms, value: Any, finish: Callable[[Meeting], T], *payload: Array
    ) -> LocalWork[T]:
        """Post a collective; ``terms`` must be equal on all ranks, ``payload`` is what the caller brought."""
        self._count(verb, *payload)
        operation = self._operation(verb, terms, f"all {self.size} ranks of the group", *payload)
        meeting = self.group.meet(self._posted, self.rank, Post(operation, value))
        self._posted += 1
        return LocalWork(self.group, operation, meeting.missing, lambda: finish(meeting), self.timeout_s)

    def _operation(self, verb: str, terms: arguments.Terms, peers: str, *payload: Array) -> Operation:
        shape, dtype = (payload[0].shape, payload[0].dtype) if payload else (None, None)
        place = (self.rank, self.size, self.name, self._posted)
        return Operation(verb, *place, shape, dtype, terms, peers, call_site())

    def _count(self, verb: str, *payload: Array) -> None:
        self.counts[verb] += 1
        self.payload_bytes[verb] += sum(x.nbytes for x in payload)


def _copy(x: Array) -> Array:
    """Return a C-ordered copy in native byte order, so that the caller may go on with the original."""
    copy: Array = namespace(x).array(x, dtype=x.dtype.newbyteorder("="), order="C")
    return copy


def _into(out: Array | None, value: Array) -> Array:
    """Write ``value`` into ``out``, if there is one; return where it is."""
    if out is None:
        return value
    out[...] = value
    return out


def _pickled(value: Any) -> tuple[bytes, str | None]:
    """Return the bytes of ``value``, or why there are none."""
    try:
        return pickle.dumps(value), None
    except Exception as e:
        return b"", f"{type(value).__name__}: {e}"


def _unpickled(verb: str, rank: int, data: bytes, reason: str | None) -> Any:
    """Return the value that ``rank`` has pickled."""
    if reason is not None:
        what = f"{verb}: the value of rank {rank} cannot be pickled"
        raise TypeError(explain(what, got=reason, expected="a picklable object"))
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
