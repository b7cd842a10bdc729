"""Memory on a device, as MPI and copies take it: a pointer and a number of elements without a meaning."""

from __future__ import annotations

from typing import Any

from hpcdist.backends import cuda

__all__ = ["Memory"]


class Memory:
    """Contiguous elements on a device.

    Parameters
    ----------
    owner : array
        CuPy's; keeps the memory alive.
    pointer : int
        The first element.
    size, itemsize : int
        Number of elements, and bytes of each.
    """

    __slots__ = ("itemsize", "owner", "pointer", "size")

    def __init__(self, owner: Any, pointer: int, size: int, itemsize: int) -> None:
        self.owner, self.pointer, self.size, self.itemsize = owner, pointer, size, itemsize

    @classmethod
    def of(cls, x: Any) -> Memory:
        """Return the memory of a contiguous CuPy array."""
        return cls(x, x.data.ptr, x.size, x.itemsize)

    @property
    def device(self) -> int:
        """Number of the device."""
        return int(self.owner.device.id)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """What MPI asks for; whoever hands the memory to MPI has waited for the work on it."""
        data = (self.pointer, False)
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": data, "strides": None, "stream": None, "version": 3}

    def __getitem__(self, part: slice) -> Memory:
        start, stop, _ = part.indices(self.size)
        return Memory(self.owner, self.pointer + start * self.itemsize, max(stop - start, 0), self.itemsize)

    def __setitem__(self, part: slice, value: Memory) -> None:
        cuda.copy_within(self.device, self[part].pointer, value.pointer, value.nbytes)
