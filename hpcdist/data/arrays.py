"""Arrays whose first dimension counts samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.data.dataset import Dataset, checked_sample, checked_samples
from hpcdist.errors import explain

__all__ = ["ArrayDataset", "TensorDataset"]


class ArrayDataset(Dataset[Any]):
    """Samples that are rows of arrays, in memory or memory-mapped.

    Given in order, a sample is a tuple of rows; given by name, a dict.

    Parameters
    ----------
    *arrays, **fields : array, shape (n, ...)
        Positional or named, not both; all with the same first extent.

    Raises
    ------
    ValueError
        If there is none, or their first extents differ.
    """

    def __init__(self, *arrays: Array, **fields: Array) -> None:
        if bool(arrays) == bool(fields):
            raise ValueError(explain("ArrayDataset", got="both or none", expected="arrays in order, or arrays by name"))
        given: dict[Any, Any] = dict(fields or enumerate(arrays))
        self.arrays = {name: array if hasattr(array, "shape") else np.asarray(array) for name, array in given.items()}
        self._named = bool(fields)
        shapes = {name: np.shape(array) for name, array in self.arrays.items()}
        if not all(shapes.values()) or len({shape[0] for shape in shapes.values()}) > 1:
            raise ValueError(explain("ArrayDataset: shapes", got=shapes, expected="the same first extent"))
        self._count = next(iter(shapes.values()))[0]

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count

    def __getitem__(self, index: int) -> Any:
        """Return sample ``index``; negative counts from the end."""
        return self._rows(checked_sample("ArrayDataset", index, len(self)))

    def batch(self, indices: npt.ArrayLike) -> Any:
        """Return samples ``indices`` (shape (n,)): copies of shape (n, ...).

        Raises
        ------
        IndexError
            If a sample does not exist.
        """
        return self._rows(checked_samples("ArrayDataset", indices, len(self)))

    def _rows(self, index: Any) -> Any:
        rows = {name: array[index] for name, array in self.arrays.items()}
        return rows if self._named else tuple(rows.values())


TensorDataset = ArrayDataset
"""PyTorch's name."""
