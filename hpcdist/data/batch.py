"""Batches of the samples that a sampler yields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any

import numpy as np

from hpcdist.data.order import Indices
from hpcdist.errors import explain

__all__ = ["BatchSampler"]


class BatchSampler:
    """Cut what ``sampler`` yields into arrays of ``batch_size`` sample numbers.

    Its state is that of the sampler, whose place is the end of the last batch yielded.

    Parameters
    ----------
    sampler : iterable of int
        Iterated once an epoch.
    batch_size : int
        At least 1.
    drop_last : bool
        Leave out a last batch that is not full.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool = False) -> None:
        if batch_size < 1:
            raise ValueError(explain("BatchSampler: batch_size", got=batch_size, expected="at least 1"))
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __len__(self) -> int:
        """Return the number of batches of an epoch, if the sampler has a length."""
        if not isinstance(self.sampler, Sized):
            text = "a sampler with len()"
            raise TypeError(explain("BatchSampler: no length", got=type(self.sampler).__name__, expected=text))
        n = len(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Indices]:
        """Yield int64 arrays, shape (batch_size,); the last one may be shorter."""
        samples = iter(self.sampler)
        while len(batch := np.fromiter(islice(samples, self.batch_size), np.int64)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the sampler's epoch, if it has any."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler; nothing if it has none."""
        return dict(self.sampler.state_dict()) if hasattr(self.sampler, "state_dict") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        if hasattr(self.sampler, "load_state_dict"):
            self.sampler.load_state_dict(state)
