"""A barrier that says who is late, on every rank."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hpcdist.comm.communicator import Communicator
from hpcdist.comm.operation import call_site
from hpcdist.comm.work import Work
from hpcdist.errors import DistTimeoutError, explain

__all__ = ["monitored_barrier"]

_TAG = 32_001
"""Below the tags that MPI guarantees, and unlikely to be a caller's."""
_GRACE_S = 5.0
"""For an answer to arrive which rank 0 gives in time."""


def monitored_barrier(comm: Communicator, timeout_s: float | None = None) -> None:
    """Wait until every rank of ``comm`` is here, and name all that do not come in time. Collective over ``comm``.

    Rank 0 hears from each of the others, so this takes longer than a barrier, and in proportion to the number of ranks.

    Parameters
    ----------
    timeout_s : float, optional
        How long rank 0 waits for the others, and they for it. Default: the communicator's.

    Raises
    ------
    DistTimeoutError
        On every rank, and with the same names; on late ranks when they come. If rank 0 is late, the others know only
        of rank 0.
    """
    limit_s = comm.timeout_s if timeout_s is None else timeout_s
    if limit_s <= 0:
        raise ValueError(explain("monitored_barrier: timeout_s", got=limit_s, expected="seconds, above 0"))
    if comm.size == 1:
        return
    late = _ask(comm, limit_s) if comm.rank == 0 else _answer(comm, limit_s)
    if late:
        raise _error(comm, late, limit_s)


def _ask(comm: Communicator, limit_s: float) -> list[int]:
    """Return the ranks that have not come by the limit, and tell the others; as rank 0."""
    others = range(1, comm.size)
    here = [comm.irecv(np.empty(1, np.uint8), other, _TAG) for other in others]
    greetings = [comm.isend(np.zeros(1, np.uint8), other, _TAG) for other in others]
    deadline = time.monotonic() + limit_s
    late = [other for other, work in zip(others, here, strict=True) if not _comes(work, deadline)]
    verdict = np.isin(np.arange(comm.size), late)
    answers = [comm.isend(verdict, other, _TAG) for other in others]
    for other, greeting, answer in zip(others, greetings, answers, strict=True):
        if other not in late:
            greeting.wait()
            answer.wait()
    return late


def _answer(comm: Communicator, limit_s: float) -> list[int]:
    """Return the late ranks as rank 0 says, or rank 0 if it does not come; as another rank."""
    verdict = np.empty(comm.size, bool)
    greeting = comm.irecv(np.empty(1, np.uint8), 0, _TAG)
    answer = comm.irecv(verdict, 0, _TAG)
    here = comm.isend(np.zeros(1, np.uint8), 0, _TAG)
    if not _comes(greeting, time.monotonic() + limit_s):
        return [0]
    if not _comes(answer, time.monotonic() + limit_s + _GRACE_S):
        return [0]
    here.wait()
    return [int(rank) for rank in np.flatnonzero(verdict)]


def _comes(work: Work[Any], deadline: float) -> bool:
    try:
        work.wait(max(deadline - time.monotonic(), 0.0))
    except DistTimeoutError:
        return False
    return True


def _error(comm: Communicator, late: list[int], limit_s: float) -> DistTimeoutError:
    names = f"rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))}"
    what = f"monitored_barrier on rank {comm.rank} of {comm.size} of group {comm.name!r}: {names} late"
    got = f"not there within {limit_s:g} s; called at {call_site()}"
    return DistTimeoutError(explain(what, got=got, do=f"find out what {names} did, or allow more time (timeout_s)"))
