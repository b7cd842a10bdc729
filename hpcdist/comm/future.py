"""What ``async_op=True`` returns: PyTorch's questions to a work, and its futures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar

from hpcdist.array import Array
from hpcdist.comm.work import Work
from hpcdist.errors import explain

__all__ = ["Future", "Pending", "seconds"]

S = TypeVar("S")
T = TypeVar("T")


def seconds(timeout: float | timedelta | None) -> float | None:
    """Return a time limit in seconds.

    Raises
    ------
    TypeError, ValueError
        If it is no number, or not positive and finite.
    """
    limit_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if limit_s is not None and not isinstance(limit_s, int | float):
        raise TypeError(explain("timeout", got=repr(timeout), expected="seconds, or a timedelta"))
    if limit_s is not None and not 0 < limit_s < math.inf:
        raise ValueError(explain("timeout", got=limit_s, expected="seconds above 0, or a timedelta"))
    return limit_s


class Pending(Work[Any]):
    """A verb under way whose results go into the caller's arrays.

    It fails as its verb does: once it has failed, every question that may raise raises the same error.

    Parameters
    ----------
    work : Work
        The verb.
    results : sequence of array
        What it writes.
    members : sequence of int
        Global ranks of the group's ranks.
    """

    def __init__(self, work: Work[Any], results: Sequence[Array], members: Sequence[int]) -> None:
        self._work, self._results, self._members = work, list(results), members
        self._done, self._error = False, None

    _error: Exception | None

    def test(self) -> bool:
        """Make progress; say whether the work is done. Never blocks. Raises what went wrong, if something did."""
        if self._error is not None:
            raise self._error
        if not self._done and self._work.test():
            self.wait()
        return self._done

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until done; return True.

        Parameters
        ----------
        timeout : float or timedelta, optional
            Limit, in seconds. Default: that of the group.

        Raises
        ------
        DistTimeoutError
            When it runs out; names operation, rank, group, shape and call site.
        """
        if self._error is not None:
            raise self._error
        if not self._done:
            try:
                self._work.wait(seconds(timeout))
            except TimeoutError:
                raise  # may be waited for again
            except Exception as e:
                self._error = e
                raise
            self._done = True
        return True

    def synchronize(self) -> None:
        """Block until done."""
        self.wait()

    def is_completed(self) -> bool:
        """Say whether it is over, well or not. Never blocks or raises."""
        try:
            return self.test()
        except Exception as e:
            self._error = e
            return True

    def is_success(self) -> bool:
        """Say whether it is over and went well. Never blocks or raises."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """Return what went wrong, if something did. Never blocks or raises."""
        self.is_completed()
        return self._error

    def result(self) -> list[Array]:
        """Return the arrays that a finished work has written.

        Raises
        ------
        RuntimeError
            If it is not done.
        """
        super().result()
        return self._results

    def source_rank(self) -> int:
        """Return the global rank that sent what a finished receive has got.

        Raises
        ------
        ValueError
            If this is no receive, or is not done.
        """
        source = self._work.source
        if source is None:
            raise ValueError(explain("Work.source_rank", expected="a receive that is done", do="call wait() first"))
        return self._members[source]

    def get_future(self) -> Future[list[Array]]:
        """Return the future whose value are the arrays that it writes."""
        return Future(self, lambda: self._results)


class Future(Generic[T]):
    """A value that is there when a work is done.

    Nothing runs behind the caller's back: what was passed to :meth:`then` is called once, by whoever first asks for the
    value when the work is done.

    Parameters
    ----------
    work : Pending
        What there is to wait for.
    make : callable
        Makes the value.
    """

    def __init__(self, work: Pending, make: Callable[[], T]) -> None:
        self._work, self._make = work, make
        self._made: list[T] = []

    def done(self) -> bool:
        """Say whether there is nothing to wait for. Never blocks or raises."""
        return self._work.is_completed()

    def wait(self) -> T:
        """Block until the value is there; return it. Raises what went wrong, if something did."""
        self._work.wait()
        if not self._made:
            self._made.append(self._make())
        return self._made[0]

    def value(self) -> T:
        """Return the value.

        Raises
        ------
        RuntimeError
            If it is not there yet.
        """
        self._work.result()
        return self.wait()

    def then(self, function: Callable[[Future[T]], S]) -> Future[S]:
        """Return the future of what ``function`` makes of this one."""
        return Future(self._work, lambda: function(self))
