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
    uses : Counter of Stop
        How often each unit was entered, less how often backward has come through.
    is_under_way : bool
        Whether a backward has begun and not ended.
    """

    def __init__(self, round: Round | None = None) -> None:
        self.round = round
        self.uses: Counter[Stop] = Counter()
        self._events: list[tuple[Stop, bool]] = []
        self._needed: set[Stop] = set()
        self._left: list[Stop] = []
        self._place = -1
        self.is_under_way = False

    # ---- forward
    def enter(self, stop: Stop) -> None:
        """Note that a unit was entered: the first time counts."""
        if (stop, True) not in self._events:
            self._events.append((stop, True))

    def leave(self, stop: Stop) -> None:
        """Note that a unit was left: the last time counts."""
        if (stop, False) in self._events:
            self._events.remove((stop, False))
        self._events.append((stop, False))
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

    def after(self, stop: Stop) -> Stop | None:
        """Return the unit that is gathered next on the way back, after ``stop``."""
        place = self._events.index((stop, False))
        following = (s for s, entered in reversed(self._events[:place]) if not entered and s in self._needed)
        return next(following, None)

    # ---- backward
    def to_gather(self, stop: Stop) -> None:
        """Walk to where ``stop`` was left, if it was. Collective over what lies on the way."""
        if (stop, False) in self._events:
            self._walk(self._events.index((stop, False)))

    def to_reduce(self, stop: Stop) -> None:
        """Walk to where ``stop`` was entered. Collective over what lies on the way."""
        self._walk(self._events.index((stop, True)))

    def finish(self) -> None:
        """Walk the rest of the way. Collective over what lies on it."""
        self._walk(0)
        self.is_under_way = False

    def _walk(self, place: int) -> None:
        if not self.is_under_way:
            self.is_under_way, self._place = True, len(self._events)
        while self._place > place:
            self._place -= 1
            stop, entered = self._events[self._place]
            if entered:
                stop.reduce(self)
            elif stop in self._needed:
                stop.gather_again(self)
