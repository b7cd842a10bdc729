"""Arrays as MPI wants them: on the host, contiguous, in native byte order; and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.array import Array, is_device, namespace, to_host

__all__ = ["front", "like", "pack", "receives_directly"]


def pack(x: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """Return ``x`` as a C-ordered host array of ``dtype`` (default: its own); ``x`` itself where it is one already."""
    wanted = x.dtype if dtype is None else dtype
    return np.asarray(to_host(x), dtype=wanted.newbyteorder("="), order="C")


def front(x: Array, dim: int, dtype: np.dtype[Any] | None = None) -> Array:
    """Return ``x`` packed with ``dim`` moved to the front, so that the parts of ranks are contiguous."""
    return pack(namespace(x).moveaxis(x, dim, 0), dtype)


def like(x: Array, packed: Array, dim: int = 0) -> Array:
    """Return ``packed`` (dtype of ``x``, front dimension moved back to ``dim``) C-ordered where ``x`` lives."""
    result = np.asarray(np.moveaxis(packed, 0, dim) if dim else packed, dtype=x.dtype.newbyteorder("="), order="C")
    return result if not is_device(x) else namespace(x).asarray(result)


def receives_directly(out: Array, dtype: np.dtype[Any]) -> bool:
    """Say whether MPI may write elements of ``dtype`` straight into ``out``."""
    return not is_device(out) and out.flags.c_contiguous and out.flags.writeable and out.dtype == dtype
