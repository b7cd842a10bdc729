"""Sixteen numbers to and from memory: addresses, and the last few elements of a row."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcdist.kernels.cpu.vector import FLOAT, INT32, SINGLE, WIDTH, constants, everywhere

__all__ = ["at", "load", "load_or", "shift", "store"]

_ALIGNED = 4  # bytes: that of an element, all that NumPy promises
_POINTER = types.CPointer(types.float32)


@intrinsic
def at(_typing: Any, x: Any, i: Any) -> Any:
    """Return the address of ``x[i]``, a row or an element of a float32 array; the caller keeps the array."""
    if not isinstance(x, types.Array) or x.dtype != types.float32:
        return None

    def emit(context, builder, signature, args):
        array = context.make_array(signature.args[0])(context, builder, args[0])
        step = cgutils.unpack_tuple(builder, array.strides)[0]
        return cgutils.pointer_add(builder, array.data, builder.mul(args[1], step))

    return _POINTER(x, types.intp), emit


@intrinsic
def shift(_typing: Any, pointer: Any, count: Any) -> Any:
    """Return the address ``count`` elements on."""

    def emit(_context, builder, _signature, args):
        return builder.gep(args[0], [args[1]])

    return _POINTER(pointer, types.intp), emit


def _place(builder, pointer, j):
    vector = ir.VectorType(FLOAT, WIDTH)
    return builder.bitcast(builder.gep(pointer, [j]), vector.as_pointer())


def _mask(builder, count):
    """Return which lanes are below ``count``."""
    lanes = constants(INT32, range(WIDTH))
    return builder.icmp_signed("<", lanes, everywhere(builder, builder.trunc(count, INT32)))


def _masked(builder, name, result, *args):
    whole = f"llvm.masked.{name}.v{WIDTH}f32.p0"
    signature = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, whole), args)


def _all(builder, count):
    return builder.icmp_signed(">=", count, ir.Constant(count.type, WIDTH))


def _load(builder, pointer, j, count, fill):
    place, align = _place(builder, pointer, j), ir.Constant(INT32, _ALIGNED)
    others = everywhere(builder, fill)
    with builder.if_else(_all(builder, count), likely=True) as (whole, part):
        with whole:
            full, from_whole = builder.load(place, align=_ALIGNED), builder.block
        with part:
            few = _masked(builder, "load", others.type, place, align, _mask(builder, count), others)
            from_part = builder.block
    result = builder.phi(others.type)
    result.add_incoming(full, from_whole)
    result.add_incoming(few, from_part)
    return result


@intrinsic
def load(_typing: Any, pointer: Any, j: Any, count: Any) -> Any:
    """Return elements ``j`` to ``j + 15``; 0 in place of those from ``j + count`` on, which are not read."""

    def emit(_context, builder, _signature, args):
        return _load(builder, *args, ir.Constant(FLOAT, 0.0))

    return SINGLE(pointer, types.intp, types.intp), emit


@intrinsic
def load_or(_typing: Any, pointer: Any, j: Any, count: Any, fill: Any) -> Any:
    """Return elements as ``load`` does, with ``fill`` in place of those that are not read."""

    def emit(_context, builder, _signature, args):
        return _load(builder, *args)

    return SINGLE(pointer, types.intp, types.intp, types.float32), emit


@intrinsic
def store(_typing: Any, pointer: Any, j: Any, count: Any, lanes: Any) -> Any:
    """Set elements from ``j`` on, ``count`` of them but at most 16."""

    def emit(context, builder, _signature, args):
        pointer, j, count, vector = args
        place, align = _place(builder, pointer, j), ir.Constant(INT32, _ALIGNED)
        with builder.if_else(_all(builder, count), likely=True) as (whole, part):
            with whole:
                builder.store(vector, place, align=_ALIGNED)
            with part:
                _masked(builder, "store", ir.VoidType(), vector, place, align, _mask(builder, count))
        return context.get_dummy_value()

    return types.none(pointer, types.intp, types.intp, lanes), emit
