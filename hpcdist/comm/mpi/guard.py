"""The end of a rank is the end of the job, where hpcdist owns the world.

A rank that ends alone leaves the others waiting in their next collective for ever, and MPI does not notice. So an
uncaught exception, in any thread, and ``sys.exit`` with a code other than 0 end the whole job, from the moment that MPI
runs; at a normal end ranks wait for each other, within the time limit, before MPI is shut down. Meanwhile they answer
ranks that wait for them in vain, in the roll call: that they have left, and how; which is an error there. So it is for
an exit that no hook sees: ``raise SystemExit(n)``, and ``sys.exit`` where it was looked up before this package was
imported. Its code is 1 then, but for ``hpcdist run`` and ``python -m mpi4py``, which see it.

A ``sys.excepthook`` of the program is called first, whether it was set before or since. Processes that a rank forks are
no ranks: none of this is for them.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

from mpi4py import MPI

from hpcdist.comm import exits, failure, flight_folder, leftovers, stacks, watchdog
from hpcdist.comm.mpi.communicator import MpiCommunicator
from hpcdist.comm.mpi.polling import poll
from hpcdist.comm.mpi.work import MpiWork
from hpcdist.comm.operation import Operation
from hpcdist.comm.recorder import EXIT, process_recorder
from hpcdist.errors import explain

__all__ = ["hook", "install"]

_GRACE_S = 1.0
"""If all ranks end with an error within this time, each keeps its own exit code."""


def hook() -> None:
    """Let a failure of this rank end the job from now on."""
    if not _hooks:
        _hooks.append(_Hooks(MPI.COMM_WORLD))


def install(comm: MpiCommunicator) -> None:
    """Tie the ends of the ranks of ``comm`` together, once a process. Collective over ``comm``."""
    if not _farewells:
        hook()
        _farewells.append(_Farewell(comm, _hooks[0]))
        watchdog.own(end_job)
        flight_folder.enter_launcher()
        stacks.install(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())


def end_job(error: BaseException, *, shown: bool = False) -> NoReturn:
    """Report the error, unless the program has ``shown`` it, and end all ranks."""
    _abort(failure.report_failure(error, shown=shown))


def _abort(code: int) -> NoReturn:
    failure.flush()
    if not MPI.Is_finalized():
        leftovers.remove()
        _hooks[0].handle.Abort(code)
    os._exit(code)


class _Hooks:
    """What Python calls on this rank when something fails.

    Parameters
    ----------
    handle : MPI.Intracomm
        To abort.

    Attributes
    ----------
    seen : SystemExit or None
        The exit that ``python -m mpi4py`` has seen.
    """

    def __init__(self, handle: MPI.Intracomm) -> None:
        self.handle = handle
        self.seen: SystemExit | None = None
        self._theirs, sys.excepthook = sys.excepthook, self._on_exception
        self._thread_theirs, threading.excepthook = threading.excepthook, self._on_thread_exception
        exits.listen()
        # "python -m mpi4py" tells MPI of the exit it saw, and then leaves: our farewell comes between
        self._tell_mpi, MPI._set_abort_status = MPI._set_abort_status, self._remember_status
        os.register_at_fork(after_in_child=self._release)

    def _release(self) -> None:
        """Leave the end of a process that was forked to Python; but do not let mpi4py end MPI there."""
        sys.excepthook, threading.excepthook = self._theirs, self._thread_theirs
        MPI._set_abort_status = _forget_status
        atexit.register(_leave_child)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_theirs = self._theirs is not sys.__excepthook__
        if is_theirs:
            with suppress(Exception):
                self._theirs(kind, error, trace)
        end_job(error.with_traceback(trace), shown=is_theirs)

    def _on_thread_exception(self, hook: threading.ExceptHookArgs) -> None:
        if hook.exc_value is not None and not isinstance(hook.exc_value, SystemExit):
            end_job(hook.exc_value)

    def _remember_status(self, status: Any) -> None:
        self.seen = SystemExit(status)
        self._tell_mpi(status)


def _forget_status(status: Any) -> None:
    del status


def _leave_child() -> NoReturn:
    failure.flush()
    error = None if exits.came_to_its_end() else exits.uncaught() or exits.told()
    os._exit(0 if error is None else failure.exit_code(error))


_hooks: list[_Hooks] = []


class _Farewell:
    """How ranks wait for each other at their ends.

    Parameters
    ----------
    comm : MpiCommunicator
        Whose ranks they are. Creation is collective over it.
    hooks : _Hooks
    """

    def __init__(self, comm: MpiCommunicator, hooks: _Hooks) -> None:
        self.comm, self._roll_call, self._hooks = comm.plain(), comm.roll_call, hooks
        self._members, self._pid = f"{comm._members}#{EXIT}", os.getpid()
        hooks.handle = self.comm.handle
        atexit.register(self.say)

    def say(self) -> None:
        """Wait for the ends of the others; end the job if this one has failed, or they do not come in time."""
        if MPI.Is_finalized() or os.getpid() != self._pid:
            return
        error = None if exits.came_to_its_end() else exits.uncaught() or self._hooks.seen or exits.told()
        failed = error is not None and failure.exit_code(error) != 0
        if self._all_come(None if failed else _describe(error), _GRACE_S if failed else self.comm.timeout_s):
            if not failed:
                flight_folder.close()
            return
        if error is not None and failed:
            end_job(error, shown=error is exits.uncaught())
        self._end_late()

    def _all_come(self, how: str | None, limit_s: float) -> bool:
        """Wait until the ends of all ranks have come; say whether they have within ``limit_s`` seconds.

        Tell ranks that wait for this one ``how`` it has left; if that is None, it is about to end them.
        """
        farewell, ticket = self.comm.ibarrier(), None if how is None else self._record()
        assert isinstance(farewell, MpiWork)

        def all_have_left() -> bool:
            if how is not None:
                self._roll_call.answer_from_beyond(how)
            return farewell.progress()

        come = poll(all_have_left, limit_s)
        if ticket is not None:
            process_recorder().end(ticket, failed=not come)
        return come

    def _record(self) -> int:
        comm, nothing = self.comm, (None, None, ())
        operation = Operation(EXIT, comm.rank, comm.size, comm.name, 1, *nothing, "all ranks", "the end")
        return process_recorder().begin(operation, self._members, limit_s=comm.timeout_s)

    def _end_late(self) -> NoReturn:
        limit_s = self.comm.timeout_s
        what = f"rank {self.comm.rank} of {self.comm.size}: others have not ended within {limit_s:g} s"
        failure.say(explain(what, do="let every rank do the same work, or allow more time (timeout_s)") + "\n")
        _abort(1)


_farewells: list[_Farewell] = []


def _describe(error: BaseException | None) -> str:
    """Say how this rank left, if not by an error."""
    if error is not None:
        return "it left with exit code 0"
    if exits.came_to_its_end():
        return "it came to the end of the program"
    return "it left by SystemExit, with an exit code that Python keeps to itself"
