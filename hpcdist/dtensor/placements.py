"""How one mesh axis holds an array: the placements, their duals, and the rule that cuts a dimension into chunks.

Everywhere the rule is that of ``torch.chunk``: each rank gets ceil(n / size) elements as long as there are any, so that
7 on 3 ranks is 3, 3, 1 and 4 on 3 is 2, 2, 0. A :class:`Shard` may count in units instead of elements (the rows of an
attention head), and may cut sections of a dimension (the fused weights of several layers) each for itself.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.errors import explain

__all__ = [
    "Invariant",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "Share",
    "chunk_range",
    "chunk_sizes",
    "dual",
    "local_shape",
]


@dataclass(frozen=True)
class Placement:
    """What the ranks of one mesh axis hold of an array."""

    def is_shard(self, dim: int | None = None) -> bool:
        """Say whether each rank holds a slice (of ``dim``, if given)."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Say whether each rank holds the whole and uses it in its own way."""
        return isinstance(self, Replicate)

    def is_invariant(self) -> bool:
        """Say whether each rank holds the whole and does the same with it."""
        return isinstance(self, Invariant)

    def is_partial(self, op: str | None = None) -> bool:
        """Say whether the array is a combination of what the ranks hold (by ``op``, if given)."""
        return isinstance(self, Partial) and op in (None, self.op)


@dataclass(frozen=True)
class Shard(Placement):
    """Each rank holds a slice of a dimension.

    Attributes
    ----------
    dim : int
        The dimension; negative: counted from the end.
    unit : int or tuple of int
        Elements that stay together, such as the rows of a head: chunks are whole units. A tuple has one a section.
    sections : tuple of int
        Extents of the parts that ``dim`` is made of, each of which is cut for itself: a rank holds its chunk of the
        first, then that of the second, ... Empty: ``dim`` is one part.

    Raises
    ------
    TypeError
        If one of the numbers is not an integer.
    ValueError
        For a unit below 1, a negative section, or a tuple of units that has not one for each section.
    """

    dim: int
    unit: int | tuple[int, ...] = 1
    sections: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", _integer("dim", self.dim))
        if type(self.unit) is int and self.unit == 1 and self.sections == ():
            return
        sections = _integers("sections", self.sections, least=0)
        many = isinstance(self.unit, Sequence)
        units = _integers("unit", self.unit if many else (self.unit,), least=1)
        if many and (not units or len(units) != len(sections)):
            raise ValueError(explain("Shard: unit", got=units, expected=f"one for each of the sections {sections}"))
        object.__setattr__(self, "unit", units if len(set(units)) > 1 else units[0])
        object.__setattr__(self, "sections", sections)

    def __repr__(self) -> str:
        unit = "" if self.unit == 1 else f", unit={self.unit}"
        sections = f", sections={self.sections}" if self.sections else ""
        return f"Shard({self.dim}{unit}{sections})"

    def counted(self, ndim: int) -> Shard:
        """Return the same with ``dim`` counted from the front.

        Raises
        ------
        ValueError
            If an array with ``ndim`` dimensions has no such one.
        """
        if not -ndim <= self.dim < ndim:
            raise ValueError(explain("Shard: dim", got=self.dim, expected=f"a dimension of an array with {ndim}"))
        return self if self.dim >= 0 else replace(self, dim=self.dim % ndim)

    def ranges(self, n: int, size: int, coord: int) -> list[tuple[int, int]]:
        """Return what rank ``coord`` of ``size`` holds of ``n`` elements: one (start, stop) a section.

        Raises
        ------
        ValueError
            If units or sections do not add up to ``n``.
        """
        found, begin = [], 0
        for extent, unit in self._parts(n):
            start, stop = chunk_range(extent // unit, size, coord)
            found.append((begin + start * unit, begin + stop * unit))
            begin += extent
        return found

    def _parts(self, n: int) -> list[tuple[int, int]]:
        """Return extent and unit of each section of ``n`` elements."""
        sections = self.sections or (n,)
        units = self.unit if isinstance(self.unit, tuple) else (self.unit,) * len(sections)
        parts = list(zip(sections, units, strict=True))
        if sum(sections) != n or any(extent % unit for extent, unit in parts):
            expected = f"sections that add up to {n}, each of whole units"
            raise ValueError(explain(f"{self} of {n} elements", expected=expected))
        return parts

    def sizes(self, n: int, size: int) -> list[int]:
        """Return how many of ``n`` elements each of ``size`` ranks holds."""
        return [sum(stop - start for start, stop in self.ranges(n, size, coord)) for coord in range(size)]

    @staticmethod
    def local_shard_size_and_offset(curr_local_size: int, num_chunks: int, rank: int) -> tuple[int, int]:
        """Return how many elements chunk ``rank`` of ``num_chunks`` has, and where it begins (torch's name)."""
        start, stop = chunk_range(curr_local_size, num_chunks, rank)
        return stop - start, start


@dataclass(frozen=True)
class Replicate(Placement):
    """Each rank holds the whole array and uses its copy in its own way: gradients are partial sums."""


@dataclass(frozen=True)
class Invariant(Placement):
    """Each rank holds the whole array and does the same with it: gradients are equal everywhere."""


_COMBINATIONS = tuple(op.value for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX))


