"""The verbs as MPI carries them out: what is packed, what is posted, and what becomes of the result.

Nothing here waits or posts: a verb is first planned, which also checks its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from mpi4py import MPI

from hpcdist.array import Array, is_device
from hpcdist.comm import arguments
from hpcdist.comm.arguments import Terms
from hpcdist.comm.mpi import chunks, dtypes
from hpcdist.comm.mpi.calls import Calls
from hpcdist.comm.mpi.layout import front, like, pack, receives_directly
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.reduction import divide
from hpcdist.errors import explain

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
    """

    verb: str
    x: Array | None
    terms: Terms
    post: Callable[[Calls], chunks.Posted]
    finish: Callable[[], T]
    buffers: Sequence[Array] = ()
    peers: str | None = None
    lengths: Sequence[int] = ()
    sizes: Sizes | None = None


# ---- reductions
def all_reduce(group: Group, x: Array, op: ReduceOp, out: Array | None) -> Plan[Array]:
    """Plan all_reduce."""
    terms = arguments.all_reduce(x, op, out)
    how = dtypes.reduction(x.dtype, op)
    source = pack(x, how.dtype)
    total = _accumulate_in(x, source, out)

    def post(calls: Calls) -> chunks.Posted:
        if group.size > 1:
            flat = total.reshape(-1)
            mine = flat if source is total else source.reshape(-1)
            return chunks.all_reduce(calls, mine, flat, how, group.max_count)
        if source is not total:
            total[...] = source
        return []

    def finish() -> Array:
        return deliver(x, _mean(total, op, group.size), out)

    return Plan("all_reduce", x, terms, post, finish, (source, total))


def reduce(group: Group, x: Array, root: int, op: ReduceOp, out: Array | None) -> Plan[Array | None]:
    """Plan reduce."""
    terms = arguments.reduce(x, root, op, out, group.rank, group.size)
    how = dtypes.reduction(x.dtype, op)
    source = pack(x, how.dtype)
    total = np.empty_like(source) if group.rank == root else None

    def post(calls: Calls) -> chunks.Posted:
        if group.size > 1:
            flat = None if total is None else total.reshape(-1)
            return chunks.reduce(calls, source.reshape(-1), flat, root, how, group.max_count)
        total[...] = source  # type: ignore[index]
        return []

    def finish() -> Array | None:
        return None if total is None else deliver(x, _mean(total, op, group.size), out)

    return Plan("reduce", x, terms, post, finish, (source,) if total is None else (source, total))


def reduce_scatter(
    group: Group, x: Array, dim: int, op: ReduceOp, sizes: Sequence[int] | None, out: Array | None
) -> Plan[Array]:
    """Plan reduce_scatter."""
    dim, extents, terms = arguments.reduce_scatter(x, dim, op, sizes, out, group.rank, group.size)
    how = dtypes.reduction(x.dtype, op)
    source = front(x, dim, how.dtype)
    mine = _receive_in((extents[group.rank], *source.shape[1:]), source.dtype, None if dim else out)

    def post(calls: Calls) -> chunks.Posted:
        if group.size > 1:
            counts = _counts(extents, source)
            return chunks.reduce_scatter(calls, source.reshape(-1), mine.reshape(-1), counts, how, group.max_count)
        mine[...] = source
        return []

    def finish() -> Array:
        return deliver(x, _mean(mine, op, group.size), out, dim)

    return Plan("reduce_scatter", x, terms, post, finish, (source, mine))


# ---- moves
def all_gather(group: Group, x: Array, dim: int, sizes: Sequence[int] | None, out: Array | None) -> Plan[Array]:
    """Plan all_gather."""
    dim, extents, terms = arguments.all_gather(x, dim, sizes, out, group.rank, group.size)
    mine = front(x, dim)
    whole = _receive_in((sum(extents), *mine.shape[1:]), mine.dtype, None if dim else out)

    def post(calls: Calls) -> chunks.Posted:
        if group.size > 1:
            counts = _counts(extents, mine)
            return chunks.all_gather(calls, dtypes.raw(mine), dtypes.raw(whole), counts, group.max_count)
        whole[...] = mine
        return []

    return Plan("all_gather", x, terms, post, lambda: deliver(x, whole, out, dim), (mine, whole))


