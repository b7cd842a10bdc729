"""The order of an epoch: permutations and draws that depend on the seed and the epoch, on nothing else."""

from __future__ import annotations

import functools
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hpcdist.errors import explain

__all__ = ["Indices", "check_seed", "epoch_draws", "epoch_order", "epoch_words"]

Indices: TypeAlias = npt.NDArray[np.int64]
"""Sample numbers, one-dimensional."""


@functools.lru_cache(maxsize=2)
def epoch_order(num_samples: int, seed: int, epoch: int, round: int = 0) -> Indices:
    """Return a permutation of ``range(num_samples)``, read-only; the last two are kept.

    One Philox word a sample is sorted: raw words are part of NumPy's promise of stability,
    ``Generator.permutation`` is not, and a checkpoint must find the same order under any later NumPy.

    Raises
    ------
    ValueError
        If ``seed`` or ``epoch`` is not a number that fits in 64 bits.
    """
    order = np.argsort(epoch_words(num_samples, seed, epoch, round), kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


def epoch_words(count: int, seed: int, epoch: int, round: int = 0) -> npt.NDArray[np.uint64]:
    """Return random 64-bit words keyed by (seed, epoch); a round has words of its own."""
    check_seed(seed)
    check_seed(epoch, "epoch")
    bits = np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=np.array([0, 0, round, 0], np.uint64))
    return np.asarray(bits.random_raw(count), np.uint64)


def epoch_draws(count: int, seed: int, epoch: int) -> npt.NDArray[np.float64]:
    """Return random numbers in [0, 1) keyed by (seed, epoch), multiples of 2^-53."""
    return (epoch_words(count, seed, epoch) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def check_seed(value: int, name: str = "seed") -> None:
    """Object to a number that does not fit in 64 bits.

    Raises
    ------
    ValueError
        Names it.
    """
    if not 0 <= value < 2**64:
        raise ValueError(explain(f"order of samples: {name}", got=value, expected="an integer from 0 to 2^64 - 1"))
