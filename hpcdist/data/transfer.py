"""The way of a dataset into workers: pickled once, memory-mapped arrays as the place of their bytes in a file."""

from __future__ import annotations

import io
import mmap
import pickle
from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.errors import explain

__all__ = ["packed"]


def packed(source: tuple[Any, Any]) -> bytes:
    """Return a dataset and a collate_fn in a form that ``pickle.loads`` reads.

    Raises
    ------
    TypeError
        If one cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(source)
    except Exception as error:
        got, expected = f"{type(error).__name__}: {error}", "a dataset and a collate_fn that can be pickled"
        do = "define their class and functions at the top of a module, or use num_workers=0"
        raise TypeError(explain("DataLoader: num_workers", got=got, expected=expected, do=do)) from error
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Let workers map a file that is mapped here: pickle would send all its bytes to each of them."""
        if type(value) is not np.memmap or not _is_run_of_file(value):
            return NotImplemented
        mode = "r+" if value.flags.writeable else "r"
        return np.memmap, (value.filename, value.dtype, mode, _offset(value), value.shape)


def _is_run_of_file(array: Any) -> bool:
    in_file = array._mmap is not None and array.filename is not None and array.mode != "c"
    return bool(in_file and array.size and array.flags.c_contiguous)


def _offset(array: Any) -> int:
    """Return where in the file the first element lies; a slice keeps the ``offset`` of what it was cut from."""
    mapped: Array = np.frombuffer(array._mmap, np.uint8)
    within = array.ctypes.data - mapped.ctypes.data
    return int(within + array.offset - array.offset % mmap.ALLOCATIONGRANULARITY)
