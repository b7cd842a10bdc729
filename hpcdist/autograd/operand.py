"""What goes into an operation: tensors, arrays, numbers; and the way in by name."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hpcdist.array import is_device
from hpcdist.autograd.op import OPS

__all__ = ["Operand", "binary", "call", "flat", "operand", "plain_index", "product", "wrapped"]

Operand: TypeAlias = Any
"""A tensor, an array or a number."""


def call(name: str, *inputs: Any, **attrs: Any) -> Any:
    """Run the operation called ``name``."""
    from hpcdist.autograd.tape import apply

    return apply(OPS[name], *inputs, **attrs)


def binary(name: str, a: Operand, b: Operand) -> Any:
    """Run an operation on two operands, of which at least one is tensor-like; numbers take the dtype of the other."""
    return call(name, operand(a, b), operand(b, a))


def product(a: Operand, b: Operand) -> Any:
    """Return the matrix product; a vector counts as a row at the left, as a column at the right."""
    a, b = operand(a, b), operand(b, a)
    rows, columns = a.ndim == 1, b.ndim == 1
    value = call("matmul", a.unsqueeze(0) if rows else a, b.unsqueeze(1) if columns else b)
    if not rows and not columns:
        return value
    shape = value.shape
    return value.reshape((*shape[:-2], *shape[-2:-1] * (not rows), *shape[-1:] * (not columns)))


_NUMBERS = (bool, int, float, complex, np.generic)


def wrapped(x: Operand, dtype: npt.DTypeLike | None = None) -> Any:
    """Return ``x``, as a tensor if it is an array or a number."""
    from hpcdist.autograd.tensor import Tensor

    if hasattr(type(x), "requires_grad"):
        return x
    return Tensor(x if is_device(x) else np.asarray(x, dtype))


def operand(x: Operand, other: Operand) -> Any:
    """Return ``x`` as one of two operands, of which at least one is tensor-like.

    Integers and bool next to floating-point values take their dtype: float32 stays float32.
    """
    if not hasattr(type(x), "requires_grad"):
        x = wrapped(x, _weak(x, other.dtype))
    elif isinstance(other, _NUMBERS) and (dtype := _weak(other, x.dtype)) != x.dtype:
        return x.to(dtype)
    if x.dtype.kind in "biu" and hasattr(other, "dtype") and other.dtype.kind in "fcV":
        return x.to(other.dtype)
    return x


def _weak(x: Operand, other: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the dtype of an operand: a number takes the other's, unless that cannot hold its kind; None: its own."""
    if not isinstance(x, _NUMBERS):
        return None
    if isinstance(x, (complex, np.complexfloating)) and other.kind != "c":
        return np.result_type(other, np.complex64)
    if isinstance(x, (float, np.floating)) and other.kind in "biu":
        return np.dtype(np.float32)
    if isinstance(x, (int, np.integer)) and not isinstance(x, bool) and other.kind == "b":
        return np.dtype(np.int64)
    return other


def plain_index(index: Any) -> Any:
    """Return an index, or the array of a tensor that is one; ranks must hold the whole of a distributed one."""
    if hasattr(type(index), "layout"):
        return index.numpy()
    if isinstance(index, bool):
        return np.asarray(index)  # which does not equal 1
    return index.data if hasattr(type(index), "requires_grad") else index


def flat(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Return integers that were passed one by one or as a sequence."""
    return (
        tuple(arguments[0])
        if len(arguments) == 1 and not isinstance(arguments[0], (int, np.integer))
        else tuple(arguments)
    )
