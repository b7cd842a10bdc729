"""The roll call: ranks that wait long tell each other what they wait for, and find out if they wait for one another.

Only a rank that waits takes part, and only from inside its wait. It asks the ranks it waits for, and those that they
wait for in turn; each answers what it waits for itself, and how many calls it has made on each of its groups. Two
ranks that wait in the same call with different arguments, and a circle of ranks each of which waits for a call that
the next one has not made, can never end: all of them raise, with the same table.

Answers repeat the number of the question, so that stale ones are known. A circle is only believed when its ranks have
answered twice from the same wait: then there was a moment in which all of them waited. A rank that has left the job
answers that, and who waits for a call that it has not made raises. Messages are small, go through a
space of their own, and are as many as the doublings of the time waited: what nobody reads does no harm.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from mpi4py import MPI

from hpcdist import config
from hpcdist.comm import watchdog
from hpcdist.comm.members import name_members
from hpcdist.comm.mpi.standstill import CREATION, Statement, circle, stuck
from hpcdist.comm.operation import Operation, describe, disagreement, signature
from hpcdist.errors import CollectiveMismatchError, DistNetworkError, explain

__all__ = ["RollCall", "Seat"]

_TAG = 0
_MESSAGES = ("send", "recv")
_ASK, _ANSWER, _VERDICT, _LEFT = range(4)
_MOST_MEMBERS = 256
"""Of a group in a message, unless they are consecutive ranks."""
_MOST_ROWS = 16


class Group(Protocol):
    """What a group knows of the calls on it."""

    @property
    def num_collectives(self) -> Callable[[], int]:
        """What returns how many collectives this rank has posted, also when the group is gone."""

    def open_messages(self) -> list[tuple[str, int | None]]:
        """Return the messages of this rank that are under way: "send" or "recv", and the other rank or None."""


class Seat(NamedTuple):
    """A group, as the roll call knows it.

    Attributes
    ----------
    key : str
        The same on all members, and of no other group.
    members : sequence of int
        Ranks of the roll call.
    """

    key: str
    members: Sequence[int]


@dataclass
class _Wait:
    """One wait of this rank."""

    statement: Statement
    operation: Operation
    next_ask_s: float = 0.0
    next_log_s: float = 0.0
    question: int = 0
    asked: set[int] = field(default_factory=set)
    answers: dict[int, Statement] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    """Ranks that have answered an earlier question, and the waits they were in."""


class RollCall:
    """The roll call of all ranks that were started together. Creation is not collective.

    Parameters
    ----------
    handle : MPI.Intracomm
        Used for nothing else.
    """

    def __init__(self, handle: MPI.Intracomm) -> None:
        self._handle, self._rank = handle, handle.Get_rank()
        self._group = handle.Get_group()
        self._seats: Counter[tuple[int, ...]] = Counter()
        self._created: Counter[str] = Counter()
        self._groups: dict[str, tuple[weakref.ref[Group], Seat]] = {}
        self._counts: dict[str, Callable[[], int]] = {}
        self._lock = threading.Lock()
        self._wait: _Wait | None = None
        self._serial = 0
        self._question = 0
        self._sent: list[tuple[MPI.Request, bytes]] = []
        self.callers: set[int] = set()
        """Threads that have called a verb."""

    def enroll(self, group: Group, handle: MPI.Intracomm) -> Seat:
        """Take in a group, of which this rank is a member. The members of groups form them in the same order."""
        members = tuple(MPI.Group.Translate_ranks(handle.Get_group(), None, self._group))
        self._seats[members] += 1
        key = f"{hashlib.blake2b(str(members).encode(), digest_size=8).hexdigest()}.{self._seats[members]}"
        seat = Seat(key, _short(members))
        self._groups[key] = (weakref.ref(group, lambda _: self._groups.pop(key, None)), seat)
        self._counts[key] = group.num_collectives
        return seat

    def reserve(self, handle: MPI.Intracomm, ranks: Sequence[int]) -> Seat:
        """Return what stands for the forming of groups of some ranks of a group, which is collective over them only."""
        members = tuple(MPI.Group.Translate_ranks(handle.Get_group(), ranks, self._group))
        return Seat(f"{name_members(members)}{CREATION}", _short(members))

    def num_created(self, seat: Seat) -> int:
        """Return how many groups of these ranks this rank has formed."""
        return self._created[seat.key]

    @contextmanager
    def creating(self, seat: Seat) -> Iterator[None]:
        """Form a group of these ranks in this block; it does not count if that fails."""
        self.callers.add(threading.get_ident())
        self._created[seat.key] += 1
        try:
            yield
        except BaseException:
            self._created[seat.key] -= 1
            raise

    def late(self, seat: Seat, operation: Operation, elapsed_s: float) -> None:
        """Take part in the roll call, from inside a wait for ``operation`` that has lasted ``elapsed_s`` seconds.

        Never blocks.

        Raises
        ------
        CollectiveMismatchError
            If the wait can never end; on all ranks that have a part in that.
        """
        if not self._lock.acquire(blocking=False):
            return  # another thread waits, too, and does it
        try:
            if self._wait is None or self._wait.operation is not operation:
                self._serial += 1
                self._wait = _Wait(self._state(seat, operation), operation)
            self._take_part(self._wait, elapsed_s)
        finally:
            self._lock.release()

    def answer_from_beyond(self, how: str) -> None:
        """Tell who asks that this rank has left the job, and ``how``; to be called again and again. Never blocks."""
        for source, (kind, number, _) in self._messages():
            if kind == _ASK:
                counts = {key: count() for key, count in self._counts.items()} | self._created
                messages = [message for group, seat in self._known() for message in _open_messages(group, seat)]
                self._send(source, (_LEFT, number, (how, {"counts": counts, "messages": messages})))

    def _state(self, seat: Seat, operation: Operation) -> Statement:
        o, members = operation, seat.members
        is_message = o.verb in _MESSAGES
        awaited = members
        if is_message:
            peer = o.terms[0]
            awaited = [members[peer]] if members and isinstance(peer, int) else []
        return Statement(
            self._rank,
            self._serial,
            row=_message_row(o, self._rank) if is_message else describe(o),
            verb=o.verb,
            key="" if is_message else seat.key,
            number=o.number,
            signature=signature(o),
            awaited=awaited,
            counts={seat.key: group.num_collectives() for group, seat in self._known()} | self._created,
            messages=[message for group, seat in self._known() for message in _open_messages(group, seat)],
            alone=len(self.callers) < 2,
        )

    def _known(self) -> Iterator[tuple[Group, Seat]]:
        for reference, seat in list(self._groups.values()):
            group = reference()
            if group is not None:
                yield group, seat

    # ---- one step
    def _take_part(self, wait: _Wait, elapsed_s: float) -> None:
        if elapsed_s >= wait.next_ask_s:
            wait.next_ask_s = 2 * elapsed_s
            wait.next_log_s = wait.next_log_s or config.environment().late_s
            self._ask(wait, wait.statement.awaited)
        self._hear(wait)
        self._judge(wait)
        if elapsed_s >= wait.next_log_s:
            wait.next_log_s *= 2
            if all(self._rank < rank for rank in wait.answers):  # one of those that wait speaks for all
                watchdog.remark(_report(wait, elapsed_s))

    def _ask(self, wait: _Wait, ranks: Sequence[int]) -> None:
        """Begin a new round of questions."""
        self._question += 1
        wait.before |= {rank: answer.wait for rank, answer in wait.answers.items()}
        wait.question, wait.answers, wait.asked = self._question, {}, set()
        self._ask_also(wait, ranks)

    def _ask_also(self, wait: _Wait, ranks: Sequence[int]) -> None:
        for rank in ranks:
            if rank != self._rank and rank not in wait.asked:
                wait.asked.add(rank)
                self._send(rank, (_ASK, wait.question, None))

    def _hear(self, wait: _Wait) -> None:
        for source, (kind, number, content) in self._messages():
            if kind == _ASK:
                self._send(source, (_ANSWER, number, tuple(wait.statement)))
            elif kind == _ANSWER and number == wait.question:
                wait.answers[source] = Statement(*content)
                self._ask_also(wait, wait.answers[source].awaited)
            elif kind == _LEFT and number == wait.question:
                self._miss(wait, source, *content)
            elif kind == _VERDICT:
                text, calls = content
                if number == wait.statement.wait or (wait.statement.key, wait.statement.number) in calls:
                    raise CollectiveMismatchError(text)

    def _miss(self, wait: _Wait, rank: int, how: str, made: dict[str, Any]) -> None:
        """Raise if this wait is for a call that a rank which has left has not made."""
        mine = wait.statement
        gone = mine._replace(rank=rank, alone=True, **made)
        if not mine.waits_for(gone):
            return
        what = f"{wait.operation}: rank {rank} of the job has left it without taking part"
        do = "let every rank make the same calls before it ends"
        error = DistNetworkError(explain(what, got=f"{how}; waiting: {mine.row}", do=do))
        teller = min((other for other in mine.awaited if other != rank), default=self._rank)
        error.echo = teller != self._rank  # type: ignore[attr-defined]
        raise error

    def _judge(self, wait: _Wait) -> None:
        mine, answers = wait.statement, wait.answers
        differing = [s for s in answers.values() if s.differs(mine)]
        if differing:
            self._end([mine, *(s for s in answers.values() if (s.key, s.number) == (mine.key, mine.number))])
        found = circle(mine, answers)
        if found and all(s is mine or wait.before.get(s.rank) == s.wait for s in found):
            self._end(stuck([mine, *answers.values()], found))
        if found:
            self._ask(wait, list(wait.asked))

    def _end(self, statements: list[Statement]) -> None:
        """Tell all who have a part in it that it can never end, and raise."""
        text = disagreement(statement.row for statement in sorted(statements))
        calls = {(s.key, s.number) for s in statements if s.key}
        waits = {s.rank: s.wait for s in statements}
        for rank in waits.keys() | {rank for s in statements for rank in s.awaited}:
            if rank != self._rank:
                self._send(rank, (_VERDICT, waits.get(rank, 0), (text, calls)))
        raise CollectiveMismatchError(text)

    # ---- messages
    def _send(self, dest: int, message: Any) -> None:
        data = pickle.dumps(message)
        self._sent = [(request, buffer) for request, buffer in self._sent if not request.Test()]
        self._sent.append((self._handle.Isend([data, MPI.BYTE], dest, _TAG), data))

    def _messages(self) -> Iterator[tuple[int, Any]]:
        status = MPI.Status()
        while (message := self._handle.Improbe(status=status)) is not None:
            buffer = bytearray(status.Get_count(MPI.BYTE))
            message.Recv([buffer, MPI.BYTE])
            yield status.Get_source(), pickle.loads(buffer)


def _short(members: tuple[int, ...]) -> Sequence[int]:
    """Return members in a form that is short in a message; nothing if there is none."""
    run = range(members[0], members[0] + len(members))
    if members == tuple(run):
        return run
    return members if len(members) <= _MOST_MEMBERS else ()


def _open_messages(group: Group, seat: Seat) -> Iterator[tuple[str, int | None]]:
    for verb, peer in group.open_messages():
        yield verb, None if peer is None or not seat.members else seat.members[peer]


def _message_row(operation: Operation, rank: int) -> str:
    o = operation
    return f"rank {rank}: {o.verb} of {o.dtype} {o.shape}, waits for {o.peers} of group {o.group!r}, at {o.site}"


def _report(wait: _Wait, elapsed_s: float) -> str:
    silent = [rank for rank in wait.statement.awaited if rank in wait.asked and rank not in wait.answers]
    rows = [answer.row for _, answer in sorted(wait.answers.items())]
    shown = ", ".join(map(str, silent[:_MOST_ROWS])) + (
        f" and {len(silent) - _MOST_ROWS} more" * (len(silent) > _MOST_ROWS)
    )
    text = [f"{wait.operation}: has waited {elapsed_s:.0f} s, called at {wait.operation.site}"]
    if silent:
        text.append(f"  has not come, is busy outside hpcdist, or stopped: rank {shown}")
    text += [f"  waits, too: {row}" for row in rows[:_MOST_ROWS]]
    return "\n".join(text)
