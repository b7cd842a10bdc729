"""Batches, fetched ahead by one thread, or by processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sized
from contextlib import closing
from itertools import islice
from typing import Any, Generic, TypeVar, cast

import numpy as np

from hpcdist.data.ahead import Ahead
from hpcdist.data.batch import BatchSampler
from hpcdist.data.collate import default_collate
from hpcdist.data.dataset import Batched
from hpcdist.data.order import Indices
from hpcdist.data.sampler import RandomSampler, SequentialSampler
from hpcdist.data.stream import IterableDataset, StreamReader, StreamSampler, stream_sampler
from hpcdist.data.worker import Collate, fetch
from hpcdist.data.workers import Workers
from hpcdist.errors import explain

__all__ = ["DataLoader"]

T = TypeVar("T")


class DataLoader(Generic[T]):
    """Iterate over the batches of a dataset, fetching ahead.

    The thread lives as long as one iteration: it ends with the last batch, when the loop is left, or with the
    first error, which is raised in the loop with the traceback of the thread or worker. Workers live as long as the
    loader; they import the job's file, never call MPI, and end with their rank. An iteration that was left is gone on
    with by the next one, and there is one at a time.

    Parameters
    ----------
    dataset : Batched, IterableDataset, or any object with ``__getitem__``
        Has ``__len__``, too, unless who chooses samples needs none. Its ``batch(indices)`` is called in the thread or
        in workers; without that, or with ``collate_fn``, samples are fetched one by one.
    batch_size : int, or iterable of index arrays
        Samples a batch; or all batches, as ``batch_sampler``.
    shuffle : bool
        A new random order each epoch, of ``seed``; else 0, 1, 2, ...
    sampler : iterable of int, optional
        Chooses samples and their order; of a stream, a :class:`StreamSampler`.
    batch_sampler : iterable of index arrays, optional
        Chooses batches; iterated once an epoch, in the thread.
    num_workers : int
        Processes that fetch; 0: this one does.
    collate_fn : function of a list of samples, optional
        Default: :func:`default_collate`.
    drop_last : bool
        Leave out a last batch that is not full; of a stream, one that is not full on every rank.
    prefetch : int
        Batches held ready; 0: none, and no thread. Each worker has two more at work.
    timeout_s : float
        Longest wait for one batch, seconds.
    """

    def __init__(
        self,
        dataset: Batched[T] | Any,
        batch_size: int | Iterable[Any] = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        *,
        drop_last: bool = False,
        seed: int = 0,
        prefetch: int = 2,
        timeout_s: float = 1800,
    ) -> None:
        if prefetch < 0:
            raise ValueError(explain("DataLoader: prefetch", got=prefetch, expected="0 or more batches"))
        if num_workers < 0:
            raise ValueError(explain("DataLoader: num_workers", got=num_workers, expected="0 or more processes"))
        self.dataset, self.prefetch, self.timeout_s = dataset, prefetch, timeout_s
        self.collate_fn = collate_fn if collate_fn or hasattr(dataset, "batch") else default_collate
        if batch_sampler is None and isinstance(batch_size, Iterable):
            batch_sampler, batch_size = batch_size, 1
        self._stream: StreamSampler | None = None
        self._source: tuple[Any, Collate | None] = dataset, self.collate_fn
        if isinstance(dataset, IterableDataset):
            self._stream = sampler = stream_sampler(sampler, shuffle=shuffle, others=batch_sampler)
            self._source = StreamReader(dataset, self.collate_fn or default_collate, sampler, drop_last), None
            shuffle = drop_last = False
        self.batches = _batches(dataset, batch_size, shuffle, sampler, batch_sampler, drop_last, seed)
        self._workers = Workers(self._source, num_workers, timeout_s) if num_workers else None
        self._iterating = False
        self._iterations = 0
        self._delivered = 0
        self._state: dict[str, Any] | None = None

    def __len__(self) -> int:
        """Return the number of batches of an epoch, if ``batches`` has a length."""
        if isinstance(self.batches, Sized):
            return len(self.batches)
        raise TypeError(
            explain("DataLoader: no length", got=type(self.batches).__name__, expected="batches with len()")
        )

    def __iter__(self) -> Generator[T, None, None]:
        """Yield the batches; after :meth:`load_state_dict` only those not yet delivered.

        Raises
        ------
        RuntimeError
            If another iteration is under way.
        """
        if self._iterating:
            do = "close the other iterator, or make a loader for each"
            raise RuntimeError(explain("DataLoader: iterated twice at the same time", do=do))
        self._iterating = True
        try:
            yield from self._iterated_by_state() if self._sampler_state() else self._iterated_by_count()
        finally:
            self._iterating = False

    def state_dict(self) -> dict[str, Any]:
        """Return where the running epoch is, by batches delivered (not those fetched ahead).

        That is the state of the sampler, if it has one: that of a :class:`DistributedSampler` fits any number of
        ranks. Else it is the number of batches.
        """
        state = self._state or self._sampler_state()
        return {"sampler": state} if state else {"delivered": self._delivered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after what had been delivered; it is not fetched again.

        Raises
        ------
        ValueError
            If ``state`` is of a sampler that is not here.
        """
        if ("sampler" in state) != bool(self._sampler_state()):
            expected = "that of a loader that chooses its samples in the same way"
            raise ValueError(explain("DataLoader: state", got=sorted(state), expected=expected))
        if "sampler" in state:
            cast(Any, self.batches).load_state_dict(state["sampler"])
        else:
            self._delivered = state["delivered"]

    def close(self) -> None:
        """End the workers; the loader cannot be used any more if it had any."""
        if self._workers:
            self._workers.close()

    # ---- the two ways to know where one is
    def _iterated_by_count(self) -> Generator[T, None, None]:
        start, self._delivered = self._delivered, 0
        for count, batch in enumerate(self._fetched(islice(self.batches, start, None)), start + 1):
            self._delivered = count
            yield batch
        self._delivered = 0

    def _iterated_by_state(self) -> Generator[T, None, None]:
        batches = cast(Any, self.batches)
        self._state, states = self._sampler_state(), deque[dict[str, Any]]()

        def drawn() -> Iterator[Indices]:
            for indices in batches:
                states.append(batches.state_dict())
                yield indices

        ended = False
        try:
            with closing(self._streamed(drawn()) if self._stream else self._fetched(drawn())) as fetched:
                for batch in fetched:
                    self._state = states.popleft()
                    yield batch
            ended = True
        finally:
            if not ended:
                batches.load_state_dict(self._state)  # the sampler is ahead by what was fetched
            elif self._stream:
                self._stream.rewind()
            self._state = None

    def _sampler_state(self) -> dict[str, Any]:
        """Return the state of who chooses the batches; empty if there is none."""
        return dict(self.batches.state_dict()) if hasattr(self.batches, "state_dict") else {}

    def _streamed(self, batches: Iterator[Indices]) -> Generator[T, None, None]:
        """Yield the batches of a stream until it ends, however many more were asked for."""
        self._iterations += 1
        requests = ((self._iterations, indices) for indices in batches)
        with closing(self._fetched(requests)) as fetched:
            for taken in fetched:
                yield from taken.batch
                if taken.last:
                    return

    def _fetched(self, batches: Iterator[Any]) -> Generator[Any, None, None]:
        source: Iterator[Any] = (
            self._workers.map(batches) if self._workers else (fetch(*self._source, indices) for indices in batches)
        )
        if self.prefetch == 0:
            yield from source
            return
        ahead, limit_s = Ahead(source, self.prefetch, self.timeout_s), self.timeout_s
        try:
            yield from ahead
        except KeyboardInterrupt:
            limit_s = 1  # the storage may be what the user has waited for long enough
            raise
        finally:
            ahead.stop(limit_s)


def _batches(
    dataset: Any,
    batch_size: Any,
    shuffle: bool,
    sampler: Iterable[int] | None,
    batch_sampler: Iterable[Any] | None,
    drop_last: bool,
    seed: int,
) -> Iterable[Any]:
    """Return who chooses the batches."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer):
        expected = "the number of samples in a batch, or all batches"
        raise TypeError(explain("DataLoader: batch_size", got=repr(batch_size), expected=expected))
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            got, expected = "batches, and batch_size, shuffle, sampler or drop_last", "one or the other"
            raise ValueError(explain("DataLoader: who chooses the samples", got=got, expected=expected))
        return batch_sampler
    if sampler is not None and shuffle:
        raise ValueError(explain("DataLoader: shuffle", got="a sampler too", expected="one or the other"))
    if sampler is None:
        sampler = RandomSampler(dataset, seed=seed) if shuffle else SequentialSampler(dataset)
    return BatchSampler(sampler, int(batch_size), drop_last)
