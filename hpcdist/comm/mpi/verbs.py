"""The verbs as MPI carries them out: what is packed, what is posted, and what becomes of the result.

Nothing here waits or posts: a verb is first planned, which also checks its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TypeVar, cast

from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm import arguments
from hpcdist.comm.arguments import Terms
from hpcdist.comm.mpi import chunks, dtypes
from hpcdist.comm.mpi.calls import Calls
from hpcdist.comm.mpi.header import HEADER_BYTES, Ahead, Header
from hpcdist.comm.mpi.layout import empty, flat, front, like, overlap, pack, raw, receives_directly
from hpcdist.comm.mpi.plan import Group, Plan, Sizes
from hpcdist.comm.mpi.transport import Transport, transport
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.reduction import divide
from hpcdist.errors import explain

__all__ = ["Group", "Plan", "Sizes"]

T = TypeVar("T")


# ---- reductions
def all_reduce(group: Group, x: Array, op: ReduceOp, out: Array | None) -> Plan[Array]:
    """Plan all_reduce."""
    way = transport(group, x, out)
    x, out = way.adopt(x), way.adopt(out)
    terms = arguments.all_reduce(x, op, out)
    how = dtypes.reduction(x.dtype, op)
    source = pack(x, how.dtype)
    total = _accumulate_in(x, source, out)

    def post(calls: Calls) -> chunks.Posted:
        if group.size > 1:
            result = flat(total)
            mine = result if source is total else flat(source)
            return way.all_reduce(calls, mine, result, how, group.max_count)
        if source is not total:
            total[...] = source
        return []

    def finish() -> Array:
        return deliver(x, _mean(total, op, group.size), out)

    return way.carry(Plan("all_reduce", x, terms, post, finish, (source, total)))


def reduce(group: Group, x: Array, root: int, op: ReduceOp, out: Array | None) -> Plan[Array | None]:
    """Plan reduce."""
    way = transport(group, x, out)
    x, out = way.adopt(x), way.adopt(out)
    terms = arguments.reduce(x, root, op, out, group.rank, group.size)
    how = dtypes.reduction(x.dtype, op)
    source = pack(x, how.dtype)
    total = empty(source.shape, source) if group.rank == root else None

    def post(calls: Calls) -> chunks.Posted:
        if group.size > 1:
            result = None if total is None else flat(total)
            return way.reduce(calls, flat(source), result, root, how, group.max_count)
        total[...] = source  # type: ignore[index]
        return []

    def finish() -> Array | None:
        return None if total is None else deliver(x, _mean(total, op, group.size), out)

    return way.carry(Plan("reduce", x, terms, post, finish, (source,) if total is None else (source, total)))


def reduce_scatter(
    group: Group, x: Array, dim: int, op: ReduceOp, sizes: Sequence[int] | None, out: Array | None
) -> Plan[Array]:
    """Plan reduce_scatter."""
    way = transport(group, x, out)
    x, out = way.adopt(x), way.adopt(out)
    dim, extents, terms = arguments.reduce_scatter(x, dim, op, sizes, out, group.rank, group.size)
    how = dtypes.reduction(x.dtype, op)
    source = front(x, dim, how.dtype)
    mine = _receive_in((extents[group.rank], *source.shape[1:]), source, None if dim else out)

    def post(calls: Calls) -> chunks.Posted:
        if group.size > 1:
            counts = _counts(extents, source)
            return way.reduce_scatter(calls, flat(source), flat(mine), counts, how, group.max_count)
        mine[...] = source
        return []

    def finish() -> Array:
        return deliver(x, _mean(mine, op, group.size), out, dim)

    return way.carry(Plan("reduce_scatter", x, terms, post, finish, (source, mine)))


# ---- moves
def all_gather(group: Group, x: Array, dim: int, sizes: Sequence[int] | None, out: Array | None) -> Plan[Array]:
    """Plan all_gather."""
    way = transport(group, x, out)
    x, out = way.adopt(x), way.adopt(out)
    dim, extents, terms = arguments.all_gather(x, dim, sizes, out, group.rank, group.size)
    mine = front(x, dim)
    whole = _receive_in((sum(extents), *mine.shape[1:]), mine, None if dim else out)

    def post(calls: Calls) -> chunks.Posted:
        if group.size > 1:
            counts = _counts(extents, mine)
            return way.all_gather(calls, raw(mine), raw(whole), counts, group.max_count)
        whole[...] = mine
        return []

    return way.carry(Plan("all_gather", x, terms, post, lambda: deliver(x, whole, out, dim), (mine, whole)))


def broadcast(group: Group, x: Array, root: int, out: Array | None) -> Plan[Array]:
    """Plan broadcast."""
    way = transport(group, x, out)
    x, out = way.adopt(x), way.adopt(out)
    terms = arguments.broadcast(x, root, out, group.size)
    packed = pack(x)
    if out is x and receives_directly(x, packed.dtype):
        value = x
    else:
        value = packed.copy() if group.rank == root else empty(packed.shape, packed)

    def post(calls: Calls) -> chunks.Posted:
        alone = group.size == 1
        return [] if alone else way.broadcast(calls, raw(value), root, group.max_count)

    return way.carry(Plan("broadcast", x, terms, post, lambda: deliver(x, value, out), (value,)))


def all_to_all(
    group: Group, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], out: Sequence[Array] | None
) -> Plan[list[Array]]:
    """Plan all_to_all: messages go point to point, as sizes of one pair of ranks are not known to others."""
    way = transport(group, *parts, *(out or ()))
    parts, out = _adopted(way, parts), _adopted(way, out)
    terms = arguments.all_to_all(parts, shapes, out, group.rank, group.size)
    packed = list(map(pack, parts))
    outs = [None] * group.size if out is None else out
    received = [_receive_in(shape, packed[0], o) for shape, o in zip(shapes, outs, strict=True)]
    others = [(group.rank + step) % group.size for step in range(1, group.size)]
    expected = [(rank, raw(received[rank])) for rank in others]

    def post(calls: Calls) -> chunks.Posted:
        received[group.rank][...] = packed[group.rank]
        return _exchange(group, way, calls, [(rank, raw(packed[rank])) for rank in others], expected)

    def finish() -> list[Array]:
        return [deliver(parts[0], array, o) for array, o in zip(received, outs, strict=True)]

    lengths, sizes = _lengths(group, way, expected), ([x.nbytes for x in packed], [x.nbytes for x in received])
    return way.carry(Plan("all_to_all", parts[0], terms, post, finish, packed + received, None, lengths, sizes))


def gather(group: Group, x: Array, root: int, out: Sequence[Array] | None) -> Plan[list[Array] | None]:
    """Plan gather: messages go point to point, as only the root knows all sizes."""
    way = transport(group, x, *(out or ()))
    x, out = way.adopt(x), _adopted(way, out)
    terms = arguments.gather(x, root, out, group.rank, group.size)
    packed, zeros = pack(x), [0] * group.size
    if group.rank != root:
        message, sizes = [(root, raw(packed))], ([packed.nbytes * (i == root) for i in range(group.size)], zeros)
        sending = partial(_exchange, group, way, sends=message, receives=[])
        return way.carry(Plan("gather", x, terms, sending, lambda: None, (packed,), sizes=sizes))
    outs = [None] * group.size if out is None else out
    shapes = [x.shape if o is None else o.shape for o in outs]
    received = [_receive_in(shape, packed, o) for shape, o in zip(shapes, outs, strict=True)]
    expected = [(rank, raw(r)) for rank, r in enumerate(received) if rank != root]

    def post(calls: Calls) -> chunks.Posted:
        received[root][...] = packed
        return _exchange(group, way, calls, [], expected)

    def finish() -> list[Array] | None:
        return [deliver(x, array, o) for array, o in zip(received, outs, strict=True)]

    lengths = _lengths(group, way, expected)
    sizes = ([received[root].nbytes * (i == root) for i in range(group.size)], [r.nbytes for r in received])
    return way.carry(Plan("gather", x, terms, post, finish, received, None, lengths, sizes))


def scatter(group: Group, parts: Sequence[Array] | None, out: Array, root: int) -> Plan[Array]:
    """Plan scatter: messages go point to point, as only the root knows all sizes."""
    way = transport(group, out, *(parts or ()))
    parts, out = _adopted(way, parts), way.adopt(out)
    terms = arguments.scatter(parts, out, root, group.rank, group.size)
    wanted = [out.nbytes * (i == root) for i in range(group.size)]
    if parts is not None:
        packed = list(map(pack, parts))
        messages = [(rank, raw(part)) for rank, part in enumerate(packed) if rank != root]
        sending = partial(_exchange, group, way, sends=messages, receives=[])
        sizes = ([part.nbytes for part in packed], wanted)
        return way.carry(
            Plan("scatter", out, terms, sending, lambda: deliver(out, packed[root], out), packed, sizes=sizes)
        )
    buffer = _receive_in(out.shape, out, out)
    expected = [(root, raw(buffer))]
    receiving = partial(_exchange, group, way, sends=[], receives=expected)
    lengths, sizes = _lengths(group, way, expected), ([0] * group.size, wanted)
    return way.carry(
        Plan("scatter", out, terms, receiving, lambda: deliver(out, buffer, out), (buffer,), None, lengths, sizes)
    )


def barrier(group: Group) -> Plan[None]:
    """Plan barrier."""
    return meeting(group, "barrier", ())


def meeting(group: Group, verb: str, terms: Terms) -> Plan[None]:
    """Plan a barrier before something that MPI does without a time limit, and that is no verb."""
    return Plan(verb, None, terms, lambda calls: [] if group.size == 1 else [calls.barrier()], lambda: None)


# ---- messages
def send(group: Group, x: Array, dest: int, tag: int) -> Plan[None]:
    """Plan send."""
    way = transport(group, x, staged=group.check)
    x = way.adopt(x)
    arguments.message("send", "dest", x, dest, group.size)
    arguments.check_tag("send", tag, group.top_tag)
    packed, header = pack(x), Header(x, receives=False) if group.check else None

    def post(calls: Calls) -> chunks.Posted:
        return [*way.send(_behind(header, calls), raw(packed), dest, tag, group.max_count)]

    return way.carry(Plan("send", x, (dest,), post, lambda: None, (packed,), f"rank {dest}", header=header))


def recv(group: Group, out: Array, source: int | None, tag: int) -> Plan[Array]:
    """Plan recv."""
    way = transport(group, out, staged=group.check)
    out = way.adopt(out)
    arguments.message("recv", "source", out, source, group.size)
    arguments.check_tag("recv", tag, group.top_tag)
    buffer = _receive_in(out.shape, out, out)
    elements = raw(buffer)
    limit = way.limit(elements, group.max_count)
    if source is None and elements.size > limit:
        do = "name the source: a message in several pieces can only be received from one rank"
        raise ValueError(explain("recv: elements from any rank", got=elements.size, expected=limit, do=do))
    who, peers = (MPI.ANY_SOURCE, "any rank") if source is None else (source, f"rank {source}")

    header = Header(out, receives=True) if group.check else None

    def post(calls: Calls) -> chunks.Posted:
        return [*way.recv(_behind(header, calls), elements, who, tag, group.max_count)]

    lengths = chunks.lengths(elements, limit)
    lengths[0] += 0 if header is None else HEADER_BYTES
    return way.carry(
        Plan("recv", out, (source,), post, lambda: deliver(out, buffer, out), (buffer,), peers, lengths, header=header)
    )


# ---- shared by the verbs
Messages = Sequence[tuple[int, Array]]


def _adopted(way: Transport, arrays: T) -> T:
    """Return the arrays of a list as the verbs want them; None as it is."""
    return arrays if arrays is None else cast("T", [way.adopt(x) for x in cast("Sequence[Array]", arrays)])


def _exchange(group: Group, way: Transport, calls: Calls, sends: Messages, receives: Messages) -> chunks.Posted:
    """Post messages with other ranks, receives first."""
    tag, limit = group.top_tag, group.max_count
    posted: chunks.Posted = [r for rank, x in receives for r in way.recv(calls.handle, x, rank, tag, limit)]
    posted += [r for rank, x in sends for r in way.send(calls.handle, x, rank, tag, limit)]
    return posted


def _lengths(group: Group, way: Transport, receives: Messages) -> list[int]:
    return [n for _, x in receives for n in chunks.lengths(x, way.limit(x, group.max_count))]


def _behind(header: Header | None, calls: Calls) -> MPI.Intracomm | Ahead:
    """Return what posts a message, behind ``header`` if there is one."""
    return calls.handle if header is None else header.ahead(calls.handle)


def _mean(total: Array, op: ReduceOp, size: int) -> Array:
    """Divide a finished sum in place if its mean was asked for."""
    if op is ReduceOp.AVG:
        divide(total, size)
    return total


def _accumulate_in(x: Array, source: Array, out: Array | None) -> Array:
    """Return where to reduce ``source``: ``out`` where possible; else its own memory if it is a copy of ``x``."""
    target = out if out is not None and receives_directly(out, source.dtype) else None
    if target is not None and (target is source or not overlap(target, source)):
        return target
    return empty(source.shape, source) if overlap(x, source) else source


def _receive_in(shape: Sequence[int], packed: Array, out: Array | None) -> Array:
    """Return where MPI writes a result of the dtype of ``packed``: ``out`` where possible, else new memory."""
    dtype = packed.dtype.newbyteorder("=")
    if out is not None and receives_directly(out, dtype):
        return out
    return empty(shape, packed, dtype)


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
