"""Token ids in plain files, memory-mapped: NumPy's ``.npy``, or nothing but ids of a dtype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.errors import explain

__all__ = ["extremes", "is_npy", "map_npy", "map_raw", "token_dtype", "vocabulary"]

_BLOCK = 1 << 24
_NPY = b"\x93NUMPY"


def is_npy(path: Path) -> bool:
    """Say whether a file is one that NumPy wrote."""
    with path.open("rb") as file:
        return file.read(len(_NPY)) == _NPY


def map_npy(path: Path) -> tuple[Array, int]:
    """Return the ids in a ``.npy`` file and the size of their vocabulary, the largest id + 1.

    Raises
    ------
    ValueError
        If they are no integers, not 1-D, none, or below 0, or the file is damaged.
    """
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(explain("training data: a damaged .npy file", got=f"{path}: {error}")) from error
    return tokens, vocabulary(tokens, path)


def map_raw(path: Path, dtype: np.dtype[Any]) -> tuple[Array, int]:
    """Return the ids of ``dtype`` that a file consists of and the size of their vocabulary, the largest id + 1.

    Raises
    ------
    ValueError
        If the file's size is no multiple of an id's, or it holds none, or ids below 0.
    """
    size = path.stat().st_size
    if size % dtype.itemsize or not size:
        expected = f"a multiple of {dtype.itemsize} bytes, at least one id of {dtype}"
        raise ValueError(explain(f"training data: size of {path}", got=f"{size} bytes", expected=expected))
    tokens: Array = np.memmap(path, dtype, mode="r")
    return tokens, vocabulary(tokens, path)


def token_dtype(name: str) -> np.dtype[Any] | None:
    """Return the integer dtype called ``name`` (``uint16``, ``<u2``); None if there is none."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        return None
    return dtype if dtype.kind in "iu" else None


def vocabulary(tokens: Array, source: object) -> int:
    """Return the largest id + 1; refuse what is no stream of ids."""
    if tokens.dtype.kind not in "iu" or tokens.ndim != 1 or tokens.size == 0:
        got, expected = f"{tokens.dtype} of shape {tokens.shape} in {source}", "integers, 1-D, at least one"
        raise ValueError(explain("training data: not token ids", got=got, expected=expected))
    low, high = extremes(tokens)
    if low < 0:
        raise ValueError(
            explain("training data: token ids", got=f"{low} to {high} in {source}", expected="none below 0")
        )
    return high + 1


def extremes(tokens: Array) -> tuple[int, int]:
    """Return the least and the largest id, block by block, since a mapped file may exceed the memory."""
    blocks = [tokens[i : i + _BLOCK] for i in range(0, len(tokens), _BLOCK)]
    return min(int(block.min()) for block in blocks), max(int(block.max()) for block in blocks)
