"""A handle on a collective or message that has been posted and may still be under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

__all__ = ["Work"]

T = TypeVar("T")


class Work(ABC, Generic[T]):
    """What a non-blocking verb returns.

    The arrays that were passed in must not be changed, and those that receive must not be read, before the work is
    done. Works of one communicator may be waited for in any order.
    """

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
            raise RuntimeError("Work.result: the work is not done\n  do       call wait(), or test() until it says True")
        return self.wait()
