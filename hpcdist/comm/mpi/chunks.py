"""Messages larger than MPI can count, cut into pieces, each a call of its own.

All arrays are flat and contiguous; blocking calls leave no request. Which way is taken depends only on counts that all
ranks know alike, so all ranks post the same collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm.mpi.calls import Calls
from hpcdist.comm.mpi.dtypes import Reduction, carrier

__all__ = ["all_gather", "all_reduce", "broadcast", "lengths", "pieces", "recv", "reduce", "reduce_scatter", "send"]

Posted = list[MPI.Request | None]


def pieces(count: int, limit: int) -> Iterator[slice]:
    """Cut ``count`` elements into slices of at most ``limit``; no elements make one empty slice."""
    for start in range(0, max(count, 1), limit):
        yield slice(start, min(start + limit, count))


def all_reduce(calls: Calls, source: Array, total: Array, how: Reduction, limit: int) -> Posted:
    """Post the reduction of ``source`` into ``total``, perhaps itself. Collective over the group of ``calls``."""

    def post(part: slice) -> MPI.Request | None:
        mine = MPI.IN_PLACE if source is total else [source[part], how.datatype]
        return calls.all_reduce(mine, [total[part], how.datatype], how.operation)

    return [post(part) for part in pieces(total.size, limit)]


def broadcast(calls: Calls, x: Array, root: int, limit: int) -> Posted:
    """Post the broadcast of the root's ``x`` into everyone's. Collective over the group of ``calls``."""
    return [calls.broadcast(_message(x[part]), root) for part in pieces(x.size, limit)]


def all_gather(calls: Calls, mine: Array, whole: Array, counts: Sequence[int], limit: int) -> Posted:
    """Post the gathering of every rank's ``mine`` into ``whole``. Collective over the group of ``calls``.

    Beyond what displacements can express, each rank broadcasts its part.
    """
    if len(set(counts)) == 1 and counts[0] <= limit:
        return [calls.all_gather(_message(mine), [whole, mine.size, carrier(mine.itemsize)])]
    if sum(counts) <= limit:
        everyone = [whole, list(counts), _starts(counts), carrier(mine.itemsize)]
        return [calls.all_gatherv(_message(mine), everyone)]
    parts = _cut(whole, counts)
    parts[calls.rank][:] = mine
    return [request for root, part in enumerate(parts) for request in broadcast(calls, part, root, limit)]


def reduce_scatter(
    calls: Calls, source: Array, mine: Array, counts: Sequence[int], how: Reduction, limit: int
) -> Posted:
    """Post the reduction of ``source``, of which each rank gets its slice. Collective over the group of ``calls``.

    Beyond what counts can express, each slice is reduced to its rank.
    """
    send, receive = [source, how.datatype], [mine, how.datatype]
    if sum(counts) > limit:
        slices = enumerate(_cut(source, counts))
        return [r for root, part in slices for r in reduce(calls, part, mine, root, how, limit)]
    if len(set(counts)) == 1:
        return [calls.reduce_scatter_block(send, receive, how.operation)]
    return [calls.reduce_scatter(send, receive, list(counts), how.operation)]


def reduce(calls: Calls, source: Array, total: Array | None, root: int, how: Reduction, limit: int) -> Posted:
    """Post the reduction of ``source`` into the root's ``total``. Collective over the group of ``calls``."""

    def post(part: slice) -> MPI.Request | None:
        receive = None if total is None or calls.rank != root else [total[part], how.datatype]
        return calls.reduce([source[part], how.datatype], receive, how.operation, root)

    return [post(part) for part in pieces(source.size, limit)]


def send(comm: MPI.Intracomm, x: Array, dest: int, tag: int, limit: int) -> list[MPI.Request]:
    """Post the sending of ``x``. Point to point."""
    return [comm.Isend(_message(x[part]), dest, tag) for part in pieces(x.size, limit)]


def recv(comm: MPI.Intracomm, x: Array, source: int, tag: int, limit: int) -> list[MPI.Request]:
    """Post the receiving of ``x``. Point to point."""
    return [comm.Irecv(_message(x[part]), source, tag) for part in pieces(x.size, limit)]


def lengths(x: Array, limit: int) -> list[int]:
    """Return the bytes of each message that :func:`recv` waits for."""
    return [(part.stop - part.start) * x.itemsize for part in pieces(x.size, limit)]


def _message(x: Array) -> list[object]:
    return [x, x.size, carrier(x.itemsize)]


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *accumulate(counts)][:-1]


def _cut(x: Array, counts: Sequence[int]) -> list[Array]:
    return [x[start : start + count] for start, count in zip(_starts(counts), counts, strict=True)]
