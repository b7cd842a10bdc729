"""Samples that are rows of HDF5 datasets. h5py is imported when a file is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.data.dataset import Dataset, checked_sample, checked_samples
from hpcdist.errors import explain

__all__ = ["HDF5Dataset"]


class HDF5Dataset(Dataset[dict[str, Any]]):
    """Samples are dicts of rows of several datasets of a file; only what a batch needs is read.

    The file is opened by each process that reads, when it first does, without locks. It must not grow meanwhile. That
    it can be opened is checked here, on this rank only: where ranks go on to communicate, open it in a block of
    ``comm.agreed()``, and what fails on one fails on all.

    Parameters
    ----------
    path : path
        An HDF5 file.
    fields : str, sequence of str, or mapping of str to str
        Datasets in it, under their own names (``group/name``); or key to dataset. Numeric, shape (n, ...), the same n;
        read in this machine's byte order.

    Raises
    ------
    OSError
        If the file cannot be opened as HDF5.
    ValueError
        If there is no such dataset, it is not numeric or has no dimension, or their numbers of rows differ.
    """

    def __init__(self, path: str | os.PathLike[str], fields: str | Sequence[str] | Mapping[str, str]) -> None:
        self.path = Path(path)
        names = [fields] if isinstance(fields, str) else fields
        self.fields = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
        self._file: Any = None
        self._count = self._checked_count()

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return sample ``index``; negative counts from the end."""
        rows = self.batch([checked_sample(type(self).__name__, index, len(self))])
        return {key: row[0] for key, row in rows.items()}

    def batch(self, indices: npt.ArrayLike) -> dict[str, Array]:
        """Return samples ``indices`` (shape (n,), any order, repeats too): arrays of shape (n, ...) by field.

        Raises
        ------
        IndexError
            If a sample does not exist.
        """
        index = checked_samples(type(self).__name__, indices, len(self))
        return {key: self._rows(self._dataset(name), index) for key, name in self.fields.items()}

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}  # a process opens its own

    # ---- what a kind of file decides
    def _length(self, dataset: Any) -> int:
        """Return the number of samples that ``dataset`` has."""
        return int(dataset.shape[0])

    def _rows(self, dataset: Any, index: npt.NDArray[np.int64]) -> Array:
        """Return rows ``index`` of ``dataset``."""
        return read_rows(dataset, index)

    def _agreed_count(self, counts: dict[str, int]) -> int:
        """Return the number of samples of all fields."""
        if len(set(counts.values())) != 1:
            what = f"{type(self).__name__}: rows of fields of {self.path}"
            raise ValueError(explain(what, got=counts or "no field", expected="the same number"))
        return next(iter(counts.values()))

    # ---- the file
    def _checked_count(self) -> int:
        try:
            return self._agreed_count({name: self._length(self._dataset(name)) for name in self.fields.values()})
        finally:
            self.close()

    def _dataset(self, name: str) -> Any:
        if self._file is None:
            from hpcdist.data.hdf5 import opened

            self._file = opened(self.path)
        found = self._file.get(name)
        if not _is_field(found):
            what, got = f"{type(self).__name__}: field", f"{name!r} in {self.path}: {found or 'no such dataset'}"
            expected = "a numeric dataset with a first dimension"
            raise ValueError(explain(what, got=got, expected=expected, do=f"choose of {_fields(self._file)}"))
        return found


def read_rows(dataset: Any, index: npt.NDArray[np.int64]) -> Array:
    """Return rows ``index``, in any order and with repeats: HDF5 reads them once each, in ascending order."""
    native = dataset.dtype.newbyteorder("=")
    rows, places = np.unique(index, return_inverse=True)
    if len(rows) == 0:
        return np.empty((0, *dataset.shape[1:]), native)
    whole_run = rows[-1] - rows[0] + 1 == len(rows)
    read: Array = dataset[rows[0] : rows[-1] + 1] if whole_run else dataset[rows]
    return read[places].astype(native, copy=False)


def _is_field(item: Any) -> bool:
    is_dataset = hasattr(item, "dtype") and hasattr(item, "ndim")
    return is_dataset and item.dtype.kind in "biufc" and item.ndim > 0


def _fields(file: Any) -> str:
    """Return the names of datasets that can be fields, for people."""
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if _is_field(item) else None)
    return ", ".join(names[:20]) or "another file: this one has none"
