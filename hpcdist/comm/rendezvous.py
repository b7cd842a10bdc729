"""Where ranks that are threads of one process meet: meetings for collectives, mailboxes for messages."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hpcdist.array import Array
from hpcdist.comm.operation import Operation
from hpcdist.comm.work import Done, Work
from hpcdist.errors import CollectiveMismatchError, DistError, explain

__all__ = ["Group", "LocalWork", "Mailbox", "Meeting", "PeerError", "Post", "World", "call_site"]

T = TypeVar("T")
_HERE = str(Path(__file__).parent)


class PeerError(DistError):
    """A wait ended because another rank failed."""


def call_site() -> str:
    """Return "file:line" of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class World:
    """Ranks that run as threads; ``gone`` holds those that have ended, with their error or None."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.gone: dict[int, BaseException | None] = {}

    def leave(self, rank: int, error: BaseException | None) -> None:
        """Record that ``rank`` has ended, and wake all who wait for it."""
        with self.condition:
            self.gone[rank] = error
            self.condition.notify_all()

    def failures(self) -> dict[int, BaseException]:
        """Return the errors that are not mere consequences of another rank's, by rank."""
        return {r: e for r, e in sorted(self.gone.items()) if e is not None and not isinstance(e, PeerError)}


@dataclass(frozen=True)
class Post:
    """What one rank brings to a collective.

    Attributes
    ----------
    operation : Operation
        The call.
    terms : tuple
        What must be equal on all ranks, besides the verb.
    value : object
        What is exchanged, a copy of the caller's.
    """

    operation: Operation
    terms: Hashable
    value: Any

    def fits(self, other: Post) -> bool:
        """Say whether both are parts of one collective."""
        return (self.operation.verb, self.terms) == (other.operation.verb, other.terms)

    def __str__(self) -> str:
        return f"{self.operation.verb}{self.terms} at {self.operation.site}"


@dataclass
class Meeting:
    """One collective of one group: complete when every rank has posted."""

    size: int
    posts: dict[int, Post] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    mismatch: str | None = None

    def add(self, rank: int, post: Post) -> None:
        """Take in the post of ``rank``; note if it does not fit those already here."""
        for other, earlier in self.posts.items():
            if self.mismatch is None and not earlier.fits(post):
                got = f"rank {other}: {earlier}\n           rank {rank}: {post}"
                self.mismatch = explain(
                    "collective: ranks disagree",
                    got=got,
                    do="call the same collectives in the same order on every rank",
                )
        self.posts[rank] = post

    def missing(self) -> list[int]:
        """Return the ranks that have not posted; raise if posts do not fit together."""
        if self.mismatch is not None:
            raise CollectiveMismatchError(self.mismatch)
        return [rank for rank in range(self.size) if rank not in self.posts]

    def values(self) -> list[Any]:
        """Return the posted values in rank order."""
        return [self.posts[rank].value for rank in range(self.size)]


@dataclass
class Mailbox:
    """Messages from one rank to another under one tag; the n-th receive gets the n-th message."""

    messages: dict[int, Array] = field(default_factory=dict)
    sent: int = 0
    awaited: int = 0


@dataclass
class Group:
    """What the ranks of one group share."""

    world: World
    members: tuple[int, ...]
    name: str
    meetings: dict[int, Meeting] = field(default_factory=dict)
    mail: defaultdict[tuple[int, int, int], Mailbox] = field(default_factory=lambda: defaultdict(Mailbox))

    def meet(self, number: int, rank: int, post: Post) -> Meeting:
        """Bring ``post`` to the group's collective with this sequence number; never blocks."""
        with self.world.condition:
            meeting = self.meetings.setdefault(number, Meeting(len(self.members)))
            meeting.add(rank, post)
            if len(meeting.posts) == meeting.size:
                del self.meetings[number]
            self.world.condition.notify_all()
        return meeting

    def send(self, key: tuple[int, int, int], x: Array) -> None:
        """Leave ``x`` for the rank that receives under ``key`` (source, dest, tag); never blocks."""
        with self.world.condition:
            box = self.mail[key]
            box.messages[box.sent] = x
            box.sent += 1
            self.world.condition.notify_all()

    def expect(self, key: tuple[int, int, int]) -> tuple[Mailbox, int]:
        """Reserve the next message under ``key``; return its mailbox and its number in it."""
        with self.world.condition:
            box = self.mail[key]
            box.awaited += 1
            return box, box.awaited - 1

    def check_alive(self, ranks: Iterable[int], operation: Operation) -> None:
        """Raise if one of these ranks of the group has ended, since it will never come."""
        gone = self.world.gone
        for member in (self.members[rank] for rank in ranks):
            if member in gone and gone[member] is None:
                raise operation.failed(f"rank {member} has ended without taking part")
            if member in gone:
                first, error = next(iter(self.world.failures().items()))
                raise PeerError(f"{operation}: rank {first} failed with {type(error).__name__}: {error}")


class LocalWork(Work[T]):
    """A collective or receive under way: done when no rank is missing any more.

    Parameters
    ----------
    group : Group
    operation : Operation
        What it is, for messages.
    missing : callable
        Returns the ranks that have not come.
    finish : callable
        Makes the result when all have.
    timeout_s : float
        Limit of waits.
    """

    def __init__(
        self,
        group: Group,
        operation: Operation,
        missing: Callable[[], list[int]],
        finish: Callable[[], T],
        timeout_s: float,
    ) -> None:
        self._group, self._operation, self._timeout_s = group, operation, timeout_s
        self._missing, self._finish = missing, finish
        self._done: Done[T] | None = None

    def _ready(self) -> bool:
        missing = self._missing()
        self._group.check_alive(missing, self._operation)
        return not missing

    def test(self) -> bool:
        """Say whether the work is done. Raises what went wrong, if something did."""
        with self._group.world.condition:
            ready = self._done is not None or self._ready()
        if ready:
            self.wait()
        return ready

    def wait(self, timeout_s: float | None = None) -> T:
        """Block until done and return the result; see :meth:`hpcdist.comm.work.Work.wait`."""
        if self._done is None:
            limit_s = self._timeout_s if timeout_s is None else timeout_s
            with self._group.world.condition:
                if not self._group.world.condition.wait_for(self._ready, limit_s):
                    late = f"rank {', '.join(map(str, self._missing()))} of the group"
                    raise self._operation._replace(peers=late).timed_out(limit_s)
            self._done = Done(self._finish())
        return self._done.wait()
