"""Forms of calls: what calls of one verb, on arrays of one shape and dtype, from one line, have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm.arguments import Terms
from hpcdist.comm.label import label
from hpcdist.comm.mpi.dtypes import carrier
from hpcdist.comm.mpi.gate import crc
from hpcdist.comm.operation import Operation, signature
from hpcdist.comm.recorder import words

if TYPE_CHECKING:
    from hpcdist.comm.mpi.plain import PlainCommunicator

__all__ = ["Form", "Forms", "Prepared", "is_plain", "misfit"]

_MOST_FORMS = 4096
_OURS = str(Path(__file__).parents[1])
_new = tuple.__new__  # of named tuples: their own constructors take four times as long
_ours: dict[str, bool] = {}

Prepared: TypeAlias = tuple[Terms, Callable[..., Any]] | None
"""Terms, and what makes the MPI calls on the arrays it is given; None for a form that is not for this lane."""


class Form(NamedTuple):
    """What calls of one form have in common.

    Attributes
    ----------
    before, after : tuple
        The fields of the operation before its number and after it.
    text : bytes
        The words of its record.
    crc : int
        Of what ranks compare.
    carry_out : callable
        Makes the MPI calls on the arrays it is given; says what does not fit, if something does not.
    """

    before: tuple[Any, ...]
    after: tuple[Any, ...]
    text: bytes
    crc: int
    carry_out: Callable[..., Any]

    def operation(self, number: int) -> Operation:
        """Return the operation of one call."""
        return _new(Operation, (*self.before, number, *self.after))


class Forms:
    """The forms of one group's calls.

    Parameters
    ----------
    comm : PlainCommunicator
    members : str
        As for :meth:`hpcdist.comm.recorder.Recorder.begin`.
    """

    def __init__(self, comm: PlainCommunicator, members: str) -> None:
        self._comm, self._members = comm, members
        self._known: dict[tuple[Any, ...], Form | None] = {}

    def find(
        self, head: tuple[Any, ...], x: Array | None, prepare: Callable[[], Prepared], peers: str | None = None
    ) -> Form | None:
        """Return the form of a call, prepared if it is a new one; None if it is not for this lane.

        To be called by what a communicator's method calls.
        """
        frame = sys._getframe(3)
        while _is_ours(frame.f_code.co_filename) and frame.f_back is not None:
            frame = frame.f_back
        key = (*head, frame.f_code.co_filename, frame.f_lineno, label())
        try:
            return self._known[key]
        except KeyError:
            if len(self._known) >= _MOST_FORMS:
                self._known.clear()
            site = f"{frame.f_code.co_filename}:{frame.f_lineno}{label()}"
            form = self._known[key] = self._describe(head[0], x, site, prepare(), peers)
            return form

    def message(self, x: Array) -> tuple[int, MPI.Datatype] | None:
        """Return what moves the elements of ``x`` in one message, as the ordinary way does; None if nothing does."""
        fits = x.size <= self._comm.max_count and x.dtype.isnative and not x.dtype.hasobject
        return (x.size, carrier(x.itemsize)) if fits else None

    def _describe(self, verb: str, x: Array | None, site: str, prepared: Prepared, peers: str | None) -> Form | None:
        if prepared is None:
            return None
        comm, (terms, carry_out) = self._comm, prepared
        shape, dtype = (None, None) if x is None else (x.shape, x.dtype)
        peers = peers or f"all {comm.size} ranks of the group"
        before, after = (verb, comm.rank, comm.size, comm.name), (shape, dtype, terms, peers, site, True)
        text = words(verb, comm.name, self._members, shape, dtype, peers, site)
        return Form(before, after, text, crc(signature(Operation._make((*before, 0, *after)))), carry_out)


def _is_ours(name: str) -> bool:
    """Say whether a file belongs to this package, and is no call site."""
    known = _ours.get(name)
    if known is None:
        known = _ours[name] = name.startswith(_OURS)
    return known


def is_plain(x: Array) -> bool:
    """Say whether MPI may read and write ``x`` where it is."""
    if type(x) is not np.ndarray:
        return False
    flags = x.flags
    return flags.c_contiguous and flags.writeable


def misfit(status: MPI.Status, out: Array) -> str:
    """Say what was received instead of what fits ``out``."""
    return f"{status.Get_count(MPI.BYTE)} bytes of {out.nbytes} from rank {status.Get_source()}"
