"""A handle on a collective or message that has been posted and may still be under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["Done", "Then", "Work"]

S = TypeVar("S")
T = TypeVar("T")


class Work(ABC, Generic[T]):
    """What a non-blocking verb returns.

    The arrays that were passed in must not be changed, and those that receive must not be read, before the work is
    done. Works of one communicator may be waited for in any order.

    Attributes
    ----------
    source : int or None
        Of a finished receive: the rank that sent, in its group.
    """

    source: int | None = None

    @abstractmethod
    def test(self) -> bool:
        """Make progress; say whether the work is done. Never blocks. Raises what went wrong, if something did."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> T:
        """Block until done and return the result.

        Raises
        ------
        DistTimeoutError
            After ``timeout_s`` (default: the communicator's); names operation, rank, group, shape and call site.
        """

    def result(self) -> T:
        """Return the result of a finished work.

        Raises
        ------
        RuntimeError
            If the work is not done.
        """
        if not self.test():
            raise RuntimeError(
                "Work.result: the work is not done\n  do       call wait(), or test() until it says True"
            )
        return self.wait()


class Done(Work[T]):
    """A work that had nothing to wait for."""

    def __init__(self, value: T) -> None:
        self._value = value

    def test(self) -> bool:
        """Say True."""
        return True

    def wait(self, timeout_s: float | None = None) -> T:  # noqa: ARG002
        """Return the result."""
        return self._value


class Then(Work[T]):
    """A work, and what is computed from its result when it is first waited for.

    Attributes
    ----------
    work : Work
        What there is to wait for.
    """

    def __init__(self, work: Work[S], finish: Callable[[S], T]) -> None:
        self.work: Work[Any] = work
        self._finish = finish
        self._done: Done[T] | None = None

    def test(self) -> bool:
        """Make progress; say whether there is nothing left to wait for."""
        return self._done is not None or self.work.test()

    def wait(self, timeout_s: float | None = None) -> T:
        """Block until done and return the result."""
        if self._done is None:
            self._done = Done(self._finish(self.work.wait(timeout_s)))
        return self._done.wait()
