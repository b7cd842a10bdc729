"""The samples of an epoch in an order: all, some, or drawn. Random ones depend on the seed and the epoch only."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized

import numpy as np
import numpy.typing as npt

from hpcdist.data.order import Indices, check_seed, epoch_draws, epoch_order
from hpcdist.errors import explain

__all__ = [
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
    "check_state",
    "count_samples",
]


class Sampler(ABC):
    """Base of samplers: the order of an epoch, and a place in it.

    An epoch that was iterated to its end is followed by the next; one that was left goes on where it was left.

    Attributes
    ----------
    seed, epoch : int
        What the order depends on.
    """

    def __init__(self, seed: int = 0) -> None:
        check_seed(seed)
        self.seed, self.epoch = seed, 0
        self._position = 0

    @abstractmethod
    def indices(self) -> Indices:
        """Return the samples of the epoch, in order."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples of an epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the order; a new epoch starts at its beginning."""
        if epoch != self.epoch:
            self.epoch, self._position = epoch, 0

    def __iter__(self) -> Iterator[int]:
        """Yield the samples that the epoch has left, and go on to the next epoch."""
        order = self.indices()
        for position in range(self._position, len(order)):
            self._position = position + 1
            yield int(order[position])
        self.epoch, self._position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the epoch, how many of its samples have been yielded, and what its order depends on."""
        return {"epoch": self.epoch, "position": self._position, **self._order()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where ``state`` was taken.

        Raises
        ------
        ValueError
            If it is of other samples or another seed, or the position lies beyond the epoch.
        """
        check_state(type(self).__name__, state, self._order())
        self.epoch, self._position = state["epoch"], state["position"]

    def _order(self) -> dict[str, int]:
        return {"num_samples": len(self), "seed": self.seed}


class SequentialSampler(Sampler):
    """Every sample once: 0, 1, 2, ...

    Parameters
    ----------
    data_source : sized or int
        The dataset, of which only the length is used, or the number of samples.
    """

    def __init__(self, data_source: Sized | int) -> None:
        super().__init__()
        self._count = count_samples("SequentialSampler", data_source)

    def indices(self) -> Indices:
        """Return 0, 1, 2, ..."""
        return np.arange(self._count)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._count


