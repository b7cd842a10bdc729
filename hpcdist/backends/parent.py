"""Processes that end when the one that started them does."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["WORKER", "die_with_parent", "is_worker"]

WORKER = "hpcdist-worker"
"""What the names of worker processes begin with."""

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals, parent: int | None = None) -> None:
    """Let the kernel send this process signal ``number`` when its parent ends, however that happens.

    Holds across ``exec``; see prctl(2), PR_SET_PDEATHSIG.

    Parameters
    ----------
    number : signal.Signals
        Sent at once if the parent has ended already.
    parent : int, optional
        Process id of the parent, where it is known; default: the present one.
    """
    import ctypes

    expected = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != expected:
        os.kill(os.getpid(), number)


def is_worker() -> bool:
    """Say whether this is a process that a rank started to fetch data; it is no rank, and must not call MPI."""
    library = sys.modules.get("multiprocessing.process")
    return library is not None and library.current_process().name.startswith(WORKER)
