"""A group of MPI ranks: the verbs, recorded, compared between ranks, and by MPI's fastest calls where that is safe."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from mpi4py import MPI

from hpcdist import config
from hpcdist.array import Array
from hpcdist.comm.mpi import verbs
from hpcdist.comm.mpi.attendance import attend
from hpcdist.comm.mpi.check import Checker, Compared
from hpcdist.comm.mpi.crowding import crowded
from hpcdist.comm.mpi.gate import Gate, gate_bytes
from hpcdist.comm.mpi.handle import duplicate
from hpcdist.comm.mpi.plain import PlainCommunicator
from hpcdist.comm.mpi.shared import node_name, share
from hpcdist.comm.mpi.window import Window, WindowCalls, window_bytes
from hpcdist.comm.mpi.work import MpiWork
from hpcdist.comm.operation import Operation, disagreement
from hpcdist.comm.recorder import process_recorder
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.work import Work
from hpcdist.errors import CollectiveMismatchError, DistError, explain

__all__ = ["MpiCommunicator"]

T = TypeVar("T")

_MESSAGES = ("send", "recv")


class MpiCommunicator(PlainCommunicator):
    """A group of MPI ranks. Creation is collective over ``handle``.

    Where all ranks are on one node and have a core each, a blocking verb waits until all have come, seen in shared
    memory, and then calls MPI's blocking form, which is faster; elsewhere it posts the non-blocking form and polls.
    Either way a wait has a time limit. A verb must be blocking on all ranks or on none.

    Parameters
    ----------
    handle : MPI.Intracomm
        Used for nothing else; see :meth:`adopt` for one that is.
    name, timeout_s, reproducible, max_count
        As for :class:`PlainCommunicator`.
    check : bool, optional
        Whether ranks compare their calls. Default: HPCDIST_CHECK.
    nodes : sequence of int, optional
        For every rank a number that ranks of its node share. Default: the ranks find out.
    direct : bool, optional
        Whether to use blocking calls where all ranks are on one node. Default: unless they share cores.
    """

    def __init__(
        self,
        handle: MPI.Intracomm,
        *,
        name: str = "world",
        timeout_s: float = 1800.0,
        reproducible: bool = False,
        max_count: int | None = None,
        check: bool | None = None,
        nodes: Sequence[int] | None = None,
        direct: bool | None = None,
    ) -> None:
        super().__init__(handle, name=name, timeout_s=timeout_s, reproducible=reproducible, max_count=max_count)
        self.check = config.environment().check if check is None else check
        self.nodes = self._find_nodes() if nodes is None else tuple(nodes)
        self.direct = not crowded() if direct is None else direct
        self._recorder = process_recorder()
        self._members = attend(handle)
        self._blocking = WindowCalls(handle, self._open_window)
        self._gate = self._make_gate()
        self._checker = Checker(self.plain()) if self.check and self.size > 1 else None
        self._under_way = 0

    @classmethod
    def adopt(cls, host: MPI.Comm | int, *, timeout_s: float = 1800.0, **options: Any) -> Self:
        """Return the ranks of a host code's communicator with a message space of their own.

        Collective over ``host``, which is never used for messages.

        Parameters
        ----------
        host : MPI.Comm or int
            An mpi4py communicator, or a Fortran handle.
        timeout_s, **options
            As for the class.

        Raises
        ------
        TypeError, ValueError
            If ``host`` is no communicator, null, or an inter-communicator.
        """
        return cls(duplicate(host, timeout_s), timeout_s=timeout_s, **options)

    def plain(self) -> PlainCommunicator:
        """Return the same ranks with a message space of their own, neither recorded nor compared.

        Collective over the group.
        """
        return self._plain(duplicate(self.handle, self.timeout_s))

    def _plain(self, handle: MPI.Intracomm) -> PlainCommunicator:
        return PlainCommunicator(handle, name=self.name, timeout_s=self.timeout_s, max_count=self.max_count)

    def _find_nodes(self) -> tuple[int, ...]:
        """Return for every rank the lowest rank on its node. Collective over the group."""
        names = self._plain(self.handle).all_gather_object(node_name())
        return tuple(map(names.index, names))

    def _make_gate(self) -> Gate | None:
        if self.size == 1 or not self.direct or len(set(self.nodes)) > 1:
            return None
        memory = share(self._plain(self.handle), gate_bytes(self.size))
        return None if memory is None else Gate(memory, self.rank, self.size, self.handle.Iprobe)

    def _open_window(self) -> Window | None:
        memory = share(self._plain(self.handle), window_bytes(self.size))
        return None if memory is None else Window(memory, self.rank, self.size, self.timeout_s)

    # ---- the verbs, blocking
    def all_reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Array:
        """Combine ``x`` of all ranks; see the base class. Collective over the group."""
        return self._complete(verbs.all_reduce(self, x, ReduceOp(op), out))

    def reduce(self, x: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Array | None:
        """Combine ``x`` of all ranks on the root; see the base class. Collective over the group."""
        return self._complete(verbs.reduce(self, x, root, ReduceOp(op), out))

    def reduce_scatter(
        self,
        x: Array,
        dim: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        *,
        sizes: Sequence[int] | None = None,
        out: Array | None = None,
    ) -> Array:
        """Combine ``x`` of all ranks and keep a slice; see the base class. Collective over the group."""
        return self._complete(verbs.reduce_scatter(self, x, dim, ReduceOp(op), sizes, out))

    def all_gather(
        self, x: Array, dim: int = 0, *, sizes: Sequence[int] | None = None, out: Array | None = None
    ) -> Array:
        """Join the arrays of all ranks; see the base class. Collective over the group."""
        return self._complete(verbs.all_gather(self, x, dim, sizes, out))

    def all_to_all(
        self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], *, out: Sequence[Array] | None = None
    ) -> list[Array]:
        """Exchange one array with every rank; see the base class. Collective over the group."""
        return self._complete(verbs.all_to_all(self, parts, shapes, out))

    def broadcast(self, x: Array, root: int = 0, *, out: Array | None = None) -> Array:
        """Return the root's ``x``; see the base class. Collective over the group."""
        return self._complete(verbs.broadcast(self, x, root, out))

    def gather(self, x: Array, root: int = 0, *, out: Sequence[Array] | None = None) -> list[Array] | None:
        """Return the arrays of all ranks on the root; see the base class. Collective over the group."""
        return self._complete(verbs.gather(self, x, root, out))

    def scatter(self, parts: Sequence[Array] | None, out: Array, root: int = 0) -> Array:
        """Receive one of the root's parts; see the base class. Collective over the group."""
        return self._complete(verbs.scatter(self, parts, out, root))

    def barrier(self) -> None:
        """Wait until every rank of the group is here. Collective over the group."""
        self._complete(verbs.barrier(self))

    # ---- groups
    def dup(self, *, check: bool | None = None) -> Self:
        """Return the same ranks with a message space of their own; see the base class. Collective over the group."""
        before, self.check = self.check, self.check if check is None else check
        try:
            return super().dup()
        finally:
            self.check = before

    def free(self) -> None:
        """Give back the message space; it cannot be used any more. Collective over the group.

        Raises
        ------
        DistError
            If operations are still under way.
        """
        if self._under_way:
            do = "wait for every work before the group is freed"
            raise DistError(explain(f"free of group {self.name!r}: under way", got=self._under_way, expected=0, do=do))
        if self._checker is not None:
            self._checker.side.free()
        super().free()

    def _options(self, handle: MPI.Intracomm) -> dict[str, Any]:
        nodes = [self.nodes[place] for place in self._places(handle)]
        return {**super()._options(handle), "check": self.check, "nodes": nodes, "direct": self.direct}

    # ---- what the verbs are made of
    def _start(self, plan: verbs.Plan[T]) -> Work[T]:
        operation = self._operation(plan)
        if self.size == 1:
            return super()._post(plan, operation)
        if plan.verb in _MESSAGES:
            return self._post(plan, operation)
        if self._gate is not None:
            self._gate.post(operation.number)
        work = self._post(plan, operation)
        return work if self._checker is None else Compared(self._checker, operation, work, plan.sizes)

    def _complete(self, plan: verbs.Plan[T]) -> T:
        """Carry out a collective: by blocking calls where all ranks have come."""
        operation = self._operation(plan)
        if self.size == 1:
            return super()._post(plan, operation).wait()
        ticket, failed = self._recorder.begin(operation, self._members, limit_s=self.timeout_s), True
        try:
            value = self._meet(plan, operation)
            failed = False
        finally:
            self._recorder.end(ticket, failed=failed)
        return value

    def _meet(self, plan: verbs.Plan[T], operation: Operation) -> T:
        if self._gate is None:
            if self._checker is not None:
                self._checker.before(operation, plan.sizes)
            return super()._post(plan, operation).wait()
        self._pass(self._gate, operation)
        if self._checker is not None and plan.sizes is not None:
            self._checker.compare_sizes(operation, plan.sizes)
        posted = plan.post(self._blocking)
        return super()._work(plan, operation, posted).wait() if any(posted) else plan.finish()

    def _pass(self, gate: Gate, operation: Operation) -> None:
        """Wait until all ranks have come to this call; raise on all if it is not the same call on all."""
        if gate.enter(operation, operation.number, self.timeout_s):
            return
        others = gate.posted(operation.number)
        if others:
            got = f"rank {', '.join(map(str, others))} posted call {operation.number} without blocking"
            what, do = f"{operation}: ranks disagree", "use the blocking form on all ranks, or the non-blocking one"
            raise CollectiveMismatchError(explain(what, got=f"{got}; called at {operation.site}", do=do))
        raise CollectiveMismatchError(disagreement(self._plain(self.handle).all_gather_object(operation)))

    def _post(self, plan: verbs.Plan[T], operation: Operation) -> MpiWork[T]:
        """Make the calls that do not block; record when they are done, and whether somebody waits for that."""
        ticket = self._recorder.begin(operation, self._members)
        self._under_way += 1

        def ended(failed: bool) -> None:
            self._under_way -= 1
            self._recorder.end(ticket, failed=failed)

        late = functools.partial(self._recorder.wait, ticket)
        return self._work(plan, operation, plan.post(self._posting), ended=ended, late=late)
