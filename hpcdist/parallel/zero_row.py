"""Parameters side by side, dealt out to ranks: each updates its share, and all get what was updated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from hpcdist.array import Array, namespace
from hpcdist.autograd import Tensor
from hpcdist.comm import Communicator
from hpcdist.errors import explain
from hpcdist.optim.clip import parts_of
from hpcdist.optim.optimizer import flat_values

__all__ = ["Row", "Share", "deal_elements", "deal_whole"]

Named: TypeAlias = Sequence[tuple[str, Tensor]]


class Share(NamedTuple):
    """Elements ``start`` to ``stop`` of a parameter, which one rank updates."""

    name: str
    parameter: Tensor
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many there are."""
        return self.stop - self.start

    @property
    def values(self) -> Array:
        """Them, (size,), in the parameter's memory."""
        return flat_values(self.parameter)[self.start : self.stop]

    def as_parameter(self) -> Tensor:
        """Return a leaf that is these elements, in their memory, with their part of the gradient that is there."""
        if self.size == self.parameter.size:
            return self.parameter
        leaf, parts = Tensor(self.values, requires_grad=True), parts_of(self.parameter)
        cut = parts[:, self.start : self.stop]
        leaf.grad = cut[0] if len(parts) == 1 else namespace(cut).ascontiguousarray(cut)
        return leaf


def deal_whole(parameters: Named, loads: list[int]) -> list[list[Share]]:
    """Return the parameters of each rank: the largest one goes first, each to the rank that has least by then.

    Parameters
    ----------
    loads : list of int
        Elements that each rank has already; they are counted on.
    """
    shares: list[list[Share]] = [[] for _ in loads]
    for name, p in sorted(parameters, key=lambda named: -named[1].size):
        rank = loads.index(min(loads))
        shares[rank].append(Share(name, p, 0, p.size))
        loads[rank] += p.size
    return shares


def deal_elements(parameters: Named, size: int) -> list[list[Share]]:
    """Return the elements of each of ``size`` ranks: as many for each, of all that lie one after another."""
    starts = [*accumulate((p.size for _, p in parameters), initial=0)]
    bounds = [starts[-1] * rank // size for rank in range(size + 1)]
    shares: list[list[Share]] = [[] for _ in range(size)]
    rank = 0
    for (name, p), first in zip(parameters, starts, strict=False):
        start = 0
        while start < p.size:
            while bounds[rank + 1] <= first + start:
                rank += 1
            stop = min(p.size, bounds[rank + 1] - first)
            shares[rank].append(Share(name, p, start, stop))
            start = stop
    return shares


class Row:
    """Parameters of one dtype, in the order of the ranks that update them.

    Attributes
    ----------
    shares : list of list of Share
        Of each rank.
    sizes : list of int
        Elements of each rank.
    """

    def __init__(self, shares: list[list[Share]], *, is_buffer: bool) -> None:
        self.shares = shares
        self.sizes = [sum(share.size for share in of_rank) for of_rank in shares]
        self._buffer = _Buffer(self) if is_buffer else None

    def prepare(self) -> None:
        """Make sure that parameters lie where they travel from."""
        if self._buffer is not None:
            self._buffer.take_in()

    def exchange(self, comm: Communicator) -> None:
        """Give every rank what each has updated. Collective over ``comm``: one message."""
        if self._buffer is not None:
            start = sum(self.sizes[: comm.rank])
            mine = self._buffer.flat[start : start + self.sizes[comm.rank]].copy()
            comm.all_gather(mine, sizes=self.sizes, out=self._buffer.flat)
        else:
            self._spread(comm.all_gather(self._values_of(comm.rank), sizes=self.sizes), but=comm.rank)

    def _values_of(self, rank: int) -> Array:
        some = next(share for of_rank in self.shares for share in of_rank)
        values = [some.values[:0], *(share.values for share in self.shares[rank])]
        joined: Array = namespace(values[0]).concatenate(values)
        return joined

    def _spread(self, everything: Array, *, but: int) -> None:
        """Write what all ranks have into parameters, but that of one rank, which is there."""
        start = 0
        for rank, of_rank in enumerate(self.shares):
            for share in of_rank:
                if rank != but:
                    share.values[...] = everything[start : start + share.size]
                start += share.size


class _Buffer:
    """The memory of all parameters of a row, in its order."""

    def __init__(self, row: Row) -> None:
        shares = [share for of_rank in row.shares for share in of_rank]
        self.parameters = {id(share.parameter): share for share in shares}
        first = shares[0].parameter.data
        self.flat: Array = namespace(first).empty(sum(row.sizes), first.dtype)
        starts = accumulate((share.parameter.size for share in self.parameters.values()), initial=0)
        self.homes = [
            self.flat[start : start + share.parameter.size].reshape(share.parameter.shape)
            for share, start in zip(self.parameters.values(), starts, strict=False)
        ]
        self.take_in()

    def take_in(self) -> None:
        """Let parameters have their memory here; one whose array was replaced brings its values."""
        for share, home in zip(self.parameters.values(), self.homes, strict=True):
            p = share.parameter
            if p.data is home:
                continue
            if p.dtype != home.dtype or p.shape != home.shape:
                what = f"step: parameter {share.name!r} was changed since the optimizer was made"
                raise RuntimeError(explain(what, got=f"{p.dtype}, {p.shape}", expected=f"{home.dtype}, {home.shape}"))
            home[...] = p.data
            p.data = home
