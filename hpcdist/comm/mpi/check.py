"""Check mode: before anything is exchanged, ranks compare what they are about to do.

A blocking verb waits for the comparison first. A non-blocking one posts it together with itself, so that posting stays
non-blocking, and looks at it when it is tested or waited for.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from hpcdist.array import Array
from hpcdist.comm.mpi.plain import PlainCommunicator
from hpcdist.comm.mpi.polling import poll
from hpcdist.comm.mpi.verbs import Sizes
from hpcdist.comm.mpi.work import MpiWork
from hpcdist.comm.operation import Operation, disagreement, fingerprint
from hpcdist.comm.work import Work
from hpcdist.errors import CollectiveMismatchError, explain

__all__ = ["Checker", "Compared"]

T = TypeVar("T")


class Checker:
    """Comparisons between the ranks of a group.

    Parameters
    ----------
    side : PlainCommunicator
        The same ranks, with a message space that is used for nothing else.
    """

    def __init__(self, side: PlainCommunicator) -> None:
        self.side = side

    def before(self, operation: Operation, sizes: Sizes | None) -> None:
        """Compare a blocking verb. Collective over the group.

        Raises
        ------
        CollectiveMismatchError
            The same on every rank, with a table of who called what.
        """
        work, limit_s = self.post(operation), self.side.timeout_s
        if not poll(work.progress, limit_s):
            raise operation.timed_out(limit_s)
        self.verify(operation, work)
        if sizes is not None:
            self.compare_sizes(operation, sizes)

    def compare_sizes(self, operation: Operation, sizes: Sizes) -> None:
        """Compare what each pair of ranks sends and expects; raise on every rank. Collective over the group."""
        self.side.agree(_misfit(operation, self.exchange(sizes).wait(), sizes))

    def post(self, operation: Operation) -> MpiWork[Array]:
        """Post the comparison of a verb. Collective over the group."""
        word = zlib.crc32(f"{operation.number} {fingerprint(operation)}".encode())
        work = self.side.iall_gather(np.array([word], np.uint32))
        assert isinstance(work, MpiWork)
        return work

    def verify(self, operation: Operation, work: MpiWork[Array]) -> None:
        """Look at a finished comparison; if ranks differ, tell each other what they called. Collective then."""
        words = work.wait()
        if (words != words[0]).any():
            raise CollectiveMismatchError(disagreement(self.side.all_gather_object(operation)))

    def exchange(self, sizes: Sizes) -> Work[list[Array]]:
        """Post the exchange of what each pair of ranks sends and expects. Collective over the group."""
        pairs = [np.array(pair, np.int64) for pair in zip(*sizes, strict=True)]
        return self.side.iall_to_all(pairs, [(2,)] * self.side.size)


class Compared(Work[T]):
    """A non-blocking verb and the comparison that goes with it."""

    def __init__(self, checker: Checker, operation: Operation, work: MpiWork[T], sizes: Sizes | None) -> None:
        self._checker, self._operation, self._work, self._sizes = checker, operation, work, sizes
        self._comparison: MpiWork[Array] | None = checker.post(operation)
        self._pairs = None if sizes is None else checker.exchange(sizes)

    def __repr__(self) -> str:
        return repr(self._work)

    def progress(self) -> bool:
        """Let MPI work; say whether it is done, well or not. Never blocks."""
        compared = self._comparison is None or self._comparison.progress()
        return self._work.progress() and compared

    def test(self) -> bool:
        """Make progress; say whether the work is done. Never blocks. Raises what went wrong, if something did."""
        done = self.progress()
        if self._comparison is not None and self._comparison.progress():
            self._verify(self._comparison)
        return done and self._work.test()

    def wait(self, timeout_s: float | None = None) -> T:
        """Block until done and return the result; see :meth:`hpcdist.comm.work.Work.wait`."""
        limit_s = self._checker.side.timeout_s if timeout_s is None else timeout_s
        if self._comparison is not None:
            if not poll(self._comparison.progress, limit_s, None):
                raise self._operation.timed_out(limit_s)
            self._verify(self._comparison)
        value = self._work.wait(timeout_s)
        self.source = self._work.source
        return value

    def _verify(self, comparison: MpiWork[Array]) -> None:
        self._checker.verify(self._operation, comparison)
        self._comparison = None
        if self._pairs is not None and self._sizes is not None:
            error = _misfit(self._operation, self._pairs.wait(), self._sizes)
            if error is not None:
                raise error


def _misfit(operation: Operation, told: Sequence[Array], sizes: Sizes) -> CollectiveMismatchError | None:
    """Return the error for the first pair of ranks of which one sends what the other does not expect."""
    for rank, ((sends, expects), mine, wanted) in enumerate(zip(told, *sizes, strict=True)):
        if int(sends) != wanted or int(expects) != mine:
            got = f"rank {rank} sends {sends} and expects {expects} bytes; called at {operation.site}"
            expected = f"rank {operation.rank} expects {wanted} and sends {mine} bytes"
            return CollectiveMismatchError(explain(f"{operation}: sizes differ", got=got, expected=expected))
    return None
