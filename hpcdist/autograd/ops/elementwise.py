"""Element by element: arithmetic with broadcasting, and functions of one argument."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.mask import choose, keep
from hpcdist.autograd.op import Op, define, row
from hpcdist.autograd.pool import empty, pooled
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


def check_real(*arrays: Array) -> Array:
    """Refuse complex numbers, which have no order; return the first array."""
    for a in arrays:
        if a.dtype.kind == "c":
            raise TypeError(f"expected real values, not {a.dtype}")
    return arrays[0]


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


def conj(a: Array) -> Array:
    """Return the complex conjugate of ``a``: real values as they are, where NumPy copies."""
    return a.conj() if a.dtype.kind == "c" else a


def give(into: Into | None, value: Any) -> None:
    """Hand over the gradient ``value()`` of a broadcast operand, if it is wanted."""
    if into is not None:
        into.give(real_if(sum_to(value(), into.shape), into.dtype))


@row(broadcast_signature, linear="joint")
def add(a: Array, b: Array) -> tuple[Array, tuple[()]]:
    """Return ``a + b``."""
    return pooled(namespace(a, b).add, a, b), ()


@add
def ADD(into: Any, grads: Any, saved: Any) -> None:
    give(into[0], lambda: grads[0])
    give(into[1], lambda: grads[0])


@row(broadcast_signature, linear="joint")
def sub(a: Array, b: Array) -> tuple[Array, tuple[()]]:
    """Return ``a - b``."""
    return pooled(namespace(a, b).subtract, a, b), ()


@sub
def SUB(into: Any, grads: Any, saved: Any) -> None:
    give(into[0], lambda: grads[0])
    give(into[1], lambda: pooled(namespace(grads[0]).negative, grads[0]))


def _product(a: Any, b: Any) -> Array:
    return pooled(namespace(a, b).multiply, a, b)


@row(broadcast_signature, linear="each")
def mul(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    """Return ``a * b``."""
    return _product(a, b), (a, b)


@mul
def MUL(into: Any, grads: Any, saved: Any) -> None:
    a, b = saved
    give(into[0], lambda: _product(grads[0], conj(b)))
    give(into[1], lambda: _product(grads[0], conj(a)))


def _quotient(a: Any, b: Any) -> Array:
    return pooled(namespace(a, b).divide, a, b)


@row(broadcast_signature)
def div(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
    """Return ``a / b``."""
    return _quotient(a, b), (a, b)


@div
def DIV(into: Any, grads: Any, saved: Any) -> None:
    a, b = saved
    negative = namespace(b).negative
    give(into[0], lambda: _quotient(grads[0], conj(b)))
    give(into[1], lambda: _product(grads[0], conj(pooled(negative, _quotient(_quotient(a, b), b)))))


@row(unary_signature, linear="joint")
def neg(a: Array) -> tuple[Array, tuple[()]]:
    """Return ``-a``."""
    return pooled(namespace(a).negative, a), ()


@neg
def NEG(into: Any, grads: Any, saved: Any) -> None:
    into[0].give(pooled(namespace(grads[0]).negative, grads[0]))


@row(unary_signature)
def pow(a: Array, *, exponent: float) -> tuple[Array, tuple[Array]]:
    """Return ``a ** exponent`` for a number ``exponent``."""
    if not isinstance(exponent, numbers.Number):
        raise TypeError(f"expected a number as exponent, not {type(exponent).__name__}")
    return _power(a, exponent), (a,)


def _power(a: Array, exponent: Any) -> Array:
    if exponent == 1:
        return pooled(namespace(a).positive, a)
    if exponent == 2:
        return _product(a, a)
    if exponent == 3:  # some fifty times as fast
        return _product(_product(a, a), a)
    return pooled(namespace(a).power, a, exponent)


@pow
def POW(into: Any, grads: Any, saved: Any, exponent: float) -> None:
    (a,) = saved
    slope = _product(_power(a, exponent - 1), exponent) if exponent else namespace(a).zeros_like(a)
    into[0].give(_product(grads[0], conj(slope)))


def _unary(name: str, function: Any, derivative: Any, *, keeps: str) -> Op:
    """Define a function of one argument whose derivative is a formula in its argument or in its value."""

    def forward(a: Array) -> tuple[Array, tuple[Array]]:
        y = function(namespace(a), a)
        return y, (y if keeps == "value" else a,)

    def vjp(into: Any, grads: Any, saved: Any) -> None:
        slope = derivative(namespace(saved[0]), saved[0])
        into[0].give(_product(grads[0], conj(slope)))

    return define(name, forward, vjp, signature=unary_signature)


def _sigmoid(xp: Any, a: Array) -> Any:
    check_real(a)
    # exp of a negative number only: no overflow at either end
    e = pooled(xp.exp, pooled(xp.negative, pooled(xp.absolute, a)))
    top = choose(pooled(xp.greater_equal, a, 0), xp.ones((), a.dtype), e)
    return _quotient(top, pooled(xp.add, e, 1))


def _one_less(xp: Any, y: Array) -> Array:
    return pooled(xp.subtract, 1, y)


EXP = _unary("exp", lambda xp, a: pooled(xp.exp, a), lambda xp, y: y, keeps="value")
LOG = _unary("log", lambda xp, a: pooled(xp.log, a), lambda xp, a: _quotient(1, a), keeps="argument")
SIN = _unary("sin", lambda xp, a: pooled(xp.sin, a), lambda xp, a: pooled(xp.cos, a), keeps="argument")
COS = _unary(
    "cos",
    lambda xp, a: pooled(xp.cos, a),
    lambda xp, a: pooled(xp.negative, pooled(xp.sin, a)),
    keeps="argument",
)
SQRT = _unary("sqrt", lambda xp, a: pooled(xp.sqrt, a), lambda xp, y: _quotient(0.5, y), keeps="value")
TANH = _unary("tanh", lambda xp, a: pooled(xp.tanh, a), lambda xp, y: _one_less(xp, _product(y, y)), keeps="value")
SIGMOID = _unary("sigmoid", _sigmoid, lambda xp, y: _product(y, _one_less(xp, y)), keeps="value")
ERF = _unary(
    "erf",
    lambda xp, a: erf_values(check_real(a)),
    lambda xp, a: _product(pooled(xp.exp, pooled(xp.negative, _product(a, a))), 2 / np.pi**0.5),
    keeps="argument",
)


@row(unary_signature)
def relu(a: Array) -> tuple[Array, tuple[Array]]:
    """Return the larger of each element and 0."""
    check_real(a)
    y = pooled(namespace(a).maximum, a, 0)
    return y, (y,)


@relu
def RELU(into: Any, grads: Any, saved: Any) -> None:
    into[0].give(keep(grads[0], pooled(namespace(saved[0]).not_equal, saved[0], 0)))  # NaN stays NaN


@row(unary_signature)
def _abs(a: Array) -> tuple[Array, tuple[Array]]:
    """Return the magnitude of each element; its gradient is 0 at 0."""
    return pooled(namespace(a).absolute, a), (a,)


@_abs
def ABS(into: Any, grads: Any, saved: Any) -> None:
    into[0].give(_product(grads[0], pooled(namespace(saved[0]).sign, saved[0])))


@row(broadcast_signature)
def where(condition: Array, a: Array, b: Array) -> tuple[Array, tuple[Array]]:
    """Return ``a`` where ``condition`` (bool) holds, else ``b``."""
    condition = condition.astype(bool, copy=False)
    return choose(condition, a, b), (condition,)


@where
def WHERE(into: Any, grads: Any, saved: Any) -> None:
    (condition,), g = saved, grads[0]
    give(into[1], lambda: keep(g, condition))
    give(into[2], lambda: keep(g, pooled(namespace(g).logical_not, condition)))


@row(unary_signature, linear="joint")
def cast(a: Array, *, dtype: np.dtype[Any]) -> tuple[Array, tuple[()]]:
    """Return ``a`` in another dtype."""
    return _cast(a, dtype), ()


@cast
def CAST(into: Any, grads: Any, saved: Any, dtype: np.dtype[Any]) -> None:
    into[0].give(_cast(grads[0], into[0].dtype))


def _cast(a: Array, dtype: np.dtype[Any]) -> Array:
    if a.dtype == dtype or not a.flags.c_contiguous or dtype.kind == "V":
        return a.astype(dtype)
    out = empty(a.shape, dtype, a)
    out[...] = a
    return out
