"""Progress of works nobody waits for yet.

Most MPI libraries move a non-blocking message only inside MPI calls. Where MPI allows calls from any thread, a thread
tests the watched works once a millisecond, which costs the computing thread next to nothing; elsewhere :func:`poll`
does so, called between operations.
"""

from __future__ import annotations

import atexit
import functools
import threading
import time
from typing import Protocol, runtime_checkable

from mpi4py import MPI

__all__ = ["Watched", "Watcher", "any_thread", "poll", "stop", "watch", "watched"]

_INTERVAL_S = 1e-3


@runtime_checkable
class Watched(Protocol):
    """What makes progress when it is asked to."""

    def progress(self) -> bool:
        """Let MPI work; say whether it is done. Never blocks."""


class Watcher:
    """Works to be tested, and the thread that may do so."""

    def __init__(self) -> None:
        self._works: list[Watched] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._open = True

    def watch(self, work: Watched) -> None:
        """Test ``work`` from time to time until it is done."""
        with self._wake:
            self._works.append(work)
            if any_thread() and self._open:
                self._thread = self._thread or self._start()
                self._wake.notify()

    def watched(self) -> int:
        """Return how many works are not known to be done."""
        return len(self._works)

    def poll(self) -> None:
        """Test all watched works once, if no thread does."""
        if self._thread is None:
            self._step()

    def stop(self) -> None:
        """End the thread, waiting for the call it is in."""
        with self._wake:
            self._open = False
            thread, self._thread = self._thread, None
            self._wake.notify()
        if thread is not None:
            thread.join()

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="hpcdist-progress", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._works or not self._open)
                if not self._open:
                    return
            self._step()
            time.sleep(_INTERVAL_S)

    def _step(self) -> None:
        """Test what is watched; forget what is done."""
        with self._wake:
            works = list(self._works)
        done = {id(work) for work in works if work.progress()}
        with self._wake:
            self._works = [work for work in self._works if id(work) not in done]


_watcher = Watcher()
watch, watched, poll, stop = _watcher.watch, _watcher.watched, _watcher.poll, _watcher.stop


@functools.cache
def any_thread() -> bool:
    """Say whether MPI may be called from any thread; arrange for the thread's end before MPI's."""
    # MPI_Finalize deletes the attributes of COMM_SELF first: no call of ours can come after it, whoever makes it.
    key = MPI.Comm.Create_keyval(delete_fn=lambda *_: stop())
    MPI.COMM_SELF.Set_attr(key, None)
    atexit.register(stop)
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE
