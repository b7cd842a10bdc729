"""Results of an iterator, computed by a thread before they are asked for."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from hpcdist.errors import explain

__all__ = ["Ahead"]

T = TypeVar("T")


@dataclass(frozen=True)
class _Failure:
    error: BaseException


class _End:
    """Follows the last batch."""


class Ahead(Generic[T]):
    """Run an iterator in a thread, at most ``depth`` results ahead of who takes them.

    The thread ends before the interpreter does: frozen in the midst of an HDF5 call it would keep h5py's lock, for
    which the end of the interpreter waits.
    """

    def __init__(self, source: Iterator[T], depth: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._free = threading.Semaphore(depth)
        self._ready: queue.SimpleQueue[T | _Failure | _End] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(source,), name="hpcdist-loader", daemon=True)
        atexit.register(self.stop, timeout_s)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while not isinstance(item := self._next(), _End):
            if isinstance(item, _Failure):
                raise item.error
            yield item
            self._free.release()

    def stop(self, limit_s: float) -> None:
        """End the thread after the fetch that is under way; wait at most ``limit_s`` seconds for that."""
        atexit.unregister(self.stop)
        self._stopped.set()
        self._free.release()
        self._thread.join(limit_s)

    def _next(self) -> T | _Failure | _End:
        try:
            return self._ready.get(timeout=self._timeout_s)
        except queue.Empty:
            raise TimeoutError(
                explain(
                    "DataLoader: no batch",
                    got=f"nothing after {self._timeout_s} s",
                    do="look at the storage the data comes from, or raise timeout_s",
                )
            ) from None

    def _run(self, source: Iterator[T]) -> None:
        try:
            while self._free.acquire() and not self._stopped.is_set():
                self._ready.put(next(source))
        except StopIteration:
            self._ready.put(_End())
        except BaseException as error:
            self._ready.put(_Failure(error))
