"""How values of several ranks become one, element by element, on one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.errors import explain

__all__ = ["accumulator", "check_reduction", "divide", "fold"]

BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)


def is_half(dtype: np.dtype[Any]) -> bool:
    """Say whether ``dtype`` is float16 or ml_dtypes' bfloat16 (whose kind NumPy reports as void)."""
    return dtype == np.float16 or dtype.name == "bfloat16"


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that values of ``dtype`` are combined in: float32 for 16-bit floats, else the same."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def check_reduction(op: ReduceOp, dtype: np.dtype[Any]) -> None:
    """Refuse a reduction that has no meaning.

    Raises
    ------
    TypeError
        If ``dtype`` is not numeric.
    ValueError
        For the mean of integers or booleans, for the maximum or minimum of complex numbers, and for bitwise
        combinations of anything but integers and booleans.
    """
    if dtype.kind not in "biufc" and not is_half(dtype):
        raise TypeError(explain("reduction: dtype", got=dtype, expected="a numeric dtype"))
    if op is ReduceOp.AVG and dtype.kind in "biu":
        do = "reduce with ReduceOp.SUM and divide, or convert to a floating dtype first"
        raise ValueError(explain("reduction: avg", got=dtype, expected="a floating or complex dtype", do=do))
    if op in (ReduceOp.MIN, ReduceOp.MAX) and dtype.kind == "c":
        raise ValueError(explain(f"reduction: {op.value} of complex numbers", got=dtype, expected="an ordered dtype"))
    if op in BITWISE and dtype.kind not in "biu":
        raise ValueError(explain(f"reduction: {op.value}", got=dtype, expected="an integer dtype or bool"))


def divide(total: Array, size: int) -> None:
    """Divide a sum over ``size`` ranks in place, rounded once."""
    # complex / complex is not rounded correctly
    for part in (total.real, total.imag) if total.dtype.kind == "c" else (total,):
        part /= size


def fold(arrays: Sequence[Array], op: ReduceOp) -> Array:
    """Combine equally shaped ``arrays`` from left to right; return a new array of their dtype.

    float16 and bfloat16 are combined in float32; for bool, sum and max are "or", product and min are "and".
    """
    xp, dtype = namespace(*arrays), arrays[0].dtype
    combine: dict[ReduceOp, Callable[..., Array]] = {
        ReduceOp.SUM: xp.add,
        ReduceOp.AVG: xp.add,
        ReduceOp.PRODUCT: xp.multiply,
        ReduceOp.MIN: xp.minimum,
        ReduceOp.MAX: xp.maximum,
        ReduceOp.BAND: xp.bitwise_and,
        ReduceOp.BOR: xp.bitwise_or,
        ReduceOp.BXOR: xp.bitwise_xor,
    }
    total = arrays[0].astype(accumulator(dtype))
    for x in arrays[1:]:
        combine[op](total, x.astype(total.dtype, copy=False), out=total)
    if op is ReduceOp.AVG:
        divide(total, len(arrays))
    return total.astype(dtype, copy=False)
