"""Vjps written in operations, for gradients that are themselves differentiated.

The vjp of a row computes with arrays and leaves no graph. The forms here compute the same with tensors; ``grad`` uses
them when it is asked for a graph of the gradient (``create_graph=True``). A form gets the cotangents of the outputs,
what the row saved, and the shapes of its inputs, and returns one cotangent an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.operand import call
from hpcdist.autograd.ops.reduce import reduced
from hpcdist.autograd.tensor import Tensor

__all__ = ["SECOND", "SecondForm"]

Shapes: TypeAlias = Sequence[tuple[int, ...] | None]


@dataclass(frozen=True)
class SecondForm:
    """How to write the vjp of a row in operations.

    Attributes
    ----------
    keeps : tuple of int
        What each saved value is: input i is i, output i is ~i.
    vjp : function ``(grads, saved, shapes, **attrs) -> tuple of Tensor``
        ``shapes[i]`` is that of input i, None if its gradient is not wanted.
    """

    keeps: tuple[int, ...]
    vjp: Callable[..., tuple[Tensor | None, ...]]


SECOND: dict[str, SecondForm] = {}


def second(name: str, *keeps: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the second form of the row ``name``."""

    def register(vjp: Callable[..., Any]) -> Callable[..., Any]:
        SECOND[name] = SecondForm(keeps, vjp)
        return vjp

    return register


def to_shape(g: Tensor, shape: tuple[int, ...] | None) -> Tensor | None:
    """Undo broadcasting: add ``g`` up to ``shape``."""
    if shape is None or g.shape == shape:
        return None if shape is None else g
    lead = g.ndim - len(shape)
    stretched = [i + lead for i, n in enumerate(shape) if n == 1 and g.shape[i + lead] != 1]
    return g.sum((*range(lead), *stretched), keepdim=True).reshape(shape)


