"""MPI datatypes and operations for NumPy dtypes: how elements travel, and how they are combined."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcdist.comm.reduce_op import ReduceOp
from hpcdist.comm.reduction import accumulator, check_reduction

__all__ = ["Reduction", "carrier", "reduction"]

_CARRIERS = {
    1: MPI.BYTE,
    2: MPI.UINT16_T,
    4: MPI.UINT32_T,
    8: MPI.UINT64_T,
}
_NUMBERS = {
    "b1": MPI.C_BOOL,
    **{f"i{n}": t for n, t in ((1, MPI.INT8_T), (2, MPI.INT16_T), (4, MPI.INT32_T), (8, MPI.INT64_T))},
    **{f"u{n}": t for n, t in ((1, MPI.UINT8_T), (2, MPI.UINT16_T), (4, MPI.UINT32_T), (8, MPI.UINT64_T))},
    "f4": MPI.FLOAT,
    "f8": MPI.DOUBLE,
    f"f{np.dtype(np.longdouble).itemsize}": MPI.LONG_DOUBLE,
    "c8": MPI.C_FLOAT_COMPLEX,
    "c16": MPI.C_DOUBLE_COMPLEX,
    f"c{np.dtype(np.clongdouble).itemsize}": MPI.C_LONG_DOUBLE_COMPLEX,
}
_OPERATIONS = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.AVG: MPI.SUM,
    ReduceOp.PRODUCT: MPI.PROD,
    ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX,
    ReduceOp.BAND: MPI.BAND,
    ReduceOp.BOR: MPI.BOR,
    ReduceOp.BXOR: MPI.BXOR,
}
_LOGICAL = {
    **dict.fromkeys((ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR), MPI.LOR),
    **dict.fromkeys((ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND), MPI.LAND),
    ReduceOp.BXOR: MPI.LXOR,
}


class Reduction(NamedTuple):
    """How MPI combines values.

    Attributes
    ----------
    dtype : dtype
        What values are converted to first.
    datatype : MPI.Datatype
        The same for MPI.
    operation : MPI.Op
        What combines two of them.
    """

    dtype: np.dtype[Any]
    datatype: MPI.Datatype
    operation: MPI.Op


@functools.cache
def carrier(itemsize: int) -> MPI.Datatype:
    """Return a datatype that moves elements of ``itemsize`` bytes; MPI need not know what they mean."""
    return _CARRIERS.get(itemsize) or MPI.BYTE.Create_contiguous(itemsize).Commit()


@functools.cache
def reduction(dtype: np.dtype[Any], op: ReduceOp) -> Reduction:
    """Return how values of ``dtype`` are combined: 16-bit floats in float32, bool logically, AVG as a sum.

    Raises
    ------
    TypeError, ValueError
        Where the combination has no meaning.
    """
    check_reduction(op, dtype)
    working = accumulator(dtype).newbyteorder("=")
    operation = (_LOGICAL if dtype.kind == "b" else _OPERATIONS)[op]
    return Reduction(working, _NUMBERS[f"{working.kind}{working.itemsize}"], operation)
