"""Token ids from an HDF5 file. Imported only when such a file is opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcdist.array import Array
from hpcdist.data.mapped import extremes
from hpcdist.errors import explain

__all__ = ["opened", "read_tokens"]


def read_tokens(path: Path, name: str) -> tuple[Array, int]:
    """Return the ids of dataset ``name`` (1-D, integer) and the size of their vocabulary.

    The vocabulary is the dataset's attribute ``vocab_size``, else the largest id + 1. A plain (contiguous)
    dataset is memory-mapped; a chunked or compressed one is read into memory.

    Raises
    ------
    OSError
        If the file cannot be opened as HDF5.
    ValueError
        If there is no such dataset, it is empty, not integer, not 1-D, or holds ids outside the vocabulary.
    """
    with opened(path) as file:
        dataset = _dataset(file, path, name)
        tokens = _mapped(file, dataset, path)
        stated = dataset.attrs.get("vocab_size")
    low, high = extremes(tokens)
    vocab_size = high + 1 if stated is None else _integer(stated, path)
    if low < 0 or high >= vocab_size:
        raise ValueError(
            explain(
                "training data: token ids outside the vocabulary",
                got=f"{low} to {high} in {path}:{name}",
                expected=f"0 to {vocab_size - 1}",
                do="write the right vocab_size as an attribute of the dataset" if low >= 0 else None,
            )
        )
    return tokens, vocab_size


def opened(path: Path) -> Any:
    """Open a file to read, without locks.

    Raises
    ------
    OSError
        If it cannot be read, or is no whole HDF5 file.
    """
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if error.errno:
            raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error
        do = "convert it: nccopy -k nc4 OLD NEW" if _is_netcdf3(path) else "copy it again: it may be cut off"
        raise OSError(explain("training data: no whole HDF5 file", got=f"{path}: {error}", do=do)) from error


def _is_netcdf3(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(3) == b"CDF"


def _dataset(file: Any, path: Path, name: str) -> Any:
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise ValueError(
            explain(
                "training data: no such dataset",
                got=f"{name!r} in {path}",
                expected=f"one of {', '.join(_candidates(file)) or '(the file has no 1-D integer dataset)'}",
                do=f"name it: {path}:NAME",
            )
        )
    if found.dtype.kind not in "iu" or found.ndim != 1 or found.size == 0:
        raise ValueError(
            explain(
                "training data: not token ids",
                got=f"{found.dtype} of shape {found.shape} in {path}:{name}",
                expected="integers, 1-D, at least one",
            )
        )
    return found


def _candidates(file: Any) -> list[str]:
    names: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.ndim == 1 and item.dtype.kind in "iu":
            names.append(name)

    file.visititems(visit)
    return names[:20]


def _mapped(file: Any, dataset: Any, path: Path) -> Array:
    offset = dataset.id.get_offset()
    if offset is None or file.userblock_size or dataset.external or dataset.is_virtual:
        whole: Array = dataset[()]
        return whole
    return np.memmap(path, dataset.dtype, mode="r", offset=offset, shape=dataset.shape)


def _integer(value: Any, path: Path) -> int:
    number = np.asarray(value)
    if number.dtype.kind not in "iu" or number.size != 1 or int(number.item()) < 1:
        raise ValueError(
            explain("training data: attribute vocab_size", got=f"{value!r} in {path}", expected="one integer >= 1")
        )
    return int(number.item())