def broadcast(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Stretch ``g`` to ``shape``."""
    return g * Tensor(namespace(g.data).ones(shape, g.dtype))


# ---------------------------------------------------------------- arithmetic
@second("add")
def _add(grads: Any, saved: Any, shapes: Shapes) -> Any:
    return to_shape(grads[0], shapes[0]), to_shape(grads[0], shapes[1])


@second("sub")
def _sub(grads: Any, saved: Any, shapes: Shapes) -> Any:
    return to_shape(grads[0], shapes[0]), to_shape(-grads[0], shapes[1])


@second("mul", 0, 1)
def _mul(grads: Any, saved: Any, shapes: Shapes) -> Any:
    a, b = saved
    return to_shape(grads[0] * b, shapes[0]), to_shape(grads[0] * a, shapes[1])


@second("div", 0, 1)
def _div(grads: Any, saved: Any, shapes: Shapes) -> Any:
    a, b = saved
    return to_shape(grads[0] / b, shapes[0]), to_shape(-grads[0] * a / (b * b), shapes[1])


@second("neg")
def _neg(grads: Any, saved: Any, shapes: Shapes) -> Any:
    return (-grads[0],)


@second("pow", 0)
def _pow(grads: Any, saved: Any, shapes: Shapes, *, exponent: float) -> Any:
    return (grads[0] * (exponent * saved[0] ** (exponent - 1)),)


@second("where", 0)
def _where(grads: Any, saved: Any, shapes: Shapes) -> Any:
    kept = Tensor(saved[0].data.astype(grads[0].dtype))
    return None, to_shape(grads[0] * kept, shapes[1]), to_shape(grads[0] * (1 - kept), shapes[2])


@second("cast")
def _cast(grads: Any, saved: Any, shapes: Shapes, *, dtype: Any) -> Any:
    return (grads[0],)  # brought to the input's dtype where it is added up


def _choice(name: str, wins: Callable[[Array, Array], Array]) -> None:
    """Register an elementwise choice; operands that are equal get half of the gradient each."""

    def vjp(grads: Any, saved: Any, shapes: Shapes) -> Any:
        a, b = saved[0].data, saved[1].data
        share = Tensor((wins(a, b) + 0.5 * (a == b)).astype(grads[0].dtype))
        return to_shape(grads[0] * share, shapes[0]), to_shape(grads[0] * (1 - share), shapes[1])

    SECOND[name] = SecondForm((0, 1), vjp)


_choice("maximum", lambda a, b: a > b)
_choice("minimum", lambda a, b: a < b)


@second("clamp", 0)
def _clamp(grads: Any, saved: Any, shapes: Shapes, *, min: float | None, max: float | None) -> Any:
    a = saved[0].data
    inside = (a >= (-math.inf if min is None else min)) & (a <= (math.inf if max is None else max))
    return (grads[0] * Tensor(inside.astype(grads[0].dtype)),)


# ---------------------------------------------------------------- functions of one argument
def _function(name: str, keep: int, derivative: Callable[[Tensor], Tensor]) -> None:
    """Register a function whose derivative is a formula in its argument (0) or its value (~0)."""
    SECOND[name] = SecondForm((keep,), lambda grads, saved, shapes: (grads[0] * derivative(saved[0]),))


_function("exp", ~0, lambda y: y)
_function("log", 0, lambda a: 1 / a)
_function("sqrt", ~0, lambda y: 0.5 / y)
_function("tanh", ~0, lambda y: 1 - y * y)
_function("sigmoid", ~0, lambda y: y * (1 - y))
_function("relu", ~0, lambda y: Tensor((y.data > 0).astype(y.dtype)))
_function("sin", 0, lambda a: call("cos", a))
_function("cos", 0, lambda a: -call("sin", a))
_function("abs", 0, lambda a: Tensor(namespace(a.data).sign(a.data)))
_function("erf", 0, lambda a: (2 / math.pi**0.5) * (-a * a).exp())


def _silu_slope(z: Tensor) -> Tensor:
    s = call("sigmoid", z)
    return s * (1 + z * (1 - s))


_function("silu", 0, _silu_slope)


@second("gelu", 0)
def _gelu(grads: Any, saved: Any, shapes: Shapes, *, tanh: bool) -> Any:
    (z,) = saved
    if tanh:
        root, cubic = (2 / math.pi) ** 0.5, 0.044715
        t = (root * (z + cubic * z**3)).tanh()
        slope = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * (root * (1 + 3 * cubic * z**2))
    else:
        slope = 0.5 * (1 + (z * 0.5**0.5).erf()) + z * (-0.5 * z * z).exp() / (2 * math.pi) ** 0.5
    return (grads[0] * slope,)


# ---------------------------------------------------------------- sums
def _spread(g: Tensor, shape: tuple[int, ...], dim: Any) -> Tensor:
    gone = reduced(len(shape), dim)
    return broadcast(g.reshape(tuple(1 if i in gone else n for i, n in enumerate(shape))), shape)


@second("sum")
def _sum(grads: Any, saved: Any, shapes: Shapes, *, dim: Any, keepdim: bool) -> Any:
    return (_spread(grads[0], shapes[0] or (), dim),)


@second("mean")
def _mean(grads: Any, saved: Any, shapes: Shapes, *, dim: Any, keepdim: bool) -> Any:
    shape = shapes[0] or ()
    count = math.prod(shape[d] for d in reduced(len(shape), dim))
    return (_spread(grads[0], shape, dim) / count,)


# ---------------------------------------------------------------- products
def _last_two_swapped(a: Tensor) -> Tensor:
    return a.transpose((*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))


@second("matmul", 0, 1)
def _matmul(grads: Any, saved: Any, shapes: Shapes) -> Any:
    (a, b), g = saved, grads[0]
    return (
        None if shapes[0] is None else to_shape(g @ _last_two_swapped(b), shapes[0]),
        None if shapes[1] is None else to_shape(_last_two_swapped(a) @ g, shapes[1]),
    )


@second("linear", 0, 1)
def _linear(grads: Any, saved: Any, shapes: Shapes) -> Any:
    (x, w), g = saved, grads[0]
    rows, inputs = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    bias = [rows.sum(0)] if len(shapes) == 3 else []
    return (g @ w, rows.T @ inputs, *bias)


# ---------------------------------------------------------------- arrangement
@second("reshape")
def _reshape(grads: Any, saved: Any, shapes: Shapes, *, shape: Any) -> Any:
    return (grads[0].reshape(shapes[0]),)


@second("transpose")
def _transpose(grads: Any, saved: Any, shapes: Shapes, *, dims: Any) -> Any:
    return (grads[0].transpose(sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))),)


@second("getitem")
def _getitem(grads: Any, saved: Any, shapes: Shapes, *, index: Any) -> Any:
    return (call("put", grads[0], index=index, shape=shapes[0]),)


@second("put")
def _put(grads: Any, saved: Any, shapes: Shapes, *, index: Any, shape: Any) -> Any:
    return (grads[0][index],)


@second("cat")
def _cat(grads: Any, saved: Any, shapes: Shapes, *, dim: int) -> Any:
    return grads[0].split(saved[0], dim)


@second("stack")
def _stack(grads: Any, saved: Any, shapes: Shapes, *, dim: int) -> Any:
    pieces = grads[0].split(1, dim)
    return tuple(piece.squeeze(dim) for piece in pieces)


@second("broadcast_to")
def _broadcast_to(grads: Any, saved: Any, shapes: Shapes, *, shape: Any) -> Any:
    return (to_shape(grads[0], shapes[0]),)


@second("split")
def _split(grads: Any, saved: Any, shapes: Shapes, *, sizes: tuple[int, ...], dim: int) -> Any:
    shape = list(shapes[0] or ())
    parts = []
    for g, n in zip(grads, sizes, strict=True):
        shape[dim] = n
        parts.append(g if g is not None else Tensor(np.zeros(shape, next(x for x in grads if x is not None).dtype)))
    return (call("cat", *parts, dim=dim),)
