"""Where ranks that are threads of one process meet: meetings for collectives, mailboxes for messages."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hpcdist.array import Array
from hpcdist.comm.operation import Operation, describe, disagreement, fingerprint
from hpcdist.comm.work import Done, Work
from hpcdist.errors import CollectiveMismatchError, DistNetworkError

__all__ = ["Group", "LocalWork", "Meeting", "PeerError", "Post", "World"]

T = TypeVar("T")


class PeerError(DistNetworkError):
    """A wait ended because another rank failed."""


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
    value : object
        What is exchanged, a copy of the caller's.
    """

    operation: Operation
    value: Any

    def fits(self, other: Post) -> bool:
        """Say whether both are parts of one collective."""
        return fingerprint(self.operation) == fingerprint(other.operation)


@dataclass
class Meeting:
    """One collective of some ranks of a group, by default all: complete when each of them has posted."""

    ranks: Sequence[int]
    posts: dict[int, Post] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    mismatch: bool = False

    def add(self, rank: int, post: Post) -> None:
        """Take in the post of ``rank``; note if it does not fit those already here."""
        self.mismatch = self.mismatch or not all(earlier.fits(post) for earlier in self.posts.values())
        self.posts[rank] = post

    def missing(self) -> list[int]:
        """Return the ranks that have not posted; raise if posts do not fit together."""
        if self.mismatch:
            rows = [describe(post.operation) for _, post in sorted(self.posts.items())]
            raise CollectiveMismatchError(disagreement(rows))
        return [rank for rank in self.ranks if rank not in self.posts]

    def values(self) -> list[Any]:
        """Return the posted values in rank order."""
        return [self.posts[rank].value for rank in self.ranks]


@dataclass(eq=False)
class Receive:
    """One posted receive; ``source`` None takes a message from any rank, and becomes the rank it came from."""

    source: int | None
    tag: int
    message: Array | None = None

    def fits(self, source: int, tag: int) -> bool:
        """Say whether a message is for this receive."""
        return self.tag == tag and self.source in (None, source)

    def fill(self, source: int, message: Array) -> None:
        """Take the message."""
        self.source, self.message = source, message


@dataclass
class Mailbox:
    """What was sent to one rank and not yet asked for, and what it asked for and has not got; matched in order."""

    messages: list[tuple[int, int, Array]] = field(default_factory=list)
    receives: list[Receive] = field(default_factory=list)

    def deliver(self, source: int, tag: int, message: Array) -> None:
        """Give a message to the first receive that it fits, or keep it."""
        receive = next((r for r in self.receives if r.fits(source, tag)), None)
        if receive is None:
            self.messages.append((source, tag, message))
        else:
            self.receives.remove(receive)
            receive.fill(source, message)

    def ask(self, receive: Receive) -> None:
        """Fill a receive with the first message that fits it, or keep it."""
        place = next((i for i, (source, tag, _) in enumerate(self.messages) if receive.fits(source, tag)), None)
        if place is None:
            self.receives.append(receive)
        else:
            source, _, message = self.messages.pop(place)
            receive.fill(source, message)


@dataclass
class Group:
    """What the ranks of one group share."""

    world: World
    members: tuple[int, ...]
    name: str
    meetings: dict[Hashable, Meeting] = field(default_factory=dict)
    mail: defaultdict[int, Mailbox] = field(default_factory=lambda: defaultdict(Mailbox))

    def meet(self, key: Hashable, rank: int, post: Post, ranks: Sequence[int] | None = None) -> Meeting:
        """Bring ``post`` to the collective of this key (its sequence number) of all or some ranks; never blocks."""
        with self.world.condition:
            everyone = range(len(self.members)) if ranks is None else ranks
            meeting = self.meetings.setdefault(key, Meeting(everyone))
            meeting.add(rank, post)
            if len(meeting.posts) == len(meeting.ranks):
                del self.meetings[key]
            self.world.condition.notify_all()
        return meeting

    def send(self, source: int, dest: int, tag: int, x: Array) -> None:
        """Leave ``x`` for ``dest``; never blocks."""
        with self.world.condition:
            self.mail[dest].deliver(source, tag, x)
            self.world.condition.notify_all()

    def expect(self, source: int | None, dest: int, tag: int) -> Receive:
        """Post a receive of ``dest``; never blocks."""
        receive = Receive(source, tag)
        with self.world.condition:
            self.mail[dest].ask(receive)
        return receive

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
            limit_s = min(self._timeout_s if timeout_s is None else timeout_s, threading.TIMEOUT_MAX)
            with self._group.world.condition:
                if not self._group.world.condition.wait_for(self._ready, limit_s):
                    late = f"rank {', '.join(map(str, self._missing()))} of the group"
                    raise self._operation._replace(peers=late).timed_out(limit_s)
            self._done = Done(self._finish())
        return self._done.wait()
