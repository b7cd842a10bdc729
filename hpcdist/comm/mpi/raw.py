"""The verbs as mpi4py's own calls: what ours are measured against."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from hpcdist.comm.mpi.communicator import MpiCommunicator

__all__ = ["Pair", "pairs"]


class Pair(NamedTuple):
    """One verb, twice.

    Attributes
    ----------
    ours, raw : callable
        Carry it out on the same arrays. Collective over the communicator.
    """

    ours: Callable[[], object]
    raw: Callable[[], object]


def pairs(comm: MpiCommunicator, num_bytes: int) -> dict[str, Pair]:
    """Return every verb on float32 arrays; communicates with nobody.

    ``num_bytes`` is the whole vector: what all_reduce, reduce and broadcast take, what gathers make, and what
    reduce_scatter, scatter and all_to_all cut up. Messages go around the ranks in a ring.
    """
    mpi, rank, size = comm.handle, comm.rank, comm.size
    count = max(num_bytes // 4 // size, 1)
    x, y = np.ones(count * size, np.float32), np.empty(count * size, np.float32)
    part, cut = np.ones(count, np.float32), y.reshape(size, count)
    rows, shapes, root = list(x.reshape(size, count)), [(count,)] * size, rank == 0
    after, before = (rank + 1) % size, (rank - 1) % size

    def pass_on() -> None:
        work = comm.isend(x, after)
        comm.recv(y, before)
        work.wait()

    return {
        "all_reduce": Pair(lambda: comm.all_reduce(x, out=x), lambda: mpi.Allreduce(MPI.IN_PLACE, x)),
        "reduce": Pair(lambda: comm.reduce(x, out=y), lambda: mpi.Reduce(x, y)),
        "reduce_scatter": Pair(lambda: comm.reduce_scatter(x, out=part), lambda: mpi.Reduce_scatter_block(x, part)),
        "all_gather": Pair(lambda: comm.all_gather(part, out=y), lambda: mpi.Allgather(part, y)),
        "broadcast": Pair(lambda: comm.broadcast(x, out=x), lambda: mpi.Bcast(x)),
        "gather": Pair(lambda: comm.gather(part, out=list(cut) if root else None), lambda: mpi.Gather(part, y)),
        "scatter": Pair(lambda: comm.scatter(rows if root else None, part), lambda: mpi.Scatter(x, part)),
        "all_to_all": Pair(lambda: comm.all_to_all(rows, shapes, out=list(cut)), lambda: mpi.Alltoall(x, y)),
        "send and recv": Pair(pass_on, lambda: mpi.Sendrecv(x, after, 0, y, before, 0)),
        "barrier": Pair(comm.barrier, mpi.Barrier),
    }
