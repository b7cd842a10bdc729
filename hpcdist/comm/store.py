"""Stores: keys and values that processes or threads share without a communicator, to find each other by.

MPI itself needs none. Values are bytes; text is stored as UTF-8. Every wait has a time limit.
"""

from __future__ import annotations

import operator
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from hpcdist.comm.contents import Change, Contents
from hpcdist.comm.future import seconds
from hpcdist.errors import DistStoreError, QueueEmptyError, explain

__all__ = ["Store"]

T = TypeVar("T")

_TIMEOUT_S = 300.0


class Store(ABC):
    """Keys and values that several holders of the store see and change, each change whole.

    Attributes
    ----------
    timeout : timedelta
        Limit of waits that are given none.
    """

    def __init__(self) -> None:
        self.timeout = timedelta(seconds=_TIMEOUT_S)
        self._prefix = ""

    def set_timeout(self, timeout: float | timedelta) -> None:
        """Limit waits that are given no limit to ``timeout`` seconds."""
        self.timeout = timedelta(seconds=self._limit(timeout))

    # ---- values
    def set(self, key: str, value: bytes | str) -> None:
        """Store ``value`` under ``key``, in place of what was there."""
        self._change("set", key, _bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value of ``key``; wait until there is one.

        Raises
        ------
        DistStoreError
            If there is none within the time limit.
        """
        return self.multi_get([key])[0]

    def add(self, key: str, amount: int) -> int:
        """Add to an integer, kept as decimal digits, and return the sum; a missing one counts as 0.

        Raises
        ------
        ValueError
            If the value is no integer.
        """
        total = self._change("add", key, str(operator.index(amount)).encode())
        assert total is not None
        return int(total)

    def append(self, key: str, value: bytes | str) -> None:
        """Put ``value`` behind the value of ``key``; a missing one counts as empty."""
        self._change("append", key, _bytes(value))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Store ``desired`` if the value is ``expected``, and return the value then.

        An empty ``expected`` also stands for a missing value; where another is expected of a missing one, nothing is
        stored and ``expected`` is returned.
        """
        value = self._change("compare_set", key, _bytes(expected), _bytes(desired))
        assert value is not None
        return value

    def delete_key(self, key: str) -> bool:
        """Remove ``key``, with its queue; say whether it was there."""
        return self._change("delete", key) is not None

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of ``keys``; wait until all are there.

        Raises
        ------
        DistStoreError
            If some are not within the time limit; it names them.
        """
        if not keys:
            return []
        limit_s = self._limit(None)
        found = self._await(lambda contents: self._values(contents, keys), limit_s)
        if found is None:
            raise self._unset(lambda contents, key: key in contents.values, keys, limit_s)
        return list(found)

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Store one value a key, one after the other.

        Raises
        ------
        ValueError
            If there are not as many values as keys.
        """
        if len(keys) != len(values):
            raise ValueError(
                explain("multi_set: number of values", got=len(values), expected=f"{len(keys)}, one a key")
            )
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    # ---- keys
    def check(self, keys: Sequence[str]) -> bool:
        """Say whether all ``keys`` are there."""
        return self._look(lambda contents: self._all_there(contents, keys))

    def wait(self, keys: Sequence[str], timeout: float | timedelta | None = None) -> None:
        """Wait until all ``keys`` are there.

        Raises
        ------
        DistStoreError
            If some are not within the time limit; it names them.
        """
        limit_s = self._limit(timeout)
        if not self._await(lambda contents: self._all_there(contents, keys), limit_s):
            raise self._unset(Contents.has, keys, limit_s)

    def num_keys(self) -> int:
        """Return how many keys there are."""
        return len(self.list_keys())

    def list_keys(self) -> list[str]:
        """Return all keys, of values and of queues, sorted."""
        keys = self._look(Contents.keys)
        return [key.removeprefix(self._prefix) for key in keys if key.startswith(self._prefix)]

    # ---- queues
    def queue_push(self, key: str, value: bytes | str) -> None:
        """Put ``value`` at the end of the queue ``key``."""
        self._change("push", key, _bytes(value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first value of the queue ``key``; wait for one, or not.

        Raises
        ------
        QueueEmptyError
            If there is none, at once or within the time limit.
        """
        limit_s = self._limit(None) if block else 0.0
        end = time.monotonic() + limit_s
        while self._await(lambda contents: self._prefix + key in contents.queues, max(0.0, end - time.monotonic())):
            value = self._change("pop", key)
            if value is not None:  # else another was faster
                return value
        within = f" for {limit_s:g} s" if block else ""
        raise QueueEmptyError(explain(f"{self!r}: queue {key!r} is empty{within}"))

    def queue_len(self, key: str) -> int:
        """Return how many values are in the queue ``key``."""
        return self._look(lambda contents: len(contents.queues.get(self._prefix + key, ())))

    # ---- meeting
    def barrier(self, key: str, world_size: int, timeout: float | timedelta | None = None) -> None:
        """Wait until ``world_size`` callers have come to ``key``, which may be used again and again.

        Raises
        ------
        DistStoreError
            If they have not come within the time limit. The key must not be used again then.
        ValueError
            If ``world_size`` is below 1.
        """
        if world_size < 1:
            raise ValueError(explain(f"barrier {key!r}: world_size", got=world_size, expected="1 or more"))
        limit_s, place = self._limit(timeout), self.add(key, 1)
        last = -(-place // world_size) * world_size
        if not self._await(lambda contents: self._number(contents, key) >= last, limit_s):
            come = self._look(lambda contents: self._number(contents, key)) - last + world_size
            what = f"{self!r}: barrier {key!r} not complete within {limit_s:g} s"
            raise DistStoreError(explain(what, got=f"{come} callers", expected=world_size))

    # ---- holders
    @abstractmethod
    def clone(self) -> Store:
        """Return another holder of the same keys and values, with a time limit of its own."""

    @abstractmethod
    def _apply(self, change: Change) -> bytes | None:
        """Make a change, whole; return what it yields."""

    @abstractmethod
    def _await(self, question: Callable[[Contents], T], limit_s: float) -> T | None:
        """Ask until the answer is true, and return it; None after ``limit_s`` seconds. Asks once at least."""

    def _look(self, question: Callable[[Contents], T]) -> T:
        answer = self._await(lambda contents: (question(contents),), 0.0)
        assert answer is not None
        return answer[0]

    def _change(self, verb: str, key: str, *values: bytes) -> bytes | None:
        return self._apply(Change(verb, self._prefix + key, values))

    def _all_there(self, contents: Contents, keys: Sequence[str]) -> bool:
        return all(contents.has(self._prefix + key) for key in keys)

    def _values(self, contents: Contents, keys: Sequence[str]) -> tuple[bytes, ...] | None:
        found = tuple(contents.values.get(self._prefix + key) for key in keys)
        return None if None in found else tuple(value for value in found if value is not None)

    def _unset(self, has: Callable[[Contents, str], bool], keys: Sequence[str], limit_s: float) -> DistStoreError:
        missing = self._look(lambda contents: [key for key in keys if not has(contents, self._prefix + key)])
        what = f"{self!r}: keys not set within {limit_s:g} s"
        do = "find out who should set them, or allow more time (set_timeout)"
        return DistStoreError(explain(what, got=f"nothing for {', '.join(map(repr, missing))}", do=do))

    def _number(self, contents: Contents, key: str) -> int:
        return int(contents.values.get(self._prefix + key, 0))

    def _limit(self, timeout: float | timedelta | None) -> float:
        limit_s = seconds(self.timeout if timeout is None else timeout)
        assert limit_s is not None
        return limit_s


def _bytes(value: bytes | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(explain("store: value", got=type(value).__name__, expected="bytes or str"))
