"""Several collectives as one: arrays of one dtype travel in one message."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from hpcdist.array import Array, is_device, namespace
from hpcdist.comm.addressing import GroupLike, check_device, member
from hpcdist.comm.arguments import owner
from hpcdist.comm.communicator import Communicator
from hpcdist.comm.future import Pending
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.work import Then, Work
from hpcdist.errors import DistError, explain

__all__ = ["Coalesced", "carry_out", "coalescing_manager", "collecting"]


class Part(NamedTuple):
    """One collective on one array, as columns: one row where all ranks bring or get the same, else one row a rank.

    Attributes
    ----------
    verb, op : str and ReduceOp or None
        Parts that agree in both and in dtype travel together.
    brings : array of shape (rows, columns)
    out : array
        Receives what comes back, which has as many elements.
    """

    verb: str
    op: ReduceOp | None
    brings: Array
    out: Array


class Coalesced:
    """A block of :func:`coalescing_manager`, and what is under way when it has ended.

    Attributes
    ----------
    comm : Communicator
    parts : list of Part
        What was called in the block.
    works : list of Pending
        What was posted at its end.
    """

    def __init__(self, comm: Communicator, async_ops: bool) -> None:
        self.comm, self._async_ops = comm, async_ops
        self.parts: list[Part] = []
        self.works: list[Pending] = []

    def __enter__(self) -> Coalesced:
        self._token = _open.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _open.reset(self._token)
        if kind is None:
            self.works += carry_out(self.comm, self.parts, self._async_ops)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until all are done; return True."""
        return all([work.wait(timeout) for work in self.works])


_open: ContextVar[Coalesced | None] = ContextVar("coalesced", default=None)


def coalescing_manager(
    group: GroupLike = None,
    device: object = None,
    async_ops: bool = False,
) -> Coalesced:
    """Collect the calls of all_reduce, all_gather_into_tensor and reduce_scatter_tensor on ``group`` in a block.

    Collective over ``group``, at the end of the block: arrays of one dtype, verb and reduction travel in one message.
    Arrays are read and written at the end, so that no call sees the result of another of the block; results are there
    after it, or, with ``async_ops``, when what it gave has been waited for::

        with coalescing_manager() as several:
            ...
    """
    check_device("coalescing_manager", device)
    return Coalesced(member("coalescing_manager", group), async_ops)


def collecting(verb: str, comm: Communicator, async_op: bool) -> Coalesced | None:
    """Return the batch that a call on ``comm`` belongs to, if there is one.

    Raises
    ------
    DistError
        If it wants a work of its own.
    """
    batch = _open.get()
    if batch is None or batch.comm is not comm:
        return None
    if async_op:
        do = "wait for what coalescing_manager(async_ops=True) gives"
        raise DistError(explain(f"{verb}: async_op in a block of coalescing_manager", do=do))
    return batch


def carry_out(comm: Communicator, parts: Sequence[Part], async_op: bool) -> list[Pending]:
    """Carry out, or post, one collective for each verb, reduction and dtype among ``parts``. Collective over ``comm``.

    Returns the works of what was posted.

    Raises
    ------
    ValueError
        If two of them write into the same memory; nothing is sent then.
    """
    _check_apart([part.out for part in parts])
    kinds: dict[tuple[str, ReduceOp | None, np.dtype[Any]], list[Part]] = {}
    for part in parts:
        kinds.setdefault((part.verb, part.op, part.brings.dtype), []).append(part)
    works = []
    for (verb, op, _), alike in kinds.items():
        work = _start(comm, verb, op or ReduceOp.SUM, _pack(alike), async_op)
        if isinstance(work, Work):
            finished = Then(work, functools.partial(_unpack, alike))
            works.append(Pending(finished, [part.out for part in alike], comm.members))
        else:
            _unpack(alike, work)
    return works


def _check_apart(outs: Sequence[Array]) -> None:
    if len({id(owner(out)) for out in outs}) == len(outs):
        return
    in_order = sorted((out for out in outs if out.size and not is_device(out)), key=byte_bounds)
    if any(itertools.starmap(np.shares_memory, itertools.pairwise(in_order))):
        do = "wait for the first before the second is called"
        raise ValueError(explain("several collectives as one: two of them write into the same memory", do=do))


def _start(comm: Communicator, verb: str, op: ReduceOp, x: Array, async_op: bool) -> Work[Array] | Array:
    if verb == "all_reduce":
        return comm.iall_reduce(x, op, out=x) if async_op else comm.all_reduce(x, op, out=x)
    if verb == "all_gather":
        return comm.iall_gather(x) if async_op else comm.all_gather(x)
    return comm.ireduce_scatter(x, 0, op) if async_op else comm.reduce_scatter(x, 0, op)


def _pack(parts: Sequence[Part]) -> Array:
    packed: Array = namespace(*(part.brings for part in parts)).concatenate([part.brings for part in parts], axis=1)
    return packed


def _unpack(parts: Sequence[Part], rows: Array) -> None:
    ends = itertools.accumulate(part.brings.shape[1] for part in parts)
    for part, end in zip(parts, ends, strict=True):
        part.out[...] = rows[:, end - part.brings.shape[1] : end].reshape(part.out.shape)
