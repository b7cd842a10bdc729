"""MPI's collective calls on one communicator, all blocking or all non-blocking, by the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

__all__ = ["Calls"]


class Calls:
    """Bound methods of ``handle``; blocking ones return None, the others a request.

    Parameters
    ----------
    handle : MPI.Intracomm
    blocking : bool
    """

    def __init__(self, handle: MPI.Intracomm, *, blocking: bool) -> None:
        def bound(name: str) -> Callable[..., MPI.Request | None]:
            method: Callable[..., Any] = getattr(handle, name if blocking else f"I{name.lower()}")
            return method

        self.handle, self.rank, self.blocking = handle, handle.Get_rank(), blocking
        self.all_reduce, self.reduce = bound("Allreduce"), bound("Reduce")
        self.reduce_scatter, self.reduce_scatter_block = bound("Reduce_scatter"), bound("Reduce_scatter_block")
        self.all_gather, self.all_gatherv = bound("Allgather"), bound("Allgatherv")
        self.broadcast, self.barrier = bound("Bcast"), bound("Barrier")
