"""Check mode: before anything is exchanged, ranks compare what they are about to do.

Every collective of a group is announced by one small exchange in a message space of its own: what is called, whether
it blocks, what sizes go where, and the call site. As each call makes exactly one, in the order of calls, these always
fit, whatever the calls are; a call that does not fit the others is not carried out on any rank, and raises on all.

A collective that does not block is posted when its announcement has been answered, in the order of calls, by whoever
waits for anything. So what MPI sees is the same on all ranks, in whatever order works are waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm.mpi import announcement
from hpcdist.comm.mpi.plain import PlainCommunicator
from hpcdist.comm.mpi.polling import Late, background, poll
from hpcdist.comm.mpi.verbs import Sizes
from hpcdist.comm.mpi.work import MpiWork
from hpcdist.comm.operation import Operation, disagreement
from hpcdist.comm.work import Work
from hpcdist.errors import CollectiveMismatchError, DistError

__all__ = ["TRIAL_CALLS", "Announced", "Checker", "Comparison"]

T = TypeVar("T")

TRIAL_CALLS = 32
"""So many calls of a group are compared without check mode: a program that mismatches mostly does so early."""
_UNLIMITED = ("split", "split_node", "dup")
"""What follows in MPI has no time limit."""


class Checker:
    """Comparisons between the ranks of a group.

    Parameters
    ----------
    side : PlainCommunicator
        The same ranks, with a message space that is used for nothing else.
    always : bool
        Whether to compare all calls, or only the first :data:`TRIAL_CALLS`.
    """

    def __init__(self, side: PlainCommunicator, *, always: bool) -> None:
        self.side, self._always = side, always
        self._waiting: deque[Announced[Any]] = deque()
        self._lock = threading.RLock()

    def compares(self, operation: Operation) -> bool:
        """Say whether a call is compared: alike on all ranks."""
        return self._always or operation.number <= TRIAL_CALLS or operation.verb in _UNLIMITED

    def compare(self, operation: Operation, sizes: Sizes | None) -> Comparison:
        """Tell the other ranks of a call. Collective over the group."""
        return Comparison(self.side, operation, sizes)

    def concerns(self, operation: Operation) -> bool:
        """Say whether a call that does not block has to be compared, or has to wait for one that is."""
        return self.compares(operation) or bool(self._waiting)

    def announce(
        self,
        operation: Operation,
        sizes: Sizes | None,
        post: Callable[[], MpiWork[T]],
        *,
        ended: Callable[[bool], None],
        late: Late,
        limit_s: float,
    ) -> Announced[T]:
        """Tell the other ranks of a call, and have it posted when they have answered. Collective over the group."""
        with self._lock:
            comparison = self.compare(operation, sizes) if self.compares(operation) else None
            work = Announced(self, operation, comparison, post, ended, late, limit_s)
            self._waiting.append(work)
            background.add(self.advance)
        return work

    def advance(self) -> None:
        """Post what has been compared, in the order of calls. Never blocks."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            while self._waiting and self._waiting[0].settle():
                self._waiting.popleft()
            if not self._waiting:
                background.discard(self.advance)
        finally:
            self._lock.release()

    def has_waiting(self) -> bool:
        """Say whether calls that do not block are yet to be posted."""
        return bool(self._waiting)

    def flushed(self) -> bool:
        """Post what has been compared; say whether nothing is left. Never blocks."""
        self.advance()
        return not self._waiting


class Comparison:
    """What all ranks say of one call.

    Parameters
    ----------
    side : PlainCommunicator
    operation : Operation
        What this rank calls.
    sizes : tuple of two sequences, or None
        Bytes that this rank sends to each rank, and expects from each, where only the two know.
    """

    def __init__(self, side: PlainCommunicator, operation: Operation, sizes: Sizes | None) -> None:
        self._operation = operation
        work = side.iall_gather(np.frombuffer(announcement.record(operation, sizes), np.uint8))
        assert isinstance(work, MpiWork)
        self._work: MpiWork[Array] = work

    def progress(self) -> bool:
        """Let MPI work; say whether all ranks have told. Never blocks."""
        return self._work.progress()

    def error(self) -> DistError | None:
        """Return what is wrong with the call, the same on every rank, when all have told."""
        try:
            told = self._work.wait().tobytes()
        except DistError as e:
            return e
        rows = announcement.differing(told)
        return CollectiveMismatchError(disagreement(rows)) if rows else None

    def wait(self, limit_s: float, late: Late | None) -> None:
        """Wait until all have told; raise if calls differ."""
        if not poll(self.progress, limit_s, late):
            raise self._operation.timed_out(limit_s)
        error = self.error()
        if error is not None:
            raise error


class Announced(Work[T]):
    """A collective that is posted when it is known to be the same on all ranks.

    Parameters
    ----------
    checker : Checker
    operation : Operation
    comparison : Comparison or None
        None: it needs none, and waits for those before it.
    post : callable
        Makes the calls.
    ended : callable
        Called with True if it fails before that.
    late : callable
        See :func:`hpcdist.comm.mpi.polling.poll`.
    limit_s : float
        Limit of waits.
    """

    def __init__(
        self,
        checker: Checker,
        operation: Operation,
        comparison: Comparison | None,
        post: Callable[[], MpiWork[T]],
        ended: Callable[[bool], None],
        late: Late,
        limit_s: float,
    ) -> None:
        self._checker, self._operation, self._comparison = checker, operation, comparison
        self._ended, self._late, self._limit_s = ended, late, limit_s
        self._post: Callable[[], MpiWork[T]] | None = post
        self._work: MpiWork[T] | None = None
        self._error: DistError | None = None

    def __repr__(self) -> str:
        return f"<Announced {self._operation}>" if self._work is None else repr(self._work)

    def settle(self) -> bool:
        """Post it if all ranks have told of it; say whether it is posted, or never will be. Never blocks."""
        if self._comparison is not None and not self._comparison.progress():
            return False
        self._error = None if self._comparison is None else self._comparison.error()
        post, self._post = self._post, None
        if self._error is None and post is not None:
            try:
                self._work = post()
            except MPI.Exception as e:
                self._error = self._operation.failed(str(e))
        if self._error is not None:
            self._ended(True)
        return True

    def progress(self) -> bool:
        """Let MPI work; say whether it is done, well or not. Never blocks."""
        self._checker.advance()
        return self._error is not None or (self._work is not None and self._work.progress())

    def test(self) -> bool:
        """Make progress; say whether the work is done. Never blocks. Raises what went wrong, if something did."""
        done = self.progress()
        if self._error is not None:
            raise self._error
        return done and self._work is not None and self._work.test()

    def wait(self, timeout_s: float | None = None) -> T:
        """Block until done and return the result; see :meth:`hpcdist.comm.work.Work.wait`."""
        limit_s = self._limit_s if timeout_s is None else timeout_s
        if not poll(self.progress, limit_s, self._late):
            raise self._operation.timed_out(limit_s)
        if self._error is not None:
            raise self._error
        assert self._work is not None
        value = self._work.wait(limit_s)
        self.source = self._work.source
        return value
