"""The door to h5py: lays out a file of whole arrays, and reads them back.

Files are written with format v110, which HDF5 1.10 reads; every dataset is contiguous, so that its bytes can
be written and read at an offset. Locking is off: one writer a file, and a rename at the end, keep readers
away from half a file, while flock is missing on some parallel file systems.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

from hpcdist.array import Array

__all__ = ["Reader", "lay_out"]


def lay_out(path: Path, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Create ``path`` with a dataset for every array, and return at which offset the bytes of each belong.

    The values are not written. An array of size zero has no bytes and no offset.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    try:
        with _created(path) as file:
            offsets = {name: _add(file, name, array) for name, array in arrays.items()}
    except (OSError, RuntimeError, ValueError) as error:
        raise _cause(error) from error
    return {name: offset for name, offset in offsets.items() if offset is not None}


class Reader:
    """Read arrays of one file. A context manager.

    Raises
    ------
    OSError
        If the file cannot be opened as HDF5.
    """

    def __init__(self, path: Path) -> None:
        self._file = h5py.File(path, "r", locking=False)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return dataset ``name`` as a new array.

        Raises
        ------
        KeyError
            If there is no such dataset.
        ValueError
            If it has another shape.
        """
        dataset = self._file[name]
        if dataset.shape != shape:
            raise ValueError(f"shape {dataset.shape} instead of {shape}")
        out = np.empty(shape, dtype)
        if out.size:
            dataset.id.read(h5s.ALL, h5s.ALL, out.view("u2") if dtype.name == "bfloat16" else out, _type(dtype))
        return out


def _created(path: Path) -> h5py.File:
    return h5py.File(
        path,
        "w",
        libver=("v110", "v110"),
        track_order=True,
        locking=False,
        alignment_threshold=65536,
        alignment_interval=4096,
    )


def _cause(error: Exception) -> OSError:
    """Return the error of the operating system that HDF5 tells of, under whatever class h5py raised it."""
    number = re.search(r"errno = (\d+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))


def _add(file: h5py.File, name: str, array: Array) -> int | None:
    """Create a dataset like ``array`` with its space allocated, and return where that begins."""
    parts = name.split("/")
    for i in range(1, len(parts)):
        group = "/".join(parts[:i])
        if group not in file:
            file.create_group(group, track_order=True)
    space = h5s.create_simple(array.shape) if array.shape else h5s.create(h5s.SCALAR)
    dataset = h5d.create(file.id, name.encode(), _type(array.dtype), space, _allocated(), _unicode())
    offset: int | None = dataset.get_offset()
    return offset if array.size else None


def _allocated() -> Any:
    """Return dataset creation properties: contiguous, all space at once, no time spent on filling it."""
    properties = h5p.create(h5p.DATASET_CREATE)
    properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5d.FILL_TIME_NEVER)
    return properties


def _unicode() -> Any:
    """Return link creation properties: the name is UTF-8."""
    properties = h5p.create(h5p.LINK_CREATE)
    properties.set_char_encoding(h5t.CSET_UTF8)
    return properties


def _type(dtype: np.dtype[Any]) -> Any:
    """Return the HDF5 type of ``dtype``."""
    if dtype.name == "bfloat16":
        return _bfloat16()
    if dtype.kind != "S":
        return h5t.py_create(dtype, logical=True)
    text = h5t.C_S1.copy()
    text.set_size(dtype.itemsize)
    text.set_strpad(h5t.STR_NULLPAD)
    text.set_cset(h5t.CSET_UTF8)
    return text


def _bfloat16() -> Any:
    """Return a floating type of 16 bits with bfloat16's fields: tools that never heard of it print numbers."""
    wide = h5t.IEEE_F32LE.copy()
    wide.set_fields(15, 7, 8, 0, 7)
    wide.set_precision(16)
    wide.set_size(2)
    wide.set_ebias(127)
    return wide
