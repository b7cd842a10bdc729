"""How a rank waits: at once, then politely, and never without a limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeAlias

from hpcdist import config
from hpcdist.comm.mpi.crowding import crowded

__all__ = ["Late", "background", "poll"]

Late: TypeAlias = Callable[[float], object]
"""Called with the seconds waited, from time to time, in a wait that lasts long; may raise to end it."""

background: set[Callable[[], object]] = set()
"""What has to go on while a rank waits for something else; none of it blocks."""

_LATE_INTERVAL_S = 0.05
_SPIN_S = 1e-3
"""How long a wait tries again at once before it gives its core away."""
_NAP_S = 5e-5


def poll(done: Callable[[], bool], limit_s: float, late: Late | None = None) -> bool:
    """Call ``done`` until it says True; give up after ``limit_s`` seconds and return False.

    Spins at first, then yields the core each time; where ranks share cores it yields from the start, then naps.

    Parameters
    ----------
    late : callable, optional
        Called again and again once the wait has lasted half of HPCDIST_LATE_S.
    """
    if done():
        return True
    start, pause = time.monotonic(), _pause_crowded if crowded() else _pause
    next_s = config.environment().late_s / 2
    while not done():
        for go_on in tuple(background):
            go_on()
        elapsed_s = time.monotonic() - start
        if elapsed_s > limit_s:
            return False
        if elapsed_s > next_s and late is not None:
            late(elapsed_s)
            next_s = elapsed_s + _LATE_INTERVAL_S
        pause(elapsed_s)
    return True


def _pause(elapsed_s: float) -> None:
    if elapsed_s > _SPIN_S:
        os.sched_yield()


def _pause_crowded(elapsed_s: float) -> None:
    if elapsed_s > _SPIN_S:
        time.sleep(_NAP_S)
    else:
        os.sched_yield()
