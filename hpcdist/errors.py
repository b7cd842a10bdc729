"""What can go wrong: every class a caller may want to catch, and the one form of their messages."""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "CollectiveMismatchError",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "DistTimeoutError",
    "HpcdistError",
    "LaunchError",
    "QueueEmptyError",
    "explain",
]


class HpcdistError(Exception):
    """Base of hpcdist's own errors; wrong arguments are ``ValueError`` or ``TypeError``."""


class DistError(HpcdistError, RuntimeError):
    """A distributed operation failed."""


class DistBackendError(DistError):
    """What carries the messages (MPI) gave an operation up, or is not the one that was asked for."""


class DistNetworkError(DistError):
    """Another rank, or the way to it, is gone."""


class DistStoreError(DistError):
    """A store of keys and values could not do what it was asked."""


class QueueEmptyError(DistStoreError):
    """A queue of a store has nothing to give."""


class DistTimeoutError(DistError, TimeoutError):
    """A wait for other ranks ran past its limit."""


class CollectiveMismatchError(DistError):
    """Ranks called different collectives, or the same one with arguments that do not fit together."""


class CheckpointError(HpcdistError):
    """A checkpoint could not be written, or is not whole."""


class LaunchError(HpcdistError):
    """A job could not be started as asked."""


def explain(what: str, *, got: object = None, expected: object = None, do: str | None = None) -> str:
    """Compose a message: what went wrong, what was got, what was expected, what to do about it.

    Parameters
    ----------
    what : str
        One clause; the function or argument it concerns comes first.
    got, expected : object, optional
        Shown with ``str``; left out if None.
    do : str, optional
        The remedy, as an imperative clause.
    """
    parts = (("got", got), ("expected", expected), ("do", do))
    return "\n".join([what, *(f"  {label:<9}{value}" for label, value in parts if value is not None)])
