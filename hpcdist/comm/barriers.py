"""PyTorch's functions that let ranks wait for one another: barriers, and a debugger on one of them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

from hpcdist.comm.addressing import GroupLike, member, rank_in
from hpcdist.comm.availability import is_torchelastic_launched
from hpcdist.comm.future import Pending, seconds
from hpcdist.comm.monitored import monitored_barrier as _monitored_barrier
from hpcdist.comm.operation import call_site
from hpcdist.comm.process_group import limited
from hpcdist.errors import DistError, explain

__all__ = ["barrier", "breakpoint", "monitored_barrier"]


def barrier(
    group: GroupLike = None,
    async_op: bool = False,
    device_ids: object = None,  # noqa: ARG001 (an array knows where it is)
    timeout: float | timedelta | None = None,
) -> Pending | None:
    """Wait until every rank is here. Collective over ``group``.

    Parameters
    ----------
    group, async_op
        As for :func:`broadcast`.
    device_ids
        Dropped.
    timeout : float or timedelta, optional
        Limit, in seconds. Default: that of the group.
    """
    comm = member("barrier", group)
    with limited(comm, timeout):
        if async_op:
            return Pending(comm.ibarrier(), [], comm.members)
        comm.barrier()
    return None


def monitored_barrier(
    group: GroupLike = None,
    timeout: float | timedelta | None = None,
    wait_all_ranks: bool = True,  # noqa: ARG001 (always so)
) -> None:
    """Wait until every rank is here, and name all that do not come in time, on every rank. Collective over ``group``.

    Parameters
    ----------
    group : optional
        Default: the default group.
    timeout : float or timedelta, optional
        Limit, in seconds. Default: that of the group.
    wait_all_ranks : bool
        Accepted: all late ranks are always named.
    """
    _monitored_barrier(member("monitored_barrier", group), seconds(timeout))


def breakpoint(rank: int = 0, skip: int = 0, timeout_s: float = 3600.0) -> None:
    """Open Python's debugger on one rank; the others wait until it goes on. Collective over the default group.

    It opens inside this function: ``up`` shows the caller.

    Parameters
    ----------
    rank : int
        A global rank. MPI's launchers give what is typed to rank 0 only.
    skip : int
        How many calls from this line do nothing.
    timeout_s : float
        How long the others wait.

    Raises
    ------
    DistError
        On every rank, if nothing can be typed there.
    """
    comm = member("breakpoint", None)
    here, place = comm.rank == rank_in("breakpoint", comm, rank), (call_site(), comm.rank)
    _passed[place] += 1
    if _passed[place] <= skip:
        return
    with comm.agreed():
        if here:
            _check_input()
    if here:
        import pdb

        pdb.Pdb(nosigint=True).set_trace()
    with limited(comm, timeout_s):
        comm.barrier()


_passed: Counter[tuple[str, int]] = Counter()
"""How often each rank has called it, by place."""


def _check_input() -> None:
    """Refuse to wait for what nobody can type: ``hpcdist launch`` gives ranks no terminal, MPI's give it to rank 0."""
    try:
        is_empty = os.path.samestat(os.fstat(sys.stdin.fileno()), Path(os.devnull).stat())
    except (AttributeError, OSError):  # closed, or replaced by something that Python reads
        is_empty = sys.stdin is None
    if is_empty or is_torchelastic_launched():
        do = "start the job as `mpirun -n N python job.py`, which gives what is typed to rank 0"
        raise DistError(explain("breakpoint: nothing can be typed here", got="an empty input", do=do))
