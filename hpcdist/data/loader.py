"""Batches, fetched ahead by one thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from hpcdist.data.order import Indices
from hpcdist.errors import explain

__all__ = ["DataLoader", "Dataset"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Dataset(Protocol[T_co]):
    """What a loader needs of a dataset."""

    def batch(self, indices: Indices, /) -> T_co:
        """Return the samples ``indices`` as one batch."""


class DataLoader(Generic[T]):
    """Iterate over ``dataset.batch(indices)`` for every entry of ``batches``, fetching ahead.

    The thread lives as long as one iteration: it ends with the last batch, when the loop is left, or with the
    first error, which is raised in the loop with the thread's traceback.

    Parameters
    ----------
    dataset : Dataset
        Its ``batch`` is called in the thread.
    batches : iterable of index arrays
        Iterated once an epoch, in the thread.
    prefetch : int
        Batches held ready; 0: none, and no thread.
    timeout_s : float
        Longest wait for one batch, seconds.
    """

    def __init__(
        self, dataset: Dataset[T], batches: Iterable[Indices], *, prefetch: int = 2, timeout_s: float = 1800
    ) -> None:
        if prefetch < 0:
            raise ValueError(explain("DataLoader: prefetch", got=prefetch, expected="0 or more batches"))
        self.dataset, self.batches = dataset, batches
        self.prefetch, self.timeout_s = prefetch, timeout_s
        self._delivered = 0

    def __len__(self) -> int:
        """Return the number of batches of an epoch, if ``batches`` has a length."""
        if isinstance(self.batches, Sized):
            return len(self.batches)
        raise TypeError(
            explain("DataLoader: no length", got=type(self.batches).__name__, expected="batches with len()")
        )

    def __iter__(self) -> Generator[T, None, None]:
        """Yield the batches; after :meth:`load_state_dict` only those not yet delivered."""
        start, self._delivered = self._delivered, 0
        for count, batch in enumerate(self._fetched(islice(self.batches, start, None)), start + 1):
            self._delivered = count
            yield batch
        self._delivered = 0

    def state_dict(self) -> dict[str, int]:
        """Return how many batches of the running epoch have been delivered (not those fetched ahead)."""
        return {"delivered": self._delivered}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after ``state["delivered"]`` batches; those before are not fetched again."""
        self._delivered = state["delivered"]

    def _fetched(self, batches: Iterator[Indices]) -> Iterator[T]:
        if self.prefetch == 0:
            yield from map(self.dataset.batch, batches)
            return
        ahead = _Ahead(map(self.dataset.batch, batches), self.prefetch, self.timeout_s)
        try:
            yield from ahead
        finally:
            ahead.stop()


@dataclass(frozen=True)
class _Failure:
    error: BaseException


class _End:
    """Follows the last batch."""


class _Ahead(Generic[T]):
    """Run an iterator in a thread, at most ``depth`` results ahead of who takes them."""

    def __init__(self, source: Iterator[T], depth: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._free = threading.Semaphore(depth)
        self._ready: queue.SimpleQueue[T | _Failure | _End] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(source,), name="hpcdist-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while not isinstance(item := self._next(), _End):
            if isinstance(item, _Failure):
                raise item.error
            yield item
            self._free.release()

    def stop(self) -> None:
        """End the thread; a fetch that is under way is waited for."""
        self._stopped.set()
        self._free.release()
        self._thread.join(self._timeout_s)

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
