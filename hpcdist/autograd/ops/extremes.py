"""Largest and smallest: of two arrays, of a range, and along dimensions."""

from __future__ import annotations

import math
from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.mask import keep
from hpcdist.autograd.op import Op, define, row
from hpcdist.autograd.ops.elementwise import broadcast_signature, check_real, give, unary_signature
from hpcdist.autograd.ops.reduce import Dims, reduced, reduction_signature
from hpcdist.autograd.pool import pooled

__all__ = ["CLAMP", "MAX", "MAXIMUM", "MIN", "MINIMUM"]


def _of_two(name: str, loses: str) -> Op:
    """Define an elementwise choice; operands that are equal get half of the gradient each."""

    def forward(a: Array, b: Array) -> tuple[Array, tuple[Array, Array]]:
        check_real(a, b)
        return pooled(getattr(namespace(a, b), name), a, b), (a, b)

    def share(g: Array, mine: Array, other: Array) -> Array:
        xp = namespace(g)
        part, ties = (
            keep(g, pooled(xp.logical_not, pooled(getattr(xp, loses), mine, other))),
            pooled(xp.equal, mine, other),
        )
        if ties.any():
            part[ties] /= g.dtype.type(2)
        return part

    def vjp(into: Any, grads: Any, saved: Any) -> None:
        a, b = saved
        give(into[0], lambda: share(grads[0], a, b))
        give(into[1], lambda: share(grads[0], b, a))

    return define(name, forward, vjp, signature=broadcast_signature)


MAXIMUM = _of_two("maximum", "less")
"""``maximum(a, b)``: the larger of each pair."""
MINIMUM = _of_two("minimum", "greater")
"""``minimum(a, b)``: the smaller of each pair."""


@row(unary_signature)
def clamp(a: Array, *, min: float | None, max: float | None) -> tuple[Array, tuple[Array]]:
    """Move elements outside ``min .. max`` to the nearer end; None: no end on that side."""
    if min is None and max is None:
        raise ValueError("expected min, max or both")
    xp, out = namespace(a), check_real(a)
    if min is not None:
        out = pooled(xp.maximum, out, _end(a, min))
    if max is not None:
        out = pooled(xp.minimum, out, _end(a, max))
    return out, (a,)


def _end(a: Array, value: float) -> Any:
    # bfloat16 next to a number would become float32; integers may become floating-point
    return a.dtype.type(value) if a.dtype.kind in "fV" else value


@clamp
def CLAMP(into: Any, grads: Any, saved: Any, min: float | None, max: float | None) -> None:
    (a,), g = saved, grads[0]
    xp = namespace(a)
    if min is not None:
        g = keep(g, pooled(xp.greater_equal, a, _end(a, min)))
    if max is not None:
        g = keep(g, pooled(xp.less_equal, a, _end(a, max)))
    into[0].give(g)


def _to_rows(a: Array, gone: tuple[int, ...]) -> Array:
    """Return ``a`` with the dimensions ``gone`` flattened into one, which comes last."""
    kept = [d for d in range(a.ndim) if d not in gone]
    shape = (*(a.shape[d] for d in kept), math.prod(a.shape[d] for d in gone))
    return a.transpose((*kept, *gone)).reshape(shape)


def _from_rows(rows: Array, shape: tuple[int, ...], gone: tuple[int, ...]) -> Array:
    """Undo :func:`_to_rows` for an array of ``shape``."""
    order = (*(d for d in range(len(shape)) if d not in gone), *gone)
    back = sorted(range(len(shape)), key=lambda i: order[i])
    return rows.reshape([shape[d] for d in order]).transpose(back)


def _along(name: str) -> Op:
    """Define a choice along dimensions; its gradient goes to the first of equals, in the order of indices."""

    def forward(a: Array, *, dim: Dims, keepdim: bool) -> tuple[tuple[Array, Array], tuple[Array]]:
        gone = tuple(sorted(reduced(a.ndim, dim)))
        rows, xp = _to_rows(check_real(a), gone), namespace(a)
        if not rows.shape[-1]:
            raise ValueError(f"the {name}imum of no elements is not defined")
        index = getattr(xp, f"arg{name}")(rows, axis=-1, keepdims=True)
        value = xp.take_along_axis(rows, index, axis=-1)
        shape = [1 if d in gone else n for d, n in enumerate(a.shape) if keepdim or d not in gone]
        return (value.reshape(shape), index.reshape(shape)), (index,)

    def vjp(into: Any, grads: Any, saved: Any, dim: Dims, keepdim: bool) -> None:
        (index,), g, shape = saved, grads[0], into[0].shape
        gone = tuple(sorted(reduced(len(shape), dim)))
        rows = namespace(g).zeros((*index.shape[:-1], math.prod(shape[d] for d in gone)), g.dtype)
        namespace(g).put_along_axis(rows, index, g.reshape(index.shape), axis=-1)
        into[0].give(_from_rows(rows, shape, gone))

    def signature(shapes: list[tuple[int, ...]], **attrs: Any) -> str:
        inside, outside = reduction_signature(shapes, whole=True, **attrs).split("->")
        return f"{inside}->{outside},{outside}"

    return define(name, forward, vjp, signature=signature)


MAX = _along("max")
"""``max(a, dim=, keepdim=)``: the largest elements, and where they first are (counted over ``dim``)."""
MIN = _along("min")
"""``min(a, dim=, keepdim=)``: the smallest elements, and where they first are."""
