"""A verb that is ready to be posted, and what it knows of its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from hpcdist.array import Array
from hpcdist.comm.arguments import Terms
from hpcdist.comm.mpi.calls import Calls
from hpcdist.comm.mpi.chunks import Posted
from hpcdist.comm.mpi.device import Cuda
from hpcdist.comm.mpi.header import Header

__all__ = ["Group", "Plan", "Sizes"]

T = TypeVar("T")

Sizes = tuple[Sequence[int], Sequence[int]]
"""Bytes that this rank sends to each rank, and bytes that it expects from each."""


class Group(Protocol):
    """What a verb needs to know of its group."""

    rank: int
    size: int
    max_count: int
    top_tag: int
    check: bool
    cuda: Cuda


class Plan(NamedTuple, Generic[T]):
    """A verb that is ready to be posted.

    Attributes
    ----------
    verb : str
    x : array or None
        What is shown in messages.
    terms : tuple
        What has to be equal on all ranks.
    post : callable
        Makes the calls.
    finish : callable
        Makes the result when all are done.
    buffers : sequence of array
        What MPI reads and writes.
    peers : str or None
        Who has to take part; None for the whole group.
    lengths : sequence of int
        Bytes that the first requests, which are receives, must bring.
    sizes : tuple of two sequences, or None
        Where sizes differ between pairs of ranks: what has to fit.
    arrived : callable or None
        Called with the position of each request, in order, when it is done.
    blocking : bool
        Whether a blocking verb has to use MPI's blocking calls.
    header : Header or None
        What comes in front of the first of its messages.
    """

    verb: str
    x: Array | None
    terms: Terms
    post: Callable[[Calls], Posted]
    finish: Callable[[], T]
    buffers: Sequence[Array] = ()
    peers: str | None = None
    lengths: Sequence[int] = ()
    sizes: Sizes | None = None
    arrived: Callable[[int], None] | None = None
    blocking: bool = False
    header: Header | None = None