class RandomSampler(Sampler):
    """Samples in random order: every one once, or drawn independently.

    Parameters
    ----------
    data_source : sized or int
        The dataset, of which only the length is used, or the number of samples.
    replacement : bool
        True: every draw is among all samples.
    num_samples : int, optional
        Draws an epoch; default: as many as samples. Without replacement, more than these are permutations in a row.
    seed : int
        Of the orders.

    Raises
    ------
    ValueError
        If there are draws but no samples.
    """

    def __init__(
        self, data_source: Sized | int, replacement: bool = False, num_samples: int | None = None, *, seed: int = 0
    ) -> None:
        super().__init__(seed)
        self._count, self.replacement = count_samples("RandomSampler", data_source), replacement
        self.num_samples = self._count if num_samples is None else num_samples
        _check_draws("RandomSampler", self.num_samples, self._count, unlimited=True)

    def indices(self) -> Indices:
        """Return the draws of the epoch."""
        if self.replacement:
            return (epoch_draws(self.num_samples, self.seed, self.epoch) * self._count).astype(np.int64)
        rounds = range(-(-self.num_samples // max(self._count, 1)))
        orders = [epoch_order(self._count, self.seed, self.epoch, i) for i in rounds]
        return np.concatenate([*orders, np.empty(0, np.int64)])[: self.num_samples]

    def __len__(self) -> int:
        """Return the number of draws."""
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The given samples, every one once, in random order.

    Parameters
    ----------
    indices : sequence of int
        What to draw from.
    seed : int
        Of the orders.
    """

    def __init__(self, indices: Sequence[int] | Indices, *, seed: int = 0) -> None:
        super().__init__(seed)
        self.subset = np.asarray(indices, np.int64).reshape(-1)

    def indices(self) -> Indices:
        """Return the samples in the order of the epoch."""
        return self.subset[epoch_order(len(self.subset), self.seed, self.epoch)]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.subset)


class WeightedRandomSampler(Sampler):
    """Draws in which sample i is as likely as its weight says.

    Parameters
    ----------
    weights : sequence of float, shape (n,)
        At least 0, not all 0; they need not add up to one.
    num_samples : int
        Draws an epoch.
    replacement : bool
        False: no sample is drawn twice (Efraimidis and Spirakis 2006: the largest of ``log(u) / weight``).
    seed : int
        Of the draws.

    Raises
    ------
    ValueError
        If weights make no sense, or fewer than ``num_samples`` of them are above 0 without replacement.
    """

    def __init__(self, weights: npt.ArrayLike, num_samples: int, replacement: bool = True, *, seed: int = 0) -> None:
        super().__init__(seed)
        self.weights = np.asarray(weights, np.float64)
        self.num_samples, self.replacement = num_samples, replacement
        w = self.weights
        if w.ndim != 1 or not np.isfinite(w).all() or (w < 0).any():
            text = "finite numbers >= 0, 1-D"
            raise ValueError(explain("WeightedRandomSampler: weights", got=f"{w.dtype} {w.shape}", expected=text))
        _check_draws("WeightedRandomSampler", num_samples, int((w > 0).sum()), unlimited=replacement)

    def indices(self) -> Indices:
        """Return the draws of the epoch."""
        if not self.replacement:
            return self._distinct()
        edges = np.cumsum(self.weights)
        draws = epoch_draws(self.num_samples, self.seed, self.epoch) * (edges[-1] if len(edges) else 0)
        # rounding may put a draw on the last edge
        last = len(edges) - 1 - int(np.argmax(self.weights[::-1] > 0)) if len(edges) else 0
        return np.minimum(np.searchsorted(edges, draws, side="right"), last).astype(np.int64)

    def _distinct(self) -> Indices:
        possible = np.flatnonzero(self.weights)
        draws = 1 - epoch_draws(len(possible), self.seed, self.epoch)  # in (0, 1]
        keys = -np.log(draws) / self.weights[possible]
        return possible[np.argsort(keys, kind="stable")[: self.num_samples]]

    def __len__(self) -> int:
        """Return the number of draws."""
        return self.num_samples


def check_state(sampler: str, state: Mapping[str, int], order: Mapping[str, int]) -> None:
    """Object to a state that was saved with another order, or whose position no epoch has."""
    saved = {name: state.get(name, value) for name, value in order.items()}
    do = "load it with the dataset and the options that saved it"
    if saved != order:
        raise ValueError(explain(f"{sampler}: state", got=saved, expected=order, do=do))
    position, length = state["position"], order["num_samples"]
    if not 0 <= position <= length:
        what, expected = f"{sampler}: position in the epoch", f"at most {length}, its number of samples"
        raise ValueError(explain(what, got=position, expected=expected, do=do))


def count_samples(sampler: str, data_source: Sized | int) -> int:
    """Return the length of a dataset, or the number itself."""
    try:
        count = len(data_source) if isinstance(data_source, Sized) else operator.index(data_source)
    except TypeError:
        got, expected = type(data_source).__name__, "a dataset with len(), or an integer"
        raise TypeError(explain(f"{sampler}: number of samples", got=got, expected=expected)) from None
    if count < 0:
        raise ValueError(explain(f"{sampler}: number of samples", got=count, expected="at least 0"))
    return count


def _check_draws(sampler: str, draws: int, available: int, *, unlimited: bool) -> None:
    if draws < 0 or (draws and not available) or (draws > available and not unlimited):
        expected = f"at least 0, at most {available}, those there are" if available == 0 or not unlimited else ">= 0"
        raise ValueError(explain(f"{sampler}: num_samples", got=draws, expected=expected))
