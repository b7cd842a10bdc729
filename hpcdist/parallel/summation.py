"""Sums over micro-batches that have the same bits at any number of ranks: messages move floats, and never add them.

Two ways to share micro-batches out, with one result, since only the tree is fixed (:mod:`hpcdist.parallel.tree`):

=========== ======================== ======================= ============================== ===========================
class       a rank works on          it keeps                ranks exchange                 bytes a rank, of n each
=========== ======================== ======================= ============================== ===========================
RunSum      neighbouring ones        log2(G / N) + 1 arrays  after the last one             k (N - 1) / N n, k pieces
RoundSum    one in N                 log2(G) + 1 shards      after each                     G / N times (N - 1) / N n
=========== ======================== ======================= ============================== ===========================

G micro-batches, N ranks; k is 1 where G is N times a power of two, and below ``2 * log2(G / N) + 2`` else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from hpcdist.array import Array, namespace
from hpcdist.comm import Communicator, Work
from hpcdist.comm.work import Done, Then
from hpcdist.data.plan import assign
from hpcdist.dtensor.placements import chunk_range, chunk_sizes
from hpcdist.kernels.precision import wide
from hpcdist.parallel.tree import Stack, blocks

__all__ = ["RoundSum", "RunSum"]


class RunSum:
    """The sum of flat arrays over micro-batches, of which every rank has neighbouring ones.

    Parameters
    ----------
    comm : Communicator
        The ranks that share the micro-batches.
    of : int
        How many there are, one a rank at least.
    """

    def __init__(self, comm: Communicator, of: int) -> None:
        self.comm, self.of = comm, of
        self.sums = Stack()

    def add(self, index: int, leaf: Array) -> None:
        """Take what micro-batch ``index`` gives, (n,), whose memory stays the caller's."""
        self.sums.read(index, leaf)

    def post(self) -> Work[Array]:
        """Post the exchange; its result is this rank's chunk of the sum, of 16-bit floats in float32.

        Collective over the communicator.
        """
        if self.comm.size == 1:
            return Done(self.sums.finish())
        mine = [node.value for node in self.sums.nodes]
        n, size = mine[0].size, self.comm.size
        chunks = [slice(*chunk_range(n, size, rank)) for rank in range(size)]
        runs = [blocks(run.start, run.stop) for run in (assign(self.of, size, rank) for rank in range(size))]
        shapes = [(len(run), chunk_sizes(n, size)[self.comm.rank]) for run in runs]
        work = self.comm.iall_to_all([_rows([value[chunk] for value in mine]) for chunk in chunks], shapes)
        self.comm.watch(work)
        self.sums = Stack()
        return Then(work, lambda received: _finished(received, runs))


def _rows(values: Sequence[Array]) -> Array:
    """Return arrays as rows of one; a view if there is but one."""
    rows: Array = values[0][None] if len(values) == 1 else namespace(values[0]).stack(values)
    return rows


def _finished(received: Sequence[Array], runs: Sequence[Sequence[tuple[int, int]]]) -> Array:
    """Return the sum of rows that are nodes of the tree, those of rank 0 first."""
    stack = Stack()
    for rows, run in zip(received, runs, strict=True):
        for row, (level, index) in zip(rows, run, strict=True):
            stack.push(level, index, row)
    total: Array = stack.finish()
    return total


class RoundSum:
    """The sum of this rank's shard of messages over micro-batches, on which ranks work in rounds.

    Parameters
    ----------
    shards : Communicator
        The ranks of a copy, each of which owns a shard.
    replicas : Communicator, optional
        Those that own the same shard of another copy. Rank r of copy c works on micro-batch ``c * shards.size + r`` of
        a round.
    """

    def __init__(self, shards: Communicator, replicas: Communicator | None) -> None:
        self.shards, self.replicas = shards, replicas
        self.sums = Stack()

    @property
    def expected(self) -> int:
        """The micro-batch with which the next round begins."""
        return self.sums.nodes[-1].stop if self.sums.nodes else 0

    def add(self, start: int, of: int, message: Array, sizes: Sequence[int]) -> Array | None:
        """Take the round that begins with micro-batch ``start`` of ``of``; return the sum if it is the last one.

        Collective over both communicators.

        Parameters
        ----------
        message : array, (sum(sizes),)
            What this rank's micro-batch gives: the shard of rank 0, that of rank 1, ... It is kept. Without a
            micro-batch it does not count, and does not travel.
        """
        if start == 0:
            self.sums = Stack()
        width, num_copies = self.shards.size, 1 if self.replicas is None else self.replicas.size
        runs = [_clipped(start + copy * width, width, of) for copy in range(num_copies)]
        run = runs[0 if self.replicas is None else self.replicas.rank]
        mine = Stack()
        for index, leaf in zip(run, self._leaves(run, message, sizes), strict=True):
            mine.push(0, index, wide(leaf))
        for level, index, value in self._of_all_copies(mine, runs, message, sizes[self.shards.rank]):
            self.sums.push(level, index, value)
        return self.sums.finish() if start + width * num_copies >= of else None

    def _leaves(self, run: range, message: Array, sizes: Sequence[int]) -> list[Array]:
        """Return this rank's shard of every micro-batch that this copy works on. Collective over the shard axis."""
        if self.shards.size == 1:
            return [message] if run else []
        works = self.shards.rank < len(run)
        ends = pairwise(accumulate(sizes, initial=0))
        parts = [message[start:stop] if works else message[:0] for start, stop in ends]
        here = sizes[self.shards.rank]
        shapes = [(here if rank < len(run) else 0,) for rank in range(self.shards.size)]
        return self.shards.all_to_all(parts, shapes)[: len(run)]

    def _of_all_copies(
        self, mine: Stack, runs: Sequence[range], like: Array, size: int
    ) -> list[tuple[int, int, Array]]:
        """Return the sums that all copies made of the round, in order. Collective over the replica axis."""
        if self.replicas is None or self.replicas.size == 1:
            return [(node.level, node.place, node.value) for node in mine.nodes]
        places = [blocks(run.start, run.stop) for run in runs]
        sent = [node.value for node in mine.nodes] or [wide(like[:0])]
        joined = self.replicas.all_gather(
            namespace(like).concatenate(sent), sizes=[len(place) * size for place in places]
        )
        rows = joined.reshape(-1, size)
        return [(*place, row) for place, row in zip((p for one in places for p in one), rows, strict=True)]


def _clipped(start: int, width: int, of: int) -> range:
    return range(min(start, of), min(start + width, of))
