"""Element by element: arithmetic with broadcasting, and functions of one argument."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import Op, define, row
from hpcdist.autograd.replay import Into
from hpcdist.kernels.erf import erf as erf_values
from hpcdist.kernels.precision import add_up

__all__ = [
    "ABS", "ADD", "CAST", "COS", "DIV", "ERF", "EXP", "LOG", "MUL", "NEG", "POW", "RELU", "SIGMOID", "SIN", "SQRT",
    "SUB", "TANH", "WHERE",
]  # fmt: skip

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def broadcast_signature(shapes: list[tuple[int, ...]], **_: Any) -> str:
    """Align dimensions at the right; a dimension of extent one that is stretched is written ``1``."""
    ndim = max(len(s) for s in shapes)
    out = np.broadcast_shapes(*shapes)
    names = LETTERS[:ndim]
    groups = []
    for shape in shapes:
        skip = ndim - len(shape)
        groups.append("".join("1" if n == 1 and out[skip + i] != 1 else names[skip + i] for i, n in enumerate(shape)))
    return f"{','.join(groups)}->{names}"


def unary_signature(shapes: list[tuple[int, ...]], **_: Any) -> str:
    """One input, one output, the same dimensions."""
    names = LETTERS[: len(shapes[0])]
    return f"{names}->{names}"


def check_floating(*arrays: Array | None) -> None:
    """Refuse arrays of integers, bool and complex numbers, whose dtypes cannot hold the result."""
    for a in arrays:
        if a is not None and a.dtype.kind not in "fV":
            raise TypeError(f"expected floating-point values, not {a.dtype}")


def sum_to(g: Array, shape: tuple[int, ...]) -> Array:
    """Undo broadcasting: add ``g`` up to ``shape``."""
    if g.shape == shape:
        return g
    lead = g.ndim - len(shape)
    stretched = [i + lead for i, n in enumerate(shape) if n == 1 and g.shape[i + lead] != 1]
    return add_up(g, (*range(lead), *stretched), keepdims=True).reshape(shape)


def real_if(g: Array, dtype: np.dtype[Any]) -> Array:
    """Return ``g``, or its real part where it is the gradient of real values."""
    return g.real if g.dtype.kind == "c" and dtype.kind != "c" else g


def give(into: Into | None, value: Any) -> None:
    """Hand over the gradient ``value()`` of a broadcast operand, if it is wanted."""
    if into is not None:
        into.give(real_if(sum_to(value(), into.shape), into.dtype))


@row(broadcast_signature, linear="joint")
def add(a: Array, b: Array) -> tuple[Array, tuple[()]]:
    """Return ``a + b``."""
    return a + b, ()


@add
def ADD(into: Any, grads: Any, saved: Any) -> None:
    give(into[0], lambda: grads[0])
    give(into[1], lambda: grads[0])


@row(broadcast_signature, linear="joint")
def sub(a: Array, b: Array) -> tuple[Array, tuple[()]]:
    """Return ``a - b``."""
    return a - b, ()


@sub
def SUB(into: Any, grads: Any, saved: Any) -> None:
    give(into[0], lambda: grads[0])
    give(into[1], lambda: -grads[0])


@row(broadcast_signature, linear="each")
def mul(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    """Return ``a * b``."""
    return a * b, (a, b)


@mul
def MUL(into: Any, grads: Any, saved: Any) -> None:
    a, b = saved
    give(into[0], lambda: grads[0] * b.conj())
    give(into[1], lambda: grads[0] * a.conj())


@row(broadcast_signature)
def div(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    """Return ``a / b``."""
    return a / b, (a, b)


@div
def DIV(into: Any, grads: Any, saved: Any) -> None:
    a, b = saved
    give(into[0], lambda: grads[0] / b.conj())
    give(into[1], lambda: -grads[0] * (a / b / b).conj())


@row(unary_signature, linear="joint")
def neg(a: Array) -> tuple[Array, tuple[()]]:
    """Return ``-a``."""
    return -a, ()


@neg
def NEG(into: Any, grads: Any, saved: Any) -> None:
    into[0].give(-grads[0])


@row(unary_signature)
def pow(a: Array, *, exponent: float) -> tuple[Array, tuple[Array]]:
    """Return ``a ** exponent`` for a number ``exponent``."""
    if not isinstance(exponent, numbers.Number):
        raise TypeError(f"expected a number as exponent, not {type(exponent).__name__}")
    return a**exponent, (a,)


@pow
def POW(into: Any, grads: Any, saved: Any, exponent: float) -> None:
    slope = exponent * saved[0] ** (exponent - 1) if exponent else namespace(saved[0]).zeros_like(saved[0])
    into[0].give(grads[0] * slope.conj())


def _unary(name: str, function: Any, derivative: Any, *, keeps: str) -> Op:
    """Define a function of one argument whose derivative is a formula in its argument or in its value."""

    def forward(a: Array) -> tuple[Array, tuple[Array]]:
        y = function(namespace(a), a)
        return y, (y if keeps == "value" else a,)

    def vjp(into: Any, grads: Any, saved: Any) -> None:
        into[0].give(grads[0] * derivative(namespace(saved[0]), saved[0]).conj())

    return define(name, forward, vjp, signature=unary_signature)


def _sigmoid(xp: Any, a: Array) -> Any:
    # exp of a negative number only: no overflow at either end
    e = xp.exp(-abs(a))
    return xp.where(a >= 0, 1 / (1 + e), e / (1 + e))


EXP = _unary("exp", lambda xp, a: xp.exp(a), lambda xp, y: y, keeps="value")
LOG = _unary("log", lambda xp, a: xp.log(a), lambda xp, a: 1 / a, keeps="argument")
SIN = _unary("sin", lambda xp, a: xp.sin(a), lambda xp, a: xp.cos(a), keeps="argument")
COS = _unary("cos", lambda xp, a: xp.cos(a), lambda xp, a: -xp.sin(a), keeps="argument")
SQRT = _unary("sqrt", lambda xp, a: xp.sqrt(a), lambda xp, y: 0.5 / y, keeps="value")
TANH = _unary("tanh", lambda xp, a: xp.tanh(a), lambda xp, y: 1 - y * y, keeps="value")
SIGMOID = _unary("sigmoid", _sigmoid, lambda xp, y: y * (1 - y), keeps="value")
RELU = _unary("relu", lambda xp, a: xp.maximum(a, 0), lambda xp, y: (y > 0).astype(y.dtype), keeps="value")
ERF = _unary(
    "erf",
    lambda xp, a: erf_values(a),
    lambda xp, a: (2 / np.pi**0.5) * xp.exp(-a * a),
    keeps="argument",
)


@row(unary_signature)
def _abs(a: Array) -> tuple[Array, tuple[Array]]:
    """Return the magnitude of each element; its gradient is 0 at 0."""
    return abs(a), (a,)


@_abs
def ABS(into: Any, grads: Any, saved: Any) -> None:
    into[0].give(grads[0] * namespace(saved[0]).sign(saved[0]))


@row(broadcast_signature)
def where(condition: Array, a: Array, b: Array) -> tuple[Array, tuple[Array]]:
    """Return ``a`` where ``condition`` (bool) holds, else ``b``."""
    return namespace(a).where(condition, a, b), (condition,)


@where
def WHERE(into: Any, grads: Any, saved: Any) -> None:
    (condition,), g = saved, grads[0]
    nothing, where = g.dtype.type(0), namespace(g).where  # a product would make NaN of 0 and infinity
    give(into[1], lambda: where(condition, g, nothing))
    give(into[2], lambda: where(condition, nothing, g))


@row(unary_signature, linear="joint")
def cast(a: Array, *, dtype: np.dtype[Any]) -> tuple[Array, tuple[()]]:
    """Return ``a`` in another dtype."""
    return a.astype(dtype), ()


@cast
def CAST(into: Any, grads: Any, saved: Any, dtype: np.dtype[Any]) -> None:
    into[0].give(grads[0].astype(into[0].dtype))
