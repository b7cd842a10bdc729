"""The one array-library switch: which library an array belongs to, and how it gets to the host."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "is_array", "is_device", "namespace", "to_host"]

Array: TypeAlias = npt.NDArray[Any]
"""A NumPy array, or a CuPy array, which has the same methods."""
_HOST_KINDS = (1, 3)
"""DLPack's numbers for host memory, page-locked or not."""


def is_device(x: object) -> bool:
    """Say whether ``x`` lives on a GPU: its type has ``__cuda_array_interface__``, or DLPack says so."""
    if isinstance(x, np.ndarray):
        return False
    kind = type(x)
    if hasattr(kind, "__dlpack_device__"):
        return x.__dlpack_device__()[0] not in _HOST_KINDS  # type: ignore[attr-defined]
    return hasattr(kind, "__cuda_array_interface__")


def is_array(x: object) -> bool:
    """Say whether ``x`` is an array, of NumPy or on a GPU, and not one of NumPy's numbers."""
    return isinstance(x, np.ndarray) or is_device(x)


def namespace(*arrays: object) -> ModuleType:
    """Return ``numpy``, or ``cupy`` if the arrays are CuPy's.

    Raises
    ------
    TypeError
        If host and device arrays are mixed: copies between them are never implicit.
    """
    kinds = {is_device(x) for x in arrays if hasattr(x, "__array_interface__") or is_device(x)}
    if kinds == {True, False}:
        raise TypeError("host and device arrays are mixed\n  do       move them to one place first (to_host)")
    return sys.modules["cupy"] if kinds == {True} else np


def to_host(x: Any) -> Array:
    """Return ``x`` as a NumPy array; a device array is copied, a host array is not."""
    return np.asarray(x.get() if is_device(x) else x)