def broadcast(group: Group, x: Array, root: int, out: Array | None) -> Plan[Array]:
    """Plan broadcast."""
    terms = arguments.broadcast(x, root, out, group.size)
    packed = pack(x)
    if out is x and receives_directly(x, packed.dtype):
        value = x
    else:
        value = packed.copy() if group.rank == root else np.empty_like(packed)

    def post(calls: Calls) -> chunks.Posted:
        alone = group.size == 1
        return [] if alone else chunks.broadcast(calls, dtypes.raw(value), root, group.max_count)

    return Plan("broadcast", x, terms, post, lambda: deliver(x, value, out), (value,))


def all_to_all(
    group: Group, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], out: Sequence[Array] | None
) -> Plan[list[Array]]:
    """Plan all_to_all: messages go point to point, as sizes of one pair of ranks are not known to others."""
    terms = arguments.all_to_all(parts, shapes, out, group.rank, group.size)
    packed = list(map(pack, parts))
    outs = [None] * group.size if out is None else out
    received = [_receive_in(shape, packed[0].dtype, o) for shape, o in zip(shapes, outs, strict=True)]
    others = [(group.rank + step) % group.size for step in range(1, group.size)]
    flat = [(rank, dtypes.raw(received[rank])) for rank in others]

    def post(calls: Calls) -> chunks.Posted:
        received[group.rank][...] = packed[group.rank]
        return _exchange(group, calls, [(rank, dtypes.raw(packed[rank])) for rank in others], flat)

    def finish() -> list[Array]:
        return [deliver(parts[0], array, o) for array, o in zip(received, outs, strict=True)]

    lengths, sizes = _lengths(group, flat), ([x.nbytes for x in packed], [x.nbytes for x in received])
    return Plan("all_to_all", parts[0], terms, post, finish, packed + received, lengths=lengths, sizes=sizes)


def gather(group: Group, x: Array, root: int, out: Sequence[Array] | None) -> Plan[list[Array] | None]:
    """Plan gather: messages go point to point, as only the root knows all sizes."""
    terms = arguments.gather(x, root, out, group.rank, group.size)
    packed, zeros = pack(x), [0] * group.size
    if group.rank != root:
        message, sizes = [(root, dtypes.raw(packed))], ([packed.nbytes * (i == root) for i in range(group.size)], zeros)
        sending = partial(_exchange, group, sends=message, receives=[])
        return Plan("gather", x, terms, sending, lambda: None, (packed,), sizes=sizes)
    outs = [None] * group.size if out is None else out
    shapes = [x.shape if o is None else o.shape for o in outs]
    received = [_receive_in(shape, packed.dtype, o) for shape, o in zip(shapes, outs, strict=True)]
    flat = [(rank, dtypes.raw(r)) for rank, r in enumerate(received) if rank != root]

    def post(calls: Calls) -> chunks.Posted:
        received[root][...] = packed
        return _exchange(group, calls, [], flat)

    def finish() -> list[Array] | None:
        return [deliver(x, array, o) for array, o in zip(received, outs, strict=True)]

    sizes = ([received[root].nbytes * (i == root) for i in range(group.size)], [r.nbytes for r in received])
    return Plan("gather", x, terms, post, finish, received, lengths=_lengths(group, flat), sizes=sizes)


def scatter(group: Group, parts: Sequence[Array] | None, out: Array, root: int) -> Plan[Array]:
    """Plan scatter: messages go point to point, as only the root knows all sizes."""
    terms = arguments.scatter(parts, out, root, group.rank, group.size)
    wanted = [out.nbytes * (i == root) for i in range(group.size)]
    if parts is not None:
        packed = list(map(pack, parts))
        messages = [(rank, dtypes.raw(part)) for rank, part in enumerate(packed) if rank != root]
        sending = partial(_exchange, group, sends=messages, receives=[])
        sizes = ([part.nbytes for part in packed], wanted)
        return Plan("scatter", out, terms, sending, lambda: deliver(out, packed[root], out), packed, sizes=sizes)
    buffer = _receive_in(out.shape, out.dtype.newbyteorder("="), out)
    flat = [(root, dtypes.raw(buffer))]
    receiving = partial(_exchange, group, sends=[], receives=flat)
    lengths, sizes = _lengths(group, flat), ([0] * group.size, wanted)
    return Plan("scatter", out, terms, receiving, lambda: deliver(out, buffer, out), (buffer,), None, lengths, sizes)


