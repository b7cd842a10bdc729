"""A group of MPI ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from mpi4py import MPI

from hpcdist import config
from hpcdist.array import Array, is_device
from hpcdist.comm import arguments
from hpcdist.comm.communicator import Communicator, ReduceOp
from hpcdist.comm.mpi import chunks, dtypes, objects, progress
from hpcdist.comm.mpi.handle import duplicate
from hpcdist.comm.mpi.layout import front, like, pack, receives_directly
from hpcdist.comm.mpi.work import MpiWork
from hpcdist.comm.operation import Operation
from hpcdist.comm.reduction import divide
from hpcdist.comm.rendezvous import call_site
from hpcdist.comm.work import Work
from hpcdist.errors import explain

__all__ = ["MpiCommunicator"]

T = TypeVar("T")

_LEAST_TOP_TAG = 32767
"""MPI guarantees tags up to here."""


class MpiCommunicator(Communicator):
    """A group of MPI ranks that exchanges messages by non-blocking calls.

    Parameters
    ----------
    handle : MPI.Intracomm
        Used for nothing else; see :meth:`adopt` for one that is.
    name : str
        Shown in messages.
    timeout_s : float
        Limit of every wait.
    reproducible : bool
        Read by strategies and optimizers.
    max_count : int, optional
        Elements in one message; larger ones are cut. Default: HPCDIST_MAX_COUNT.
    """

    def __init__(
        self,
        handle: MPI.Intracomm,
        *,
        name: str = "world",
        timeout_s: float = 1800.0,
        reproducible: bool = False,
        max_count: int | None = None,
    ) -> None:
        self.handle, self.name = handle, name
        self.rank, self.size = handle.Get_rank(), handle.Get_size()
        self.timeout_s, self.reproducible = timeout_s, reproducible
        self.max_count = config.environment().max_count if max_count is None else max_count
        self._top_tag = int(handle.Get_attr(MPI.TAG_UB) or _LEAST_TOP_TAG)

    @classmethod
    def adopt(cls, host: MPI.Comm | int, *, name: str = "world", timeout_s: float = 1800.0, **options: Any) -> Self:
        """Return the ranks of a host code's communicator with a message space of their own.

        Collective over ``host``, which is never used for messages.

        Parameters
        ----------
        host : MPI.Comm or int
            An mpi4py communicator, or a Fortran handle.
        name, timeout_s, **options
            As for the class.

        Raises
        ------
        TypeError, ValueError
            If ``host`` is no communicator, null, or an inter-communicator.
        """
        return cls(duplicate(host, timeout_s), name=name, timeout_s=timeout_s, **options)

    def __repr__(self) -> str:
        return f"MpiCommunicator({self.name!r}, rank {self.rank} of {self.size})"

    # ---- reductions
    def iall_reduce(self, x: Array, op: ReduceOp = ReduceOp.SUM, *, out: Array | None = None) -> Work[Array]:
        """Post :meth:`all_reduce`. Collective over the group."""
        arguments.check_array("all_reduce", "x", x)
        arguments.check_out("all_reduce", x, out)
        how = dtypes.reduction(x.dtype, ReduceOp(op))
        source = pack(x, how.dtype)
        total = _accumulate_in(x, source, out)
        requests = self._reduce(source, total, how)

        def finish() -> Array:
            mean = self._mean(total, op)
            if out is None:
                return like(x, mean)
            if out is not total:
                out[...] = like(out, mean)
            return out

        return self._work("all_reduce", x, requests, finish, (source, total))

    def _reduce(self, source: Array, total: Array, how: dtypes.Reduction) -> list[MPI.Request]:
        if self.size > 1:
            flat = total.reshape(-1)
            mine = flat if source is total else source.reshape(-1)
            return chunks.all_reduce(self.handle, mine, flat, how, self.max_count)
        if source is not total:
            total[...] = source
        return []

    def ireduce_scatter(
        self, x: Array, dim: int = 0, op: ReduceOp = ReduceOp.SUM, *, sizes: Sequence[int] | None = None
    ) -> Work[Array]:
        """Post :meth:`reduce_scatter`. Collective over the group."""
        arguments.check_array("reduce_scatter", "x", x)
        how = dtypes.reduction(x.dtype, ReduceOp(op))
        dim = arguments.dimension("reduce_scatter", dim, x.ndim)
        extents = arguments.slices(x.shape[dim], sizes, dim, self.size)
        source = front(x, dim, how.dtype)
        mine = np.empty((extents[self.rank], *source.shape[1:]), source.dtype)
        requests = self._scatter(source, mine, extents, how)
        return self._work("reduce_scatter", x, requests, lambda: like(x, self._mean(mine, op), dim), (source, mine))

    def _scatter(self, source: Array, mine: Array, extents: Sequence[int], how: dtypes.Reduction) -> list[MPI.Request]:
        if self.size > 1:
            counts = _counts(extents, source)
            return chunks.reduce_scatter(self.handle, source.reshape(-1), mine.reshape(-1), counts, how, self.max_count)
        mine[...] = source
        return []

    def _mean(self, total: Array, op: ReduceOp) -> Array:
        """Divide a finished sum in place if its mean was asked for."""
        if op == ReduceOp.AVG:
            divide(total, self.size)
        return total

    # ---- moves
    def iall_gather(self, x: Array, dim: int = 0, *, sizes: Sequence[int] | None = None) -> Work[Array]:
        """Post :meth:`all_gather`. Collective over the group."""
        arguments.check_array("all_gather", "x", x)
        dim = arguments.dimension("all_gather", dim, x.ndim)
        extents = arguments.extents("all_gather", sizes, x.shape[dim], self.size)
        if extents[self.rank] != x.shape[dim]:
            text, expected = (
                f"all_gather: extent of dim {dim} on rank {self.rank}",
                f"{extents[self.rank]}, as sizes says",
            )
            raise ValueError(explain(text, got=x.shape[dim], expected=expected))
        mine = front(x, dim)
        whole = np.empty((sum(extents), *mine.shape[1:]), mine.dtype)
        requests = self._gather(mine, whole, extents)
        return self._work("all_gather", x, requests, lambda: like(x, whole, dim), (mine, whole))

    def _gather(self, mine: Array, whole: Array, extents: Sequence[int]) -> list[MPI.Request]:
        if self.size > 1:
            counts = _counts(extents, mine)
            return chunks.all_gather(self.handle, dtypes.raw(mine), dtypes.raw(whole), counts, self.max_count)
        whole[...] = mine
        return []

    def iall_to_all(self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> Work[list[Array]]:
        """Post :meth:`all_to_all`. Collective over the group.

        Messages go point to point, as sizes of one pair of ranks are not known to others.
        """
        arguments.check_parts(parts, shapes, self.size)
        packed = [pack(part) for part in parts]
        received = [np.empty(shape, packed[0].dtype) for shape in shapes]
        if packed[self.rank].shape != received[self.rank].shape:
            got, expected = packed[self.rank].shape, f"{received[self.rank].shape}, as shapes says"
            raise ValueError(explain("all_to_all: part of this rank for itself", got=got, expected=expected))
        received[self.rank][...] = packed[self.rank]
        requests, lengths = self._exchange(packed, received)

        def finish() -> list[Array]:
            return [like(parts[0], array) for array in received]

        return self._work("all_to_all", parts[0], requests, finish, packed + received, lengths=lengths)

    def _exchange(self, packed: list[Array], received: list[Array]) -> tuple[list[MPI.Request], list[int]]:
        """Post messages with all other ranks, receives first; return them and the lengths of the receives."""
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        flat = [dtypes.raw(array) for array in received]
        receives = [r for i in others for r in chunks.recv(self.handle, flat[i], i, self._top_tag, self.max_count)]
        sends = [
            r for i in others for r in chunks.send(self.handle, dtypes.raw(packed[i]), i, self._top_tag, self.max_count)
        ]
        return receives + sends, [n for i in others for n in chunks.lengths(flat[i], self.max_count)]

    def ibroadcast(self, x: Array, root: int = 0) -> Work[Array]:
        """Post :meth:`broadcast`. Collective over the group."""
        arguments.check_array("broadcast", "x", x)
        arguments.check_rank("broadcast", "root", root, self.size)
        packed = pack(x)
        value = packed.copy() if self.rank == root else np.empty_like(packed)
        alone = self.size == 1
        requests = [] if alone else chunks.broadcast(self.handle, dtypes.raw(value), root, self.max_count)
        return self._work("broadcast", x, requests, lambda: like(x, value), (value,))

    def isend(self, x: Array, dest: int, tag: int = 0) -> Work[None]:
        """Post :meth:`send`. Point to point."""
        arguments.check_array("send", "x", x)
        arguments.check_rank("send", "dest", dest, self.size)
        self._check_tag("send", tag)
        packed = pack(x)
        requests = chunks.send(self.handle, dtypes.raw(packed), dest, tag, self.max_count)
        return self._work("send", x, requests, lambda: None, (packed,), peers=f"rank {dest}")

    def irecv(self, out: Array, source: int, tag: int = 0) -> Work[Array]:
        """Post :meth:`recv`. Point to point."""
        arguments.check_array("recv", "out", out)
        arguments.check_rank("recv", "source", source, self.size)
        self._check_tag("recv", tag)
        dtype = out.dtype.newbyteorder("=")
        buffer = out if receives_directly(out, dtype) else np.empty(out.shape, dtype)
        flat = dtypes.raw(buffer)
        requests = chunks.recv(self.handle, flat, source, tag, self.max_count)
        lengths = chunks.lengths(flat, self.max_count)

        def finish() -> Array:
            if buffer is not out:
                out[...] = like(out, buffer)
            return out

        return self._work("recv", out, requests, finish, (buffer,), peers=f"rank {source}", lengths=lengths)

    def ibarrier(self) -> Work[None]:
        """Post :meth:`barrier`. Collective over the group."""
        requests = [] if self.size == 1 else [self.handle.Ibarrier()]
        return self._work("barrier", None, requests, lambda: None, ())

    # ---- progress
    def watch(self, work: Work[Any]) -> None:
        """See to it that ``work`` makes progress while the caller computes."""
        if isinstance(work, MpiWork):
            progress.watch(work)

    def poll(self) -> None:
        """Make progress with watched works, if no thread does. Never blocks."""
        progress.poll()

    # ---- objects and groups
    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the picklable ``value`` of every rank, in rank order. Collective over the group.

        Raises
        ------
        TypeError
            On every rank, if the value of one cannot be pickled.
        """
        return objects.gather(self, value)

    def split(self, color: int | None, key: int = 0) -> MpiCommunicator | None:
        """Form one new group a color (0 or more), ordered by ``key``, then rank; None with color None.

        Collective over the group: ranks that want no part call it with ``color=None``.
        """
        arguments.check_split(color, key)
        self.barrier()  # has a time limit, which MPI_Comm_split has not
        handle = self.handle.Split(MPI.UNDEFINED if color is None else color, key)
        return None if handle == MPI.COMM_NULL else self._derived(handle, f"{self.name}/{color}")

    def split_node(self) -> MpiCommunicator:
        """Return the group of ranks that share this rank's memory. Collective over the group."""
        self.barrier()
        return self._derived(self.handle.Split_type(MPI.COMM_TYPE_SHARED, self.rank), f"{self.name}/node")

    def dup(self) -> MpiCommunicator:
        """Return the same ranks with a message space of their own. Collective over the group."""
        return self._derived(duplicate(self.handle, self.timeout_s), self.name)

    def free(self) -> None:
        """Give back the message space; it cannot be used any more. Collective over the group."""
        self.handle.Free()

    # ---- shared by the verbs
    def _derived(self, handle: MPI.Comm, name: str) -> MpiCommunicator:
        assert isinstance(handle, MPI.Intracomm)
        return MpiCommunicator(
            handle,
            name=name,
            timeout_s=self.timeout_s,
            reproducible=self.reproducible,
            max_count=self.max_count,
        )

    def _work(
        self,
        verb: str,
        x: Array | None,
        requests: list[MPI.Request],
        finish: Callable[[], T],
        buffers: Sequence[Array],
        *,
        peers: str | None = None,
        lengths: Sequence[int] = (),
    ) -> MpiWork[T]:
        shape, dtype = (None, None) if x is None else (x.shape, x.dtype)
        everyone = f"all {self.size} ranks of the group"
        operation = Operation(verb, self.rank, self.size, self.name, shape, dtype, peers or everyone, call_site())
        return MpiWork(operation, requests, finish, buffers=buffers, timeout_s=self.timeout_s, lengths=lengths)

    def _check_tag(self, verb: str, tag: int) -> None:
        if not 0 <= tag < self._top_tag:
            raise ValueError(explain(f"{verb}: tag", got=tag, expected=f"0 to {self._top_tag - 1}"))


def _accumulate_in(x: Array, source: Array, out: Array | None) -> Array:
    """Return where to reduce ``source``: ``out`` where possible; else its own memory if it is a copy of ``x``."""
    target = out if out is not None and receives_directly(out, source.dtype) else None
    if target is not None and (target is source or not np.may_share_memory(target, source)):
        return target
    if is_device(x) or not np.may_share_memory(x, source):
        return source
    return np.empty_like(source)


def _counts(extents: Sequence[int], packed: Array) -> list[int]:
    """Return the elements of every rank's part of an array packed with the divided dimension in front."""
    row = math.prod(packed.shape[1:])
    return [n * row for n in extents]
