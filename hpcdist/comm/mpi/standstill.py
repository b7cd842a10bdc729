"""Ranks that wait for one another: what each says of its wait, and whether any of them can ever go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["CREATION", "Statement", "circle", "stuck"]

CREATION = "#new"
"""At the end of a key: of the forming of groups of some ranks. A rank that does not know it has formed none."""


class Statement(NamedTuple):
    """What a waiting rank says.

    Attributes
    ----------
    rank, wait : int
        Who waits, and which of its waits it is.
    row : str
        What it waits for, for the table.
    verb : str
    key, number, signature : str, int, str
        Group, place and kind of the call it waits for; no key for a message.
    awaited : sequence of int
        The ranks that have to take part.
    counts : dict of str to int
        Collectives it has posted on each of its groups.
    messages : list of tuple
        Its messages under way: "send" or "recv", and the other rank, None for any.
    alone : bool
        Whether all calls of this rank come from one thread.
    """

    rank: int
    wait: int
    row: str
    verb: str
    key: str
    number: int
    signature: str
    awaited: Sequence[int]
    counts: dict[str, int]
    messages: list[tuple[str, int | None]]
    alone: bool

    def waits_for(self, other: Statement) -> bool:
        """Say whether this rank can only go on when ``other`` has made another call than the one it waits in."""
        if other.rank not in self.awaited or not other.alone:
            return False
        if self.key:
            unknown = 0 if self.key.endswith(CREATION) else self.number
            return other.counts.get(self.key, unknown) < self.number
        counterpart = "recv" if self.verb == "send" else "send"  # a long message may just take its time
        return not any(verb == counterpart and peer in (None, self.rank) for verb, peer in other.messages)

    def differs(self, other: Statement) -> bool:
        """Say whether both wait in the same place of the same group, but not in the same call."""
        same = self.key != "" and (self.key, self.number) == (other.key, other.number)
        return same and self.signature != other.signature


def circle(mine: Statement, answers: dict[int, Statement]) -> list[Statement]:
    """Return ranks that wait for one another in a circle which ``mine`` is in; nothing if there is none known."""
    came_from: dict[int, Statement] = {}
    front = [mine]
    while front:
        statement = front.pop(0)
        if statement is not mine and statement.waits_for(mine):
            path = [statement]
            while path[-1] is not mine:
                path.append(came_from[path[-1].rank])
            return path
        for other in answers.values():
            if other.rank not in came_from and statement.waits_for(other):
                came_from[other.rank] = statement
                front.append(other)
    return []


def stuck(statements: Sequence[Statement], found: Sequence[Statement]) -> list[Statement]:
    """Return those that wait, themselves or by others, for a rank of ``found``; with these."""
    ends = list(found)
    for statement in ends:
        ends += [s for s in statements if s not in ends and s.waits_for(statement)]
    return ends
