"""Messages of plain host arrays, of a form that was sent before: what is done at once needs no handle on MPI's work."""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING

from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm import arguments
from hpcdist.comm.mpi.forms import Form, Forms, Prepared, is_plain, misfit
from hpcdist.comm.mpi.work import MpiWork, failure
from hpcdist.comm.operation import Operation
from hpcdist.comm.recorder import Recorder
from hpcdist.comm.work import Done, Work

if TYPE_CHECKING:
    from hpcdist.comm.mpi.recorded import RecordedCommunicator

__all__ = ["Mail"]

_GLANCES = 50
"""How often a receive that is waited for is tested before a handle is made: some ten microseconds."""


class Mail:
    """The messages of one group.

    Parameters
    ----------
    comm : RecordedCommunicator
        That does not check messages.
    recorder : Recorder
    members : str
        As for :meth:`hpcdist.comm.recorder.Recorder.begin`.
    """

    def __init__(self, comm: RecordedCommunicator, recorder: Recorder, members: str) -> None:
        self._comm, self._recorder, self._members = comm, recorder, members
        self._forms = Forms(comm, members)

    def send(self, x: Array, dest: int, tag: int) -> Work[None] | None:
        """Post the sending of ``x``; None if it has to go the ordinary way. Point to point."""
        if not is_plain(x) or type(tag) is not int or not 0 <= tag < self._comm.top_tag:
            return None
        form = self._forms.find(("send", x.shape, x.dtype, dest), x, lambda: self._send(x, dest), f"rank {dest}")
        if form is None:
            return None
        operation, ticket = self._begin(form)
        request = form.carry_out(x, tag)
        if request.Test():
            self._recorder.end(ticket)
            return Done(None)
        return self._handle(operation, ticket, request, x, ())

    def _send(self, x: Array, dest: int) -> Prepared:
        arguments.message("send", "dest", x, dest, self._comm.size)
        message, post = self._forms.message(x), self._comm.handle.Isend
        return message and ((dest,), lambda x, tag: post([x, *message], dest, tag))

    def recv(self, out: Array, source: int | None, tag: int) -> bool:
        """Receive into ``out``; say whether, or whether it has to go the ordinary way. Point to point."""
        if source is None or not is_plain(out) or type(tag) is not int or not 0 <= tag < self._comm.top_tag:
            return False
        head = ("recv", out.shape, out.dtype, source)
        form = self._forms.find(head, out, lambda: self._recv(out, source), f"rank {source}")
        if form is None:
            return False
        operation, ticket = self._begin(form)
        status, request, failed = MPI.Status(), form.carry_out(out, tag), True
        try:
            if not any(request.Test(status) for _ in range(_GLANCES)):
                self._handle(operation, ticket, request, out, (out.nbytes,)).wait()
            elif status.Get_count(MPI.BYTE) != out.nbytes:
                raise operation.mismatched(misfit(status, out))
            failed = False
        except MPI.Exception as e:
            raise failure(operation, e) from e
        finally:
            self._recorder.end(ticket, failed=failed)
        return True

    def _recv(self, out: Array, source: int) -> Prepared:
        arguments.message("recv", "source", out, source, self._comm.size)
        message, post = self._forms.message(out), self._comm.handle.Irecv
        return message and ((source,), lambda out, tag: post([out, *message], source, tag))

    def _begin(self, form: Form) -> tuple[Operation, int]:
        operation = form.operation(self._comm.count(message=True))
        self._comm.roll_call.callers.add(get_ident())
        return operation, self._recorder.enter(form.text, operation, self._members, None)

    def _handle(
        self, operation: Operation, ticket: int, request: MPI.Request, x: Array, lengths: Sequence[int]
    ) -> MpiWork[None]:
        """Return a handle on what is not done at once."""
        kept, limit_s = self._comm.keep(operation, ticket), self._comm.timeout_s
        return MpiWork(operation, [request], lambda: None, buffers=(x,), timeout_s=limit_s, lengths=lengths, **kept)
