"""Second forms of arrangement."""

from __future__ import annotations

from typing import Any

from hpcdist.array import namespace
from hpcdist.autograd.operand import call
from hpcdist.autograd.ops.pad import Widths, sources
from hpcdist.autograd.second.form import second, to_shape
from hpcdist.autograd.second.index import add_slices
from hpcdist.autograd.tensor import Tensor

__all__: list[str] = []


@second("reshape")
def _reshape(grads: Any, saved: Any, shapes: Any, *, shape: Any) -> Any:
    return (grads[0].reshape(shapes[0]),)


@second("transpose")
def _transpose(grads: Any, saved: Any, shapes: Any, *, dims: Any) -> Any:
    return (grads[0].transpose(sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))),)


@second("broadcast_to")
def _broadcast_to(grads: Any, saved: Any, shapes: Any, *, shape: Any) -> Any:
    return (to_shape(grads[0], shapes[0]),)


@second("cat")
def _cat(grads: Any, saved: Any, shapes: Any, *, dim: int) -> Any:
    return grads[0].split(saved[0], dim)


@second("stack")
def _stack(grads: Any, saved: Any, shapes: Any, *, dim: int) -> Any:
    return tuple(piece.squeeze(dim) for piece in grads[0].split(1, dim))


@second("split")
def _split(grads: Any, saved: Any, shapes: Any, *, sizes: tuple[int, ...], dim: int) -> Any:
    shape, like = list(shapes[0]), next(g for g in grads if g is not None)
    parts = []
    for g, n in zip(grads, sizes, strict=True):
        shape[dim] = n
        parts.append(g if g is not None else Tensor(namespace(like.data).zeros(shape, like.dtype)))
    return (call("cat", *parts, dim=dim),)


@second("pad")
def _pad(grads: Any, saved: Any, shapes: Any, *, widths: Widths, mode: str, value: float) -> Any:
    (g,) = grads
    if mode == "constant":
        back = tuple((-before, -after) for before, after in widths)
        return (call("pad", g, widths=back, mode=mode, value=0.0),)
    for dim, (n, pair) in enumerate(zip(shapes[0], widths, strict=True)):
        if pair != (0, 0):
            g = add_slices(g, namespace(g.data).array(sources(n, pair, mode)), dim, n)
    return (g,)
