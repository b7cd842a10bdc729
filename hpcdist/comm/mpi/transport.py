"""How the arrays of one verb reach MPI: as they are, as pointers into a device, or through pinned host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from hpcdist.array import Array, is_device
from hpcdist.backends import cuda
from hpcdist.comm.mpi import chunks
from hpcdist.comm.mpi.calls import Calls
from hpcdist.comm.mpi.chunks import Posted
from hpcdist.comm.mpi.dtypes import Reduction
from hpcdist.comm.mpi.plan import Group, Plan
from hpcdist.comm.mpi.staging import Staging
from hpcdist.errors import explain

__all__ = ["Transport", "transport"]

T = TypeVar("T")

_MESSAGES = ("send", "recv")
_REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")


class Transport(Protocol):
    """The calls of :mod:`hpcdist.comm.mpi.chunks`, and what goes before and after them."""

    @property
    def all_reduce(self) -> Callable[..., Posted]: ...
    @property
    def reduce(self) -> Callable[..., Posted]: ...
    @property
    def reduce_scatter(self) -> Callable[..., Posted]: ...
    @property
    def all_gather(self) -> Callable[..., Posted]: ...
    @property
    def broadcast(self) -> Callable[..., Posted]: ...
    @property
    def send(self) -> Callable[..., list[Any]]: ...
    @property
    def recv(self) -> Callable[..., list[Any]]: ...

    def limit(self, x: Any, limit: int) -> int:
        """Return the most elements of one message, if it may have ``limit``."""

    def adopt(self, x: Any) -> Any:
        """Return an array, or None, as the verbs want it."""

    def carry(self, plan: Plan[T]) -> Plan[T]:
        """Return ``plan`` with what has to happen around it."""


class Host:
    """Host arrays: MPI reads and writes them."""

    all_reduce, reduce = staticmethod(chunks.all_reduce), staticmethod(chunks.reduce)
    reduce_scatter, all_gather = staticmethod(chunks.reduce_scatter), staticmethod(chunks.all_gather)
    broadcast = staticmethod(chunks.broadcast)
    send, recv = staticmethod(chunks.send), staticmethod(chunks.recv)

    def limit(self, x: Array, limit: int) -> int:  # noqa: ARG002
        """Return ``limit``."""
        return limit

    def adopt(self, x: Any) -> Any:
        """Return ``x``."""
        return x

    def carry(self, plan: Plan[T]) -> Plan[T]:
        """Return ``plan``."""
        return plan


class Staged(Staging):
    """Device arrays, for an MPI that cannot read them."""

    def __init__(self) -> None:
        super().__init__()
        self._adopted: list[tuple[Array, Array]] = []

    def adopt(self, x: Any) -> Any:
        """Return device array ``x`` as CuPy's, with nothing under way on it; None as it is.

        Raises
        ------
        TypeError
            If it is a host array: copies between host and device are never implicit.
        """
        if x is None:
            return None
        known = next((view for view, original in self._adopted if original is x), None)
        if known is not None:
            return known
        if not is_device(x):
            do = "move all to one place first"
            raise TypeError(explain("host and device arrays are mixed", got=type(x).__name__, do=do))
        view = cuda.adopt(x)
        self._adopted.append((view, x))
        return view

    def limit(self, x: Any, limit: int) -> int:
        """Return the elements of a piece."""
        return self._piece(x, limit)

    def carry(self, plan: Plan[T]) -> Plan[T]:
        """Return ``plan``, before which MPI waits for the device, and after which nobody has to."""
        place = () if plan.verb in _MESSAGES else ("on a device",)
        like = self._adopted[0][0]

        def post(calls: Calls) -> Posted:
            cuda.settle(like)
            return plan.post(calls)

        def finish() -> T:
            self.end()
            value = plan.finish()
            cuda.settle(like)
            return self._original(value)

        buffers = (plan.buffers, self.held)
        changes: dict[str, Any] = {"post": post, "finish": finish, "buffers": buffers, "arrived": self.arrived}
        return plan._replace(terms=(*plan.terms, *place), **changes)

    def _original(self, value: Any) -> Any:
        """Return what the caller passed as ``out`` where ``value`` is a view of it."""
        if isinstance(value, list):
            return [self._original(v) for v in value]
        return next((x for view, x in self._adopted if view is value), value)


class Direct(Staged):
    """Device arrays, for an MPI that reads and writes them.

    Non-blocking reductions go through the host all the same: MPI libraries carry them out by loops on the host, which
    end in a crash on device memory.

    Parameters
    ----------
    nonblocking_reductions : bool
        Whether this MPI can do those too.
    """

    all_gather, broadcast = staticmethod(chunks.all_gather), staticmethod(chunks.broadcast)  # type: ignore[assignment]
    send, recv = staticmethod(chunks.send), staticmethod(chunks.recv)  # type: ignore[assignment]

    def __init__(self, nonblocking_reductions: bool) -> None:
        super().__init__()
        self._nonblocking = nonblocking_reductions

    def all_reduce(self, calls: Calls, source: Any, total: Any, how: Reduction, limit: int) -> Posted:
        """Post the reduction of ``source`` into ``total``. Collective over the group of ``calls``."""
        if self._takes(calls):
            return chunks.all_reduce(_own(calls), source, total, how, limit)
        return super().all_reduce(calls, source, total, how, limit)

    def reduce(self, calls: Calls, source: Any, total: Any, root: int, how: Reduction, limit: int) -> Posted:
        """Post the reduction of ``source`` into the root's ``total``. Collective over the group of ``calls``."""
        if self._takes(calls):
            return chunks.reduce(_own(calls), source, total, root, how, limit)
        return super().reduce(calls, source, total, root, how, limit)

    def reduce_scatter(
        self, calls: Calls, source: Any, mine: Any, counts: Sequence[int], how: Reduction, limit: int
    ) -> Posted:
        """Post the reduction of ``source``, of which each rank gets its slice. Collective over the group."""
        if self._takes(calls):
            return chunks.reduce_scatter(_own(calls), source, mine, counts, how, limit)
        return super().reduce_scatter(calls, source, mine, counts, how, limit)

    def limit(self, x: Any, limit: int) -> int:  # noqa: ARG002
        """Return ``limit``: messages are not cut."""
        return limit

    def carry(self, plan: Plan[T]) -> Plan[T]:
        """Return ``plan``; reductions want MPI's blocking calls."""
        return super().carry(plan)._replace(blocking=plan.verb in _REDUCTIONS and not self._nonblocking)

    def _takes(self, calls: Calls) -> bool:
        return calls.blocking or self._nonblocking


def _own(calls: Calls) -> Calls:
    """Return MPI's own calls: others work on host memory."""
    return Calls(calls.handle, blocking=calls.blocking)


_HOST = Host()


def transport(group: Group, *arrays: Any, staged: bool = False) -> Transport:
    """Return the way of ``arrays`` to MPI; entries may be None. ``staged``: through the host in any case."""
    for x in arrays:
        if type(x) is not np.ndarray and x is not None and is_device(x):
            direct = group.cuda.aware and not staged
            return Direct(group.cuda.nonblocking_reductions) if direct else Staged()
    return _HOST
