"""Token sequences of one length, cut from a stream without overlap."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcdist.array import Array
from hpcdist.data.dataset import Dataset, checked_sample, checked_samples
from hpcdist.errors import explain

__all__ = ["Windows"]


class Windows(Dataset[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]):
    """See a stream of tokens as a dataset of inputs and targets.

    Sample i is ``tokens[i * seq : i * seq + seq]`` and, as targets, the same moved on by one: every token but
    the first is a target once, except the fewer than ``seq`` at the end that fill no window.

    Parameters
    ----------
    tokens : integer array, shape (n,)
        May be memory-mapped; only what a batch needs is read.
    seq : int
        Tokens a window, at most n - 1.

    Raises
    ------
    ValueError
        If not one window fits.
    """

    def __init__(self, tokens: Array, seq: int) -> None:
        if seq < 1:
            raise ValueError(explain("Windows: sequence length", got=seq, expected="at least 1"))
        if len(tokens) < seq + 1:
            raise ValueError(
                explain(
                    "Windows: the sequence is longer than the data",
                    got=f"{len(tokens)} tokens",
                    expected=f"at least {seq + 1}: a window of {seq} and the token after it",
                    do="choose a shorter sequence, or more data",
                )
            )
        self.tokens, self.seq = tokens, seq

    def __len__(self) -> int:
        """Return the number of windows."""
        return (len(self.tokens) - 1) // self.seq

    def __getitem__(self, index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return input and target of sample ``index``: two int64 arrays, shape (seq,); negative counts from the end."""
        inputs, targets = self.batch([checked_sample("Windows", index, len(self))])
        return inputs[0], targets[0]

    def batch(self, indices: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return inputs and targets of samples ``indices`` (shape (n,)): two int64 arrays, shape (n, seq).

        Raises
        ------
        IndexError
            If a sample does not exist.
        """
        index = checked_samples("Windows", indices, len(self))
        rows = np.asarray(self.tokens[index[:, None] * self.seq + np.arange(self.seq + 1)], np.int64)
        return rows[:, :-1], rows[:, 1:]