@dataclass(frozen=True)
class Partial(Placement):
    """The array is what ranks hold, combined element by element by ``op``: sum, avg, max, min or product.

    Only sum and avg are linear, and may be moved to and from; the others may only be finished.
    """

    op: str = "sum"

    def __post_init__(self) -> None:
        if self.op not in _COMBINATIONS:
            raise ValueError(explain("Partial: op", got=repr(self.op), expected=f"one of {', '.join(_COMBINATIONS)}"))
        object.__setattr__(self, "op", ReduceOp(self.op).value)

    def neutral(self, dtype: Any) -> Any:
        """Return the scalar that changes nothing: what a rank holds that has nothing to contribute."""
        dtype = np.dtype(dtype)
        if self.op in ("max", "min"):
            return _lowest(dtype) if self.op == "max" else _highest(dtype)
        return dtype.type(1 if self.op == "product" else 0)


@dataclass(frozen=True)
class Share(Placement):
    """Each rank holds the array divided by the number of ranks: how gradients of a Partial("avg") look."""


def _integer(what: str, value: object, least: int | None = None) -> int:
    expected = "an integer" if least is None else f"an integer of at least {least}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(explain(f"Shard: {what}", got=repr(value), expected=expected))
    number = operator.index(value)
    if least is not None and number < least:
        raise ValueError(explain(f"Shard: {what}", got=number, expected=expected))
    return number


def _integers(what: str, values: object, least: int) -> tuple[int, ...]:
    if not isinstance(values, Sequence):
        raise TypeError(explain(f"Shard: {what}", got=repr(values), expected="a tuple of integers"))
    return tuple(_integer(what, value, least) for value in values)


def _lowest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        return dtype.type(np.iinfo(dtype).min)
    return dtype.type(False if dtype.kind == "b" else -np.inf)


def _highest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        return dtype.type(np.iinfo(dtype).max)
    return dtype.type(True if dtype.kind == "b" else np.inf)


def dual(placement: Placement) -> Placement:
    """Return how gradients of an array with this placement are placed; the dual of the dual is the placement itself.

    Raises
    ------
    ValueError
        For a Partial that is not linear.
    """
    if isinstance(placement, Partial):
        if placement.op not in ("sum", "avg"):
            do = "finish it first: move it to Invariant, Replicate or Shard"
            raise ValueError(explain(f"Partial({placement.op!r}) is not linear and has no dual placement", do=do))
        return Replicate() if placement.op == "sum" else Share()
    if isinstance(placement, Share):
        return Partial("avg")
    return Partial() if isinstance(placement, Replicate) else placement


def chunk_sizes(n: int, size: int) -> list[int]:
    """Return how many of ``n`` elements each of ``size`` ranks holds: ceil(n / size) as long as there are any.

    The rule of ``torch.chunk``: 7 on 3 ranks is 3, 3, 1; 4 on 3 is 2, 2, 0.
    """
    return [stop - start for start, stop in (chunk_range(n, size, coord) for coord in range(size))]


def chunk_range(n: int, size: int, coord: int) -> tuple[int, int]:
    """Return the first index that rank ``coord`` of ``size`` holds of ``n`` elements, and the one after its last."""
    chunk = -(-n // size)
    return min(coord * chunk, n), min((coord + 1) * chunk, n)


def local_shape(shape: Sequence[int], placement: Placement, size: int, coord: int) -> tuple[int, ...]:
    """Return the shape of what rank ``coord`` of ``size`` holds of an array of ``shape``."""
    local = list(shape)
    if isinstance(placement, Shard):
        dim = placement.counted(len(local)).dim
        local[dim] = sum(stop - start for start, stop in placement.ranges(local[dim], size, coord))
    return tuple(local)
