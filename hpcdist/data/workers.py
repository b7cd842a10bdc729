"""The worker processes of a rank, as the rank sees them.

They are forked by a server process (``multiprocessing``'s forkserver), which was started by fork and exec: neither it
nor they have ever seen MPI. Where the interconnect forbids a fork after MPI's start (some do, see the MPI's manual),
call :func:`start_server` before :func:`hpcdist.init`; else the server starts with the first loader that needs it.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import signal
import weakref
from collections import deque
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

from hpcdist.backends.parent import WORKER
from hpcdist.data.order import Indices
from hpcdist.data.transfer import packed
from hpcdist.data.worker import Collate, Failed, serve
from hpcdist.errors import explain

__all__ = ["Workers", "start_server"]

_AHEAD = 2
"""Tasks a worker: one that it works on, and one to go on with."""


def start_server() -> None:
    """Start the process that workers are forked from, unless it runs; to be called before MPI starts."""
    multiprocessing.forkserver.set_forkserver_preload(["hpcdist.data.worker"])  # not the job's own file
    multiprocessing.forkserver.ensure_running()


class Workers:
    """Processes that fetch batches; they start at once, and end with :meth:`close`, this object or this process.

    Parameters
    ----------
    source : tuple of dataset and collate
        As :func:`hpcdist.data.worker.fetch` takes them; pickled, a memory-mapped array as its place in a file.
    count : int
        Processes, at least one.
    timeout_s : float
        Longest wait for one batch, seconds.

    Raises
    ------
    TypeError
        If the dataset cannot be pickled.
    """

    def __init__(self, source: tuple[Any, Collate | None], count: int, timeout_s: float) -> None:
        pickled = packed(source)
        self._timeout_s, self._ticket = timeout_s, 0
        start_server()
        started = [_start(pickled, number) for number in range(count)]
        self._processes = [process for process, _ in started]
        self._connections = [ours for _, ours in started]
        self.close = weakref.finalize(self, _end, self._processes, self._connections)

    def map(self, batches: Iterator[Indices]) -> Iterator[Any]:
        """Yield the batches of ``batches``, in order; the workers are at most two batches each ahead.

        Raises
        ------
        Exception
            What a worker raised, in the place of its batch, with the worker's traceback as a note.
        RuntimeError
            If a worker has ended, or :meth:`close` was called.
        TimeoutError
            If a batch does not come within the limit.
        """
        if not self.close.alive:
            raise RuntimeError(explain("DataLoader: its workers have ended", got="close()", do="make a new one"))
        asked: deque[int] = deque()
        for indices in batches:
            asked.append(self._ask(indices))
            if len(asked) == _AHEAD * len(self._processes):
                yield self._take(asked.popleft())
        while asked:
            yield self._take(asked.popleft())

    def _ask(self, indices: Indices) -> int:
        self._ticket += 1
        worker = self._ticket % len(self._processes)
        try:
            self._connections[worker].send((self._ticket, indices))
        except OSError:
            raise self._ended(worker) from None
        return self._ticket

    def _take(self, ticket: int) -> Any:
        worker = ticket % len(self._processes)
        answer = self._receive(worker)
        while answer[0] != ticket:  # of an iteration that was left
            answer = self._receive(worker)
        if isinstance(answer[1], Failed):
            raise answer[1].error
        return answer[1]

    def _receive(self, worker: int) -> Any:
        ours, process = self._connections[worker], self._processes[worker]
        ready = connection.wait([ours, process.sentinel], self._timeout_s)
        if not ready:
            do = "look at the storage the data comes from, or raise timeout_s"
            got = f"nothing from worker {worker} after {self._timeout_s} s"
            raise TimeoutError(explain("DataLoader: no batch", got=got, do=do))
        try:
            return ours.recv()
        except (EOFError, OSError):
            raise self._ended(worker) from None

    def _ended(self, worker: int) -> RuntimeError:
        process = self._processes[worker]
        process.join(1)
        got, code = f"exit code {process.exitcode}", process.exitcode or 0
        do = "see what it wrote to the standard error stream; a file of a job must not start it when it is imported"
        if code < 0:
            got, do = signal.Signals(-code).name, "see what sent it; SIGKILL mostly means that the memory is full"
        return RuntimeError(explain(f"DataLoader: worker {worker} has ended", got=got, do=do))


def _start(source: bytes, number: int) -> tuple[Any, Any]:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, source, number), name=f"{WORKER}-{number}", daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _end(processes: list[Any], connections: list[Any]) -> None:
    for ours in connections:
        ours.close()
    for process in processes:
        process.kill()  # a connection that a thread waits on is not seen to be closed
    for process in processes:
        process.join(5)
        if process.exitcode is not None:  # not even a kill ends a wait for a lost file system
            process.close()
