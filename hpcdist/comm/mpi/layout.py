"""Arrays as MPI wants them: contiguous, in native byte order, where they live; and back."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.comm.mpi.memory import Memory

__all__ = ["empty", "flat", "front", "like", "overlap", "pack", "raw", "receives_directly"]


def pack(x: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """Return ``x`` as a C-ordered array of ``dtype`` (default: its own); ``x`` itself where it is one already."""
    wanted = x.dtype if dtype is None else dtype
    return _library(x).asarray(x, dtype=wanted.newbyteorder("="), order="C")


def front(x: Array, dim: int, dtype: np.dtype[Any] | None = None) -> Array:
    """Return ``x`` packed with ``dim`` moved to the front, so that the parts of ranks are contiguous."""
    return pack(_library(x).moveaxis(x, dim, 0) if dim else x, dtype)


def like(x: Array, packed: Array, dim: int = 0) -> Array:
    """Return ``packed`` C-ordered, in the dtype of ``x``, its front dimension moved back to ``dim``."""
    library = _library(packed)
    moved = library.moveaxis(packed, 0, dim) if dim else packed
    return library.asarray(moved, dtype=x.dtype.newbyteorder("="), order="C")


def empty(shape: Sequence[int], packed: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """Return new memory of ``shape`` where ``packed`` lives, of its dtype or ``dtype``."""
    return _library(packed).empty(tuple(shape), packed.dtype if dtype is None else dtype)


def receives_directly(out: Array, dtype: np.dtype[Any]) -> bool:
    """Say whether MPI may write elements of ``dtype`` straight into ``out``."""
    return out.flags.c_contiguous and out.dtype == dtype and (not isinstance(out, np.ndarray) or out.flags.writeable)


def overlap(a: Array, b: Array) -> bool:
    """Say whether two arrays in one place may have memory in common."""
    return bool(_library(a).may_share_memory(a, b))


def flat(x: Array) -> Array:
    """Return contiguous ``x`` as MPI takes its elements in a row; no copy."""
    return x.reshape(-1) if isinstance(x, np.ndarray) else cast("Array", Memory.of(x))


def raw(x: Array) -> Array:
    """Return contiguous ``x`` as flat elements without a meaning, which a carrier moves; no copy."""
    return x.reshape(-1).view(f"V{x.itemsize}") if isinstance(x, np.ndarray) else cast("Array", Memory.of(x))


def _library(x: Array) -> ModuleType:
    return np if isinstance(x, np.ndarray) else namespace(x)
