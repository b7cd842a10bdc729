"""Elements picked by arrays of indices along one dimension, and their transpose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS, sum_to
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.ops.reduce import reduced
from hpcdist.kernels.embedding import embedding_grad
from hpcdist.kernels.indices import check_indices
from hpcdist.kernels.precision import wide

__all__ = ["INDEX_SELECT", "SCATTER_ADD", "TAKE_ALONG_DIM", "addresses"]


def _check(index: Array, limit: int) -> None:
    if index.dtype.kind not in "iu":
        raise TypeError(f"expected integer indices, not {index.dtype}")
    check_indices("indices", index, limit)


def addresses(index: Array, dim: int) -> tuple[Array, ...]:
    """Return what addresses, in an array, the element at ``index`` along ``dim`` and at its own place elsewhere."""
    xp, shape = namespace(index), index.shape
    grid = [xp.arange(n).reshape([-1 if d == i else 1 for i in range(len(shape))]) for d, n in enumerate(shape)]
    grid[dim] = index
    return tuple(grid)


def _stretched(shape: tuple[int, ...], other: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Return ``shape`` broadcast to ``other`` in all dimensions but ``dim``."""
    one = [(*s[:dim], 1, *s[dim + 1 :]) for s in (shape, other)]
    wide = np.broadcast_shapes(*one)
    return (*wide[:dim], shape[dim], *wide[dim + 1 :])


def _take_signature(shapes: list[tuple[int, ...]], *, dim: int) -> str:
    (dim,) = reduced(len(shapes[0]), dim)
    names = LETTERS[: len(shapes[0])]
    groups = []
    for shape, other, letter in ((shapes[0], shapes[1], "[y]"), (shapes[1], shapes[0], "z")):
        stretched = [n == 1 and other[i] != 1 for i, n in enumerate(shape)]
        parts = [letter if i == dim else "1" if stretched[i] else n for i, n in enumerate(names)]
        groups.append("".join(parts))
    return f"{groups[0]},#{groups[1]}->{''.join('z' if i == dim else n for i, n in enumerate(names))}"


@row(_take_signature, linear="joint")
def take_along_dim(a: Array, index: Array, *, dim: int) -> tuple[Array, tuple[Array]]:
    """Return ``a[..., index[..., j, ...], ...]``: as many dimensions both, which broadcast except for ``dim``."""
    (dim,) = reduced(a.ndim, dim)
    if index.ndim != a.ndim:
        raise ValueError("expected indices with as many dimensions as the values")
    _check(index, a.shape[dim])
    xp = namespace(a, index)
    index = xp.broadcast_to(index, _stretched(index.shape, a.shape, dim))
    return xp.take_along_axis(xp.broadcast_to(a, _stretched(a.shape, index.shape, dim)), index, axis=dim), (index,)


@take_along_dim
def TAKE_ALONG_DIM(into: Any, grads: Any, saved: Any, dim: int) -> None:
    (index,), g, shape = saved, grads[0], into[0].shape
    (dim,) = reduced(len(shape), dim)
    out = namespace(g).zeros(_stretched(shape, index.shape, dim), wide(g).dtype)
    namespace(g).add.at(out, addresses(index, dim), wide(g))
    into[0].give(sum_to(out, shape))


def _scatter_signature(shapes: list[tuple[int, ...]], *, dim: int) -> str:
    """Dimensions of which ``index`` covers a part only must be whole, and ``dim`` of the values."""
    (dim,) = reduced(len(shapes[0]), dim)
    into, index = ([], [])  # type: tuple[list[str], list[str]]
    for i, (n, covered) in enumerate(zip(shapes[0], shapes[1], strict=True)):
        own, other = LETTERS[i], LETTERS[len(shapes[0]) + i]
        into.append(own if i != dim and n == covered else f"[{own}]")
        index.append(other if i == dim else own if n == covered else f"[{other}]")
    return f"+{''.join(into)},#{''.join(index)},{''.join(index)}->{''.join(into)}"


@row(_scatter_signature, linear="joint")
def scatter_add(a: Array, index: Array, src: Array, *, dim: int) -> tuple[Array, tuple[Array]]:
    """Return ``a`` with each element of ``src`` added at ``index`` along ``dim``, at its own place elsewhere."""
    (dim,) = reduced(a.ndim, dim)
    if index.shape != src.shape or index.ndim != a.ndim:
        raise ValueError("expected values (...), indices and a source of one shape and as many dimensions")
    if any(n > a.shape[d] for d, n in enumerate(index.shape) if d != dim):
        raise ValueError(f"indices reach past the values in a dimension other than {dim}")
    _check(index, a.shape[dim])
    out = a.astype(wide(a).dtype)  # a copy
    namespace(a, index).add.at(out, addresses(index, dim), src.astype(out.dtype, copy=False))
    return out.astype(a.dtype, copy=False), (index,)


@scatter_add
def SCATTER_ADD(into: Any, grads: Any, saved: Any, dim: int) -> None:
    (index,) = saved
    (dim,) = reduced(index.ndim, dim)
    if into[0] is not None:
        into[0].give(grads[0])
    if into[2] is not None:
        into[2].give(grads[0][addresses(index, dim)])


def _select_signature(shapes: list[tuple[int, ...]], *, dim: int) -> str:
    (dim,) = reduced(len(shapes[0]), dim)
    names = LETTERS[: len(shapes[0])]
    inside = "".join("[y]" if i == dim else n for i, n in enumerate(names))
    return f"{inside},#z->{''.join('z' if i == dim else n for i, n in enumerate(names))}"


@row(_select_signature, linear="joint")
def index_select(a: Array, index: Array, *, dim: int) -> tuple[Array, tuple[Array]]:
    """Return the slices of ``a`` along ``dim`` that ``index`` (n,) names, in its order."""
    reduced(a.ndim, dim)
    if index.ndim != 1:
        raise ValueError("expected indices (n,)")
    _check(index, a.shape[dim])
    return namespace(a, index).take(a, index, axis=dim), (index,)


@index_select
def INDEX_SELECT(into: Any, grads: Any, saved: Any, dim: int) -> None:
    g, shape = contiguous(grads[0].swapaxes(0, dim)), into[0].shape
    (dim,) = reduced(len(shape), dim)
    out = namespace(g).zeros((shape[dim], *g.shape[1:]), g.dtype)
    width = math.prod(g.shape[1:])
    index = contiguous(saved[0].astype("int64", copy=False))
    embedding_grad(g.reshape(len(g), width), index, out.reshape(len(out), width))
    into[0].give(out.swapaxes(0, dim))
