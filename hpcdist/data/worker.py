"""A process that fetches batches for one rank. It is no rank, and ends when its rank does, however that happens."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from hpcdist.backends import cpu
from hpcdist.backends.parent import die_with_parent

__all__ = ["Collate", "Failed", "fetch", "portable", "serve"]

Collate = Callable[[list[Any]], Any]


class Failed:
    """Takes the place of a batch that could not be fetched.

    Attributes
    ----------
    error : Exception
        What was raised; carries the worker's traceback as a note.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


def fetch(dataset: Any, collate: Collate | None, indices: Any) -> Any:
    """Return samples ``indices`` as one batch: by the dataset's own ``batch``, or one by one and ``collate``."""
    return dataset.batch(indices) if collate is None else collate([dataset[int(i)] for i in indices])


def serve(connection: Connection, source: bytes, number: int) -> None:
    """Answer every (ticket, indices) that arrives with (ticket, batch), until the rank closes the connection.

    Parameters
    ----------
    connection : Connection
    source : bytes
        A pickled pair of what :func:`fetch` is called with.
    number : int
        Of the worker.
    """
    die_with_parent(signal.SIGKILL)  # the fork server, which ends with the rank
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rank's to act on
    cpu.set_threads(1)
    tasks: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, tasks), daemon=True).start()
    fetched = _opened(source)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the rank has ended, or wants no more
        while True:
            ticket, indices = tasks.get()
            connection.send_bytes(_answer(ticket, partial(fetched, indices), number))


def portable(error: Exception, note: str) -> Exception:
    """Return ``error`` with a note, in a form that survives pickling."""
    try:
        clone = pickle.loads(pickle.dumps(error))
    except Exception:
        clone = None
    if type(clone) is not type(error) or str(clone) != str(error):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error


def _opened(source: bytes) -> Callable[[Any], Any]:
    """Return what fetches samples; if they cannot be opened, what says so in the place of a batch."""
    try:
        return partial(fetch, *pickle.loads(source))
    except Exception as error:
        broken = error

    def fail(_: Any) -> Any:
        raise broken

    return fail


def _answer(ticket: int, compute: Callable[[], Any], number: int) -> bytes:
    try:
        return pickle.dumps((ticket, compute()), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        note = f"in worker {number}:\n{traceback.format_exc()}"
        return pickle.dumps((ticket, Failed(portable(error, note))))


def _receive(connection: Connection, tasks: queue.SimpleQueue[tuple[int, Any]]) -> None:
    """Take tasks off the connection at once, so that the rank never waits for a worker that is busy."""
    try:
        while True:
            tasks.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)  # the rank has ended, or closed the connection; whatever this worker does is for nobody
