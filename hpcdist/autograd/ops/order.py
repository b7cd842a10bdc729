"""Elements along a dimension in the order of their values. NaN counts as the largest; equals keep their order."""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import check_real
from hpcdist.autograd.ops.reduce import reduced
from hpcdist.autograd.ops.shape import along_signature

__all__ = ["SORT", "TOPK"]


def _order(a: Array, dim: int, descending: bool) -> Array:
    """Return the indices that sort ``a`` along ``dim``."""
    xp = namespace(check_real(a))
    if not descending:
        return xp.argsort(a, axis=dim, kind="stable")
    # backwards from the back: equals end up in their own order
    reverse: Array = a.shape[dim] - 1 - xp.argsort(xp.flip(a, dim), axis=dim, kind="stable")
    return xp.flip(reverse, dim)


def _signature(shapes: list[tuple[int, ...]], *, dim: int, **_: Any) -> str:
    return along_signature(shapes, dim, 1, 2)


def _put_back(into: Any, g: Array, index: Array, dim: int) -> None:
    """Give each picked element its gradient, and the others none."""
    out = namespace(g).zeros(into.shape, g.dtype)
    namespace(g).put_along_axis(out, index, g, axis=dim)
    into.give(out)


@row(_signature)
def sort(a: Array, *, dim: int, descending: bool) -> tuple[tuple[Array, Array], tuple[Array]]:
    """Return the elements along ``dim`` in ascending (or descending) order, and where they were."""
    reduced(a.ndim, dim)
    index = _order(a, dim, descending)
    return (namespace(a).take_along_axis(a, index, axis=dim), index), (index,)


@sort
def SORT(into: Any, grads: Any, saved: Any, dim: int, descending: bool) -> None:
    _put_back(into[0], grads[0], saved[0], dim)


@row(_signature)
def topk(a: Array, *, k: int, dim: int, largest: bool) -> tuple[tuple[Array, Array], tuple[Array]]:
    """Return the ``k`` largest (or smallest) elements along ``dim``, the foremost first, and where they were."""
    reduced(a.ndim, dim)
    if not 0 <= k <= a.shape[dim]:
        raise ValueError(f"k = {k} is not in 0 .. {a.shape[dim]}, the extent of dim {dim}")
    first = (*(slice(None),) * (dim % a.ndim), slice(k))
    index = _order(a, dim, largest)[first].copy()  # the rest of the order need not stay alive
    return (namespace(a).take_along_axis(a, index, axis=dim), index), (index,)


@topk
def TOPK(into: Any, grads: Any, saved: Any, k: int, dim: int, largest: bool) -> None:
    _put_back(into[0], grads[0], saved[0], dim)
