"""Reusable memory behind ``empty``: the contract of CuPy's pool, for NumPy arrays.

``empty`` hands out an array on a pooled block, and the block comes back when the last view of it dies (reference
count): nobody frees by hand, and a steady training step touches no fresh page. Blocks are kept by size, last in,
first out: hot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array, is_device, namespace

__all__ = ["POOL", "Pool", "allocator", "empty", "pooled"]

SMALL_BYTES = 32 << 10
"""Below this malloc is as good."""


class _Block:
    """Owner of one pooled piece of memory for as long as an array looks at it."""

    __slots__ = ("__array_interface__", "memory", "shelf")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], memory: Array, shelf: list[Array]) -> None:
        self.__array_interface__ = {
            "data": (memory.ctypes.data, False),
            "shape": shape,
            "typestr": dtype.str,
            "version": 3,
        }
        self.memory, self.shelf = memory, shelf

    def __del__(self) -> None:
        self.shelf.append(self.memory)


class Pool:
    """Blocks that are out of use, by size."""

    def __init__(self) -> None:
        self.shelves: dict[int, list[Array]] = {}
        self.held_bytes = 0

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
        """Return an uninitialised, contiguous host array."""
        dtype = np.dtype(dtype)
        num_bytes = dtype.itemsize
        for n in shape:
            num_bytes *= n
        if num_bytes < SMALL_BYTES or dtype.kind == "V":  # ml_dtypes have no type string
            return np.empty(shape, dtype)
        size = _round_up(num_bytes)
        shelf = self.shelves.setdefault(size, [])
        try:
            memory = shelf.pop()
        except IndexError:
            memory = np.empty(size, np.uint8)
            self.held_bytes += size
        return np.asarray(_Block(shape, dtype, memory, shelf))

    def release(self) -> None:
        """Give the blocks that are out of use back to the system."""
        for size, shelf in self.shelves.items():
            self.held_bytes -= size * len(shelf)
            shelf.clear()


def _round_up(num_bytes: int) -> int:
    """Next multiple of an eighth of the power of two below: at most 12.5 % is wasted."""
    step = max(1 << (num_bytes.bit_length() - 4), 4096)
    return -(-num_bytes // step) * step


POOL = Pool()


def allocator(like: Array | None) -> Callable[..., Array]:
    """Return the function ``(shape, dtype) -> array`` that makes uninitialised arrays where ``like`` lives."""
    return namespace(like).empty if is_device(like) else POOL.empty


def empty(shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32, like: Array | None = None) -> Array:
    """Return an uninitialised, contiguous array where ``like`` lives (default: the host)."""
    return allocator(like)(shape, dtype)


def pooled(ufunc: Any, *operands: Any) -> Array:
    """Return ``ufunc(*operands)`` for arrays and numbers, a large result in memory of the pool.

    A result whose operands lie in another order is left to the library, which keeps that order.
    """
    arrays = [a for a in operands if isinstance(a, np.ndarray)]
    if not any([a.nbytes >= SMALL_BYTES and a.flags.c_contiguous and a.dtype.kind in "bcfiu" for a in arrays]):
        result: Array = ufunc(*operands)
        return result
    dtypes = [a.dtype if hasattr(a, "dtype") else type(a) for a in operands]
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    filled: Array = ufunc(*operands, out=POOL.empty(shape, ufunc.resolve_dtypes((*dtypes, None))[-1]))
    return filled
