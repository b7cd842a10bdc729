"""Ranks as threads of one process: the communicator for tests at any size, and for runs without MPI."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from hpcdist.array import Array, namespace
from hpcdist.comm.communicator import Communicator, ReduceOp
from hpcdist.comm.reduction import check_reduction, fold
from hpcdist.comm.rendezvous import Group, LocalWork, Meeting, Post, World, call_site
from hpcdist.comm.work import Work
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

    def __init__(self, group: Group, rank: int, *, timeout_s: float, reproducible: bool = False) -> None:
        self.group, self.rank, self.size, self.name = group, rank, len(group.members), group.name
        self.timeout_s, self.reproducible = timeout_s, reproducible
        self.counts: Counter[str] = Counter()
        self.payload_bytes: Counter[str] = Counter()
        self._posted = 0

    def __repr__(self) -> str:
        return f"LocalCommunicator({self.name!r}, rank {self.rank} of {self.size})"

    # ---- the eight verbs
    def iall_reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`all_reduce`. Collective over the group."""
        op, x = ReduceOp(op), _copy(x)
        check_reduction(op, x.dtype)
        _check_out("all_reduce", x, out)

        def finish(meeting: Meeting) -> Array:
            total = fold(meeting.values(), op)
            if out is None:
                return total
            out[...] = total
            return out

        return self._collective("all_reduce", (x.shape, str(x.dtype), op.value), x, x.nbytes, finish)

    def iall_gather(self, x: Array, dim: int = 0, *, sizes: Sequence[int] | None = None) -> Work[Array]:
        """Post :meth:`all_gather`. Collective over the group."""
        x = _copy(x)
        dim = _dim("all_gather", dim, x.ndim)
        extents = self._sizes("all_gather", sizes, [x.shape[dim]] * self.size)
        if extents[self.rank] != x.shape[dim]:
            text = f"all_gather: extent of dim {dim} on rank {self.rank}"
            raise ValueError(explain(text, got=x.shape[dim], expected=f"{extents[self.rank]}, as sizes says"))
        rest = x.shape[:dim] + x.shape[dim + 1 :]
        return self._collective(
            "all_gather",
            (dim, rest, str(x.dtype), extents),
            x,
            x.nbytes,
            lambda meeting: namespace(x).concatenate(meeting.values(), axis=dim),
        )

    def ireduce_scatter(
        self, x: Array, dim: int = 0, op: ReduceOp = ReduceOp.SUM, *, sizes: Sequence[int] | None = None
    ) -> Work[Array]:
        """Post :meth:`reduce_scatter`. Collective over the group."""
        op, x = ReduceOp(op), _copy(x)
        check_reduction(op, x.dtype)
        dim = _dim("reduce_scatter", dim, x.ndim)
        extent = x.shape[dim]
        if sizes is None and extent % self.size:
            text = f"reduce_scatter: dim {dim} does not divide by {self.size} ranks"
            raise ValueError(explain(text, got=extent, do="pass sizes, the extent of every rank's slice"))
        extents = self._sizes("reduce_scatter", sizes, [extent // self.size] * self.size)
        if sum(extents) != extent:
            text = f"reduce_scatter: sizes {list(extents)} of dim {dim}"
            raise ValueError(explain(text, got=f"their sum {sum(extents)}", expected=extent))
        start = sum(extents[: self.rank])
        mine = (slice(None),) * dim + (slice(start, start + extents[self.rank]),)
        return self._collective(
            "reduce_scatter",
            (x.shape, dim, str(x.dtype), op.value, extents),
            x,
            x.nbytes,
            lambda meeting: fold([value[mine] for value in meeting.values()], op),
        )

    def iall_to_all(self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> Work[list[Array]]:
        """Post :meth:`all_to_all`. Collective over the group."""
        if len(parts) != self.size or len(shapes) != self.size:
            got = f"{len(parts)} parts and {len(shapes)} shapes"
            raise ValueError(
                explain("all_to_all: parts and shapes", got=got, expected=f"{self.size} of each, one a rank")
            )
        copies = [_copy(part) for part in parts]
        dtypes = sorted({str(part.dtype) for part in copies})
        if len(dtypes) != 1:
            raise TypeError(
                explain("all_to_all: dtype of parts", got=", ".join(dtypes), expected="one for all")
            )
        value = (copies, [tuple(shape) for shape in shapes])
        payload = sum(part.nbytes for part in copies)
        return self._collective("all_to_all", tuple(dtypes), value, payload, self._take_parts)

    def _take_parts(self, meeting: Meeting) -> list[Array]:
        brought = meeting.values()
        for source, (parts, _) in enumerate(brought):
            for dest, (part, (_, shapes)) in enumerate(zip(parts, brought, strict=True)):
                if part.shape != shapes[source]:
                    text = f"all_to_all: shape of what rank {source} sends to rank {dest}"
                    raise CollectiveMismatchError(
                        explain(text, got=part.shape, expected=f"{shapes[source]}, as rank {dest} says")
                    )
        return [parts[self.rank] for parts, _ in brought]

    def ibroadcast(self, x: Array, root: int = 0) -> Work[Array]:
        """Post :meth:`broadcast`. Collective over the group."""
        self._check_rank("broadcast", "root", root)
        x = _copy(x)
        return self._collective(
            "broadcast",
            (x.shape, str(x.dtype), root),
            x,
            x.nbytes,
            lambda meeting: meeting.posts[root].value.copy(),
        )

    def ibarrier(self) -> Work[None]:
        """Post :meth:`barrier`. Collective over the group."""
        return self._collective("barrier", (), None, 0, lambda _: None)

    def isend(self, x: Array, dest: int, tag: int = 0) -> Work[None]:
        """Post :meth:`send`: the message is buffered, so this is done at once. Point to point."""
        self._check_rank("send", "dest", dest)
        x = _copy(x)
        self._count("send", x.nbytes)
        self.group.send((self.rank, dest, tag), x)
        return LocalWork(self.group, "send", list, lambda: None, self.timeout_s)

    def irecv(self, out: Array, source: int, tag: int = 0) -> Work[Array]:
        """Post :meth:`recv`. Point to point."""
        self._check_rank("recv", "source", source)
        self._count("recv", out.nbytes)
        box, number = self.group.expect((source, self.rank, tag))

        def finish() -> Array:
            x = box.messages.pop(number)
            if (x.shape, x.dtype) != (out.shape, out.dtype):
                got, expected = f"{x.shape} {x.dtype}", f"{out.shape} {out.dtype}, as out"
                text = f"recv: message from rank {source} with tag {tag}"
                raise CollectiveMismatchError(explain(text, got=got, expected=expected))
            out[...] = x
            return out

        label = self._label("recv", f"(source {source}, tag {tag}, shape {out.shape})", call_site())
        return LocalWork(
            self.group, label, lambda: [] if number in box.messages else [source], finish, self.timeout_s
        )

    # ---- objects and groups
    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the picklable ``value`` of every rank, in rank order. Collective over the group."""
        data = pickle.dumps(value)
        return self._collective(
            "all_gather_object",
            (),
            data,
            len(data),
            lambda meeting: [pickle.loads(each) for each in meeting.values()],
        ).wait()

    def split(self, color: int | None, key: int = 0) -> LocalCommunicator | None:
        """Form one new group a color, ordered by ``key``, then rank; None with color None.

        Collective over the group: ranks that want no part call it with ``color=None``.
        """

        def finish(meeting: Meeting) -> LocalCommunicator | None:
            asked = meeting.values()
            if color is None:
                return None
            ranks = sorted((k, rank) for rank, (c, k) in enumerate(asked) if c == color)
            members = tuple(self.group.members[rank] for _, rank in ranks)
            with self.group.world.condition:
                group = meeting.shared.setdefault(
                    color, Group(self.group.world, members, f"{self.name}/{color}")
                )
            return LocalCommunicator(
                group, ranks.index((key, self.rank)), timeout_s=self.timeout_s, reproducible=self.reproducible
            )

        return self._collective("split", (), (color, key), 0, finish).wait()

    def split_node(self) -> LocalCommunicator:
        """Return the group of ranks that share this rank's memory: all of them. Collective over the group."""
        group = self.split(0, self.rank)
        assert group is not None
        return group

    # ---- shared by the verbs
    def _collective(
        self, verb: str, terms: Hashable, value: Any, payload: int, finish: Callable[[Meeting], T]
    ) -> LocalWork[T]:
        """Post a collective of ``payload`` bytes; ``terms`` must be equal on all ranks."""
        self._count(verb, payload)
        site = call_site()
        meeting = self.group.meet(self._posted, self.rank, Post(verb, terms, value, site))
        self._posted += 1
        label = self._label(verb, str(terms), site)
        return LocalWork(self.group, label, meeting.missing, lambda: finish(meeting), self.timeout_s)

    def _label(self, verb: str, terms: str, site: str) -> str:
        return f"{verb}{terms} on rank {self.rank} of {self.size} of group {self.name!r}, called at {site}"

    def _count(self, verb: str, payload: int) -> None:
        self.counts[verb] += 1
        self.payload_bytes[verb] += payload

    def _check_rank(self, verb: str, argument: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(
                explain(
                    f"{verb}: {argument}", got=rank, expected=f"a rank of the group, 0 to {self.size - 1}"
                )
            )

    def _sizes(self, verb: str, sizes: Sequence[int] | None, default: Sequence[int]) -> tuple[int, ...]:
        extents = tuple(int(n) for n in (default if sizes is None else sizes))
        if len(extents) != self.size or min(extents) < 0:
            raise ValueError(
                explain(f"{verb}: sizes", got=list(extents), expected=f"{self.size} extents, none negative")
            )
        return extents


def _copy(x: Array) -> Array:
    """Return a C-ordered copy, so that the caller may go on with the original."""
    copy: Array = namespace(x).array(x, order="C")
    return copy


def _check_out(verb: str, x: Array, out: Array | None) -> None:
    if out is not None and (out.shape, out.dtype) != (x.shape, x.dtype):
        raise ValueError(
            explain(f"{verb}: out", got=f"{out.shape} {out.dtype}", expected=f"{x.shape} {x.dtype}, as x")
        )


def _dim(verb: str, dim: int, ndim: int) -> int:
    """Return ``dim`` counted from the front."""
    if not -ndim <= dim < ndim:
        raise ValueError(explain(f"{verb}: dim", got=dim, expected=f"a dimension of an array with {ndim}"))
    return dim % ndim


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

    threads = [
        threading.Thread(target=main, args=(rank,), name=f"rank-{rank}", daemon=True) for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, error in world.failures().items():
        error.add_note(f"on rank {rank} of {size}")
        raise error
    return [results[rank] for rank in range(size)]
