"""Parameters of a unit that travel in one message: shards side by side, gathered and reduced together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.array import Array, is_device, namespace, to_host
from hpcdist.autograd import Tensor, empty
from hpcdist.comm import Communicator, Work
from hpcdist.comm.work import Then
from hpcdist.dtensor.cut import take
from hpcdist.errors import explain
from hpcdist.parallel.spread import Piece, Spread, split

__all__ = ["Bundle"]


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
    near : Communicator, optional
        Neighbours in ``comm`` among whom whole arrays are shared out between forward and backward.
    like : array, optional
        Where whole arrays and gradients are; default: where the shards are.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        owned: Sequence[bool],
        comm: Communicator,
        travels: Any,
        computes: Any,
        near: Communicator | None = None,
        like: Array | None = None,
    ) -> None:
        self.pieces, self.comm = list(pieces), comm
        self.travels, self.computes = np.dtype(travels), np.dtype(computes)
        cut = [piece for piece in self.pieces if piece.cut is not None]
        first = self.pieces[0].leaf.data
        self.like = first if like is None else like
        self._all, self._near = Spread(cut, comm), None if near is None else Spread(cut, near)
        self._flat: Array = namespace(first).empty(self._all.sizes[comm.rank], first.dtype)
        self._kept: Array | None = None
        self._views = self._all.views(self._flat)
        taken = dict(zip(map(id, self.pieces), owned, strict=True))
        for piece, view in zip(cut, self._views, strict=True):
            view[...] = piece.leaf.data
            if taken[id(piece)]:
                piece.leaf.data = view

    # ---- parameters
    def gather(self) -> list[Array]:
        """Return whole parameters, in the order of ``pieces``; not to be written. Collective over the communicator."""
        if self._kept is not None and self._near is not None:
            return self._with_uncut(self._near.gather(self._kept, self.computes))
        return self._with_uncut(self._all.gather(self._sent(), self.computes))

    def igather(self) -> Work[list[Array]]:
        """Post :meth:`gather`. Collective over the communicator."""
        if self._kept is not None and self._near is not None:
            return Then(self._near.igather(self._kept, self.computes), self._with_uncut)
        return Then(self._all.igather(self._sent(), self.computes), self._with_uncut)

    def keep(self, whole: Sequence[Array]) -> None:
        """Share whole parameters out among neighbours: until :meth:`drop`, they are gathered from these."""
        if self._near is not None and self._near.pieces:
            cut = [array for piece, array in zip(self.pieces, whole, strict=True) if piece.cut is not None]
            self._kept = self._near.part_of(cut, self.travels)

    def drop(self) -> None:
        """Forget what has been shared out."""
        self._kept = None

    def _sent(self) -> Array:
        for piece, view in zip(self._all.pieces, self._views, strict=True):
            data = piece.leaf.data
            if data is not view:  # somebody else owns it, or has replaced it
                self._check(data, view)
                view[...] = data
        sent = self._flat.astype(self.travels, copy=False)
        return sent if is_device(sent) == is_device(self.like) else namespace(self.like).asarray(sent)

    def _check(self, data: Array, view: Array) -> None:
        if data.shape != view.shape or data.dtype != view.dtype:
            got, expected = (f"{a.shape} {a.dtype}" for a in (data, view))
            do = "change shapes and dtypes before fully_shard"
            raise RuntimeError(explain("fully_shard: what is here of a parameter", got=got, expected=expected, do=do))

    def _with_uncut(self, gathered: Sequence[Array]) -> list[Array]:
        rest = iter(gathered)
        return [next(rest) if p.cut is not None else self._rounded(p.leaf.data) for p in self.pieces]

    def _rounded(self, own: Array) -> Array:
        rounded = own.astype(self.travels, copy=False).astype(self.computes, copy=False)
        return rounded if is_device(rounded) == is_device(self.like) else namespace(self.like).asarray(rounded)

    # ---- gradients
    def message(self, gradients: Sequence[Array | None], dtype: Any) -> tuple[Array, list[int]]:
        """Return what all ranks shall receive of this rank's gradients, and how much of it each.

        A rank gets its shards, then all of what cannot be cut, then a number a parameter: 1 where there is a gradient.
        """
        live = self._live(gradients)
        whole = sum(math.prod(piece.shape) for piece, _ in live if piece.cut is None)
        sizes = [self._cut_size(live, rank) + whole + len(live) for rank in range(self.comm.size)]
        buffer = empty((sum(sizes),), dtype, self.like)
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
        parts = split(out, [piece.shape_at(rank) for piece, _ in live])
        for part, (piece, gradient) in zip(parts, live, strict=True):
            if gradient is None:
                part[...] = 0
            else:
                part[...] = gradient if piece.cut is None else take(gradient, piece.dim, piece.runs(rank))
        out[out.size - len(live) :] = [gradient is not None for _, gradient in live]

    def values(self, received: Array) -> Array:
        """Return the part of what this rank has received that is gradients: a view."""
        return received[: received.size - len(self._live([None] * len(self.pieces)))]

    def read(self, received: Array) -> list[tuple[Tensor, Array | None]]:
        """Return the gradient of what this rank holds of each parameter that is trained; None: no rank has one."""
        live = self._live([None] * len(self.pieces))
        parts = split(received, [piece.shape_at(self.comm.rank) for piece, _ in live])
        present = to_host(received[received.size - len(live) :])
        return [(p.leaf, part if n else None) for (p, _), part, n in zip(live, parts, present, strict=True)]
