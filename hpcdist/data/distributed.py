"""The samples of one rank, by torch's rule or exactly once each."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np

from hpcdist.data.order import Indices, epoch_order
from hpcdist.data.sampler import check_state, count_samples
from hpcdist.errors import explain

__all__ = ["DistributedSampler", "check_rank"]


class DistributedSampler:
    """Deal the samples of an epoch to ranks like cards: rank r gets positions r, r + num_replicas, ...

    Three ways to treat a remainder: by default the first samples of the order are repeated until all ranks
    have equally many (torch's rule; a mean over them counts some samples twice); ``drop_last=True`` leaves
    the tail out; ``pad=False`` deals every sample exactly once, so ranks may differ by one, and some may get
    none.

    Parameters
    ----------
    dataset : sized or int
        The dataset, of which only the length is used, or the number of samples; 0 is legal.
    num_replicas, rank : int
        How many ranks share the samples, and which of them this one is.
    shuffle : bool
        Deal a permutation that depends on ``seed`` and the epoch only (:meth:`set_epoch`); else 0, 1, 2, ...
    seed : int
        The same on every rank.
    drop_last : bool
        Leave out the samples that do not fill a round; there is nothing to pad then.
    pad : bool
        False: exact mode.

    Raises
    ------
    ValueError
        If ``rank`` is not in ``range(num_replicas)``.
    """

    def __init__(
        self,
        dataset: Sized | int,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        pad: bool = True,
    ) -> None:
        check_rank("DistributedSampler", num_replicas, rank)
        self.num_samples = count_samples("DistributedSampler", dataset)
        self.num_replicas, self.rank = num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.pad = shuffle, seed, drop_last, pad
        self.epoch = 0
        self._position = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the permutation; a new epoch starts at its beginning."""
        if epoch != self.epoch:
            self.epoch, self._position = epoch, 0

    def indices(self) -> Indices:
        """Return all of this rank's samples of the epoch, in order."""
        return self._after(0)

    def _after(self, position: int) -> Indices:
        """Return this rank's share of the epoch's samples after the first ``position`` of its order."""
        size = self.num_replicas
        order = epoch_order(self.num_samples, self.seed, self.epoch) if self.shuffle else np.arange(self.num_samples)
        left = len(order) - position
        if self.drop_last:
            order = order[: position + left - left % size]
        elif self.pad and left:
            order = np.resize(order, position + left + -left % size)
        return order[position + self.rank :: size]

    def __len__(self) -> int:
        """Return the number of samples of this rank in an epoch."""
        n, size = self.num_samples, self.num_replicas
        if self.drop_last:
            return n // size
        return -(-n // size) if self.pad else len(range(self.rank, n, size))

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples; after :meth:`load_state_dict` only those not yet dealt."""
        start = self._position
        for count, sample in enumerate(self._after(start), 1):
            self._position = min(start + count * self.num_replicas, self.num_samples)
            yield int(sample)
        self._position = 0

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, how many samples of its order all ranks together have been dealt, and what that depends on.

        It is the same on every rank that has yielded equally many, and any number of ranks can go on with it. Where
        ranks differ, at the end of an epoch in exact mode, that of rank 0 is right: it is never dealt less.
        """
        return {"epoch": self.epoch, "position": self._position, **self._order()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where ``state`` was taken: what is left of the epoch is dealt to the ranks there are now.

        Raises
        ------
        ValueError
            If it is of other samples, another seed or another ``shuffle``, or the position lies beyond the epoch.
        """
        check_state("DistributedSampler", state, self._order())
        self.epoch, self._position = state["epoch"], state["position"]

    def _order(self) -> dict[str, int]:
        return {"num_samples": self.num_samples, "seed": self.seed, "shuffle": int(self.shuffle)}


def check_rank(sampler: str, num_replicas: int, rank: int) -> None:
    """Object to a rank that is not in ``range(num_replicas)``."""
    if num_replicas < 1 or not 0 <= rank < num_replicas:
        got, expected = f"rank {rank} of num_replicas {num_replicas}", "0 <= rank < num_replicas"
        raise ValueError(explain(f"{sampler}: rank", got=got, expected=expected))
