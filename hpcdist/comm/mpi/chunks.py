"""Messages larger than MPI can count, cut into pieces, each posted as a request of its own.

All arrays are flat and contiguous. Which way is taken depends only on counts that all ranks know alike, so all ranks
post the same collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm.mpi.dtypes import Reduction, carrier

__all__ = ["all_gather", "all_reduce", "broadcast", "lengths", "pieces", "recv", "reduce_scatter", "send"]


def pieces(count: int, limit: int) -> Iterator[slice]:
    """Cut ``count`` elements into slices of at most ``limit``; no elements make one empty slice."""
    for start in range(0, max(count, 1), limit):
        yield slice(start, min(start + limit, count))


def all_reduce(comm: MPI.Intracomm, source: Array, total: Array, how: Reduction, limit: int) -> list[MPI.Request]:
    """Post the reduction of ``source`` into ``total``, which may be ``source``. Collective over ``comm``."""

    def post(part: slice) -> MPI.Request:
        mine = MPI.IN_PLACE if source is total else [source[part], how.datatype]
        return comm.Iallreduce(mine, [total[part], how.datatype], how.operation)

    return [post(part) for part in pieces(total.size, limit)]


def broadcast(comm: MPI.Intracomm, x: Array, root: int, limit: int) -> list[MPI.Request]:
    """Post the broadcast of the root's ``x`` into everyone's. Collective over ``comm``."""
    return [comm.Ibcast(_message(x[part]), root) for part in pieces(x.size, limit)]


def all_gather(comm: MPI.Intracomm, mine: Array, whole: Array, counts: Sequence[int], limit: int) -> list[MPI.Request]:
    """Post the gathering of every rank's ``mine`` into ``whole``. Collective over ``comm``.

    Beyond what displacements can express, each rank broadcasts its part.
    """
    if len(set(counts)) == 1 and counts[0] <= limit:
        return [comm.Iallgather(_message(mine), [whole, mine.size, carrier(mine.itemsize)])]
    if sum(counts) <= limit:
        everyone = [whole, list(counts), _starts(counts), carrier(mine.itemsize)]
        return [comm.Iallgatherv(_message(mine), everyone)]
    parts = _cut(whole, counts)
    parts[comm.rank][:] = mine
    return [request for root, part in enumerate(parts) for request in broadcast(comm, part, root, limit)]


def reduce_scatter(
    comm: MPI.Intracomm, source: Array, mine: Array, counts: Sequence[int], how: Reduction, limit: int
) -> list[MPI.Request]:
    """Post the reduction of ``source``, of which each rank gets its slice. Collective over ``comm``.

    Beyond what counts can express, each slice is reduced to its rank.
    """
    send, receive = [source, how.datatype], [mine, how.datatype]
    if sum(counts) > limit:
        slices = enumerate(_cut(source, counts))
        return [r for root, part in slices for r in _reduce(comm, part, mine, root, how, limit)]
    if len(set(counts)) == 1:
        return [comm.Ireduce_scatter_block(send, receive, how.operation)]
    return [comm.Ireduce_scatter(send, receive, list(counts), how.operation)]


def send(comm: MPI.Intracomm, x: Array, dest: int, tag: int, limit: int) -> list[MPI.Request]:
    """Post the sending of ``x``. Point to point."""
    return [comm.Isend(_message(x[part]), dest, tag) for part in pieces(x.size, limit)]


def recv(comm: MPI.Intracomm, x: Array, source: int, tag: int, limit: int) -> list[MPI.Request]:
    """Post the receiving of ``x``. Point to point."""
    return [comm.Irecv(_message(x[part]), source, tag) for part in pieces(x.size, limit)]


def lengths(x: Array, limit: int) -> list[int]:
    """Return the bytes of each message that :func:`recv` waits for."""
    return [(part.stop - part.start) * x.itemsize for part in pieces(x.size, limit)]


def _reduce(
    comm: MPI.Intracomm, source: Array, total: Array, root: int, how: Reduction, limit: int
) -> list[MPI.Request]:
    def post(part: slice) -> MPI.Request:
        receive = [total[part], how.datatype] if comm.rank == root else None
        return comm.Ireduce([source[part], how.datatype], receive, how.operation, root)

    return [post(part) for part in pieces(source.size, limit)]


def _message(x: Array) -> list[object]:
    return [x, x.size, carrier(x.itemsize)]


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *accumulate(counts)][:-1]


def _cut(x: Array, counts: Sequence[int]) -> list[Array]:
    return [x[start : start + count] for start, count in zip(_starts(counts), counts, strict=True)]
