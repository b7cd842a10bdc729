"""One error for all: what fails on one rank is raised on every rank of the group."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hpcdist.comm.communicator import Communicator

__all__ = ["on_every_rank", "on_one_rank", "portable", "raise_first"]

T = TypeVar("T")


def on_one_rank(comm: Communicator, function: Callable[[], T], root: int = 0) -> T:
    """Call ``function`` on the root only; return what it returned, or raise what it raised, on every rank.

    Collective over ``comm``.

    Parameters
    ----------
    function : callable
        What it returns must be picklable; an error that is not is raised as a RuntimeError with its name and message.
    root : int
        A rank of ``comm``.
    """
    value, error = _attempt(function) if comm.rank == root else (None, None)
    value, told = comm.broadcast_object((value, portable(error)), root)
    raise_first(comm.rank, [told if rank == root else None for rank in range(comm.size)], error)
    return value


def on_every_rank(comm: Communicator, function: Callable[[], T]) -> list[T]:
    """Call ``function`` on every rank; return what each returned, in rank order, or raise one error everywhere.

    Collective over ``comm``. The error is that of the lowest rank that has one.
    """
    value, error = _attempt(function)
    told = comm.all_gather_object((value, portable(error)))
    raise_first(comm.rank, [e for _, e in told], error)
    return [v for v, _ in told]


def raise_first(rank: int, errors: list[Exception | None], mine: Exception | None) -> None:
    """Raise the error of the lowest rank that has one, saying which ranks failed if not all did; or do nothing.

    Parameters
    ----------
    rank : int
        This rank, which has the error ``mine``.
    errors : list of exception or None
        What each rank told of its error; see :func:`portable`.
    """
    failed = [place for place, error in enumerate(errors) if error is not None]
    if not failed:
        return
    error: Any = errors[failed[0]]
    own = rank == failed[0] and type(error) is type(mine)
    error = mine if own else error  # of which this rank has the whole traceback
    error.echo = rank != failed[0]  # the rank that failed tells of it
    note = f"on rank {', '.join(map(str, failed))} of {len(errors)}"
    if len(failed) < len(errors) and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    if own:
        raise error
    raise error from mine


def portable(error: Exception | None) -> Exception | None:
    """Return ``error`` in a form that survives pickling."""
    if error is None:
        return None
    try:
        clone = pickle.loads(pickle.dumps(error))
    except Exception:
        clone = None
    if type(clone) is type(error) and str(clone) == str(error):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


def _attempt(function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return function(), None
    except Exception as e:
        return None, e
