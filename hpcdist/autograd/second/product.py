"""Second forms of products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpcdist.array import namespace
from hpcdist.autograd.operand import call
from hpcdist.autograd.ops.einsum import extents, read
from hpcdist.autograd.second.form import Shapes, second, to_shape
from hpcdist.autograd.tensor import Tensor

__all__: list[str] = []


def _last_two_swapped(a: Tensor) -> Tensor:
    return a.transpose((*range(a.ndim - 2), a.ndim - 1, a.ndim - 2))


@second("matmul", 0, 1)
def _matmul(grads: Any, saved: Any, shapes: Shapes) -> Any:
    (a, b), g = saved, grads[0]
    return (
        None if shapes[0] is None else to_shape(g @ _last_two_swapped(b), shapes[0]),
        None if shapes[1] is None else to_shape(_last_two_swapped(a) @ g, shapes[1]),
    )


def _rows(a: Tensor) -> Tensor:
    return a.reshape(math.prod(a.shape[:-1]), a.shape[-1])


@second("linear", 0, 1)
def _linear(grads: Any, saved: Any, shapes: Shapes) -> Any:
    (x, w), g = saved, _rows(grads[0])
    of_bias = [None if shape is None else g.sum(0) for shape in shapes[2:]]
    return (
        None if shapes[0] is None else (g @ w).reshape(shapes[0]),
        None if shapes[1] is None else g.T @ _rows(x),
        *of_bias,
    )


@second("einsum", *range(26))
def _einsum(grads: Any, saved: Any, shapes: Shapes, *, equation: str) -> Any:
    terms, result = read(equation, [a.shape for a in saved])
    full = extents(terms, [a.shape for a in saved])
    found: list[Tensor | None] = []
    for i, shape in enumerate(shapes):
        others = [(t, a) for j, (t, a) in enumerate(zip(terms, saved, strict=True)) if j != i]
        found.append(None if shape is None else to_shape(_of_operand(grads[0], terms[i], result, others, full), shape))
    return found


def _of_operand(
    g: Tensor, term: str, result: str, others: Sequence[tuple[str, Tensor]], full: dict[str, int]
) -> Tensor:
    """Return the gradient of one operand, whose letters all have their full extent."""
    labels = [result, *(t for t, _ in others)]
    unique = "".join(dict.fromkeys(term))
    known = "".join(c for c in unique if any(c in t for t in labels))
    value = call("einsum", g, *(a for _, a in others), equation=f"{','.join(labels)}->{known}")
    have = dict(zip(known, value.shape, strict=True))
    value = call("broadcast_to", value.reshape([have.get(c, 1) for c in unique]), shape=tuple(full[c] for c in unique))
    if unique == term:
        return value
    grid = namespace(value.data).indices(value.shape)
    return call("put", value, index=tuple(grid[unique.index(c)] for c in term), shape=tuple(full[c] for c in term))
