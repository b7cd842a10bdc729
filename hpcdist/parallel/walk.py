"""In which order ranks gather parameters and reduce gradients in backward: that of the forward, walked back.

Ranks may reach units in different orders, or some not at all (a branch that one rank takes, a parameter that gets no
gradient here). So nobody communicates when it gets somewhere, but walks: in the forward it is written down where units
were entered and left; backward goes through that from its end, gathers a unit where it was left, and reduces it where
it was entered. Whoever needs a unit walks as far as that; whoever has passed a place never comes back to it, since what
was recorded later replays earlier. The rest is walked when backward ends.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol

from hpcdist.autograd.tape import is_collecting

__all__ = ["Round", "Stop", "Walk"]


class Round(NamedTuple):
    """Micro-batches that ranks work on at the same time, one each.

    Attributes
    ----------
    start : int
        The first one.
    of : int
        How many a step has.
    """

    start: int
    of: int


class Stop(Protocol):
    """What is gathered and reduced on the way."""

    def prepare(self) -> None:
        """Note what the loop has chosen for a backward, which begins."""

    def gather_again(self, walk: Walk) -> None:
        """Gather parameters for backward. Collective over the shard axis, unless they are still there."""

    def reduce(self, walk: Walk) -> None:
        """Reduce gradients, and let go of parameters. Collective over the axes of the strategy."""


class Walk:
    """One forward of a model, and the way back through it.

    Attributes
    ----------
    round : Round, optional
        The micro-batches of this forward and of those of other ranks at the same time.
    is_under_way : bool
        Whether a backward has begun and not ended.
    has_failed : bool
        Whether one has ended in an error.
    collects : bool
        Whether it adds to the gradients of parameters; ``autograd.grad`` does not.
    """

    def __init__(self, round: Round | None = None) -> None:
        self.round = round
        self._events: dict[tuple[Stop, bool], None] = {}  # in order
        self._uses: Counter[Stop] = Counter()
        self._needed: set[Stop] = set()
        self._left: list[Stop] = []
        # of the backward that is under way
        self.is_under_way = self.has_failed = self.collects = False
        self._order: list[tuple[Stop, bool]] = []
        self._index: dict[tuple[Stop, bool], int] = {}
        self._come: Counter[Stop] = Counter()
        self._place = -1

    # ---- forward
    def enter(self, stop: Stop, *, trains: bool) -> None:
        """Note that a unit was entered: the first time counts; and whether backward will come through."""
        self._events.setdefault((stop, True))
        self._uses[stop] += trains

    def leave(self, stop: Stop) -> None:
        """Note that a unit was left: the last time counts."""
        self._events.pop((stop, False), None)
        self._events[stop, False] = None
        self._left.append(stop)

    @property
    def num_left(self) -> int:
        """How often units have been left."""
        return len(self._left)

    def gather_together(self, start: int) -> None:
        """Have backward gather all units here that were left since ``num_left`` was ``start``.

        A part of the forward that is computed again needs all of them before the first of them is reduced.
        """
        for stop in dict.fromkeys(self._left[start:]):
            self.need(stop)
            self.leave(stop)

    def need(self, stop: Stop) -> None:
        """Note that backward will look at the parameters of a unit."""
        self._needed.add(stop)

    # ---- backward
    def begin(self) -> None:
        """Note that a backward is on its way here."""
        if not self.is_under_way:
            self.is_under_way, self.collects, self._order = True, is_collecting(), list(self._events)
            self._index = {event: place for place, event in enumerate(self._order)}
            self._come.clear()
            self._place = len(self._order)
            for stop, entered in self._order:
                if entered:
                    stop.prepare()

    def after(self, stop: Stop) -> Stop | None:
        """Return the unit that is gathered next on the way back, after ``stop``."""
        place = self._index[stop, False]
        following = (s for s, entered in reversed(self._order[:place]) if not entered and s in self._needed)
        return next(following, None)

    def come(self, stop: Stop) -> bool:
        """Note that backward has come through one use of a unit, and say whether that was the last one."""
        self.begin()
        self._come[stop] += 1
        return self._come[stop] == self._uses[stop]

    def to_gather(self, stop: Stop) -> None:
        """Walk to where ``stop`` was left, if it was. Collective over what lies on the way."""
        self.begin()
        place = self._index.get((stop, False))
        if place is not None:
            self._walk(place)

    def to_reduce(self, stop: Stop) -> None:
        """Walk to where ``stop`` was entered. Collective over what lies on the way."""
        self.begin()
        self._walk(self._index[stop, True])

    def finish(self) -> None:
        """Walk the rest of the way. Collective over what lies on it."""
        self.begin()
        self._walk(0)
        self.is_under_way = False

    def _walk(self, place: int) -> None:
        while self._place > place:
            self._place -= 1
            stop, entered = self._order[self._place]
            if entered:
                stop.reduce(self)
            elif stop in self._needed:
                stop.gather_again(self)
