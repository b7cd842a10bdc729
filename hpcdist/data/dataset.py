"""Datasets, and those made of others: parts, rows of them, and random divisions."""

from __future__ import annotations

import bisect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hpcdist.data.collate import default_collate
from hpcdist.data.order import Indices, epoch_order
from hpcdist.errors import explain

__all__ = [
    "Batched",
    "ConcatDataset",
    "Dataset",
    "Subset",
    "batch_of",
    "checked_sample",
    "checked_samples",
    "random_split",
]

T_co = TypeVar("T_co", covariant=True)


class Batched(Protocol[T_co]):
    """What has samples that are read many at once."""

    def batch(self, indices: Indices, /) -> T_co:
        """Return the samples ``indices`` as one batch."""


class Dataset(ABC, Generic[T_co]):
    """Base of datasets whose samples have numbers; any object with ``__getitem__`` will do as well.

    One that has a method ``batch(indices)``, too, is asked for whole batches by it.
    """

    @abstractmethod
    def __getitem__(self, index: int) -> T_co:
        """Return sample ``index``."""


class Subset(Dataset[Any]):
    """Some samples of a dataset, in an order.

    Parameters
    ----------
    dataset : sized, with ``__getitem__`` or ``batch``
    indices : sequence of int
        Their numbers there; repeats are allowed.

    Raises
    ------
    IndexError
        If a sample does not exist.
    """

    def __init__(self, dataset: Any, indices: Sequence[int] | Indices) -> None:
        self.dataset = dataset
        self.indices = checked_samples("Subset", indices, len(dataset))

    def __len__(self) -> int:
        """Return the number of samples chosen."""
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        """Return sample ``index`` of those chosen; negative counts from the end."""
        return self.dataset[int(self.indices[checked_sample("Subset", index, len(self))])]

    def batch(self, indices: npt.ArrayLike) -> Any:
        """Return samples ``indices`` (shape (n,)) of those chosen as one batch."""
        return batch_of(self.dataset, self.indices[checked_samples("Subset", indices, len(self))])


class ConcatDataset(Dataset[Any]):
    """Datasets one after the other, as one.

    Parameters
    ----------
    datasets : sequence of sized, each with ``__getitem__``
        At least one.
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError(explain("ConcatDataset", got="no dataset", expected="at least one"))
        self.cumulative_sizes = list(itertools.accumulate(map(len, self.datasets)))

    def __len__(self) -> int:
        """Return the number of samples of all."""
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        """Return sample ``index``; negative counts from the end."""
        index = checked_sample("ConcatDataset", index, len(self))
        part = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[part][index - self._start(part)]

    def batch(self, indices: npt.ArrayLike) -> Any:
        """Return samples ``indices`` (shape (n,)) as one batch; at once if they are of one dataset."""
        index = checked_samples("ConcatDataset", indices, len(self))
        parts = np.unique(np.searchsorted(self.cumulative_sizes, index, side="right"))
        if len(parts) > 1:
            return default_collate([self[int(i)] for i in index])
        part = int(parts[0]) if len(parts) else 0
        return batch_of(self.datasets[part], index - self._start(part))

    def _start(self, part: int) -> int:
        return self.cumulative_sizes[part - 1] if part else 0


def random_split(dataset: Any, lengths: Sequence[float], *, seed: int = 0) -> list[Subset]:
    """Divide a dataset at random; every sample goes to one part.

    Parameters
    ----------
    dataset : sized
    lengths : sequence of int, or of float
        Samples a part, which add up to all; or their shares, which add up to 1: rounded down, and what is left goes to
        the first parts, one sample each.
    seed : int
        The same on every rank.

    Raises
    ------
    ValueError
        If they do not add up.
    """
    count = len(dataset)
    sizes = _sizes(lengths, count)
    if min(sizes, default=0) < 0 or sum(sizes) != count:
        expected = f"numbers that add up to {count}, or shares that add up to 1"
        raise ValueError(explain("random_split: lengths", got=list(lengths), expected=expected))
    ends = list(itertools.accumulate(sizes, initial=0))
    order = epoch_order(count, seed, 0)
    return [Subset(dataset, order[start:end]) for start, end in itertools.pairwise(ends)]


def batch_of(dataset: Any, indices: Indices) -> Any:
    """Return samples ``indices`` as one batch: by the dataset's own ``batch``, or one by one."""
    if hasattr(dataset, "batch"):
        return dataset.batch(indices)
    return default_collate([dataset[int(i)] for i in indices])


def checked_sample(dataset: str, index: int, count: int) -> int:
    """Return ``index``, counted from the start; refuse samples outside ``range(-count, count)``."""
    if not -count <= index < count:
        raise IndexError(explain(f"{dataset}: sample", got=index, expected=f"0 to {count - 1}"))
    return index % count


def checked_samples(dataset: str, indices: npt.ArrayLike, count: int) -> Indices:
    """Return ``indices`` as an array; refuse samples outside ``range(count)``."""
    index = np.asarray(indices)
    if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
        got, expected = f"{index.dtype} of shape {index.shape}", "integers, 1-D"
        raise TypeError(explain(f"{dataset}: numbers of samples", got=got, expected=expected))
    if index.size and not (index.min() >= 0 and index.max() < count):
        got = f"{index.min()} to {index.max()}"
        raise IndexError(explain(f"{dataset}: sample", got=got, expected=f"0 to {count - 1}"))
    return index.astype(np.int64)


def _sizes(lengths: Sequence[float], count: int) -> list[int]:
    if all(isinstance(length, Integral) for length in lengths):
        return [int(length) for length in lengths]
    if not math.isclose(sum(lengths), 1) or min(lengths) < 0:
        return [-1]
    sizes = [int(count * share) for share in lengths]
    left = count - sum(sizes)
    return [size + left // len(sizes) + (i < left % len(sizes)) for i, size in enumerate(sizes)]
