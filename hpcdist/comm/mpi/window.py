"""Reductions through memory that the ranks of a node share: faster than most MPIs' own for large arrays.

An array passes through the window in chunks that stay in the processor's cache. Every rank copies its chunk in, says
so by a counter, waits for the others, and adds up what it needs, always in the order of ranks. There are two buffers:
a rank is never more than one chunk ahead, so the chunk before is still being read while the next one is written.
"""

from __future__ import annotations

import mmap
import platform
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcdist.array import Array
from hpcdist.comm.mpi.calls import Calls
from hpcdist.comm.mpi.polling import poll
from hpcdist.errors import DistTimeoutError, explain

__all__ = ["Window", "WindowCalls", "window_bytes"]

SLOT_BYTES = 1 << 18
"""Of a rank's chunk; the chunks of a few ranks fit in the second-level cache."""
_LINE_BYTES = 64
_COMBINE: dict[int, Callable[..., Any]] = {
    operation.handle: combine
    for operation, combine in (
        (MPI.SUM, np.add),
        (MPI.PROD, np.multiply),
        (MPI.MIN, np.minimum),
        (MPI.MAX, np.maximum),
        (MPI.BAND, np.bitwise_and),
        (MPI.BOR, np.bitwise_or),
        (MPI.BXOR, np.bitwise_xor),
        (MPI.LAND, np.logical_and),
        (MPI.LOR, np.logical_or),
        (MPI.LXOR, np.logical_xor),
    )
}


def window_bytes(size: int) -> int:
    """Return how much memory a window of ``size`` ranks needs."""
    return size * (_LINE_BYTES + 2 * SLOT_BYTES)


class Window:
    """The chunks and counters of all ranks of a group on one node.

    Parameters
    ----------
    memory : mmap
        Shared by all ranks, zeros at first.
    rank, size : int
    limit_s : float
        Limit of a wait for one chunk.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int, limit_s: float) -> None:
        words = memoryview(memory)[: size * _LINE_BYTES].cast("Q")
        self._counters, self._stride = words, _LINE_BYTES // 8
        self._slots = np.frombuffer(memory, np.uint8, offset=size * _LINE_BYTES).reshape(2, size, SLOT_BYTES)
        self._rank, self._size, self._limit_s, self._step = rank, size, limit_s, 0

    def all_reduce(self, x: Array, out: Array, combine: Callable[..., Any]) -> None:
        """Combine flat ``x`` of all ranks into ``out``, which may be ``x``. Collective over the group."""
        length = SLOT_BYTES // x.itemsize
        for start in range(0, x.size, length):
            mine = x[start : start + length]
            slots = self._next(x.dtype, mine.size)
            slots[self._rank] = mine
            self._meet()
            _fold(list(slots), out[start : start + length], combine)

    def reduce_scatter(self, x: Array, counts: Sequence[int], out: Array, combine: Callable[..., Any]) -> None:
        """Combine flat ``x`` of all ranks; keep this rank's part in ``out``. Collective over the group."""
        length = SLOT_BYTES // self._size // x.itemsize
        starts = [0, *accumulate(counts)]
        for offset in range(0, max(counts), length):
            slots = self._next(x.dtype, self._size * length).reshape(self._size, self._size, length)
            parts = [x[a + offset : min(a + offset + length, b)] for a, b in pairwise(starts)]
            for rank, part in enumerate(parts):
                if rank != self._rank:
                    slots[self._rank, rank, : part.size] = part
            self._meet()
            mine = parts[self._rank]
            brought = [slots[rank, self._rank, : mine.size] for rank in range(self._size)]
            brought[self._rank] = mine
            _fold(brought, out[offset : offset + mine.size], combine)

    def _next(self, dtype: np.dtype[Any], count: int) -> Array:
        """Return the next chunks of all ranks, (size, count), of which this rank may write its own."""
        self._step += 1
        chunks: Array = self._slots[self._step % 2, :, : count * dtype.itemsize].view(dtype)
        return chunks

    def _meet(self) -> None:
        """Say that this rank's chunk is there; wait for those of the others."""
        counters, stride, step = self._counters, self._stride, self._step
        counters[self._rank * stride] = step
        for other in range(0, self._size * stride, stride):
            if counters[other] < step and not poll(lambda: counters[other] >= step, self._limit_s):  # noqa: B023
                what = f"window of {self._size} ranks, rank {self._rank}: no chunk within {self._limit_s:g} s"
                got = f"rank {other // stride} at chunk {counters[other]} of {step}"
                raise DistTimeoutError(explain(what, got=got))


def _fold(arrays: list[Array], out: Array, combine: Callable[..., Any]) -> None:
    """Combine arrays from left to right."""
    combine(arrays[0], arrays[1], out=out)
    for x in arrays[2:]:
        combine(out, x, out=out)


class WindowCalls(Calls):
    """Blocking calls, of which large reductions go through a window.

    Parameters
    ----------
    handle : MPI.Intracomm
    open_window : callable
        Makes the window when it is first needed; None where there can be none. Collective over the group.
    """

    LEAST_BYTES = 1 << 16
    LEFT_TO_MPI = range(4 << 20, 24 << 20)
    """Bytes for which MPI's own all_reduce is faster: the arrays of all ranks still lie in the last-level cache."""
    MOST_RANKS = 8
    """Every rank reads all chunks: with more ranks an algorithm in steps is better."""

    def __init__(self, handle: MPI.Intracomm, open_window: Callable[[], Window | None]) -> None:
        super().__init__(handle, blocking=True)
        self._open = open_window
        self._window: Window | None = None
        self._may = handle.Get_size() <= self.MOST_RANKS and platform.machine() in ("x86_64", "AMD64")
        """Counters tell of chunks only where stores are seen in order."""
        self._mpi = Calls(handle, blocking=True)
        self.all_reduce, self.reduce_scatter = self._all_reduce, self._reduce_scatter
        self.reduce_scatter_block = self._reduce_scatter_block

    def _fitting(self, num_bytes: int, operation: MPI.Op) -> Window | None:
        """Return the window if it is the better way: a decision that is the same on all ranks."""
        if num_bytes < self.LEAST_BYTES or not self._may or operation.handle not in _COMBINE:
            return None
        if self._window is None:
            self._window = self._open()
            self._may = self._window is not None
        return self._window

    def _all_reduce(self, mine: Any, total: Sequence[Any], operation: MPI.Op) -> None:
        num_bytes = total[0].nbytes
        window = None if num_bytes in self.LEFT_TO_MPI else self._fitting(num_bytes, operation)
        if window is None:
            self._mpi.all_reduce(mine, total, operation)
        else:
            window.all_reduce(total[0] if mine is MPI.IN_PLACE else mine[0], total[0], _COMBINE[operation.handle])

    def _reduce_scatter(self, source: Sequence[Any], mine: Sequence[Any], counts: list[int], operation: MPI.Op) -> None:
        window = self._fitting(source[0].nbytes, operation)
        if window is None:
            self._mpi.reduce_scatter(source, mine, counts, operation)
        else:
            window.reduce_scatter(source[0], counts, mine[0], _COMBINE[operation.handle])

    def _reduce_scatter_block(self, source: Sequence[Any], mine: Sequence[Any], operation: MPI.Op) -> None:
        window = self._fitting(source[0].nbytes, operation)
        if window is None:
            self._mpi.reduce_scatter_block(source, mine, operation)
        else:
            counts = [mine[0].size] * self.handle.Get_size()
            window.reduce_scatter(source[0], counts, mine[0], _COMBINE[operation.handle])
