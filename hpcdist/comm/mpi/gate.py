"""The gate: ranks of one node see in shared memory who has come to which call, and whether it is the same call.

A rank that has passed may call MPI without a time limit, for all others have come, and all pass. What a rank says is
one word of 64 bits: how often it has come to the gate, and a checksum of its call. Words of the last two times are
kept: a rank that is once ahead has not written over what a slower one still has to read.

Either all ranks pass or none does, although some may give up just when the last one comes. A rank that wants to give
up says so, lets that become visible, and then looks: if all have come some may have passed, and it stays. A rank that
passes has looked twice, after all had come, and seen nobody who wants to give up. No order between stores to different
words is needed for that, so it holds on any machine on which a word of 64 bits is read and written whole.
"""

from __future__ import annotations

import functools
import mmap
import sys
import time
import zlib
from collections.abc import Callable
from typing import NoReturn

from hpcdist.comm.mpi.polling import Late, poll
from hpcdist.comm.operation import Operation, describe, disagreement, signature
from hpcdist.errors import CollectiveMismatchError, DistTimeoutError, explain

__all__ = ["Gate", "crc", "gate_bytes"]

_WORD_BYTES = 8
_KEPT = 2
_TEXT_BYTES = 512
_CHECKSUM_BITS = 24
_LEAVING, _GONE, _FIRST_CHECKSUM = 0, 1, 2
"""In place of a checksum: the rank wants to give up, or has given up."""
_VISIBLE_S = 2e-3
"""Any store of one core is seen by the others long before."""
_MIXED_S = 0.05
"""So long after a rank has come, nobody can be about to come to a call before one that it has posted."""
_GLANCES = 100
"""How often a rank looks before it begins to wait: some ten microseconds."""
_TELL_S = 5.0
"""For ranks that differ to say what they called."""


def gate_bytes(size: int) -> int:
    """Return how much memory a gate of ``size`` ranks needs."""
    return 2 * (_KEPT + 1) * size * _WORD_BYTES + _KEPT * size * _TEXT_BYTES


