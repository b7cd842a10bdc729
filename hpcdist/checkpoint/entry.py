"""One value of a checkpoint: how it becomes an array, and what the manifest says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import xxhash

from hpcdist.array import Array, is_device
from hpcdist.errors import explain

__all__ = ["Entry", "State", "Value", "as_value", "raw_bytes", "stored"]

Value: TypeAlias = Array | int | float | str | bool
State: TypeAlias = Mapping[str, Value]

_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_NUMBERS = _INTEGERS | {"bool", "float16", "float32", "float64", "bfloat16", "complex64", "complex128"}
_SCALARS = (bool, int, float, str)


@dataclass(frozen=True)
class Entry:
    """What the manifest records of one value.

    Attributes
    ----------
    kind : str
        ``array``, or the Python type ``int``, ``float``, ``str`` or ``bool`` of a scalar.
    shape : tuple of int
    dtype : str
        NumPy's name; ``>f4`` and the like for foreign byte order; ``S12`` for 12 bytes of UTF-8.
    checksum : str
        XXH3-64 of the bytes in C order, 16 hexadecimal digits.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    checksum: str

    @classmethod
    def of(cls, value: Value, array: Array, checksum: str) -> Entry:
        """Describe ``value``, which is stored as ``array``."""
        scalars = [] if hasattr(value, "dtype") else [t.__name__ for t in _SCALARS if isinstance(value, t)]
        dtype = array.dtype.name if array.dtype.isnative and array.dtype.kind != "S" else array.dtype.str.lstrip("|")
        return cls(scalars[0] if scalars else "array", array.shape, dtype, checksum)

    def to_json(self) -> dict[str, Any]:
        """Return a form for JSON."""
        return {"kind": self.kind, "shape": list(self.shape), "dtype": self.dtype, "xxh3_64": self.checksum}

    @classmethod
    def from_json(cls, fields: Any) -> Entry:
        """Undo :meth:`to_json`.

        Raises
        ------
        ValueError, TypeError, KeyError
            If ``fields`` is nothing that it returns.
        """
        entry = cls(fields["kind"], tuple(map(int, fields["shape"])), fields["dtype"], str(fields["xxh3_64"]))
        if entry.kind not in ("array", *(kind.__name__ for kind in _SCALARS)):
            raise ValueError(f"kind {entry.kind!r}")
        entry.numpy_dtype()
        return entry

    def numpy_dtype(self) -> np.dtype[Any]:
        """Return the dtype of the stored array."""
        return _bfloat16() if self.dtype == "bfloat16" else np.dtype(self.dtype)

    def fits(self, array: Array) -> bool:
        """Say whether ``array`` has the recorded bytes."""
        return xxhash.xxh3_64_hexdigest(raw_bytes(array)) == self.checksum


def stored(name: str, value: Value) -> Array:
    """Return ``value`` as an array; one that is an array already is returned as it is, on host or device.

    Raises
    ------
    TypeError
        If it is of no kind or dtype that a checkpoint holds.
    ValueError
        If it is an integer beyond 64 bits, or a text with a NUL.
    """
    if isinstance(value, np.ndarray | np.generic) or is_device(value):
        array = cast("Array", value if is_device(value) else np.asarray(value))
        if array.dtype.newbyteorder("=").name in _NUMBERS:
            return array
        raise TypeError(explain(f"checkpoint: dtype of {name!r}", got=array.dtype, expected=" ".join(sorted(_NUMBERS))))
    if isinstance(value, bool | float):
        return np.asarray(value)
    if isinstance(value, int):
        return _integer(name, value)
    if isinstance(value, str):
        return _text(name, value)
    raise TypeError(
        explain(
            f"checkpoint: value of {name!r}",
            got=type(value).__name__,
            expected="an array, int, float, str or bool",
            do="nest by names with '/', and write other objects as text (JSON)",
        )
    )


def as_value(entry: Entry, array: Array) -> Value:
    """Undo :func:`stored`: scalars get their Python type back."""
    if entry.kind == "array":
        return array
    scalar = array.item()
    return scalar.decode() if entry.kind == "str" else scalar


def raw_bytes(array: Array) -> memoryview:
    """Return the bytes of a C-ordered array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def _integer(name: str, value: int) -> Array:
    if -(2**63) <= value < 2**64:
        return np.asarray(value, np.int64 if value < 2**63 else np.uint64)
    raise ValueError(
        explain(f"checkpoint: {name!r}", got=value, expected="an integer of 64 bits", do="save it as text")
    )


def _text(name: str, value: str) -> Array:
    if "\0" in value:
        raise ValueError(explain(f"checkpoint: text of {name!r}", got="a NUL character", expected="text without it"))
    data = value.encode()
    return np.asarray(data, f"S{max(1, len(data))}")


def _bfloat16() -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)
