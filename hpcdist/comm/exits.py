"""What this process was told about its end: the code that somebody gave to ``sys.exit``.

Python keeps an exit code to itself until the process is gone. So ``sys.exit``, ``exit`` and ``quit`` are replaced by
one function that does the same, and remembers what it was told. In ``sys.exit(main())`` Python looks ``sys.exit`` up
before it calls ``main``: the ranks of a job listen from the moment they import this package.
"""

from __future__ import annotations

import builtins
import sys
import threading
from typing import Any, NoReturn

__all__ = ["listen", "told"]

_told: SystemExit | None = None


def listen() -> None:
    """Remember, from now on, what ``sys.exit`` is told."""
    if sys.exit is not _exit:
        sys.exit = builtins.exit = builtins.quit = _exit  # type: ignore[assignment]


def told() -> SystemExit | None:
    """Return the last exit of the main thread, although the program may have caught it; None if there was none."""
    return _told


def _exit(status: Any = None, /) -> NoReturn:
    """Raise SystemExit(status)."""
    global _told
    error = SystemExit(status)
    if threading.current_thread() is threading.main_thread():
        _told = error
    raise error
