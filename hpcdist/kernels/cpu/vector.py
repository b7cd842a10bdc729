"""Sixteen numbers at once, as a type of compiled code: what makes a kernel's bits independent of everything.

Every loop of a kernel handles 16 elements by the same instructions, the last few of a row under a mask. So the
result of an element does not depend on where it stands; a sum has 16 lanes, added in one order; and nothing is
left to a vectoriser, which would need permission to reorder sums, and long to compile. Multiplication and
addition become one instruction where ``fma`` says so, nowhere else. On narrow registers LLVM takes several.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

__all__ = [
    "FLOAT",
    "INT32",
    "SINGLE",
    "WIDTH",
    "Lanes",
    "add_to_exponent",
    "choose_above",
    "constants",
    "copysign",
    "everywhere",
    "fma",
    "maximum",
    "root",
    "splat",
    "top",
    "total",
    "widen",
]

WIDTH = 16
INT32, FLOAT = ir.IntType(32), ir.FloatType()
_EXPONENT = 23  # where a float32 has it


class Lanes(types.Type):
    """The type of 16 numbers of type ``dtype``."""

    def __init__(self, dtype):
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes):
        element = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(element, WIDTH))


SINGLE, _DOUBLE = Lanes(types.float32), Lanes(types.float64)


# ---------------------------------------------------------------- arithmetic
def constants(element, values):
    """Return the vector of ``values`` of an LLVM type."""
    return ir.Constant(ir.VectorType(element, WIDTH), [ir.Constant(element, v) for v in values])


def everywhere(builder, scalar):
    """Return a vector with ``scalar`` in every lane."""
    empty = ir.Constant(ir.VectorType(scalar.type, WIDTH), ir.Undefined)
    first = builder.insert_element(empty, scalar, ir.Constant(INT32, 0))
    return builder.shuffle_vector(first, empty, constants(INT32, [0] * WIDTH))


def _result(*operands):
    """Return the lanes that operands make, lanes and scalars; None if they make none."""
    found = {t for t in operands if isinstance(t, Lanes)}
    fits = len(found) == 1 and all(isinstance(t, (Lanes, types.Number)) for t in operands)
    return found.pop() if fits else None


def _spread(context, builder, signature, args):
    """Return the arguments as vectors, scalars in every lane."""
    lanes = signature.return_type
    return [
        value if given == lanes else everywhere(builder, context.cast(builder, value, given, lanes.dtype))
        for value, given in zip(args, signature.args, strict=True)
    ]


def _infix(symbol, in_place, instruction):
    """Let ``symbol`` stand between lanes, and between lanes and scalars."""

    def emit(context, builder, signature, args):
        return getattr(builder, instruction)(*_spread(context, builder, signature, args))

    for meaning in (symbol, in_place):
        type_callable(meaning)(lambda _: lambda a, b: _result(a, b))
        for operands in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
            lower_builtin(meaning, *operands)(emit)


_infix(operator.add, operator.iadd, "fadd")
_infix(operator.sub, operator.isub, "fsub")
_infix(operator.mul, operator.imul, "fmul")
_infix(operator.truediv, operator.itruediv, "fdiv")


def _function(emit, *operands):
    """Return what an intrinsic returns: the signature for its operands, and code around ``emit(builder, *vectors)``."""

    def code(context, builder, signature, args):
        return emit(builder, *_spread(context, builder, signature, args))

    lanes = _result(*operands)
    return None if lanes is None else (lanes(*operands), code)


def _llvm(name):
    """Return what emits a call of LLVM's own function ``name``."""

    def emit(builder, *vectors):
        kind = vectors[0].type
        whole = f"llvm.{name}.v{WIDTH}f{32 if kind.element == FLOAT else 64}"
        signature = ir.FunctionType(kind, [v.type for v in vectors])
        return builder.call(cgutils.get_or_insert_function(builder.module, signature, whole), vectors)

    return emit


@intrinsic
def fma(_typing: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c``, rounded once where the CPU can."""
    return _function(_llvm("fmuladd"), a, b, c)


@intrinsic
def root(_typing: Any, a: Any) -> Any:
    """Return the square root."""
    return _function(_llvm("sqrt"), a)


@intrinsic
def copysign(_typing: Any, a: Any, b: Any) -> Any:
    """Return ``a`` with the signs of ``b``."""
    return _function(_llvm("copysign"), a, b)


@intrinsic
def maximum(_typing: Any, a: Any, b: Any) -> Any:
    """Return the larger; ``b`` where one is NaN."""
    return _function(_larger, a, b)


def _larger(builder, a, b):
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def choose_above(_typing: Any, x: Any, limit: Any, above: Any, other: Any) -> Any:
    """Return ``above`` where ``x > limit`` or is NaN, ``other`` elsewhere."""

    def emit(builder, x, limit, above, other):
        return builder.select(builder.fcmp_unordered(">", x, limit), above, other)

    return _function(emit, x, limit, above, other)


@intrinsic
def add_to_exponent(_typing: Any, a: Any, b: Any) -> Any:
    """Return ``a * 2 ** k``, where the integer ``k`` is in the low bits of float32 ``b``."""

    def emit(builder, a, b):
        bits = ir.VectorType(INT32, WIDTH)
        k = builder.shl(builder.bitcast(b, bits), constants(INT32, [_EXPONENT] * WIDTH))
        return builder.bitcast(builder.add(builder.bitcast(a, bits), k), a.type)

    return _function(emit, a, b)


@intrinsic
def widen(_typing: Any, a: Any) -> Any:
    """Return float32 lanes as float64."""

    def emit(context, builder, signature, args):
        return builder.fpext(args[0], context.get_value_type(signature.return_type))

    return _DOUBLE(a), emit


@intrinsic
def splat(_typing: Any, scalar: Any) -> Any:
    """Return float32 lanes with ``scalar`` in each."""

    def emit(context, builder, signature, args):
        return _spread(context, builder, signature, args)[0]

    return SINGLE(scalar), emit


# ---------------------------------------------------------------- across lanes
def _fold(emit, lanes):
    """Return an intrinsic's signature and code: combine the upper half of the lanes with the lower, to one."""

    def code(context, builder, signature, args):
        (vector,) = args
        for half in (8, 4, 2, 1):
            below, above = (
                ir.Constant(ir.VectorType(INT32, half), [ir.Constant(INT32, i) for i in places])
                for places in (range(half), range(half, 2 * half))
            )
            vector = emit(
                builder,
                builder.shuffle_vector(vector, vector, below),
                builder.shuffle_vector(vector, vector, above),
            )
        return builder.extract_element(vector, ir.Constant(INT32, 0))

    return lanes.dtype(lanes), code


@intrinsic
def total(_typing: Any, a: Any) -> Any:
    """Return the sum of the lanes, by halves."""
    return _fold(lambda builder, x, y: builder.fadd(x, y), a)


@intrinsic
def top(_typing: Any, a: Any) -> Any:
    """Return the largest of the lanes."""
    return _fold(_larger, a)
