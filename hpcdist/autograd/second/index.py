"""Second forms of picking: the gradient of what was picked is put back, or added, where it was."""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.operand import call
from hpcdist.autograd.ops.reduce import reduced
from hpcdist.autograd.second.form import second, to_shape
from hpcdist.autograd.tensor import Tensor

__all__ = ["add_slices"]


def _added(g: Tensor, index: Array, shape: tuple[int, ...], dim: int) -> Tensor:
    """Return zeros of ``shape`` to which ``g`` was added at ``index`` along ``dim``."""
    return call("scatter_add", Tensor(namespace(g.data).zeros(shape, g.dtype)), Tensor(index), g, dim=dim)


def add_slices(g: Tensor, index: Array, dim: int, extent: int) -> Tensor:
    """Return zeros to which the slices of ``g`` along ``dim`` were added where ``index`` (n,) says, of ``extent``."""
    (dim,) = reduced(g.ndim, dim)
    along = index.reshape([-1 if d == dim else 1 for d in range(g.ndim)])
    shape = (*g.shape[:dim], extent, *g.shape[dim + 1 :])
    return _added(g, namespace(index).broadcast_to(along, g.shape), shape, dim)


@second("getitem")
def _getitem(grads: Any, saved: Any, shapes: Any, *, index: Any) -> Any:
    return (call("put", grads[0], index=index, shape=shapes[0]),)


@second("put")
def _put(grads: Any, saved: Any, shapes: Any, *, index: Any, shape: Any) -> Any:
    return (grads[0][index],)


@second("embedding")
def _embedding(grads: Any, saved: Any, shapes: Any) -> Any:
    return None, call("put", grads[0], index=saved[0], shape=shapes[1])


@second("index_select")
def _index_select(grads: Any, saved: Any, shapes: Any, *, dim: int) -> Any:
    return add_slices(grads[0], saved[0], dim, shapes[0][dim]), None


@second("take_along_dim")
def _take_along_dim(grads: Any, saved: Any, shapes: Any, *, dim: int) -> Any:
    (index,), shape = saved, list(saved[0].shape)
    shape[dim] = shapes[0][dim]
    return to_shape(_added(grads[0], index, tuple(shape), dim), shapes[0]), None


@second("scatter_add")
def _scatter_add(grads: Any, saved: Any, shapes: Any, *, dim: int) -> Any:
    (index,), g = saved, grads[0]
    (dim,) = reduced(g.ndim, dim)
    part = tuple(slice(None if d == dim else n) for d, n in enumerate(index.shape))
    return g, None, None if shapes[2] is None else call("take_along_dim", g[part], Tensor(index), dim=dim)


def _ordered(grads: Any, saved: Any, shapes: Any, *, dim: int, **_: Any) -> Any:
    return (_added(grads[0], saved[0], shapes[0], dim),)


second("sort")(_ordered)
second("topk")(_ordered)
