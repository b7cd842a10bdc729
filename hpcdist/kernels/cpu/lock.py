"""A lock that is a file: between processes of several machines that share a folder, on any file system.

Creating a file exclusively is atomic on NFS, too, where flock may be missing or local. A holder that died on this
machine is recognised by its process id and start time; one on another machine by its lock file, which a living holder
touches, not changing for a while: ages are taken by the clock of who waits, so clocks need not agree.

Losing the lock to a waiter that was too impatient is harmless here: the work is then done twice.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import socket
import threading
import time
from pathlib import Path

__all__ = ["FileLock"]

TOUCH_S = 5.0
PATIENCE_S = 60.0
"""Longer than file systems keep the attributes of a file in memory."""


class FileLock:
    """An attempt of this process to hold the lock ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mine = f"{_node()} {os.getpid()} {_start_time(os.getpid())} {secrets.token_hex(8)}"
        self._seen: tuple[str, int] | None = None
        self._since = 0.0
        self._released = threading.Event()

    def acquire(self) -> bool:
        """Try to take the lock; never blocks. To be called again and again by who waits.

        Raises
        ------
        OSError
            If no file can be made there.
        """
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            self._remove_if_stale()
            return False
        try:
            os.write(descriptor, self._mine.encode())
        except OSError:
            self.path.unlink()  # an unsigned lock would hold the others up
            raise
        finally:
            os.close(descriptor)
        threading.Thread(target=self._touch, name="hpcdist-lock", daemon=True).start()
        return True

    def release(self) -> None:
        """Give the lock back, unless somebody took it away."""
        self._released.set()
        with contextlib.suppress(OSError):
            if self.path.read_text() == self._mine:
                self.path.unlink()

    def _touch(self) -> None:
        while not self._released.wait(TOUCH_S):
            try:
                os.utime(self.path)
            except OSError:
                return

    def _remove_if_stale(self) -> None:
        with contextlib.suppress(OSError):
            state = _state(self.path)
            if state != self._seen:
                self._seen, self._since = state, time.monotonic()
            silent = time.monotonic() - self._since > PATIENCE_S
            if (silent or _is_dead(state[0])) and _state(self.path) == state:
                self.path.unlink()


def _state(path: Path) -> tuple[str, int]:
    """Return who holds a lock, and when the file was last touched; opened, so that NFS asks its server."""
    with path.open() as file:
        return file.read(), os.fstat(file.fileno()).st_mtime_ns


def _is_dead(holder: str) -> bool:
    """Say whether ``holder`` is a process of this machine that has ended."""
    node, _, rest = holder.partition(" ")
    words = rest.split()
    return node == _node() and len(words) == 3 and _start_time(int(words[0])) != words[1]


@functools.cache
def _node() -> str:
    """Return what process ids are unique in: machine, its last start, and the namespace of a container."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{started}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()}/{secrets.token_hex(8)}"  # nobody can be told dead then


def _start_time(pid: int) -> str:
    """Return when process ``pid`` started, in the kernel's ticks; empty if there is none, or only its remains."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[19]
