"""Some ranks of a group find out whether all of them have come to form a group of their own, within a time limit.

What follows in MPI has none. So the lowest of them, the host, asks each that has come whether it still waits, and then
lets all go on: who has given up does not answer, and who has answered waits for the host's word. Messages carry the
number of the sender's, or addressee's, attempt: those of attempts that were given up are known.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Collection, Iterator, Sequence
from enum import IntEnum
from typing import NoReturn, Protocol

import numpy as np
from mpi4py import MPI

from hpcdist.comm.mpi.polling import Late, poll
from hpcdist.errors import CollectiveMismatchError, DistTimeoutError, explain

__all__ = ["assemble"]

_GRACE_S = 5.0
"""How much longer than its time limit a rank that has answered waits for the host's word."""
_attempts = itertools.count(1)
_sent: list[tuple[MPI.Request, np.ndarray]] = []


class Parent(Protocol):
    """The group that the ranks are ranks of."""

    handle: MPI.Intracomm
    rank: int
    name: str
    timeout_s: float
    top_tag: int


class _Word(IntEnum):
    """What guests say to the host, and the host to them."""

    COME = 0
    WAITING = 1
    GONE = 2
    ASK = 3
    GO = 4
    DIFFERENT = 5
    TOO_LATE = 6


def assemble(parent: Parent, ranks: Sequence[int], late: Late | None = None) -> None:
    """Wait until all ``ranks`` of ``parent`` have called this. Collective over ``ranks``.

    Parameters
    ----------
    parent : Parent
    ranks : sequence of int
    late : callable, optional
        See :func:`hpcdist.comm.mpi.polling.poll`.

    Raises
    ------
    DistTimeoutError
        On every rank: names those that have not come, or that have given up.
    CollectiveMismatchError
        On every rank, if lists differ.
    """
    if len(ranks) > 1:
        (_Host if parent.rank == min(ranks) else _Guest)(parent, ranks).wait(late)


class _Attempt:
    """What host and guests have in common."""

    def __init__(self, parent: Parent, ranks: Sequence[int]) -> None:
        self._parent, self._ranks, self._number = parent, list(ranks), next(_attempts)
        self._sum = zlib.crc32(str(self._ranks).encode())
        self._limit_s = parent.timeout_s

    def _say(self, word: _Word, rank: int, attempt: int) -> None:
        message = np.array([word, attempt, self._sum])
        _sent[:] = [(request, buffer) for request, buffer in _sent if not request.Test()]
        _sent.append((self._parent.handle.Isend(message, rank, self._parent.top_tag + 1), message))

    def _hear(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """Yield what a rank has said: word, attempt, checksum of the list."""
        while (found := self._parent.handle.Improbe(rank, self._parent.top_tag + 1)) is not None:
            message = np.empty(3, int)
            found.Recv(message)
            yield int(message[0]), int(message[1]), int(message[2])

    def _missing(self, ranks: Sequence[int], gone: Collection[int] = ()) -> DistTimeoutError:
        parent, late = self._parent, ", ".join(str(rank) for rank in ranks if rank not in gone)
        got = [f"nothing from rank {late}"] * bool(late)
        got += [f"rank {', '.join(map(str, sorted(gone)))} has come, and given up waiting"] * bool(gone)
        what = f"create_group on group {parent.name!r}: ranks missing on rank {parent.rank} after {self._limit_s:g} s"
        do = "call it on all of its ranks, or allow more time (timeout_s)"
        return DistTimeoutError(explain(what, got="; ".join(got), expected=f"ranks {self._ranks} to call it", do=do))

    def _differ(self) -> NoReturn:
        text, do = (
            f"create_group on group {self._parent.name!r}: ranks disagree",
            "give the same list on all of its ranks",
        )
        got = f"{self._ranks} on rank {self._parent.rank}, others elsewhere"
        raise CollectiveMismatchError(explain(text, got=got, do=do))


class _Host(_Attempt):
    """The lowest of the ranks."""

    def __init__(self, parent: Parent, ranks: Sequence[int]) -> None:
        super().__init__(parent, ranks)
        self._guests = [rank for rank in ranks if rank != parent.rank]
        self._came: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        """Checksums of the guests that have said they still wait."""
        self._asked: dict[int, int] = {}
        self._gone: set[int] = set()

    def wait(self, late: Late | None) -> None:
        """Ask the guests when all have come; let them go on when all still wait."""
        try:
            all_wait = poll(self._all_wait, self._limit_s, late)
        except CollectiveMismatchError:
            raise  # the others hear of it where this rank did
        except BaseException:
            self._tell(_Word.TOO_LATE)
            raise
        if not all_wait:
            self._tell(_Word.TOO_LATE)
            raise self._missing([rank for rank in self._guests if rank not in self._waiting], self._gone)
        if set(self._waiting.values()) != {self._sum}:
            self._tell(_Word.DIFFERENT)
            self._differ()
        self._tell(_Word.GO)

    def _tell(self, word: _Word) -> None:
        for rank, attempt in self._came.items():
            self._say(word, rank, attempt)

    def _all_wait(self) -> bool:
        for rank in self._guests:
            for word, attempt, said in self._hear(rank):
                self._note(rank, word, attempt, said)
        if len(self._came) == len(self._guests):
            for rank in self._guests:
                if self._asked.get(rank) != self._came[rank]:
                    self._asked[rank] = self._came[rank]
                    self._say(_Word.ASK, rank, self._came[rank])
        return len(self._waiting) == len(self._guests)

    def _note(self, rank: int, word: int, attempt: int, said: int) -> None:
        if word == _Word.WAITING:
            if attempt == self._came.get(rank):
                self._waiting[rank] = said
            return
        self._waiting.pop(rank, None)
        if word == _Word.COME:
            self._came[rank] = attempt
            self._gone.discard(rank)
        else:
            self._came.pop(rank, None)
            self._gone.add(rank)


class _Guest(_Attempt):
    """Any other of the ranks."""

    def __init__(self, parent: Parent, ranks: Sequence[int]) -> None:
        super().__init__(parent, ranks)
        self._host = min(ranks)
        self._answered = False
        self._verdict: int | None = None

    def wait(self, late: Late | None) -> None:
        """Wait for the host's word."""
        self._say(_Word.COME, self._host, self._number)
        try:
            told = poll(self._told, self._limit_s, late) or (
                self._answered and poll(self._told, self._limit_s + _GRACE_S)
            )
        except BaseException:
            self._say(_Word.GONE, self._host, self._number)
            raise
        if not told:
            self._say(_Word.GONE, self._host, self._number)
            raise self._missing([self._host])
        if self._verdict == _Word.DIFFERENT:
            self._differ()
        if self._verdict == _Word.TOO_LATE:
            what = f"create_group on group {self._parent.name!r}: given up on rank {self._parent.rank}"
            do = "find out which ranks did not come in time, or allow more time (timeout_s)"
            got = f"rank {self._host} has given up waiting for ranks {self._ranks}"
            raise DistTimeoutError(explain(what, got=got, do=do))

    def _told(self) -> bool:
        for word, attempt, _ in self._hear(self._host):
            if attempt != self._number:
                continue
            if word == _Word.ASK:
                self._answered = True
                self._say(_Word.WAITING, self._host, self._number)
            else:
                self._verdict = word
        return self._verdict is not None
