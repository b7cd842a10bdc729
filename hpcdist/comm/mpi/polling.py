"""How a rank waits: at once, then politely, and never without a limit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hpcdist.comm.mpi.crowding import crowded

__all__ = ["LATE_S", "poll"]

LATE_S = 5.0
"""A wait that lasts longer asks what keeps the others, and again each time it has lasted twice as long."""
_SPIN_S = 1e-3
"""How long a wait tries again at once before it gives its core away."""
_NAP_S = 5e-5


def poll(done: Callable[[], bool], limit_s: float, late: Callable[[float], None] | None = None) -> bool:
    """Call ``done`` until it says True; give up after ``limit_s`` seconds and return False.

    Spins at first, then yields the core each time; where ranks share cores it yields from the start, then naps.

    Parameters
    ----------
    late : callable, optional
        Called with the seconds waited when they pass :data:`LATE_S`, and each time they have doubled.
    """
    if done():
        return True
    start, pause, next_s = time.monotonic(), _pause_crowded if crowded() else _pause, LATE_S
    while not done():
        elapsed_s = time.monotonic() - start
        if elapsed_s > limit_s:
            return False
        if elapsed_s > next_s and late is not None:
            late(elapsed_s)
            next_s *= 2
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
