"""Shards side by side: how parameters that are cut for the ranks of a communicator lie in one message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from hpcdist.array import Array, is_device, namespace
from hpcdist.autograd import Tensor, empty
from hpcdist.comm import Communicator, Work
from hpcdist.comm.work import Done, Then
from hpcdist.dtensor import Shard
from hpcdist.dtensor.cut import Cut, Runs, cut, places, take
from hpcdist.errors import CollectiveMismatchError, explain

__all__ = ["Move", "Piece", "Spread", "lines", "moves"]


@dataclass(frozen=True)
class Piece:
    """A parameter, as the ranks of an axis see it.

    Attributes
    ----------
    leaf : Tensor
        What this rank holds.
    shape : tuple of int
        Of all that these ranks hold together.
    shard : Shard, optional
        How it is cut; None: every rank holds all of it (no dimension can be cut).
    cut : Cut, optional
        What each rank holds.
    """

    leaf: Tensor
    shape: tuple[int, ...]
    shard: Shard | None = None
    cut: Cut | None = None

    @classmethod
    def of(cls, leaf: Tensor, shape: tuple[int, ...], shard: Shard | None, size: int) -> Piece:
        """Return a parameter of ``shape`` that is cut for ``size`` ranks as ``shard`` says."""
        return cls(leaf, shape, shard).among(size)

    def among(self, size: int) -> Piece:
        """Return the parameter as it is cut for ``size`` ranks."""
        return self if self.shard is None else replace(self, cut=cut(self.shard, self.shape[self.shard.dim], size))

    @property
    def dim(self) -> int:
        """The dimension that is cut."""
        return 0 if self.shard is None else self.shard.dim

    def runs(self, rank: int) -> Runs:
        """Return what ``rank`` holds of the cut dimension."""
        assert self.cut is not None
        return self.cut.runs[rank]

    def places(self, rank: int) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Return where each run that ``rank`` holds is: in the whole array, and in what it holds."""
        if self.cut is None:
            return [((), ())]
        before, runs = (slice(None),) * self.dim, self.cut.runs[rank]
        pairs = zip(runs, places(runs), strict=True)
        return [((*before, slice(*there)), (*before, slice(*here))) for there, here in pairs]

    def shape_at(self, rank: int) -> tuple[int, ...]:
        """Return the shape of what ``rank`` holds."""
        if self.cut is None:
            return self.shape
        return (*self.shape[: self.dim], self.cut.sizes[rank], *self.shape[self.dim + 1 :])


class Spread:
    """Pieces that are cut, side by side, for every rank of a communicator.

    Parameters
    ----------
    pieces : sequence of Piece
        All of them cut.
    comm : Communicator
    number : int, 1 to 250
        Stands behind the parts of each rank: all ranks have to send the same.

    Attributes
    ----------
    sizes : list of int
        How many elements each rank holds, with the number.
    """

    def __init__(self, pieces: Sequence[Piece], comm: Communicator, number: int) -> None:
        self.pieces, self.comm, self._number = [piece.among(comm.size) for piece in pieces], comm, number
        self.sizes = [sum(math.prod(p.shape_at(rank)) for p in self.pieces) + 1 for rank in range(comm.size)]
        self._mine = lines([piece.shape_at(comm.rank) for piece in self.pieces])
        self._moves = moves(self.pieces, comm.size, gap=1)
        self._marks = [stop - 1 for stop in accumulate(self.sizes)]

    def empty(self, dtype: Any, like: Array) -> Array:
        """Return memory for what this rank holds, with the number in its place."""
        flat: Array = namespace(like).empty(self.sizes[self.comm.rank], dtype)
        flat[-1:] = self._number
        return flat

    def views(self, flat: Array) -> list[Array]:
        """Return the parts of what this rank holds."""
        return [flat[line].reshape(shape) for line, shape in self._mine]

    def part_of(self, whole: Sequence[Array], dtype: Any) -> Array:
        """Return what this rank keeps of whole arrays."""
        flat = self.empty(dtype, whole[0])
        for piece, array, view in zip(self.pieces, whole, self.views(flat), strict=True):
            view[...] = take(array, piece.dim, piece.runs(self.comm.rank))
        return flat

    def gather(self, flat: Array, dtype: Any) -> list[Array]:
        """Return whole arrays of what all ranks hold. Collective over the communicator."""
        received = flat if self.comm.size == 1 else self.comm.all_gather(flat, sizes=self.sizes)
        return self._joined(received, dtype)

    def igather(self, flat: Array, dtype: Any) -> Work[list[Array]]:
        """Post :meth:`gather`. Collective over the communicator."""
        if self.comm.size == 1:
            return Done(self._joined(flat, dtype))
        return Then(self.comm.iall_gather(flat, sizes=self.sizes), lambda received: self._joined(received, dtype))

    def _joined(self, received: Array, dtype: Any) -> list[Array]:
        """Return whole arrays of what the ranks have sent, one after the other; of one rank it is what was sent."""
        if self.comm.size == 1 and received.dtype == dtype:
            return self.views(received)
        self._check(received)
        whole = [empty(piece.shape, dtype, received) for piece in self.pieces]
        for place, there, line, shape, here in self._moves:
            whole[place][there] = received[line].reshape(shape)[here]
        return whole

    def _check(self, received: Array) -> None:
        """Make sure that ranks have sent the same parameters; where the device would have to be waited for, trust."""
        if is_device(received):
            return
        numbers = received[self._marks].astype(int).tolist()
        if not {*numbers} <= {0, self._number}:  # 0: of ranks that are not there (DryCommunicator)
            do = "call the same sharded modules in the same order on every rank, or make one unit of them"
            what = "fully_shard: ranks gather different units (they are numbered in the order of fully_shard)"
            raise CollectiveMismatchError(explain(what, got=f"units {numbers}, by rank", expected="one", do=do))


class Move(NamedTuple):
    """A run of neighbouring elements of a dimension, and where a message has it.

    Attributes
    ----------
    place : int
        Which piece.
    there : tuple of slice
        Where the run is in the whole array.
    line : slice
        Where the message has what a rank holds of the piece.
    shape : tuple of int
        Of that.
    here : tuple of slice
        Where the run is in that.
    """

    place: int
    there: tuple[slice, ...]
    line: slice
    shape: tuple[int, ...]
    here: tuple[slice, ...]


def moves(pieces: Sequence[Piece], size: int, gap: int = 0) -> list[Move]:
    """Return how whole arrays and the parts of all ranks, rank by rank, go together; ``gap`` elements after each rank.

    What is not cut is in the part of every rank.
    """
    found, start = [], 0
    for rank in range(size):
        for place, piece in enumerate(pieces):
            shape = piece.shape_at(rank)
            line = slice(start, start + math.prod(shape))
            found += [Move(place, there, line, shape, here) for there, here in piece.places(rank)]
            start = line.stop
        start += gap
    return found


def lines(shapes: Sequence[tuple[int, ...]]) -> list[tuple[slice, tuple[int, ...]]]:
    """Return where arrays of these shapes lie, one after the other, and the shapes."""
    ends = accumulate(map(math.prod, shapes), initial=0)
    return [(slice(*ends), shape) for ends, shape in zip(pairwise(ends), shapes, strict=True)]
