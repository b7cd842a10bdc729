"""A group of MPI ranks: the verbs, by MPI's fastest calls where that is safe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm.mpi import verbs
from hpcdist.comm.mpi.device import agree_on_cuda
from hpcdist.comm.mpi.express import Express
from hpcdist.comm.mpi.handle import duplicate
from hpcdist.comm.mpi.mail import Mail
from hpcdist.comm.mpi.plain import PlainCommunicator
from hpcdist.comm.mpi.recorded import RecordedCommunicator
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.work import Work

__all__ = ["MpiCommunicator"]


class MpiCommunicator(RecordedCommunicator):
    """A group of MPI ranks. Creation is collective over ``handle``.

    Where all ranks are on one node and have a core each, a blocking verb waits until all have come, seen in shared
    memory, and then calls MPI's blocking form, which is faster; elsewhere it posts the non-blocking form and polls.
    Either way a wait has a time limit. A verb must be blocking on all ranks or on none.

    Calls of different ranks that do not fit together are an error on all of them: with ``check`` always; else if they
    block and the ranks are on one node, or are among the first 32 of the group, or leave ranks waiting for one another.
    Others are undefined without ``check``, as they are in MPI.

    Parameters
    ----------
    handle : MPI.Intracomm
        Used for nothing else; see :meth:`adopt` for one that is.
    **options
        As for :class:`RecordedCommunicator`.

    Raises
    ------
    CollectiveMismatchError
        On every rank, if they do not give the same options.
    """

    def __init__(self, handle: MPI.Intracomm, **options: Any) -> None:
        super().__init__(handle, **options)
        lane = None if self._gate is None or self.check else Express(self, self._gate, self._recorder, self._members)
        self._express = lane
        self._mail = Mail(self, self._recorder, self._members) if self.size > 1 and not self.check else None

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
        LaunchError
            If a CUDA-aware MPI is asked for (HPCDIST_CUDA_AWARE=on) and it is not.
        """
        handle = duplicate(host, timeout_s)
        if "cuda" not in options:
            options["cuda"] = agree_on_cuda(PlainCommunicator(handle, timeout_s=timeout_s))
        return cls(handle, timeout_s=timeout_s, **options)

    # ---- the verbs, blocking
    def all_reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Array:
        """Combine ``x`` of all ranks; see the base class. Collective over the group."""
        if self._express is not None and out is not None and self._express.all_reduce(x, op, out):
            return out
        return self._complete(verbs.all_reduce(self, x, ReduceOp(op), out))

    def reduce(self, x: Array, root: int = 0, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Array | None:
        """Combine ``x`` of all ranks on the root; see the base class. Collective over the group."""
        if self._express is not None and self._express.reduce(x, root, op, out):
            return out if self.rank == root else None
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
        express = self._express
        if express is not None and out is not None and express.reduce_scatter(x, dim, op, sizes, out):
            return out
        return self._complete(verbs.reduce_scatter(self, x, dim, ReduceOp(op), sizes, out))

    def all_gather(
        self, x: Array, dim: int = 0, *, sizes: Sequence[int] | None = None, out: Array | None = None
    ) -> Array:
        """Join the arrays of all ranks; see the base class. Collective over the group."""
        if self._express is not None and out is not None and self._express.all_gather(x, dim, sizes, out):
            return out
        return self._complete(verbs.all_gather(self, x, dim, sizes, out))

    def all_to_all(
        self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], *, out: Sequence[Array] | None = None
    ) -> list[Array]:
        """Exchange one array with every rank; see the base class. Collective over the group."""
        if self._express is not None and out is not None and self._express.all_to_all(parts, shapes, out):
            return list(out)
        return self._complete(verbs.all_to_all(self, parts, shapes, out))

    def broadcast(self, x: Array, root: int = 0, *, out: Array | None = None) -> Array:
        """Return the root's ``x``; see the base class. Collective over the group."""
        if self._express is not None and out is not None and self._express.broadcast(x, root, out):
            return out
        return self._complete(verbs.broadcast(self, x, root, out))

    def gather(self, x: Array, root: int = 0, *, out: Sequence[Array] | None = None) -> list[Array] | None:
        """Return the arrays of all ranks on the root; see the base class. Collective over the group."""
        if self._express is not None and self._express.gather(x, root, out):
            return list(out or ()) if self.rank == root else None
        return self._complete(verbs.gather(self, x, root, out))

    def scatter(self, parts: Sequence[Array] | None, out: Array, root: int = 0) -> Array:
        """Receive one of the root's parts; see the base class. Collective over the group."""
        if self._express is not None and self._express.scatter(parts, out, root):
            return out
        return self._complete(verbs.scatter(self, parts, out, root))

    def barrier(self) -> None:
        """Wait until every rank of the group is here. Collective over the group."""
        if self._express is None or not self._express.barrier():
            self._complete(verbs.barrier(self))

    # ---- messages
    def isend(self, x: Array, dest: int, tag: int = 0) -> Work[None]:
        """Post :meth:`send`. Point to point."""
        sent = None if self._mail is None else self._mail.send(x, dest, tag)
        return super().isend(x, dest, tag) if sent is None else sent

    def recv(self, out: Array, source: int | None = None, tag: int = 0) -> Array:
        """Receive into ``out``; see the base class. Point to point."""
        if self._mail is not None and self._mail.recv(out, source, tag):
            return out
        return super().recv(out, source, tag)

    def free(self) -> None:
        """Give back the message space; see the base class. Collective over the group."""
        super().free()
        self._express = self._mail = None
