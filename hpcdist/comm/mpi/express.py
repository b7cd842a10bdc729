"""The express lane: blocking collectives on plain host arrays, of a form that was called before.

All that does not depend on an array's address is prepared at the first call of a form (verb, shape, dtype, and the line
it is called from): checked arguments, MPI's datatypes, the words of the record, the checksum that ranks compare.
What a call still costs besides MPI is a look into a table, a record, and the gate. A method says False where a call is
not for this lane, before anything has happened; it then goes the ordinary way, which makes the same MPI calls, so ranks
need not agree on the lane.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm import arguments
from hpcdist.comm.mpi import dtypes
from hpcdist.comm.mpi.forms import Form, Forms, Prepared, is_plain, misfit
from hpcdist.comm.mpi.gate import Gate
from hpcdist.comm.mpi.work import failure
from hpcdist.comm.recorder import Recorder
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.reduction import divide

if TYPE_CHECKING:
    from hpcdist.comm.mpi.recorded import RecordedCommunicator

__all__ = ["Express"]


class Express:
    """The express lane of one group.

    Parameters
    ----------
    comm : RecordedCommunicator
        Whose ranks are on one node, and do not compare all their calls.
    gate : Gate
    recorder : Recorder
    members : str
        As for :meth:`hpcdist.comm.recorder.Recorder.begin`.
    """

    def __init__(self, comm: RecordedCommunicator, gate: Gate, recorder: Recorder, members: str) -> None:
        self._comm, self._gate, self._recorder, self._members = comm, gate, recorder, members
        self._handle, self._calls = comm.handle, comm.blocking_calls
        self._rank, self._size, self._limit = comm.rank, comm.size, comm.max_count
        self._forms = Forms(comm, members)

    # ---- reductions
    def all_reduce(self, x: Array, op: ReduceOp, out: Array | None) -> bool:
        """Carry out all_reduce in place; say whether."""
        if out is not x or type(op) is not ReduceOp or not is_plain(x):
            return False
        form = self._forms.find(("all_reduce", x.shape, x.dtype, id(op)), x, lambda: self._all_reduce(x, op))
        if form is None or not self._run(form, x):
            return False
        if op is ReduceOp.AVG:
            divide(x, self._size)
        return True

    def _all_reduce(self, x: Array, op: ReduceOp) -> Prepared:
        terms, how = arguments.all_reduce(x, op, x), dtypes.reduction(x.dtype, op)
        if how.dtype != x.dtype or x.size > self._limit:
            return None
        datatype, operation, in_place = how.datatype, how.operation, MPI.IN_PLACE
        if x.nbytes < self._calls.LEAST_BYTES:
            direct = self._handle.Allreduce
            return terms, lambda x: direct(in_place, [x, datatype], operation)
        call = self._calls.all_reduce
        return terms, lambda x: call(in_place, [x.reshape(-1), datatype], operation)

    def reduce(self, x: Array, root: int, op: ReduceOp, out: Array | None) -> bool:
        """Carry out reduce into the root's ``out``; say whether."""
        if type(op) is not ReduceOp or not is_plain(x):
            return False
        if self._rank == root and (out is None or out is x or not is_plain(out)):
            return False
        head = ("reduce", x.shape, x.dtype, id(op), root, out is None or (out.shape, out.dtype))
        form = self._forms.find(head, x, lambda: self._reduce(x, root, op, out))
        if form is None or not self._run(form, x, out):
            return False
        if op is ReduceOp.AVG and out is not None:
            divide(out, self._size)
        return True

    def _reduce(self, x: Array, root: int, op: ReduceOp, out: Array | None) -> Prepared:
        terms = arguments.reduce(x, root, op, out, self._rank, self._size)
        how = dtypes.reduction(x.dtype, op)
        if how.dtype != x.dtype or x.size > self._limit:
            return None
        call, datatype, operation = self._calls.reduce, how.datatype, how.operation
        if self._rank == root:
            return terms, lambda x, out: call([x, datatype], [out, datatype], operation, root)
        return terms, lambda x, _: call([x, datatype], None, operation, root)

    def reduce_scatter(self, x: Array, dim: int, op: ReduceOp, sizes: Sequence[int] | None, out: Array) -> bool:
        """Carry out reduce_scatter along dim 0 into ``out``; say whether."""
        if dim or type(op) is not ReduceOp or not is_plain(x) or not is_plain(out) or np.may_share_memory(x, out):
            return False
        head = (
            "reduce_scatter",
            x.shape,
            x.dtype,
            id(op),
            None if sizes is None else tuple(sizes),
            out.shape,
            out.dtype,
        )
        form = self._forms.find(head, x, lambda: self._reduce_scatter(x, op, sizes, out))
        if form is None or not self._run(form, x, out):
            return False
        if op is ReduceOp.AVG:
            divide(out, self._size)
        return True

    def _reduce_scatter(self, x: Array, op: ReduceOp, sizes: Sequence[int] | None, out: Array) -> Prepared:
        _, extents, terms = arguments.reduce_scatter(x, 0, op, sizes, out, self._rank, self._size)
        how = dtypes.reduction(x.dtype, op)
        if how.dtype != x.dtype or x.size > self._limit:
            return None
        datatype, operation = how.datatype, how.operation
        if len(set(extents)) == 1:
            if x.nbytes < self._calls.LEAST_BYTES:
                direct = self._handle.Reduce_scatter_block
                return terms, lambda x, out: direct([x, datatype], [out, datatype], operation)
            even = self._calls.reduce_scatter_block
            return terms, lambda x, out: even([x.reshape(-1), datatype], [out.reshape(-1), datatype], operation)
        uneven, counts = self._calls.reduce_scatter, _counts(extents, x)
        return terms, lambda x, out: uneven([x.reshape(-1), datatype], [out.reshape(-1), datatype], counts, operation)

    # ---- moves
    def broadcast(self, x: Array, root: int, out: Array | None) -> bool:
        """Carry out broadcast in place; say whether."""
        if out is not x or not is_plain(x):
            return False
        form = self._forms.find(("broadcast", x.shape, x.dtype, root), x, lambda: self._broadcast(x, root))
        return form is not None and self._run(form, x)

    def _broadcast(self, x: Array, root: int) -> Prepared:
        terms, call = arguments.broadcast(x, root, x, self._size), self._calls.broadcast
        message = self._forms.message(x)
        return message and (terms, lambda x: call([x, *message], root))

    def all_gather(self, x: Array, dim: int, sizes: Sequence[int] | None, out: Array | None) -> bool:
        """Carry out all_gather along dim 0 into ``out``; say whether."""
        if dim or out is None or not is_plain(x) or not is_plain(out) or np.may_share_memory(x, out):
            return False
        head = ("all_gather", x.shape, x.dtype, None if sizes is None else tuple(sizes), out.shape, out.dtype)
        form = self._forms.find(head, x, lambda: self._all_gather(x, sizes, out))
        return form is not None and self._run(form, x, out)

    def _all_gather(self, x: Array, sizes: Sequence[int] | None, out: Array) -> Prepared:
        _, extents, terms = arguments.all_gather(x, 0, sizes, out, self._rank, self._size)
        mine, whole = self._forms.message(x), self._forms.message(out)
        if mine is None or whole is None:
            return None
        if len(set(extents)) == 1:
            even = self._calls.all_gather
            return terms, lambda x, out: even([x, *mine], [out, *mine])
        uneven, counts = self._calls.all_gatherv, _counts(extents, x)
        places = counts, [0, *accumulate(counts)][:-1], mine[1]
        return terms, lambda x, out: uneven([x, *mine], [out, *places])

    # ---- moves of which only pairs of ranks know the sizes
    def all_to_all(
        self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], out: Sequence[Array] | None
    ) -> bool:
        """Carry out all_to_all into ``out``; say whether."""
        if out is None or not all(map(is_plain, parts)) or not all(map(is_plain, out)):
            return False
        if arguments.overlap(parts, out):
            return False
        head = ("all_to_all", *map(tuple, shapes), *[(x.shape, x.dtype) for x in (*parts, *out)])
        form = self._forms.find(head, parts[0], lambda: self._all_to_all(parts, shapes, out))
        return form is not None and self._run(form, parts, out)

    def _all_to_all(self, parts: Sequence[Array], shapes: Sequence[tuple[int, ...]], out: Sequence[Array]) -> Prepared:
        terms = arguments.all_to_all(parts, shapes, out, self._rank, self._size)
        steps = [((self._rank + n) % self._size, (self._rank - n) % self._size) for n in range(1, self._size)]
        rank, exchange, tag, status = self._rank, self._handle.Sendrecv, self._comm.top_tag, MPI.Status()
        sends, receives = [*map(self._forms.message, parts)], [*map(self._forms.message, out)]
        if None in sends or None in receives:
            return None

        def carry_out(parts: Sequence[Array], out: Sequence[Array]) -> str | None:
            out[rank][...] = parts[rank]
            for to, source in steps:
                mine, theirs = [parts[to], *sends[to]], [out[source], *receives[source]]  # type: ignore[misc]
                exchange(mine, to, tag, theirs, source, tag, status)
                if status.Get_count(MPI.BYTE) != out[source].nbytes:
                    return misfit(status, out[source])
            return None

        return terms, carry_out

    def gather(self, x: Array, root: int, out: Sequence[Array] | None) -> bool:
        """Carry out gather into the root's ``out``; say whether."""
        if not is_plain(x) or (self._rank == root and (out is None or not all(map(is_plain, out)))):
            return False
        head = ("gather", x.shape, x.dtype, root, *[(o.shape, o.dtype) for o in out or ()])
        form = self._forms.find(head, x, lambda: self._gather(x, root, out))
        return form is not None and self._run(form, x, out)

    def _gather(self, x: Array, root: int, out: Sequence[Array] | None) -> Prepared:
        terms = arguments.gather(x, root, out, self._rank, self._size)
        messages, tag = [*map(self._forms.message, out or (x,))], self._comm.top_tag
        if None in messages:
            return None
        if self._rank != root:
            send, message = self._handle.Send, messages[0] or ()
            return terms, lambda x, _: send([x, *message], root, tag)
        receive, status = self._handle.Recv, MPI.Status()
        others = [(rank, message or ()) for rank, message in enumerate(messages) if rank != root]

        def carry_out(x: Array, out: Sequence[Array]) -> str | None:
            out[root][...] = x
            for source, message in others:
                receive([out[source], *message], source, tag, status)
                if status.Get_count(MPI.BYTE) != out[source].nbytes:
                    return misfit(status, out[source])
            return None

        return terms, carry_out

    def scatter(self, parts: Sequence[Array] | None, out: Array, root: int) -> bool:
        """Carry out scatter into ``out``; say whether."""
        if not is_plain(out) or not all(map(is_plain, parts or ())):
            return False
        head = ("scatter", out.shape, out.dtype, root, parts is None, *[(x.shape, x.dtype) for x in parts or ()])
        form = self._forms.find(head, out, lambda: self._scatter(parts, out, root))
        return form is not None and self._run(form, parts, out)

    def _scatter(self, parts: Sequence[Array] | None, out: Array, root: int) -> Prepared:
        terms = arguments.scatter(parts, out, root, self._rank, self._size)
        messages, tag = [*map(self._forms.message, parts or (out,))], self._comm.top_tag
        if None in messages:
            return None
        if self._rank != root:
            receive, status, message = self._handle.Recv, MPI.Status(), messages[0] or ()

            def take(_: None, out: Array) -> str | None:
                receive([out, *message], root, tag, status)
                return None if status.Get_count(MPI.BYTE) == out.nbytes else misfit(status, out)

            return terms, take
        send = self._handle.Send
        others = [(rank, message or ()) for rank, message in enumerate(messages) if rank != root]

        def give(parts: Sequence[Array], out: Array) -> None:
            for dest, message in others:
                send([parts[dest], *message], dest, tag)
            out[...] = parts[root]

        return terms, give

    def barrier(self) -> bool:
        """Carry out barrier; say whether."""
        form = self._forms.find(("barrier",), None, lambda: ((), self._calls.barrier))
        return form is not None and self._run(form)

    # ---- what they are made of
    def _run(self, form: Form, *arrays: Any) -> bool:
        """Carry out a call, unless posted ones have to go before it; say whether."""
        comm = self._comm
        if comm.has_waiting():
            return False
        comm.roll_call.callers.add(get_ident())
        number = comm.count()
        operation = form.operation(number)
        ticket, failed = self._recorder.enter(form.text, operation, self._members, comm.timeout_s), True
        try:
            if not self._gate.arrive(number, form.crc):
                comm.wait_at_gate(operation)
            fault = form.carry_out(*arrays)
            if fault is not None:
                raise operation.mismatched(fault)
            failed = False
        except MPI.Exception as e:
            raise failure(operation, e) from e
        finally:
            self._recorder.end(ticket, failed=failed)
        return True


def _counts(extents: Sequence[int], x: Array) -> list[int]:
    """Return the elements of every rank's part of an array that is cut along dim 0."""
    row = math.prod(x.shape[1:])
    return [n * row for n in extents]
