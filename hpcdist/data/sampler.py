"""The samples of one rank, by torch's rule or exactly once each."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np

from hpcdist.data.order import Indices, epoch_order
from hpcdist.errors import explain

__all__ = ["DistributedSampler"]


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
        if num_replicas < 1 or not 0 <= rank < num_replicas:
            raise ValueError(
                explain(
                    "DistributedSampler: rank",
                    got=f"rank {rank} of num_replicas {num_replicas}",
                    expected="0 <= rank < num_replicas",
                )
            )
        self.num_samples = dataset if isinstance(dataset, int) else len(dataset)
        if self.num_samples < 0:
            raise ValueError(explain("DistributedSampler: number of samples", got=self.num_samples, expected=">= 0"))
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
        n, size = self.num_samples, self.num_replicas
        order = epoch_order(n, self.seed, self.epoch) if self.shuffle else np.arange(n)
        if self.drop_last:
            order = order[: n - n % size]
        elif self.pad and n:
            order = np.resize(order, n + -n % size)
        return order[self.rank :: size]

    def __len__(self) -> int:
        """Return the number of samples of this rank in an epoch."""
        n, size = self.num_samples, self.num_replicas
        if self.drop_last:
            return n // size
        return -(-n // size) if self.pad else len(range(self.rank, n, size))

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples; after :meth:`load_state_dict` only those not yet yielded."""
        mine = self.indices()
        start, self._position = self._position, 0
        for position in range(start, len(mine)):
            self._position = position + 1
            yield int(mine[position])
        self._position = 0

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and how many of its samples this rank has yielded."""
        return {"epoch": self.epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where ``state`` was taken.

        Raises
        ------
        ValueError
            If the position lies beyond this rank's samples.
        """
        if not 0 <= state["position"] <= len(self):
            raise ValueError(
                explain(
                    "DistributedSampler: position in the epoch",
                    got=state["position"],
                    expected=f"at most {len(self)}, this rank's samples",
                    do="load it with the dataset and number of ranks that saved it",
                )
            )
        self.epoch, self._position = state["epoch"], state["position"]
