"""The processes of one launch on this machine, found by a variable in their environment that only they have.

Launchers put ranks into sessions of their own, and a launcher that is killed leaves them to another parent: neither
the session nor the parent says whose a process is, but what it inherited does.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["end_marked", "marked", "ranks_below"]

_PROC = Path("/proc")
_POLL_S = 0.02
_KILL_S = 5.0
"""A killed process is gone when the system gets round to it, which on a busy machine is not at once."""


def marked(mark: str) -> list[int]:
    """Return the ids of the running processes that have ``NAME=value`` string ``mark`` in their environment."""
    wanted = mark.encode()
    return [pid for pid in _ids() if pid != os.getpid() and wanted in _variables(pid)]


def ranks_below(mark: str, manager: str) -> list[int]:
    """Return those of the marked processes whose parent is a ``manager`` (the name of its program)."""
    return [pid for pid in marked(mark) if _name(_parent(pid)) == manager[:15]]


def end_marked(mark: str, grace_s: float) -> int:
    """End all marked processes: SIGTERM, ``grace_s`` seconds, SIGKILL. Return how many there were."""
    found = marked(mark)
    _send(found, signal.SIGTERM)
    _wait_for_end(mark, grace_s)
    _send(marked(mark), signal.SIGKILL)
    _wait_for_end(mark, _KILL_S)
    return len(found)


def _wait_for_end(mark: str, limit_s: float) -> None:
    limit = time.monotonic() + limit_s
    while marked(mark) and time.monotonic() < limit:
        time.sleep(_POLL_S)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _ids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]


def _variables(pid: int) -> list[bytes]:
    """Return the environment that a process was started with; nothing for zombies and for other users' processes."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _name(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""
