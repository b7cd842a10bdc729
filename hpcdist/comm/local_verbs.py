"""The verbs of ranks that are threads of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hpcdist.array import Array, namespace
from hpcdist.comm import arguments
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.operation import Operation, call_site
from hpcdist.comm.pieces import own, span, write
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.reduction import fold
from hpcdist.comm.rendezvous import Group, LocalWork, Meeting, Post
from hpcdist.comm.work import Done, Work
from hpcdist.errors import CollectiveMismatchError, explain

__all__ = ["LocalVerbs"]

T = TypeVar("T")


class LocalVerbs(Communicator):
    """A communicator's verbs on a group of threads. Posting never blocks; arrays are copied when posted."""

    backend = "threads"
    group: Group
    counts: Counter[str]
    payload_bytes: Counter[str]
    _posted = 0

    # ---- reductions
    def iall_reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`all_reduce`. Collective over the group."""
        op = ReduceOp(op)
        terms = arguments.all_reduce(x, op, out)
        if self.size == 1 and out is x:
            self._count("all_reduce", x)
            return Done(x)

        def finish(meeting: Meeting) -> Array:
            return write(fold(meeting.values(), op), out)

        return self._collective("all_reduce", terms, own(x), finish, x)

    def ireduce(
        self, x: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None
    ) -> Work[Array | None]:
        """Post :meth:`reduce`. Collective over the group."""
        op = ReduceOp(op)
        terms = arguments.reduce(x, root, op, out, self.rank, self.size)

        def finish(meeting: Meeting) -> Array | None:
            return write(fold(meeting.values(), op), out) if self.rank == root else None

        return self._collective("reduce", terms, own(x), finish, x)

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
        mine = span(self.rank, dim, extents)

        def finish(meeting: Meeting) -> Array:
            return write(fold([value[mine] for value in meeting.values()], op), out)

        return self._collective("reduce_scatter", terms, own(x), finish, x)

    # ---- moves
    def iall_gather(
        self, x: Array, dim: int = 0, *, sizes: Sequence[int] | None = None, out: Array | None = None
    ) -> Work[Array]:
        """Post :meth:`all_gather`. Collective over the group."""
        dim, _, terms = arguments.all_gather(x, dim, sizes, out, self.rank, self.size)

        def finish(meeting: Meeting) -> Array:
            return write(namespace(x).concatenate(meeting.values(), axis=dim), out)

        return self._collective("all_gather", terms, own(x), finish, x)

    def iall_to_all(
        self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], *, out: Sequence[Array] | None = None
    ) -> Work[list[Array]]:
        """Post :meth:`all_to_all`. Collective over the group."""
        terms = arguments.all_to_all(parts, shapes, out, self.rank, self.size)
        value = ([own(part) for part in parts], [tuple(shape) for shape in shapes])

        def finish(meeting: Meeting) -> list[Array]:
            received = self._take_parts(meeting)
            return received if out is None else list(map(write, received, out))

        return self._collective("all_to_all", terms, value, finish, *parts)

    def _take_parts(self, meeting: Meeting) -> list[Array]:
        brought = meeting.values()
        for source, (parts, _) in enumerate(brought):
            for dest, (sent, (_, shapes)) in enumerate(zip(parts, brought, strict=True)):
                if sent.shape != shapes[source]:
                    text = f"all_to_all: shape of what rank {source} sends to rank {dest}"
                    expected = f"{shapes[source]}, as rank {dest} says"
                    raise CollectiveMismatchError(explain(text, got=sent.shape, expected=expected))
        return [parts[self.rank] for parts, _ in brought]

    def ibroadcast(self, x: Array, root: int = 0, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`broadcast`. Collective over the group."""
        terms = arguments.broadcast(x, root, out, self.size)

        def finish(meeting: Meeting) -> Array:
            return write(meeting.posts[root].value.copy(), out)

        return self._collective("broadcast", terms, own(x), finish, x)

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
            return [value.copy() for value in brought] if out is None else list(map(write, brought, out))

        return self._collective("gather", terms, (own(x), wanted), finish, x)

    def iscatter(self, parts: Sequence[Array] | None, out: Array, root: int = 0) -> Work[Array]:
        """Post :meth:`scatter`. Collective over the group."""
        terms = arguments.scatter(parts, out, root, self.rank, self.size)
        value = ([own(part) for part in parts or ()], out.shape)

        def finish(meeting: Meeting) -> Array:
            brought, _ = meeting.posts[root].value
            for rank, (part, (_, shape)) in enumerate(zip(brought, meeting.values(), strict=True)):
                if part.shape != shape:
                    text = f"scatter: shape of part {rank}"
                    raise CollectiveMismatchError(
                        explain(text, got=part.shape, expected=f"{shape}, as rank {rank} says")
                    )
            return write(brought[self.rank], out)

        return self._collective("scatter", terms, value, finish, *(parts or ()))

    def ibarrier(self) -> Work[None]:
        """Post :meth:`barrier`. Collective over the group."""
        return self._collective("barrier", (), None, lambda _: None)

    # ---- messages
    def isend(self, x: Array, dest: int, tag: int = 0) -> Work[None]:
        """Post :meth:`send`: the message is buffered, so this is done at once. Point to point."""
        arguments.message("send", "dest", x, dest, self.size)
        arguments.check_tag("send", tag)
        message = own(x)
        self._count("send", x)
        self.group.send(self.rank, dest, tag, message)
        return Done(None)

    def irecv(self, out: Array, source: int | None = None, tag: int = 0) -> Work[Array]:
        """Post :meth:`recv`. Point to point."""
        arguments.message("recv", "source", out, source, self.size)
        arguments.check_tag("recv", tag)
        self._count("recv", out)
        operation = self._operation("recv", (), f"rank {source}" if source is not None else "any rank", out)
        receive = self.group.expect(source, self.rank, tag)

        def finish() -> Array:
            x = receive.message
            assert x is not None
            if (x.shape, x.dtype) != (out.shape, out.dtype.newbyteorder("=")):
                raise operation.mismatched(f"{x.dtype} {x.shape}")
            work.source = receive.source
            return write(x, out)

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
        self.check_usable(verb)
        self.counts[verb] += 1
        self.payload_bytes[verb] += sum(x.nbytes for x in payload)
