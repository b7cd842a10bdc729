"""Handles on requests that MPI is working on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm.mpi.header import Header
from hpcdist.comm.mpi.polling import Late, poll
from hpcdist.comm.operation import Operation
from hpcdist.comm.work import Work
from hpcdist.errors import DistError

__all__ = ["MpiWork", "failure", "sweep"]

T = TypeVar("T")


class _Remains(NamedTuple):
    """Of a work nobody waits for any more: what MPI may still read and write."""

    requests: list[MPI.Request]
    buffers: Sequence[object]
    ended: Callable[[bool], None] | None


_abandoned: dict[int, _Remains] = {}
_sweeping = threading.Lock()


class MpiWork(Work[T]):
    """A verb under way over MPI.

    Parameters
    ----------
    operation : Operation
        What it is, for messages.
    requests : list of MPI.Request
        Done when all are.
    finish : callable
        Makes the result once, in the thread that asks for it, when all requests are done.
    buffers : sequence of array
        What MPI reads and writes: mpi4py's requests do not keep those of reductions alive.
    timeout_s : float
        Limit of waits.
    lengths : sequence of int
        Bytes that the first requests, which are receives, must bring.
    ended : callable, optional
        Called once, with whether it failed, when all requests are done.
    arrived : callable, optional
        Called with the position of each request, in order, when it is done; it must not call MPI.
    late : callable, optional
        Called with the seconds waited when a wait lasts long; see :func:`hpcdist.comm.mpi.polling.poll`.
    header : Header, optional
        Comes with the first message.

    Notes
    -----
    A progress thread may call :meth:`progress` at any time; it leaves results and errors to the caller's thread.
    """

    def __init__(
        self,
        operation: Operation,
        requests: list[MPI.Request],
        finish: Callable[[], T],
        *,
        buffers: Sequence[Array],
        timeout_s: float,
        lengths: Sequence[int] = (),
        ended: Callable[[bool], None] | None = None,
        arrived: Callable[[int], None] | None = None,
        late: Late | None = None,
        header: Header | None = None,
    ) -> None:
        self._operation, self._requests, self._lengths = operation, requests, lengths
        self._buffers, self._ended, self._late, self._header = buffers, ended, late, header
        self._arrived, self._num_arrived = arrived, 0
        self._statuses = [MPI.Status() for _ in requests] if lengths else None
        self._finish: Callable[[], T] | None = finish
        self._timeout_s = timeout_s
        self._error: DistError | None = None
        self._lock = threading.RLock()
        sweep()

    def __repr__(self) -> str:
        return f"<MpiWork {self._operation}, {len(self._requests)} requests>"

    def progress(self) -> bool:
        """Let MPI work; say whether it is done, well or not. Never blocks."""
        with self._lock:
            try:
                if not self._all_done():
                    return False
                self._check_lengths()
            except MPI.Exception as e:
                self._error = self._explain(e)
                self._abandon(None)
            self._requests, self._buffers = [], ()
            if self._ended is not None:
                self._ended(self._error is not None)
                self._ended = None
            return True

    def _all_done(self) -> bool:
        if self._arrived is None:
            return not self._requests or MPI.Request.Testall(self._requests, self._statuses)
        for place in range(self._num_arrived, len(self._requests)):
            if not self._requests[place].Test(self._statuses[place] if self._statuses else None):
                return False
            self._num_arrived = place + 1
            self._arrived(place)
        return True

    def _check_lengths(self) -> None:
        for status, length in zip(self._statuses or [], self._lengths, strict=False):
            got, self.source = status.Get_count(MPI.BYTE), status.Get_source()
            if got != length and self._error is None:
                self._error = self._misfit(f"{got} bytes of {length} from rank {self.source}")
        if self._error is None and self._lengths and self._header is not None and not self._header.fits():
            self._error = self._misfit(f"a message from rank {self.source}")

    def _misfit(self, reason: str) -> DistError:
        told = "" if self._header is None else self._header.told()
        return self._operation.mismatched(f"{reason}, which sent {told}" if told else reason)

    def test(self) -> bool:
        """Make progress; say whether the work is done. Never blocks. Raises what went wrong, if something did."""
        if not self.progress():
            return False
        self._settle()
        return True

    def wait(self, timeout_s: float | None = None) -> T:
        """Block until done and return the result; see :meth:`hpcdist.comm.work.Work.wait`."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if not poll(self.progress, limit_s, self._late):
            raise self._operation.timed_out(limit_s)
        return self._settle()

    def _settle(self) -> T:
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._finish is not None:
                self._result = self._finish()
                self._finish = None
            return self._result

    def _explain(self, error: MPI.Exception) -> DistError:
        codes = [status.Get_error() for status in self._statuses or []]
        code = next((c for c in codes if c not in (MPI.SUCCESS, MPI.ERR_PENDING)), error.Get_error_code())
        reason = MPI.Get_error_string(code)
        if MPI.Get_error_class(code) == MPI.ERR_TRUNCATE:
            return self._misfit(reason)
        return self._operation.failed(reason)

    def _abandon(self, ended: Callable[[bool], None] | None) -> None:
        if self._requests:
            _abandoned[id(self._requests)] = _Remains(self._requests, (*self._buffers, self._header), ended)

    def __del__(self) -> None:
        self._abandon(self._ended)


def failure(operation: Operation, error: MPI.Exception) -> DistError:
    """Return the error for a call that MPI refused or gave up."""
    reason = MPI.Get_error_string(error.Get_error_code())
    if error.Get_error_class() == MPI.ERR_TRUNCATE:
        return operation.mismatched(reason)
    return operation.failed(reason)


def sweep() -> None:
    """Forget what was abandoned and is over. Never blocks."""
    if not _abandoned or not _sweeping.acquire(blocking=False):
        return
    try:
        for key in list(_abandoned):  # no pairs: making them may collect garbage, and that abandon more
            requests, _, ended = _abandoned[key]
            requests[:] = filter(_pending, requests)
            if not requests:
                del _abandoned[key]
                if ended is not None:
                    ended(False)
    finally:
        _sweeping.release()


def _pending(request: MPI.Request) -> bool:
    try:
        return not request.Test()
    except MPI.Exception:
        return False
