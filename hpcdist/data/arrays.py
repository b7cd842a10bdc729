"""Arrays whose first dimension counts samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.errors import explain

__all__ = ["ArrayDataset", "TensorDataset", "checked_samples"]


class ArrayDataset:
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
        self.arrays: dict[Any, Array] = dict(fields or enumerate(arrays))
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
        if not -len(self) <= index < len(self):
            raise IndexError(explain("ArrayDataset: sample", got=index, expected=f"0 to {len(self) - 1}"))
        return self._rows(index)

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


def checked_samples(dataset: str, indices: npt.ArrayLike, count: int) -> npt.NDArray[np.int64]:
    """Return ``indices`` as an array; refuse samples outside ``range(count)``."""
    index = np.asarray(indices, np.int64)
    if index.size and not (index.min() >= 0 and index.max() < count):
        got = f"{index.min()} to {index.max()}"
        raise IndexError(explain(f"{dataset}: sample", got=got, expected=f"0 to {count - 1}"))
    return index
