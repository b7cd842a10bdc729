"""Parameters of a unit that travel in one message: shards side by side, gathered and reduced together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcdist.array import Array, is_device, namespace, to_host
from hpcdist.autograd import Tensor, empty
from hpcdist.comm import Communicator, Work
from hpcdist.comm.work import Then
from hpcdist.errors import explain
from hpcdist.parallel.spread import Move, Piece, Spread, lines, moves

__all__ = ["Bundle"]


class _Plan(NamedTuple):
    """How gradients go into a message, and out of what a rank receives.

    Attributes
    ----------
    sizes : list of int
        How much each rank receives.
    moves : list of Move
    mine : list of (slice, tuple of int)
        Where this rank's parts lie in what it receives, and their shapes.
    """

    sizes: list[int]
    moves: list[Move]
    mine: list[tuple[slice, tuple[int, ...]]]


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
    like : array, (0,)
        Where whole arrays and gradients are.
    number : int
        Of the unit; see Spread.
    near : Communicator, optional
        Neighbours in ``comm`` among whom whole arrays are shared out between forward and backward.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        owned: Sequence[bool],
        comm: Communicator,
        travels: Any,
        computes: Any,
        like: Array,
        number: int,
        near: Communicator | None = None,
    ) -> None:
        self.pieces, self.comm = list(pieces), comm
        self.travels, self.computes = np.dtype(travels), np.dtype(computes)
        cut = [piece for piece in self.pieces if piece.cut is not None]
        first = self.pieces[0].leaf.data
        self.like = like
        self._all, self._near = Spread(cut, comm, number), None if near is None else Spread(cut, near, number)
        self._flat = self._all.empty(first.dtype, first)
        self._kept: Array | None = None
        self._order = sorted(range(len(self.pieces)), key=lambda i: self.pieces[i].cut is None)
        self._plans: dict[tuple[int, ...], _Plan] = {}
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
    @property
    def trained(self) -> tuple[int, ...]:
        """Which pieces get a gradient, in the order of messages: those that are cut, then the others."""
        return tuple([i for i in self._order if self.pieces[i].leaf.requires_grad])

    def message(self, gradients: Sequence[Array | None], dtype: Any) -> tuple[Array, list[int]]:
        """Return what all ranks shall receive of this rank's gradients, and how much of it each.

        A rank gets its shards, then all of what cannot be cut, then a number a parameter: 1 where there is a gradient.
        """
        trained = self.trained
        plan = self._plan(trained)
        buffer = empty((sum(plan.sizes),), dtype, self.like)
        given = [gradients[i] for i in trained]
        for place, there, line, shape, here in plan.moves:
            gradient = given[place]
            buffer[line].reshape(shape)[here] = 0 if gradient is None else gradient[there]
        flags, stop = [gradient is not None for gradient in given], 0
        for size in plan.sizes:
            stop += size
            buffer[stop - len(flags) : stop] = flags
        return buffer, plan.sizes

    def _plan(self, trained: tuple[int, ...]) -> _Plan:
        if trained not in self._plans:
            pieces = [self.pieces[i] for i in trained]
            parts = [sum(math.prod(p.shape_at(rank)) for p in pieces) for rank in range(self.comm.size)]
            self._plans[trained] = _Plan(
                [part + len(pieces) for part in parts],
                moves(pieces, self.comm.size, gap=len(pieces)),
                lines([piece.shape_at(self.comm.rank) for piece in pieces]),
            )
        return self._plans[trained]

    def values(self, received: Array) -> Array:
        """Return the part of what this rank has received that is gradients: a view."""
        return received[: received.size - len(self.trained)]

    def read(self, received: Array) -> list[tuple[Tensor, Array | None]]:
        """Return the gradient of what this rank holds of each parameter that is trained; None: no rank has one."""
        trained = self.trained
        present = to_host(received[received.size - len(trained) :]).tolist()
        mine = zip(trained, self._plan(trained).mine, present, strict=True)
        return [(self.pieces[i].leaf, received[line].reshape(shape) if n else None) for i, (line, shape), n in mine]
