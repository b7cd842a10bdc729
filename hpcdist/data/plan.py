"""Which samples make up a step, cut into micro-batches: fixed by the seed, whatever the number of ranks."""

from __future__ import annotations

import numpy as np

from hpcdist.data.order import Indices, check_seed, epoch_order
from hpcdist.errors import explain

__all__ = ["BatchPlan", "assign", "deal"]


class BatchPlan:
    """Cut an endless sequence of epochs into global batches, and those into micro-batches.

    Every epoch holds every sample once, in an order of its own; nothing is dropped or repeated where one
    ends, a batch just spans two. All state is one integer, the number of samples seen, so that a run can go
    on with another number of ranks, or with another batch size.

    Parameters
    ----------
    num_samples : int
        Samples in an epoch, at least one.
    global_batch : int
        Samples a step, over all ranks.
    micro_batch : int
        Samples a forward pass; the last one of a step may be short.
    seed : int
        Seed of the orders.
    shuffle : bool
        False: every epoch runs 0, 1, 2, ...

    Raises
    ------
    ValueError
        If a size is below one, or the seed does not fit in 64 bits.
    """

    def __init__(
        self, num_samples: int, global_batch: int, *, micro_batch: int, seed: int = 0, shuffle: bool = True
    ) -> None:
        for name, value in (
            ("num_samples", num_samples),
            ("global_batch", global_batch),
            ("micro_batch", micro_batch),
        ):
            if value < 1:
                raise ValueError(explain(f"BatchPlan: {name}", got=value, expected="at least 1"))
        check_seed(seed)
        self.num_samples = num_samples
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.seed, self.shuffle = seed, shuffle

    @property
    def num_micro(self) -> int:
        """Micro-batches a step."""
        return -(-self.global_batch // self.micro_batch)

    def micro_batches(self, position: int) -> list[Indices]:
        """Return the sample numbers of the next step's micro-batches after ``position`` samples were seen."""
        batch = self.samples(position, self.global_batch)
        return [batch[i : i + self.micro_batch] for i in range(0, self.global_batch, self.micro_batch)]

    def samples(self, position: int, count: int) -> Indices:
        """Return samples ``position`` to ``position + count`` of the endless sequence, shape (count,)."""
        if position < 0 or count < 0:
            raise ValueError(
                explain("BatchPlan: samples", got=f"{count} after {position}", expected="no negative number")
            )
        pieces, end = [], position + count
        while position < end:
            epoch, start = divmod(position, self.num_samples)
            piece = self._epoch(epoch)[start : start + end - position]
            pieces.append(piece)
            position += len(piece)
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def assign(self, num_ranks: int, rank: int) -> range:
        """Return which of :meth:`micro_batches` ``rank`` of ``num_ranks`` works on.

        Raises
        ------
        ValueError
            If there are fewer micro-batches than ranks; names the largest micro-batch that works.
        """
        if num_ranks > self.num_micro:
            raise ValueError(
                explain(
                    "micro-batches: fewer than data-parallel ranks",
                    got=f"{self.num_micro}: global batch {self.global_batch}, micro-batch {self.micro_batch}",
                    expected=f"at least {num_ranks}, one a rank",
                    do=self._remedy(num_ranks),
                )
            )
        return assign(self.num_micro, num_ranks, rank)

    def _remedy(self, num_ranks: int) -> str:
        if num_ranks > self.global_batch:
            return f"raise the global batch to at least {num_ranks}, or use at most {self.global_batch} ranks"
        largest = -(-self.global_batch // (num_ranks - 1)) - 1
        return f"set the micro-batch to {largest} or less"

    def _epoch(self, epoch: int) -> Indices:
        return epoch_order(self.num_samples, self.seed, epoch) if self.shuffle else np.arange(self.num_samples)


def assign(num_micro: int, num_ranks: int, rank: int) -> range:
    """Return the contiguous run of micro-batches that ``rank`` works on: 8 over 3 are 3 + 3 + 2.

    Raises
    ------
    ValueError
        If there are fewer micro-batches than ranks, or ``rank`` is not one of them.
    """
    if not 0 <= rank < num_ranks:
        raise ValueError(explain("assign: rank", got=rank, expected=f"0 to {num_ranks - 1}"))
    if num_micro < num_ranks:
        raise ValueError(explain("assign: micro-batches", got=num_micro, expected=f"at least {num_ranks}, one a rank"))
    each, extra = divmod(num_micro, num_ranks)
    start = rank * each + min(rank, extra)
    return range(start, start + each + (rank < extra))


def deal(num_micro: int, num_ranks: int, rank: int) -> list[int | None]:
    """Return the micro-batches of ``rank`` where ranks work in rounds, on one each: 0, 1, 2, ..., then the next ones.

    None in the last round: there is none left for this rank.

    Raises
    ------
    ValueError
        If ``rank`` is not one of the ranks.
    """
    if not 0 <= rank < num_ranks:
        raise ValueError(explain("deal: rank", got=rank, expected=f"0 to {num_ranks - 1}"))
    dealt = [start + rank for start in range(0, num_micro, num_ranks)]
    return [index if index < num_micro else None for index in dealt]
