"""The end of a rank is the end of the job, where hpcdist owns the world.

A rank that ends alone leaves the others waiting in their next collective for ever, and MPI does not notice. So an
uncaught exception, in any thread, and ``sys.exit`` with a code other than 0 end the whole job; at a normal end ranks
wait for each other, within the time limit, before MPI is shut down. Meanwhile they answer ranks that wait for them in
vain, in the roll call: that they have left, and how; which is an error there. So it is for an exit that no hook sees:
``raise SystemExit(n)``, and ``sys.exit`` where it was looked up before this package was imported. Its code is 1 then,
but for ``hpcdist run`` and ``python -m mpi4py``, which see it.
"""

from __future__ import annotations

import atexit
import dis
import os
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

from mpi4py import MPI

from hpcdist.comm import exits, failure, flight_folder, stacks, watchdog
from hpcdist.comm.mpi.communicator import MpiCommunicator
from hpcdist.comm.mpi.plain import PlainCommunicator
from hpcdist.comm.mpi.polling import poll
from hpcdist.comm.mpi.rollcall import RollCall
from hpcdist.comm.mpi.work import MpiWork
from hpcdist.comm.recorder import process_recorder
from hpcdist.errors import explain

__all__ = ["install"]

_GRACE_S = 1.0
"""If all ranks end with an error within this time, each keeps its own exit code."""

_installed: list[_Guard] = []


def install(comm: MpiCommunicator) -> None:
    """Tie the ends of the ranks of ``comm`` together, once a process. Collective over ``comm``."""
    if not _installed:
        guard = _Guard(comm.plain(), comm.roll_call)
        _installed.append(guard)
        watchdog.own(guard.end_job)
        flight_folder.enter_launcher()
        stacks.install(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())


class _Guard:
    """The hooks of one rank.

    Parameters
    ----------
    comm : PlainCommunicator
        Used for nothing but the end.
    roll_call : RollCall
        Where waiting ranks ask for this one.
    """

    def __init__(self, comm: PlainCommunicator, roll_call: RollCall) -> None:
        self._comm, self._roll_call = comm, roll_call
        self._seen: SystemExit | None = None
        self._outermost = _outermost() if threading.current_thread() is threading.main_thread() else None
        sys.excepthook = self._on_exception
        threading.excepthook = self._on_thread_exception
        exits.listen()
        # "python -m mpi4py" tells MPI of the exit it saw, and then leaves: our farewell comes between
        self._tell_mpi, MPI._set_abort_status = MPI._set_abort_status, self._remember_status
        atexit.register(self._at_end)

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        del kind
        self.end_job(error.with_traceback(trace))

    def _on_thread_exception(self, hook: threading.ExceptHookArgs) -> None:
        if hook.exc_value is not None and not isinstance(hook.exc_value, SystemExit):
            self.end_job(hook.exc_value)

    def _remember_status(self, status: Any) -> None:
        self._seen = SystemExit(status)
        self._tell_mpi(status)

    def _came_to_its_end(self) -> bool:
        """Say whether the program's outermost frame returned, and was not left by an exception."""
        frame = self._outermost
        return frame is None or dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")

    def _at_end(self) -> None:
        if MPI.Is_finalized():
            return
        process_recorder().close()
        error = None if self._came_to_its_end() else self._seen or exits.told()  # the program may have caught it
        failed = error is not None and failure.exit_code(error) != 0
        farewell = self._comm.ibarrier()
        assert isinstance(farewell, MpiWork)
        how = self._describe(error)

        def all_have_left() -> bool:
            self._roll_call.answer_from_beyond(how)
            return farewell.progress()

        if poll(all_have_left, _GRACE_S if failed else self._comm.timeout_s):
            if not failed:
                flight_folder.close()
            return
        if error is not None and failed:
            self.end_job(error)
        self._end_late()

    def _describe(self, error: SystemExit | None) -> str:
        """Say how this rank left."""
        if error is not None:
            return f"it left with exit code {failure.exit_code(error)}"
        if self._came_to_its_end():
            return "it came to the end of the program"
        return "it left by SystemExit, with an exit code that Python keeps to itself"

    def _end_late(self) -> NoReturn:
        what = f"rank {self._comm.rank} of {self._comm.size}: others have not ended within {self._comm.timeout_s:g} s"
        sys.stderr.write(explain(what, do="let every rank do the same work, or allow more time (timeout_s)") + "\n")
        self._abort(1)

    def end_job(self, error: BaseException) -> NoReturn:
        """Report the error, and end all ranks."""
        self._abort(failure.report_failure(error))

    def _abort(self, code: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        if not MPI.Is_finalized():
            self._comm.handle.Abort(code)
        os._exit(code)


def _outermost() -> FrameType:
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame
