"""The order of an epoch: a permutation that depends on the seed and the epoch, on nothing else."""

from __future__ import annotations

import functools
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hpcdist.errors import explain

__all__ = ["Indices", "check_seed", "epoch_order"]

Indices: TypeAlias = npt.NDArray[np.int64]
"""Sample numbers, one-dimensional."""


@functools.lru_cache(maxsize=2)
def epoch_order(num_samples: int, seed: int, epoch: int) -> Indices:
    """Return a permutation of ``range(num_samples)``, read-only; the last two are kept.

    One Philox word a sample, keyed by (seed, epoch), is sorted: raw words are part of NumPy's promise of
    stability, ``Generator.permutation`` is not, and a checkpoint must find the same order under any later
    NumPy.

    Raises
    ------
    ValueError
        If ``seed`` or ``epoch`` is not a number that fits in 64 bits.
    """
    check_seed(seed)
    check_seed(epoch, "epoch")
    words = np.random.Philox(key=np.array([seed, epoch], np.uint64)).random_raw(num_samples)
    order = np.argsort(words, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


def check_seed(value: int, name: str = "seed") -> None:
    """Object to a number that does not fit in 64 bits.

    Raises
    ------
    ValueError
        Names it.
    """
    if not 0 <= value < 2**64:
        raise ValueError(explain(f"order of samples: {name}", got=value, expected="an integer from 0 to 2^64 - 1"))
