"""``hd.init``: the group of ranks this process belongs to, and the one that is used where none is named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from hpcdist.backends import cpu, rounding
from hpcdist.backends.parent import is_worker
from hpcdist.comm import local
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.launched import launched
from hpcdist.comm.mpi.world import runs_already, world
from hpcdist.errors import LaunchError, explain

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["DEFAULT_TIMEOUT_S", "current", "forget", "get_default", "init", "using_group"]

DEFAULT_TIMEOUT_S = 1800.0

_default: Communicator | None = None
_of_thread: ContextVar[Communicator | None] = ContextVar("group", default=None)
"""The group of this thread, where that is not the process's: ranks may be threads."""


def init(
    comm: MPI.Comm | int | Communicator | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    check: bool | None = None,
    reproducible: bool = False,
    threads: int | None = None,
    abort_on_error: bool | None = None,
) -> Communicator:
    """Return the group of ranks to work with, and make it the default. Collective over the ranks in it.

    Without arguments a second call returns the same group again. MPI is started only if a launcher started this
    process (its variables say so); otherwise the group is this process alone, and mpi4py is not loaded.

    Parameters
    ----------
    comm : MPI.Comm, int or Communicator, optional
        A host code's communicator: of mpi4py, the handle of a Fortran one, or one of ours. It is duplicated, and never
        used for messages. Default: all ranks that were started together.
    timeout_s : float
        Limit, in seconds, of every wait for other ranks.
    check : bool, optional
        Whether ranks compare their calls before they communicate, so that what does not fit together is an error on
        every rank. Default: HPCDIST_CHECK, or as in ``comm`` if that is ours. Ranks that are threads always do.
    reproducible : bool
        Ask for losses and weights that have the same bits at any number of data-parallel ranks, on one kind of machine;
        fixes the number of threads at 1 or ``threads``. Other axes, such as tensor-parallel ones, change bits.
    threads : int, optional
        Threads a rank of BLAS and of compiled kernels. Default: what the user's variables say, else this rank's share
        of the cores; a host code's settings are left alone.
    abort_on_error : bool, optional
        Whether an exception that nobody catches on one rank ends all of them. Default: only if ``comm`` is not given
        and there are several ranks, since the program that owns the communicator decides.

    Raises
    ------
    LaunchError
        If several processes were started but each finds itself alone, or no MPI can be loaded, or in a worker; or if
        ``reproducible`` ranks would round differently (threads, BLAS, CPU, kernels), on every rank.
    ValueError
        If the time limit is no positive number.
    """
    plain = comm is None and (timeout_s, check, reproducible, threads, abort_on_error) == _PLAIN
    here = current()
    if here is not None and plain:
        return here
    _check_limit(timeout_s)
    group = _open(comm, timeout_s, check, reproducible, owned=abort_on_error is not False)
    if threads is not None or reproducible or comm is None:
        cpu.set_threads(1 if reproducible and threads is None else threads, _local_size(group))
    if reproducible and group.size > 1:
        _check_rounding(group)
    if abort_on_error or (abort_on_error is None and comm is None):
        _guard(group)
    _remember(group)
    return group


_PLAIN = (DEFAULT_TIMEOUT_S, None, False, None, None)


def get_default() -> Communicator:
    """Return the group that :func:`init` made last; the first use makes it. Collective over its ranks then."""
    here = current()
    return init() if here is None else here


def current() -> Communicator | None:
    """Return the group that :func:`init` made last, or :func:`using_group` names; None if there is none."""
    here = _of_thread.get()
    return _default if here is None else here


@contextmanager
def using_group(group: Communicator) -> Iterator[None]:
    """Let ``group`` be the one that is meant in this block, by this thread, where none is named."""
    token = _of_thread.set(group)
    try:
        yield
    finally:
        _of_thread.reset(token)


def _remember(group: Communicator) -> None:
    global _default
    if isinstance(group, local.LocalCommunicator) and group.size > 1:
        _of_thread.set(group)
    else:
        _default = group


def forget() -> None:
    """Let there be no default group any more."""
    global _default
    if _of_thread.get() is None:
        _default = None
    else:
        _of_thread.set(None)


def _check_limit(timeout_s: float) -> None:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise ValueError(explain("init: timeout_s", got=repr(timeout_s), expected="seconds, above 0"))


def _open(
    comm: MPI.Comm | int | Communicator | None,
    timeout_s: float,
    check: bool | None,
    reproducible: bool,
    *,
    owned: bool,
) -> Communicator:
    if isinstance(comm, Communicator):
        twin = comm.dup(check=check)
        twin.timeout_s, twin.reproducible, twin.members = timeout_s, reproducible, range(twin.size)
        return twin
    if comm is not None:
        from hpcdist.comm.mpi.communicator import MpiCommunicator

        return MpiCommunicator.adopt(comm, timeout_s=timeout_s, check=check, reproducible=reproducible)
    if is_worker():
        do = 'put what starts the job under: if __name__ == "__main__"'
        raise LaunchError(explain("init: called in a worker of a DataLoader, which imports the job's file", do=do))
    if launched(os.environ) is None and not runs_already():
        return local.solo(timeout_s=timeout_s, reproducible=reproducible)
    return world(timeout_s=timeout_s, check=check, reproducible=reproducible, owned=owned)


def _local_size(group: Communicator) -> int:
    """Return how many ranks share this node, by asking the launcher, else the ranks."""
    place = launched(os.environ)
    return group.split_node().size if place is None else place.local_size


def _check_rounding(group: Communicator) -> None:
    """Make sure that all ranks have what decides about bits. Collective over the group."""
    everyone = group.all_gather_object(rounding.settings())
    for rank, theirs in enumerate(everyone):
        rounding.check_same(f"on rank {rank} than on rank 0", theirs, everyone[0])


def _guard(group: Communicator) -> None:
    if group.size > 1 and not isinstance(group, local.LocalCommunicator):
        from hpcdist.comm.mpi import guard
        from hpcdist.comm.mpi.communicator import MpiCommunicator

        assert isinstance(group, MpiCommunicator)
        guard.install(group)
