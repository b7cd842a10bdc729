"""What a posted verb is: for messages, for the flight recorder, and for the comparison between ranks."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcdist.comm.arguments import Terms
from hpcdist.comm.label import label
from hpcdist.errors import CollectiveMismatchError, DistBackendError, DistError, DistTimeoutError, explain

__all__ = ["Operation", "call_site", "describe", "disagreement", "fingerprint", "signature"]

_HERE = str(Path(__file__).parent)


def call_site() -> str:
    """Return "file:line" of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}{label()}"


class Operation(NamedTuple):
    """One call of a verb on one rank.

    Attributes
    ----------
    verb : str
        Name of the verb.
    rank, size, group : int, int, str
        The caller, and the group it called on.
    number : int
        How many collectives, or messages, the rank had posted on this group before.
    shape, dtype : tuple of int and dtype, or None
        Of the array it brought.
    terms : tuple
        What has to be equal on all ranks, besides the verb.
    peers : str
        Who has to take part for it to end.
    site : str
        Where it was called, ``file:line``.
    blocking : bool
        Whether the blocking form of the verb was called, where that makes a difference.
    """

    verb: str
    rank: int
    size: int
    group: str
    number: int
    shape: tuple[int, ...] | None
    dtype: np.dtype[Any] | None
    terms: Terms
    peers: str
    site: str
    blocking: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of the array it brought."""
        return 0 if self.shape is None or self.dtype is None else math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        of = "" if self.shape is None else f" of {self.dtype} {self.shape}"
        return f"{self.verb}{of} on rank {self.rank} of {self.size} of group {self.group!r}"

    def timed_out(self, limit_s: float) -> DistTimeoutError:
        """Return the error for a wait that ended after ``limit_s`` seconds."""
        return DistTimeoutError(
            explain(
                f"{self}: not done within {limit_s:g} s",
                got=f"called at {self.site}",
                expected=f"{self.peers} to take part",
                do="find out what those ranks do, or allow more time (timeout_s)",
            )
        )

    def failed(self, reason: str) -> DistError:
        """Return the error for an operation that the transport gave up."""
        return DistBackendError(explain(f"{self}: failed", got=f"{reason}; called at {self.site}"))

    def mismatched(self, got: str) -> CollectiveMismatchError:
        """Return the error for a message that is not the one expected."""
        return CollectiveMismatchError(
            explain(
                f"{self}: the message does not fit",
                got=f"{got}; called at {self.site}",
                do="send and receive arrays of the same shape and dtype, in the same order on both ranks",
            )
        )


@functools.lru_cache(maxsize=4096)
def _words(verb: str, terms: Terms) -> str:
    """Return verb and terms as text, the same on ranks of any byte order."""
    native = [term.newbyteorder("=") if isinstance(term, np.dtype) else term for term in terms]
    return f"{verb}({', '.join(map(str, native))})"


def fingerprint(operation: Operation) -> str:
    """Return what must be equal on all ranks: verb, shape, dtype, op, root ... as far as they matter."""
    return _words(operation.verb, operation.terms)


def signature(operation: Operation) -> str:
    """Return the fingerprint, with the verb's name as it was called: ``i`` in front of the form that does not block."""
    return fingerprint(operation) if operation.blocking else f"i{fingerprint(operation)}"


def describe(operation: Operation) -> str:
    """Return who called what, and where, as a row of a table."""
    o = operation
    return f"rank {o.rank}: {signature(o)}, call {o.number} of group {o.group!r}, at {o.site}"


def disagreement(rows: Iterable[str]) -> str:
    """Return the message that ranks called what does not fit together, with a table of what each called."""
    do = "call the same collectives with the same arguments in the same order on every rank"
    return explain("collective: ranks disagree", got=("\n" + " " * 11).join(rows), do=do)
