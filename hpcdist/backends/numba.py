"""Threads of numba's parallel kernels. Nothing here imports numba: only who uses it pays for it."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["max_threads", "set_threads"]


def max_threads() -> int | None:
    """Return how many threads numba launches, which is final once it has been imported; None before that."""
    library = _loaded()
    return int(library.config.NUMBA_NUM_THREADS) if library else None


def set_threads(n: int) -> int:
    """Let parallel kernels use ``n`` threads, or as many as numba launches if that is less; return how many.

    numba must have been imported. It keeps this number for each Python thread: kernels that also run in
    other threads pass ``cpu.num_threads()`` to numba there.
    """
    library = _loaded()
    assert library is not None, "numba has not been imported"
    usable = min(n, int(library.config.NUMBA_NUM_THREADS))
    library.set_num_threads(usable)
    return usable


def _loaded() -> Any:
    library = sys.modules.get("numba")
    return library if hasattr(library, "set_num_threads") else None
