"""Handles of MPI communicators: a message space of our own from what a host code hands over."""

from __future__ import annotations

from mpi4py import MPI

from hpcdist.comm.mpi.polling import poll
from hpcdist.errors import DistTimeoutError, explain

__all__ = ["duplicate"]

_DO = "pass an intra-communicator: an mpi4py one, or the integer handle of a Fortran one"


def duplicate(host: MPI.Comm | int, limit_s: float) -> MPI.Intracomm:
    """Return a duplicate of ``host``, which takes no part in its messages. Collective over ``host``."""
    source = _checked(host)
    twin, request = source.Idup()
    if not poll(request.Test, limit_s):
        raise DistTimeoutError(
            explain(
                f"communicator of {source.size} ranks: not duplicated within {limit_s:g} s on rank {source.rank}",
                do="call init, or adopt, on every rank of the communicator",
            )
        )
    return twin


def _checked(host: MPI.Comm | int) -> MPI.Intracomm:
    comm = _from_fortran(host) if isinstance(host, int) else host
    if not isinstance(comm, MPI.Comm):
        raise TypeError(explain("communicator", got=type(host).__name__, expected="an MPI communicator", do=_DO))
    if comm == MPI.COMM_NULL or not isinstance(comm, MPI.Intracomm):
        raise ValueError(explain("communicator", got=f"{host!r}, null or between two groups", do=_DO))
    return comm


def _from_fortran(handle: int) -> MPI.Comm:
    try:
        return MPI.Comm.f2py(handle)
    except MPI.Exception as e:
        raise ValueError(explain("communicator: Fortran handle", got=f"{handle}: {e}", do=_DO)) from None
