"""Device arrays by way of the host: pinned buffers that are used again, and pieces, so that copy and transfer overlap.

While one piece travels the next one is copied from the device, and the one before it to the device. How a message is
cut depends only on what all ranks know alike, so all ranks post the same calls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import numpy as np
from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.backends import cuda
from hpcdist.comm.mpi import chunks
from hpcdist.comm.mpi.calls import Calls
from hpcdist.comm.mpi.chunks import Posted, pieces
from hpcdist.comm.mpi.dtypes import Reduction
from hpcdist.comm.mpi.memory import Memory

__all__ = ["PIECE_BYTES", "POOL", "Pool", "Staging"]

PIECE_BYTES = 4 << 20
"""Bytes of a piece: long beside the time it takes to begin a copy. The same on all ranks."""
_LEAST_BYTES = 4 << 10
_KEPT_BYTES = 256 << 20
_IN_FLIGHT = 2
"""Pieces on their way to the device before a blocking verb uses their buffers again."""


class Pool:
    """Pinned buffers nobody uses at the moment, by size: pinning memory takes longer than filling it.

    Parameters
    ----------
    kept_bytes : int
        Most that it keeps.
    """

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._free: dict[int, list[Array]] = {}
        self._kept_bytes, self._limit_bytes = 0, kept_bytes
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> Array:
        """Return bytes, at least ``num_bytes`` of them: a power of two."""
        size = max(_LEAST_BYTES, 1 << (num_bytes - 1).bit_length())
        with self._lock:
            if self._free.get(size):
                self._kept_bytes -= size
                return self._free[size].pop()
        return cuda.pinned(size)

    def give(self, buffer: Array) -> None:
        """Take back what :meth:`take` returned."""
        with self._lock:
            if self._kept_bytes + buffer.nbytes <= self._limit_bytes:
                self._kept_bytes += buffer.nbytes
                self._free.setdefault(buffer.nbytes, []).append(buffer)


POOL = Pool()


class Staging:
    """The way of one verb through the host.

    Attributes
    ----------
    held : list of array
        Buffers in use, which MPI may read and write until :meth:`end`.
    """

    def __init__(self) -> None:
        self.held: list[Array] = []
        self._stores: dict[int, Callable[[], None]] = {}
        self._num_requests = 0
        self._stored: deque[tuple[Array, cuda.Event]] = deque()

    # ---- the calls of hpcdist.comm.mpi.chunks, for memory on a device
    def all_reduce(self, calls: Calls, source: Memory, total: Memory, how: Reduction, limit: int) -> Posted:
        """Post the reduction of ``source`` into ``total``. Collective over the group of ``calls``."""

        def call(host: Array) -> Posted:
            return [calls.all_reduce(MPI.IN_PLACE, [host.view(how.dtype), how.datatype], how.operation)]

        return self._pipe(source, call, limit, into=total)

    def reduce(
        self, calls: Calls, source: Memory, total: Memory | None, root: int, how: Reduction, limit: int
    ) -> Posted:
        """Post the reduction of ``source`` into the root's ``total``. Collective over the group of ``calls``."""
        here = calls.rank == root

        def call(host: Array) -> Posted:
            values = [host.view(how.dtype), how.datatype]
            return [calls.reduce(MPI.IN_PLACE if here else values, values if here else None, how.operation, root)]

        return self._pipe(source, call, limit, into=total)

    def reduce_scatter(
        self, calls: Calls, source: Memory, mine: Memory, counts: Sequence[int], how: Reduction, limit: int
    ) -> Posted:
        """Post the reduction of ``source``, of which each rank gets its slice. Collective over the group of ``calls``.

        In one piece, as a piece of the result is made of pieces of all slices.
        """
        buffer = self._take(mine.nbytes)
        part = _typed(buffer, mine).view(how.dtype)
        _, host = next(self._loaded(source, iter([slice(None)])))
        whole = _typed(host, source).view(how.dtype)
        return self._follow(chunks.reduce_scatter(calls, whole, part, counts, how, limit), buffer, [(part, mine)])

    def all_gather(self, calls: Calls, mine: Memory, whole: Memory, counts: Sequence[int], limit: int) -> Posted:
        """Post the gathering of every rank's ``mine`` into ``whole``. Collective over the group of ``calls``."""
        ends = list(accumulate(counts))
        parts = [whole[end - count : end] for end, count in zip(ends, counts, strict=True)]
        width = max(1, self._piece(mine, limit) // len(counts))
        posted: Posted = []
        for piece, buffer in self._loaded(mine, pieces(max(counts), width)):
            targets = [part[piece] for part in parts]
            sizes = [target.size for target in targets]
            joined = self._take(sum(target.nbytes for target in targets))
            everyone = _typed(joined, whole[: sum(sizes)])
            requests = chunks.all_gather(calls, _typed(buffer, mine[piece]), everyone, sizes, limit)
            copies = zip(np.split(everyone, list(accumulate(sizes))[:-1]), targets, strict=True)
            posted += self._follow(requests, joined, list(copies))
        return posted

    def broadcast(self, calls: Calls, x: Memory, root: int, limit: int) -> Posted:
        """Post the broadcast of the root's ``x`` into everyone's. Collective over the group of ``calls``."""
        here = calls.rank == root

        def call(host: Array) -> Posted:
            return chunks.broadcast(calls, host, root, limit)

        return self._pipe(x, call, limit, load=here, into=None if here else x)

    def send(self, comm: MPI.Intracomm, x: Memory, dest: int, tag: int, limit: int) -> Posted:
        """Post the sending of ``x``. Point to point."""
        return self._pipe(x, lambda host: [*chunks.send(comm, host, dest, tag, limit)], limit)

    def recv(self, comm: MPI.Intracomm, x: Memory, source: int, tag: int, limit: int) -> Posted:
        """Post the receiving of ``x``. Point to point."""
        return self._pipe(x, lambda host: [*chunks.recv(comm, host, source, tag, limit)], limit, load=False, into=x)

    # ---- between the calls
    def arrived(self, position: int) -> None:
        """Begin to copy to the device what the request at ``position`` brought."""
        store = self._stores.pop(position, None)
        if store is not None:
            store()

    def end(self) -> None:
        """Wait for copies to the device; give the buffers back."""
        for _, event in self._stored:
            event.synchronize()
        self._stored.clear()
        for buffer in self.held:
            POOL.give(buffer)
        self.held.clear()

    @staticmethod
    def _piece(x: Memory, limit: int) -> int:
        """Return the elements of a piece, of which MPI can take ``limit``."""
        return min(limit, max(1, PIECE_BYTES // x.itemsize))

    def _pipe(
        self, x: Memory, call: Callable[[Array], Posted], limit: int, *, load: bool = True, into: Memory | None = None
    ) -> Posted:
        """Call MPI for each piece of ``x``, which is copied from there before, and to ``into`` afterwards."""
        posted: Posted = []
        for piece, buffer in self._loaded(x, pieces(x.size, self._piece(x, limit)), load=load):
            host = _typed(buffer, x[piece])
            posted += self._follow(call(host), buffer, [] if into is None else [(host, into[piece])])
        return posted

    def _loaded(self, x: Memory, parts: Iterator[slice], *, load: bool = True) -> Iterator[tuple[slice, Array]]:
        """Yield parts of ``x`` and pinned buffers that hold them; the next one is being copied meanwhile."""
        coming = self._begin(x, next(parts), load)
        for following in (*parts, None):
            part, buffer, event = coming
            if following is not None:
                coming = self._begin(x, following, load)
            if event is not None:
                event.synchronize()
            yield part, buffer

    def _begin(self, x: Memory, part: slice, load: bool) -> tuple[slice, Array, cuda.Event | None]:
        source = x[part]
        buffer = self._take(source.nbytes)
        host = buffer[: source.nbytes]
        return part, buffer, cuda.copy_to_host(source.device, source.pointer, host) if load else None

    def _follow(self, posted: Posted, buffer: Array, copies: list[tuple[Array, Memory]]) -> Posted:
        """See to it that ``buffer`` is copied to the device when the calls ``posted`` are done; blocking ones are."""

        def store() -> None:
            for host, target in copies:
                event = cuda.copy_to_device(target.device, target.pointer, host)
            self._stored.append((buffer, event))

        self._num_requests += len(posted)
        if copies and all(request is None for request in posted):
            store()
        elif copies:
            self._stores[self._num_requests - 1] = store
        return posted

    def _take(self, num_bytes: int) -> Array:
        """Return a buffer: one whose copy to the device is long under way, else one from the pool."""
        if len(self._stored) >= _IN_FLIGHT and self._stored[0][0].nbytes >= num_bytes:
            buffer, event = self._stored.popleft()
            event.synchronize()
            return buffer
        buffer = POOL.take(num_bytes)
        self.held.append(buffer)
        return buffer


def _typed(buffer: Array, memory: Memory) -> Array:
    """Return the start of ``buffer`` as elements like those of ``memory``."""
    elements: Array = buffer[: memory.nbytes].view(np.dtype((np.void, memory.itemsize)))
    return elements
