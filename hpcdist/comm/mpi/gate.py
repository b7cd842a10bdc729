"""The gate: ranks of one node see in shared memory who has come to which call, and whether it is the same call.

A rank that has passed may call MPI without a time limit, for all others have come. What a rank says is one word of 64
bits: the number of its call on this group, and a checksum of its arguments. Words of the last two calls are kept: a
rank that is one call ahead has not written over what a slower one still has to read.
"""

from __future__ import annotations

import functools
import mmap
import zlib
from collections.abc import Callable

from hpcdist.comm.mpi.polling import poll
from hpcdist.comm.operation import Operation, fingerprint
from hpcdist.errors import DistTimeoutError, explain

__all__ = ["Gate", "gate_bytes"]

_WORD_BYTES = 8
_KEPT = 2
_CHECKSUM = 2**32 - 1
_POSTED, _WITHDRAWN = 0, 1
"""Checksums that mean: the rank posted this call without blocking; the rank has given up waiting for it."""


def gate_bytes(size: int) -> int:
    """Return how much memory a gate of ``size`` ranks needs."""
    return _KEPT * size * _WORD_BYTES


class Gate:
    """The words of all ranks of a group on one node.

    Parameters
    ----------
    memory : mmap
        Shared by all ranks, zeros at first.
    rank, size : int
    tick : callable
        Lets MPI work on what is under way, which others may need before they can come.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int, tick: Callable[[], object]) -> None:
        words = memoryview(memory).cast("Q")
        self._words = [words[kept * size : (kept + 1) * size] for kept in range(_KEPT)]
        self._rank, self._others = rank, [other for other in range(size) if other != rank]
        self._tick = tick

    def post(self, number: int) -> None:
        """Say that this rank has posted call ``number`` (from 1) without blocking."""
        self._words[number % _KEPT][self._rank] = number << 32 | _POSTED

    def enter(self, operation: Operation, number: int, limit_s: float) -> bool:
        """Wait until all ranks have come to call ``number``; say whether all made the same call.

        Raises
        ------
        DistTimeoutError
            Names the ranks that have not come, or that have given up.
        """
        words, mine = self._words[number % _KEPT], number << 32 | _checksum(fingerprint(operation))
        words[self._rank] = mine
        same = True
        for other in self._others:
            if words[other] != mine:
                same = self._wait(words, other, number, operation, limit_s) == mine and same
        return same

    def _wait(self, words: memoryview[int], other: int, number: int, operation: Operation, limit_s: float) -> int:
        """Wait for one rank; return its word."""
        floor = number << 32

        def has_come() -> bool:
            if words[other] >= floor:
                return True
            self._tick()
            return False

        if not poll(has_come, limit_s):
            words[self._rank] = floor | _WITHDRAWN
            raise operation._replace(peers=self._late(words, floor)).timed_out(limit_s)
        if words[other] == floor | _WITHDRAWN:
            do = "find out what made this rank late, or allow more time (timeout_s)"
            what = f"{operation}: too late"
            raise DistTimeoutError(explain(what, got=f"rank {other} has given up waiting; at {operation.site}", do=do))
        return words[other]

    def _late(self, words: memoryview[int], floor: int) -> str:
        late = [str(other) for other in self._others if words[other] < floor]
        return f"rank {', '.join(late)} of the group"

    def posted(self, number: int) -> list[int]:
        """Return the ranks that posted call ``number`` without blocking, as far as their words are still there."""
        words = self._words[number % _KEPT]
        return [other for other in self._others if words[other] & _CHECKSUM == _POSTED]


@functools.lru_cache(maxsize=4096)
def _checksum(text: str) -> int:
    return max(zlib.crc32(text.encode()), _WITHDRAWN + 1)
