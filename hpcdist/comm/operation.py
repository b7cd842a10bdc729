"""What a posted verb is, in words: for messages about waits that did not end well."""

from __future__ import annotations

from typing import NamedTuple

from hpcdist.errors import CollectiveMismatchError, DistError, DistTimeoutError, explain

__all__ = ["Operation"]


class Operation(NamedTuple):
    """One call of a verb on one rank.

    Attributes
    ----------
    verb : str
        Name of the verb.
    rank, size, group : int, int, str
        The caller, and the group it called on.
    shape, dtype : tuple of int and dtype, or None
        Of the array it brought.
    peers : str
        Who has to take part for it to end.
    site : str
        Where it was called, ``file:line``.
    """

    verb: str
    rank: int
    size: int
    group: str
    shape: tuple[int, ...] | None
    dtype: object
    peers: str
    site: str

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
        return DistError(explain(f"{self}: failed", got=f"{reason}; called at {self.site}"))

    def mismatched(self, got: str) -> CollectiveMismatchError:
        """Return the error for a message that is not the one expected."""
        return CollectiveMismatchError(
            explain(
                f"{self}: the message does not fit",
                got=f"{got}; called at {self.site}",
                do="send and receive arrays of the same shape and dtype, in the same order on both ranks",
            )
        )
