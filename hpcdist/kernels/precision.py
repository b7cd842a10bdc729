"""In which precision a generic kernel computes."""

from __future__ import annotations

import numpy as np

from hpcdist.array import Array

__all__ = ["add_up", "wide"]


def wide(x: Array) -> Array:
    """Return ``x``, as float32 if it is float16 or bfloat16: sums in those would lose most digits."""
    narrow = x.dtype.itemsize == 2 and x.dtype.kind in "fV"
    return x.astype(np.float32) if narrow else x


def add_up(x: Array, axis: tuple[int, ...], *, keepdims: bool = False) -> Array:
    """Return the sum of ``x`` along ``axis``, in its dtype (small integers and bool: in that of NumPy's sums)."""
    total: Array = wide(x).sum(axis=axis, keepdims=keepdims)
    return total if x.dtype.kind in "biu" else total.astype(x.dtype, copy=False)
