"""Streams: samples that come one after the other and have no numbers, shared by ranks and workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Generic, TypeVar

from hpcdist.data.distributed import check_rank
from hpcdist.data.order import Indices
from hpcdist.data.worker import Collate
from hpcdist.errors import explain

__all__ = ["IterableDataset", "StreamReader", "StreamSampler", "Taken", "stream_sampler"]

T_co = TypeVar("T_co", covariant=True)

_END = object()


class IterableDataset(ABC, Generic[T_co]):
    """A stream of samples: every iteration yields all of them, in the same order, on every rank and in every worker.

    A rank and a worker leave out what is not theirs: nothing comes twice. What they leave out is read nevertheless,
    unless the iterator has a method ``skip(n)``, which passes by ``n`` samples. Costly work belongs into the loader's
    ``collate_fn``, which only sees the samples of its batch.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[T_co]:
        """Yield the samples from the first one on."""


class StreamSampler:
    """Deal a stream of unknown length to ranks like cards: rank r gets samples r, r + num_replicas, ...

    Where it ends, ranks differ by at most one sample, hence by one batch at most. A loop that communicates in every
    batch wants ``drop_last=True`` of the loader: only whole global batches then, so that all ranks have equally many.
    Every rank finds the end by itself, since it reads up to the last sample of the round.

    Parameters
    ----------
    num_replicas, rank : int
        How many ranks share the stream, and which of them this one is.

    Raises
    ------
    ValueError
        If ``rank`` is not in ``range(num_replicas)``.
    """

    def __init__(self, num_replicas: int = 1, rank: int = 0) -> None:
        check_rank("StreamSampler", num_replicas, rank)
        self.num_replicas, self.rank = num_replicas, rank
        self._position = 0

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples, without end."""
        for sample in count(self._position + self.rank, self.num_replicas):
            self._position += self.num_replicas
            yield sample

    def rewind(self) -> None:
        """Go back to the first sample."""
        self._position = 0

    def state_dict(self) -> dict[str, int]:
        """Return how many samples all ranks together have been dealt; any number of ranks can go on with it."""
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where ``state`` was taken."""
        if state["position"] < 0:
            raise ValueError(explain("StreamSampler: position", got=state["position"], expected=">= 0"))
        self._position = state["position"]


@dataclass(frozen=True)
class Taken:
    """What a stream gave for a batch.

    Attributes
    ----------
    batch : list
        The batch; nothing if the stream had ended.
    last : bool
        No other follows.
    """

    batch: list[Any]
    last: bool


class StreamReader:
    """Read batches of a stream, forwards; a process has its own.

    Parameters
    ----------
    dataset : IterableDataset
    collate : function of a list of samples
    sampler : StreamSampler
    drop_last : bool
        Refuse a batch that is not full on every rank.
    """

    def __init__(
        self, dataset: IterableDataset[Any], collate: Collate, sampler: StreamSampler, drop_last: bool
    ) -> None:
        self._dataset, self._collate, self._drop_last = dataset, collate, drop_last
        self._others = sampler.num_replicas - 1 - sampler.rank  # of a round, after this rank's
        self._iteration, self._position = -1, 0
        self._samples: Iterator[Any] = iter(())

    def batch(self, request: tuple[int, Indices]) -> Taken:
        """Return the samples of one batch.

        Parameters
        ----------
        request : tuple of int and ascending int array
            Number of the iteration (another one begins anew), and the places of the samples in the stream.
        """
        iteration, indices = request
        if iteration != self._iteration:
            self._iteration, self._position, self._samples = iteration, 0, iter(self._dataset)
        samples = [sample for index in indices if (sample := self._at(int(index))) is not _END]
        whole = len(samples) == len(indices)
        if self._drop_last and whole and self._others:
            whole = self._at(int(indices[-1]) + self._others) is not _END
        wanted = samples and (whole or not self._drop_last)
        return Taken([self._collate(samples)] if wanted else [], not whole)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iteration": -1, "_samples": iter(())}

    def _at(self, index: int) -> Any:
        left_out, self._position = index - self._position, index + 1
        if hasattr(self._samples, "skip"):
            self._samples.skip(left_out)
        else:
            deque(islice(self._samples, left_out), maxlen=0)
        return next(self._samples, _END)


def stream_sampler(sampler: Any, *, shuffle: bool, others: Any) -> StreamSampler:
    """Return ``sampler``, or that of all samples; refuse what would choose samples by number."""
    sampler = StreamSampler() if sampler is None else sampler
    if shuffle or others is not None or not isinstance(sampler, StreamSampler):
        got = "shuffle" if shuffle else type(sampler if others is None else others).__name__
        expected = "a StreamSampler: samples of a stream have no numbers"
        raise ValueError(explain("DataLoader: who chooses the samples", got=got, expected=expected))
    return sampler
