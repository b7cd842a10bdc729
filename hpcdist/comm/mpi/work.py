"""Handles on requests that MPI is working on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm.mpi.polling import poll
from hpcdist.comm.operation import Operation
from hpcdist.comm.work import Work
from hpcdist.errors import DistError

__all__ = ["MpiWork"]

T = TypeVar("T")

_abandoned: dict[int, tuple[MPI.Request, Sequence[Array]]] = {}
"""Requests nobody waits for any more, by id, and the buffers that MPI may still read and write."""


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
    late : callable, optional
        Called when a wait lasts long; see :func:`hpcdist.comm.mpi.polling.poll`.

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
        late: Callable[[float], None] | None = None,
    ) -> None:
        self._operation, self._requests, self._lengths = operation, requests, lengths
        self._buffers, self._ended, self._late = buffers, ended, late
        self._statuses = [MPI.Status() for _ in requests] if lengths else None
        self._finish: Callable[[], T] | None = finish
        self._timeout_s = timeout_s
        self._error: DistError | None = None
        self._lock = threading.RLock()
        _sweep()

    def __repr__(self) -> str:
        return f"<MpiWork {self._operation}, {len(self._requests)} requests>"

    def progress(self) -> bool:
        """Let MPI work; say whether it is done, well or not. Never blocks."""
        with self._lock:
            try:
                if self._requests and not MPI.Request.Testall(self._requests, self._statuses):
                    return False
                self._check_lengths()
            except MPI.Exception as e:
                self._error = self._explain(e)
                self._abandon()
            self._requests, self._buffers = [], ()
            if self._ended is not None:
                self._ended(self._error is not None)
                self._ended = None
            return True

    def _check_lengths(self) -> None:
        for status, length in zip(self._statuses or [], self._lengths, strict=False):
            got, self.source = status.Get_count(MPI.BYTE), status.Get_source()
            if got != length and self._error is None:
                self._error = self._operation.mismatched(f"{got} bytes of {length} from rank {self.source}")

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
            return self._operation.mismatched(reason)
        return self._operation.failed(reason)

    def _abandon(self) -> None:
        _abandoned.update({id(request): (request, self._buffers) for request in self._requests})

    def __del__(self) -> None:
        self._abandon()


def _sweep() -> None:
    """Forget abandoned requests that are over."""
    for key, (request, _) in list(_abandoned.items()):
        try:
            over = request.Test()
        except MPI.Exception:
            over = True
        if over:
            _abandoned.pop(key, None)  # another thread may sweep too