class Gate:
    """The words of all ranks of a group on one node. One thread of a rank uses it at a time.

    Parameters
    ----------
    memory : mmap
        Shared by all ranks, zeros at first.
    rank, size : int
    tick : callable
        Lets MPI work on what is under way, which others may need before they can come.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int, tick: Callable[[], object]) -> None:
        self._memory, self._rank, self._size, self._tick = memory, rank, size, tick
        self._others = [other for other in range(size) if other != rank]
        words = memoryview(memory)[: 2 * (_KEPT + 1) * size * _WORD_BYTES].cast("Q")
        rows = [words[row * size : (row + 1) * size] for row in range(2 * (_KEPT + 1))]
        self._came, self._told, self._posted, self._entered = rows[:_KEPT], rows[_KEPT:-2], rows[-2], rows[-1]
        self._texts = len(words) * _WORD_BYTES
        self._count = self._mine = 0

    def post(self, number: int) -> None:
        """Say that this rank has posted its call ``number`` on the group without blocking."""
        self._posted[self._rank] = number

    def check_posted(self, operation: Operation) -> None:
        """Raise if other ranks have come to the gate with a call that this rank has posted without blocking."""
        others = [other for other in self._others if self._entered[other] == operation.number]
        if others:
            raise _mixed(operation, others, "called it with blocking")

    def give_up(self) -> None:
        """Say that this rank will not come to the gate this time, which others then need not wait for."""
        self._count += 1
        self._came[self._count % _KEPT][self._rank] = self._count << _CHECKSUM_BITS | _GONE

    def enter(self, operation: Operation, limit_s: float, late: Late | None = None) -> None:
        """Wait until all ranks have come, with the same call.

        Raises
        ------
        CollectiveMismatchError
            On every rank, with a table of who called what.
        DistTimeoutError
            On every rank: names those that have not come, or that have given up.
        """
        if not self.arrive(operation.number, crc(signature(operation))):
            self.wait(operation, limit_s, late)

    def arrive(self, number: int, crc: int) -> bool:
        """Say that this rank has come to a call; say whether all others have come to the same one."""
        self._count = count = self._count + 1
        place, size = count % _KEPT, self._size
        mine = self._mine = count << _CHECKSUM_BITS | _checksum(number, crc)
        self._entered[self._rank] = number
        self._came[place][self._rank] = mine
        everyone = mine.to_bytes(_WORD_BYTES, sys.byteorder) * size
        memory, at = self._memory, place * size * _WORD_BYTES
        end = at + size * _WORD_BYTES
        for _ in range(_GLANCES):  # noqa: SIM110 (any() is slower)
            if memory[at:end] == everyone == memory[at:end]:
                return True
        return False

    def wait(self, operation: Operation, limit_s: float, late: Late | None = None) -> None:
        """Wait until all ranks have come, with the same call as this one; see :meth:`enter`."""
        place, mine = self._count % _KEPT, self._mine
        if any(word != mine for word in self._wait(operation, place, mine, limit_s, late)):
            self._compare(operation, place)

    # ---- waiting
    def _wait(self, operation: Operation, place: int, mine: int, limit_s: float, late: Late | None) -> list[int]:
        """Return what the others say, when all have come, be it with another call; or raise, on every rank."""
        words, start, said = self._came[place], time.monotonic(), list[int]()

        def done() -> bool:
            said[:] = self._others_here(words) and self._others_here(words)
            if said or (self._gone(words) and not self._missing(words)):
                return True
            self._tick()
            if time.monotonic() - start > _MIXED_S:
                self._check_mixed(operation, words)
            return False

        try:
            ended = poll(done, limit_s, late) or (not self._leave(words, mine) and poll(done, _TELL_S))
        except BaseException:
            self._say_gone(words)
            raise
        if not said:
            self._fail(operation, words, limit_s, ended)
        return said

    def _fail(self, operation: Operation, words: memoryview[int], limit_s: float, ended: bool) -> NoReturn:
        gone, missing = self._gone(words), self._missing(words)
        if ended and gone:
            self._check_mixed(operation, words)
            raise _too_late(operation, gone)
        self._say_gone(words)
        raise operation._replace(peers=f"rank {', '.join(map(str, missing))} of the group").timed_out(limit_s)

    def _say_gone(self, words: memoryview[int]) -> None:
        words[self._rank] = self._count << _CHECKSUM_BITS | _GONE

    def _leave(self, words: memoryview[int], mine: int) -> bool:
        """Give up, unless all have come by now; say whether."""
        words[self._rank] = self._count << _CHECKSUM_BITS | _LEAVING
        time.sleep(_VISIBLE_S)
        stays = not self._missing(words) and not self._gone(words)
        words[self._rank] = mine if stays else self._count << _CHECKSUM_BITS | _GONE
        return not stays

    def _others_here(self, words: memoryview[int]) -> list[int]:
        """Return the words of the others if all have come and want to stay, else nothing."""
        said = [words[other] for other in self._others]
        here = all(word >> _CHECKSUM_BITS == self._count and _code(word) >= _FIRST_CHECKSUM for word in said)
        return said if here else []

    def _missing(self, words: memoryview[int]) -> list[int]:
        return [other for other in self._others if words[other] >> _CHECKSUM_BITS < self._count]

    def _gone(self, words: memoryview[int]) -> list[int]:
        """Return the ranks that have given up this time; they may be at another one already."""
        gone = self._count << _CHECKSUM_BITS | _GONE
        return [o for o in self._others if words[o] >> _CHECKSUM_BITS > self._count or words[o] == gone]

    # ---- disagreement
    def _check_mixed(self, operation: Operation, words: memoryview[int]) -> None:
        """Raise if other ranks have posted this call without blocking, or a later one, and so will not come."""
        others = [other for other in self._missing(words) if self._posted[other] >= operation.number]
        if others:
            raise _mixed(operation, others, "posted it without blocking")

    def _compare(self, operation: Operation, place: int) -> None:
        """Tell the others what this rank called, hear what they called, and raise. All ranks come here."""
        told = self._told[place]
        self._write(place, describe(operation))
        told[self._rank] = self._count
        poll(lambda: min(told) >= self._count, _TELL_S)
        rows = [
            self._read(place, rank) if told[rank] == self._count else f"rank {rank}: ?" for rank in range(len(told))
        ]
        raise CollectiveMismatchError(disagreement(rows))

    def _write(self, place: int, text: str) -> None:
        at = self._texts + (place * self._size + self._rank) * _TEXT_BYTES
        self._memory[at : at + _TEXT_BYTES] = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")

    def _read(self, place: int, rank: int) -> str:
        at = self._texts + (place * self._size + rank) * _TEXT_BYTES
        return self._memory[at : at + _TEXT_BYTES].rstrip(b"\0").decode(errors="replace")


def _code(word: int) -> int:
    return word & (1 << _CHECKSUM_BITS) - 1


@functools.lru_cache(maxsize=4096)
def crc(text: str) -> int:
    """Return a checksum of what a call is."""
    return zlib.crc32(text.encode())


def _checksum(number: int, crc: int) -> int:
    """Return a checksum of a call: of what it is, and how many others there were before."""
    return max((crc ^ number * 0x9E3779B1) >> 8 & (1 << _CHECKSUM_BITS) - 1, _FIRST_CHECKSUM)


def _mixed(operation: Operation, others: list[int], how: str) -> CollectiveMismatchError:
    got = f"{describe(operation)}; rank {', '.join(map(str, others))} {how}"
    do = "use the blocking form on all ranks, or the non-blocking one"
    return CollectiveMismatchError(explain(f"{operation}: ranks disagree", got=got, do=do))


def _too_late(operation: Operation, gone: list[int]) -> DistTimeoutError:
    got = f"rank {', '.join(map(str, gone))} has given up waiting; at {operation.site}"
    do = "find out what made this rank late, or allow more time (timeout_s)"
    return DistTimeoutError(explain(f"{operation}: too late", got=got, do=do))
