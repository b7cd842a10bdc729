"""The forward of sharded units that runs on this thread, and the units of a module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import ref

from hpcdist.nn import Module
from hpcdist.parallel.walk import Walk

if TYPE_CHECKING:
    from hpcdist.parallel.sharded import ShardedUnit

__all__ = ["RUNNING", "current_walk", "entered", "units_below", "walking_again"]


class _Running(threading.local):
    """Its way, the units that have been entered, the root first, and the one that was entered last."""

    def __init__(self) -> None:
        self.walk: Walk | None = None
        self.before: Callable[[], Walk | None] = lambda: None
        self.entered: list[ShardedUnit] = []
        self.last: ShardedUnit | None = None
        self.again: Walk | None = None

    def begin(self, walk: Walk) -> None:
        """Start on a way."""
        self.walk, self.last = walk, None

    def end(self) -> None:
        """Keep nothing alive that a forward has used, which is through."""
        if self.walk is not None:
            self.before = ref(self.walk)
        self.walk = self.last = None


RUNNING = _Running()


def entered() -> tuple[ShardedUnit, ...]:
    """Return the units in whose forward this thread is, the outermost first."""
    return tuple(RUNNING.entered)


def current_walk() -> Walk | None:
    """Return the way of the forward that this thread is in, or was in last, if there is a graph of that."""
    return RUNNING.before() if RUNNING.walk is None else RUNNING.walk


@contextmanager
def walking_again(walk: Walk | None) -> Iterator[None]:
    """Have units that are filled in backward stand on ``walk``, which the forward went whose part is computed again."""
    before, RUNNING.again = RUNNING.again, walk
    try:
        yield
    finally:
        RUNNING.again = before


def units_below(module: Module) -> list[ShardedUnit]:
    """Return the units of a module and of all below it, each once."""
    found = [m.__dict__["sharded_unit"] for m in module.modules() if "sharded_unit" in m.__dict__]
    return list(dict.fromkeys(found))
