"""Second forms of elementwise operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.operand import call
from hpcdist.autograd.second.form import SECOND, SecondForm, Shapes, second, to_shape
from hpcdist.autograd.tensor import Tensor

__all__ = ["kept"]


def _each(shapes: Shapes, *gradients: Callable[[], Tensor]) -> list[Tensor | None]:
    """Compute the gradients of broadcast operands that are wanted."""
    return [None if s is None else to_shape(g(), s) for s, g in zip(shapes, gradients, strict=True)]


def kept(g: Tensor, mask: Array) -> Tensor:
    """Return ``g`` where ``mask`` holds and 0 elsewhere."""
    return call("where", Tensor(mask), g, Tensor(namespace(g.data).zeros((), g.dtype)))


# ---------------------------------------------------------------- arithmetic
@second("add")
def _add(grads: Any, saved: Any, shapes: Shapes) -> Any:
    return _each(shapes, lambda: grads[0], lambda: grads[0])


@second("sub")
def _sub(grads: Any, saved: Any, shapes: Shapes) -> Any:
    return _each(shapes, lambda: grads[0], lambda: -grads[0])


@second("mul", 0, 1)
def _mul(grads: Any, saved: Any, shapes: Shapes) -> Any:
    a, b = saved
    return _each(shapes, lambda: grads[0] * b, lambda: grads[0] * a)


@second("div", 0, 1)
def _div(grads: Any, saved: Any, shapes: Shapes) -> Any:
    a, b = saved
    return _each(shapes, lambda: grads[0] / b, lambda: -grads[0] * (a / b / b))


@second("neg")
def _neg(grads: Any, saved: Any, shapes: Shapes) -> Any:
    return (-grads[0],)


@second("pow", 0)
def _pow(grads: Any, saved: Any, shapes: Shapes, *, exponent: float) -> Any:
    slope = exponent * saved[0] ** (exponent - 1) if exponent else 0.0  # not 0 * infinity, where the argument is 0
    return (grads[0] * slope,)


@second("cast")
def _cast(grads: Any, saved: Any, shapes: Shapes, *, dtype: Any) -> Any:
    return (grads[0],)  # brought to the input's dtype where it is added up


@second("dropout")
def _dropout(grads: Any, saved: Any, shapes: Shapes, **_: Any) -> Any:
    mask, scale = saved
    return (kept(grads[0], mask) * scale,)


# ---------------------------------------------------------------- choices
@second("where")
def _where(grads: Any, saved: Any, shapes: Shapes) -> Any:
    (mask,) = saved
    return (None, *_each(shapes[1:], lambda: kept(grads[0], mask), lambda: kept(grads[0], ~mask)))


def _choice(name: str, loses: Callable[[Array, Array], Array]) -> None:
    """Register an elementwise choice; operands that are equal get half of the gradient each."""

    def vjp(grads: Any, saved: Any, shapes: Shapes) -> Any:
        a, b = saved

        def share(mine: Array, other: Array) -> Tensor:
            return kept(grads[0], ~loses(mine, other)) - 0.5 * kept(grads[0], mine == other)

        return _each(shapes, lambda: share(a, b), lambda: share(b, a))

    SECOND[name] = SecondForm((), vjp)


_choice("maximum", lambda mine, other: mine < other)
_choice("minimum", lambda mine, other: mine > other)


@second("clamp")
def _clamp(grads: Any, saved: Any, shapes: Shapes, *, min: float | None, max: float | None) -> Any:
    (a,) = saved
    return (kept(grads[0], (a >= (-math.inf if min is None else min)) & (a <= (math.inf if max is None else max))),)


@second("relu")
def _relu(grads: Any, saved: Any, shapes: Shapes) -> Any:
    return (kept(grads[0], saved[0] != 0),)


@second("abs")
def _abs(grads: Any, saved: Any, shapes: Shapes) -> Any:
    return (grads[0] * Tensor(namespace(saved[0]).sign(saved[0])),)


# ---------------------------------------------------------------- functions of one argument
def _function(name: str, keep: int, derivative: Callable[[Tensor], Tensor]) -> None:
    """Register a function whose derivative is a formula in its argument (0) or its value (~0)."""
    SECOND[name] = SecondForm((keep,), lambda grads, saved, shapes: (grads[0] * derivative(saved[0]),))


_function("exp", ~0, lambda y: y)
_function("log", 0, lambda a: 1 / a)
_function("sqrt", ~0, lambda y: 0.5 / y)
_function("tanh", ~0, lambda y: 1 - y * y)
_function("sigmoid", ~0, lambda y: y * (1 - y))
_function("sin", 0, lambda a: a.cos())
_function("cos", 0, lambda a: -a.sin())
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


# ---------------------------------------------------------------- softmax
@second("softmax", ~0)
def _softmax(grads: Any, saved: Any, shapes: Shapes, *, dim: int) -> Any:
    g, (y,) = grads[0], saved
    return (y * (g - (g * y).sum(dim, keepdim=True)),)


@second("log_softmax", ~0)
def _log_softmax(grads: Any, saved: Any, shapes: Shapes, *, dim: int) -> Any:
    g, (y,) = grads[0], saved
    return (g - y.exp() * g.sum(dim, keepdim=True),)