def barrier(group: Group) -> Plan[None]:
    """Plan barrier."""
    return Plan("barrier", None, (), lambda calls: [] if group.size == 1 else [calls.barrier()], lambda: None)


# ---- messages
def send(group: Group, x: Array, dest: int, tag: int) -> Plan[None]:
    """Plan send."""
    arguments.message("send", "dest", x, dest, group.size)
    _check_tag(group, "send", tag)
    packed = pack(x)

    def post(calls: Calls) -> chunks.Posted:
        return [*chunks.send(calls.handle, dtypes.raw(packed), dest, tag, group.max_count)]

    return Plan("send", x, (), post, lambda: None, (packed,), f"rank {dest}")


def recv(group: Group, out: Array, source: int | None, tag: int) -> Plan[Array]:
    """Plan recv."""
    arguments.message("recv", "source", out, source, group.size)
    _check_tag(group, "recv", tag)
    buffer = _receive_in(out.shape, out.dtype.newbyteorder("="), out)
    flat = dtypes.raw(buffer)
    if source is None and flat.size > group.max_count:
        do = "name the source: a message in several pieces can only be received from one rank"
        raise ValueError(explain("recv: elements from any rank", got=flat.size, expected=group.max_count, do=do))
    who, peers = (MPI.ANY_SOURCE, "any rank") if source is None else (source, f"rank {source}")

    def post(calls: Calls) -> chunks.Posted:
        return [*chunks.recv(calls.handle, flat, who, tag, group.max_count)]

    lengths = chunks.lengths(flat, group.max_count)
    return Plan("recv", out, (), post, lambda: deliver(out, buffer, out), (buffer,), peers, lengths)


# ---- shared by the verbs
Messages = Sequence[tuple[int, Array]]


def _exchange(group: Group, calls: Calls, sends: Messages, receives: Messages) -> chunks.Posted:
    """Post messages with other ranks, receives first."""
    tag, limit = group.top_tag, group.max_count
    posted: chunks.Posted = [r for rank, x in receives for r in chunks.recv(calls.handle, x, rank, tag, limit)]
    posted += [r for rank, x in sends for r in chunks.send(calls.handle, x, rank, tag, limit)]
    return posted


def _lengths(group: Group, receives: Messages) -> list[int]:
    return [n for _, x in receives for n in chunks.lengths(x, group.max_count)]


def _check_tag(group: Group, verb: str, tag: int) -> None:
    if not 0 <= tag < group.top_tag:
        raise ValueError(explain(f"{verb}: tag", got=tag, expected=f"0 to {group.top_tag - 1}"))


def _mean(total: Array, op: ReduceOp, size: int) -> Array:
    """Divide a finished sum in place if its mean was asked for."""
    if op is ReduceOp.AVG:
        divide(total, size)
    return total


def _accumulate_in(x: Array, source: Array, out: Array | None) -> Array:
    """Return where to reduce ``source``: ``out`` where possible; else its own memory if it is a copy of ``x``."""
    target = out if out is not None and receives_directly(out, source.dtype) else None
    if target is not None and (target is source or not np.may_share_memory(target, source)):
        return target
    if is_device(x) or not np.may_share_memory(x, source):
        return source
    return np.empty_like(source)


def _receive_in(shape: Sequence[int], dtype: np.dtype, out: Array | None) -> Array:
    """Return where MPI writes a result: ``out`` where possible, else new memory."""
    if out is not None and receives_directly(out, dtype):
        return out
    return np.empty(shape, dtype)


def deliver(x: Array, packed: Array, out: Array | None, dim: int = 0) -> Array:
    """Return what was received as an array like ``x``, in ``out`` if there is one."""
    if out is None:
        return like(x, packed, dim)
    if out is not packed:
        out[...] = like(out, packed, dim)
    return out


def _counts(extents: Sequence[int], packed: Array) -> list[int]:
    """Return the elements of every rank's part of an array packed with the divided dimension in front."""
    row = math.prod(packed.shape[1:])
    return [n * row for n in extents]
