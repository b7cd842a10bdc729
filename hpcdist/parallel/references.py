"""What the graph keeps in place of whole parameters, and of views of them, such as transposes and slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcdist.array import Array

__all__ = ["Reference", "References"]


class Reference(NamedTuple):
    """A whole parameter, or a view of it.

    Attributes
    ----------
    place : int
        Which one.
    start : int
        The first element, of those of the whole in a row.
    shape, strides : tuple of int, optional
        Of a view, strides in bytes; None: the whole.
    """

    place: int
    start: int = 0
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None

    def of(self, whole: Sequence[Array]) -> Array:
        """Return what is referred to."""
        array = whole[self.place]
        if self.shape is None:
            return array
        return np.lib.stride_tricks.as_strided(array.reshape(-1)[self.start :], self.shape, self.strides)


class References:
    """Finds out what of whole parameters an array is.

    Parameters
    ----------
    whole : sequence of array
        They live as long as this does.
    needed : function
        Called for each reference that is handed out.
    """

    def __init__(self, whole: Sequence[Array], needed: Callable[[], None]) -> None:
        self._whole, self._needed = whole, needed
        self._place = {id(array): i for i, array in enumerate(whole)}

    def pack(self, value: Array) -> Any:
        """Return a Reference, or NotImplemented."""
        place = self._place.get(id(value))
        found = None if place is None else Reference(place)
        if found is None and getattr(value, "base", None) is not None:
            found = self._view(value)
        if found is None:
            return NotImplemented
        self._needed()
        return found

    def _view(self, value: Array) -> Reference | None:
        place = self._place.get(id(value.base))
        if place is None or not isinstance(value, np.ndarray) or not value.size:
            return None
        whole = self._whole[place]
        offset = value.ctypes.data - whole.ctypes.data
        if value.dtype != whole.dtype or offset % whole.itemsize or not whole.flags.c_contiguous:
            return None
        return Reference(place, offset // whole.itemsize, value.shape, value.strides)
