"""Parameters of a unit that travel in one message: shards side by side, gathered and reduced together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace, to_host
from hpcdist.autograd import Tensor, empty
from hpcdist.comm import Communicator, Work
from hpcdist.comm.work import Done, Then
from hpcdist.dtensor import Shard
from hpcdist.dtensor.cut import Cut, Runs, cut, put, take

__all__ = ["Bundle", "Piece"]


@dataclass(frozen=True)
class Piece:
    """A parameter, as the ranks of the shard axis see it.

    Attributes
    ----------
    leaf : Tensor
        What this rank holds.
    shape : tuple of int
        Of all that these ranks hold together.
    dim : int
        The dimension that is cut.
    cut : Cut, optional
        How; None: every rank holds all of it (no dimension can be cut).
    """

    leaf: Tensor
    shape: tuple[int, ...]
    dim: int = 0
    cut: Cut | None = None

    @classmethod
    def of(cls, leaf: Tensor, shape: tuple[int, ...], shard: Shard | None, size: int) -> Piece:
        """Return a parameter of ``shape`` that is cut as ``shard`` says."""
        if shard is None:
            return cls(leaf, shape)
        return cls(leaf, shape, shard.dim, cut(shard, shape[shard.dim], size))

    def runs(self, rank: int) -> Runs:
        """Return what ``rank`` holds of the cut dimension."""
        assert self.cut is not None
        return self.cut.runs[rank]

    def shape_at(self, rank: int) -> tuple[int, ...]:
        """Return the shape of what ``rank`` holds."""
        if self.cut is None:
            return self.shape
        return (*self.shape[: self.dim], self.cut.sizes[rank], *self.shape[self.dim + 1 :])


class Bundle:
    """Parameters of one dtype.

    Parameters
    ----------
    pieces : sequence of Piece
    owned : sequence of bool
        Whether a leaf's array becomes a view of the bundle's; False: another bundle has it already (it is tied).
    comm : Communicator
        The ranks of the shard axis.
    travels, computes : dtype
        Of what is sent, to which values are rounded, and of whole arrays.
    """

    def __init__(
        self, pieces: Sequence[Piece], owned: Sequence[bool], comm: Communicator, travels: Any, computes: Any
    ) -> None:
        self.pieces, self.comm = list(pieces), comm
        self.travels, self.computes = np.dtype(travels), np.dtype(computes)
        self.cut = [piece for piece in self.pieces if piece.cut is not None]
        self.sizes = [sum(math.prod(p.shape_at(rank)) for p in self.cut) for rank in range(comm.size)]
        first = self.pieces[0].leaf.data
        self.flat: Array = namespace(first).empty(self.sizes[comm.rank], first.dtype)
        self._views = _split(self.flat, [piece.shape_at(comm.rank) for piece in self.cut])
        taken = dict(zip(map(id, self.pieces), owned, strict=True))
        for piece, view in zip(self.cut, self._views, strict=True):
            view[...] = piece.leaf.data
            if taken[id(piece)]:
                piece.leaf.data = view

    # ---- parameters
    def igather(self) -> Work[list[Array]]:
        """Post the gathering of whole parameters. Collective over the communicator."""
        if self.comm.size == 1:
            return Done(self._joined(self._sent()))
        return Then(self.comm.iall_gather(self._sent(), sizes=self.sizes), self._joined)

    def gather(self) -> list[Array]:
        """Return whole parameters, in the order of ``pieces``; not to be written. Collective over the communicator."""
        if self.comm.size == 1:
            return self._joined(self._sent())
        return self._joined(self.comm.all_gather(self._sent(), sizes=self.sizes))

    def _sent(self) -> Array:
        for piece, view in zip(self.cut, self._views, strict=True):
            if piece.leaf.data is not view:  # somebody else owns it, or has replaced it
                view[...] = piece.leaf.data
        return self.flat.astype(self.travels, copy=False)

    def _joined(self, received: Array) -> list[Array]:
        """Return whole arrays of what all ranks have sent, one after the other."""
        whole = {id(p): empty(p.shape, self.computes, received) for p in self.cut}
        start = 0
        for rank in range(self.comm.size):
            shapes = [piece.shape_at(rank) for piece in self.cut]
            for piece, part in zip(self.cut, _split(received[start:], shapes), strict=True):
                put(whole[id(piece)], piece.dim, piece.runs(rank), part)
            start += self.sizes[rank]
        return [whole[id(p)] if p.cut is not None else self._rounded(p.leaf.data) for p in self.pieces]

    def _rounded(self, own: Array) -> Array:
        return own.astype(self.travels, copy=False).astype(self.computes, copy=False)

    # ---- gradients
    def message(self, gradients: Sequence[Array | None], dtype: Any) -> tuple[Array, list[int]]:
        """Return what all ranks shall receive of this rank's gradients, and how much of it each.

        A rank gets its shards, then all of what cannot be cut, then a number a parameter: 1 where there is a gradient.
        """
        live = self._live(gradients)
        whole = sum(math.prod(piece.shape) for piece, _ in live if piece.cut is None)
        sizes = [self._cut_size(live, rank) + whole + len(live) for rank in range(self.comm.size)]
        buffer = empty((sum(sizes),), dtype, self.flat)
        start = 0
        for rank, size in enumerate(sizes):
            self._write(buffer[start : start + size], live, rank)
            start += size
        return buffer, sizes

    def _live(self, gradients: Sequence[Array | None]) -> list[tuple[Piece, Array | None]]:
        pairs = [(p, g) for p, g in zip(self.pieces, gradients, strict=True) if p.leaf.requires_grad]
        return [pair for pair in pairs if pair[0].cut is not None] + [pair for pair in pairs if pair[0].cut is None]

    def _cut_size(self, live: list[tuple[Piece, Array | None]], rank: int) -> int:
        return sum(math.prod(piece.shape_at(rank)) for piece, _ in live if piece.cut is not None)

    def _write(self, out: Array, live: list[tuple[Piece, Array | None]], rank: int) -> None:
        parts = _split(out, [piece.shape_at(rank) for piece, _ in live])
        for part, (piece, gradient) in zip(parts, live, strict=True):
            if gradient is None:
                part[...] = 0
            else:
                part[...] = gradient if piece.cut is None else take(gradient, piece.dim, piece.runs(rank))
        out[out.size - len(live) :] = [gradient is not None for _, gradient in live]

    def read(self, received: Array) -> list[tuple[Tensor, Array | None]]:
        """Return the gradient of what this rank holds of each parameter that is trained; None: no rank has one."""
        live = self._live([None] * len(self.pieces))
        parts = _split(received, [piece.shape_at(self.comm.rank) for piece, _ in live])
        present = to_host(received[received.size - len(live) :])
        return [(p.leaf, part if n else None) for (p, _), part, n in zip(live, parts, present, strict=True)]


def _split(flat: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Return arrays of these shapes that lie one after the other in ``flat``."""
    parts, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        parts.append(flat[start:stop].reshape(shape))
        start = stop
    return parts
