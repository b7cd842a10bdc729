"""The sum of squares of gradients, with the same bits however parameters are cut and wherever their parts lie.

Squares are float64. A parameter's are added up in blocks of 1024 elements, counted from its flat index, blocks by a
tree, and parameters exactly (``math.fsum``). Whoever holds the first element of a block adds it up; others send it what
they hold of it, at most 1023 elements a parameter. Messages move numbers, and never add them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from hpcdist.array import Array, to_host
from hpcdist.autograd import Tensor
from hpcdist.comm import Communicator
from hpcdist.dtensor.cut import cut
from hpcdist.dtensor.placements import Shard
from hpcdist.dtensor.tensor import DTensor
from hpcdist.kernels.optimizer import BLOCK, block_squares, sum_squares, tree_sum
from hpcdist.optim.clip import real, whole_gradient

__all__ = ["gathered", "sum_of_squares"]

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""The flat indices of a parameter that each rank holds, as (start, stop); (0, 0): none."""


def sum_of_squares(parameters: Sequence[Any]) -> float:
    """Return the sum of squares of the gradients of parameters, all of which have one.

    Collective over the axes that cut them: two small messages an axis of parameters that are cut along their first
    dimension, which FSDP does by default. Others are gathered, one by one.
    """
    sums: list[float] = []
    rows: dict[Communicator, list[tuple[Array, Ranges]]] = {}
    for p in parameters:
        group, ranges = _cut_rows(p)
        if group is not None:
            rows.setdefault(group, []).append((real(whole_gradient(p)), ranges))
        else:
            sums.append(sum_squares(real(gathered(p))))
    for group, held in rows.items():
        sums += _sums_of_rows(group, held)
    return math.fsum(sums)


def gathered(p: Any) -> Array:
    """Return a whole gradient, flat. Collective over the axes that cut it."""
    gradient = whole_gradient(p)
    if not isinstance(p, DTensor) or p.layout.is_whole:
        return gradient
    local = Tensor(gradient.reshape(p.layout.local_shape))
    return DTensor(local, p.layout).full_tensor().data.reshape(-1)


def _cut_rows(p: Any) -> tuple[Communicator | None, Ranges]:
    """Return who holds the rest of a parameter, and what each of them holds, if that is one range of flat indices."""
    axes = [axis for axis, placement in enumerate(getattr(p, "placements", ())) if isinstance(placement, Shard)]
    if len(axes) != 1 or p.placements[axes[0]].dim != 0:
        return None, ()
    group = p.layout.groups[axes[0]]
    runs = cut(p.placements[axes[0]], p.shape[0], group.size).runs
    if any(len(held) > 1 for held in runs):
        return None, ()
    width = math.prod(p.shape[1:]) * (2 if p.dtype.kind == "c" else 1)
    return group, tuple((held[0][0] * width, held[0][1] * width) if held else (0, 0) for held in runs)


def _sums_of_rows(group: Communicator, held: list[tuple[Array, Ranges]]) -> list[float]:
    """Return the sum of squares of each parameter, of which ranks hold parts. Collective over ``group``."""
    plan = _plan(tuple(ranges for _, ranges in held), group.rank)
    parts = [x for x, _ in held]
    rest = plan.swap_heads(group, parts)
    mine = [_blocks(x[head:], more) for x, head, more in zip(parts, plan.heads, rest, strict=True)]
    joined = group.all_gather(np.concatenate(mine), sizes=plan.sizes)[plan.order]
    return [tree_sum(blocks) if blocks.size else 0.0 for blocks in np.split(joined, plan.ends)]


def _blocks(own: Array, rest: list[Array]) -> Array:
    """Return the sums of squares of blocks that begin in ``own``; ``rest`` is what follows of the last one."""
    whole = own.size // BLOCK * BLOCK
    sums = to_host(block_squares(own[:whole]))
    if own.size == whole:
        return sums
    last = np.concatenate([to_host(own[whole:]).astype(np.float64), *rest])
    return np.concatenate([sums, block_squares(last)])


class _Plan:
    """Who adds up which block of some parameters, as one rank sees it.

    Attributes
    ----------
    heads : list of int
        For every parameter how many of the first elements here belong to a block that begins on another rank.
    sizes : list of int
        How many blocks begin on each rank.
    order : array of int
        Where in the blocks of rank 0, 1, ..., each parameter after parameter, lie those of parameter 0, 1, ...
    ends : array of int
        Where in that order the blocks of each parameter but the last end.
    """

    def __init__(self, parameters: tuple[Ranges, ...], rank: int) -> None:
        size = len(parameters[0])
        self.heads = [_head(ranges[rank]) for ranges in parameters]
        counts = np.array([[_num_blocks(held) for held in ranges] for ranges in parameters])  # (parameters, ranks)
        self.sizes = counts.sum(0).tolist()
        self.ends = np.cumsum(counts.sum(1))[:-1]
        starts = (np.cumsum(counts.T) - counts.T.reshape(-1)).reshape(counts.T.shape).T
        lines = [np.arange(s, s + n) for s, n in zip(starts.reshape(-1), counts.reshape(-1), strict=True)]
        self.order = np.concatenate(lines)
        self._sent: list[list[int]] = [[] for _ in range(size)]  # to each rank, of which parameters
        self._received: list[list[tuple[int, int]]] = [[] for _ in range(size)]  # from each rank, of which, how many
        self._swaps = False
        for place, ranges in enumerate(parameters):
            for source, owner, count in _borders(ranges):
                self._swaps = True
                if source == rank:
                    self._sent[owner].append(place)
                if owner == rank:
                    self._received[source].append((place, count))

    def swap_heads(self, group: Communicator, parts: list[Array]) -> list[list[Array]]:
        """Return, for every parameter, what this rank lacks of its last block.

        Collective over ``group``, unless every rank has whole blocks.
        """
        found: list[list[Array]] = [[] for _ in parts]
        if not self._swaps:
            return found
        none = np.empty(0)
        sent = [np.concatenate([none, *(to_host(parts[i][: self.heads[i]]) for i in some)]) for some in self._sent]
        received = group.all_to_all(sent, [(sum(n for _, n in some),) for some in self._received])
        for part, some in zip(received, self._received, strict=True):
            ends = itertools.pairwise(itertools.accumulate((n for _, n in some), initial=0))
            for (i, _), (start, stop) in zip(some, ends, strict=True):
                found[i].append(part[start:stop])
        return found


_plan = functools.lru_cache(maxsize=16)(_Plan)


def _num_blocks(held: tuple[int, int]) -> int:
    """Return how many blocks begin in a range."""
    start, stop = held
    return -(-stop // BLOCK) - -(-start // BLOCK)


def _head(held: tuple[int, int]) -> int:
    """Return how many of a range's first elements belong to a block that begins before it."""
    start, stop = held
    return min(stop, -(-start // BLOCK) * BLOCK) - start


def _borders(ranges: Ranges) -> list[tuple[int, int, int]]:
    """Return (rank, rank in whose range the block begins, number of elements) of every head."""
    found, owner = [], 0
    for rank, held in enumerate(ranges):
        if _head(held):
            found.append((rank, owner, _head(held)))
        if _num_blocks(held):
            owner = rank
    return found
