"""The same elements in another arrangement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS, sum_to
from hpcdist.autograd.ops.reduce import reduced
from hpcdist.autograd.pool import empty

__all__ = ["BROADCAST_TO", "CAT", "GETITEM", "PUT", "RESHAPE", "SPLIT", "STACK", "TRANSPOSE"]


def _whole(names: str) -> str:
    return "".join(f"[{name}]" for name in names)


def _reshape_signature(shapes: list[tuple[int, ...]], *, shape: tuple[int, ...]) -> str:
    """Leading dimensions that stay as they are may be cut; the rest is rearranged and must be whole."""
    same = 0
    while same < min(len(shape), len(shapes[0])) and shape[same] == shapes[0][same]:
        same += 1
    kept = LETTERS[:same]
    inside = _whole(LETTERS[same : len(shapes[0])])
    outside = _whole(LETTERS[len(shapes[0]) : len(shapes[0]) + len(shape) - same])
    return f"{kept}{inside}->{kept}{outside}"


@row(_reshape_signature, linear="joint")
def reshape(a: Array, *, shape: tuple[int, ...]) -> tuple[Array, tuple[()]]:
    """Return the elements of ``a`` in another shape."""
    return a.reshape(shape), ()


@reshape
def RESHAPE(into: Any, grads: Any, saved: Any, shape: tuple[int, ...]) -> None:
    into[0].give(grads[0].reshape(into[0].shape))


def _transpose_signature(shapes: list[tuple[int, ...]], *, dims: tuple[int, ...]) -> str:
    names = LETTERS[: len(shapes[0])]
    return f"{names}->{''.join(names[d] for d in dims)}"


@row(_transpose_signature, linear="joint")
def transpose(a: Array, *, dims: tuple[int, ...]) -> tuple[Array, tuple[()]]:
    """Return a view of ``a`` with its dimensions in the order ``dims``."""
    return a.transpose(dims), ()


@transpose
def TRANSPOSE(into: Any, grads: Any, saved: Any, dims: tuple[int, ...]) -> None:
    back = sorted(range(len(dims)), key=lambda i: dims[i] % len(dims))
    into[0].give(grads[0].transpose(back))


def _getitem_signature(shapes: list[tuple[int, ...]], *, index: Any) -> str:
    ndim = np.broadcast_to(0, shapes[0])[index].ndim
    return f"{_whole(LETTERS[: len(shapes[0])])}->{_whole(LETTERS[len(shapes[0]) :][:ndim])}"


@row(_getitem_signature, linear="joint")
def getitem(a: Array, *, index: Any) -> tuple[Array, tuple[()]]:
    """Return ``a[index]`` for integers, slices, ``...``, None, or arrays of integers or bool."""
    return namespace(a).asarray(a[index]), ()


@getitem
def GETITEM(into: Any, grads: Any, saved: Any, index: Any) -> None:
    out, beta = into[0].place()
    if not beta:
        out[...] = 0
    if _is_basic(index):
        out[index] += grads[0]
    else:
        namespace(out).add.at(out, index, grads[0])


def _put_signature(shapes: list[tuple[int, ...]], *, index: Any, shape: tuple[int, ...]) -> str:
    names = LETTERS[: len(shapes[0])], LETTERS[len(shapes[0]) :][: len(shape)]
    return f"{_whole(names[0])}->{_whole(names[1])}"


@row(_put_signature, linear="joint")
def put(a: Array, *, index: Any, shape: tuple[int, ...]) -> tuple[Array, tuple[()]]:
    """Return zeros of ``shape`` to which ``a`` was added at ``index``: the transpose of ``getitem``."""
    out: Array = namespace(a).zeros(shape, a.dtype)
    if _is_basic(index):
        out[index] = a
    else:
        namespace(a).add.at(out, index, a)
    return out, ()


@put
def PUT(into: Any, grads: Any, saved: Any, index: Any, shape: tuple[int, ...]) -> None:
    into[0].give(grads[0][index])


def _is_basic(index: Any) -> bool:
    """Say whether no element can be picked twice: integers, slices, ``...`` and None only."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(p is None or p is Ellipsis or (isinstance(p, (int, slice)) and not isinstance(p, bool)) for p in parts)


def along_signature(shapes: list[tuple[int, ...]], dim: int, inputs: int, outputs: int) -> str:
    """One group of letters for all; ``dim`` must be whole and differs from group to group."""
    ndim = len(shapes[0])
    group = [LETTERS[i] for i in range(ndim)]
    names = iter(LETTERS[ndim:])

    def one() -> str:
        return "".join(f"[{next(names)}]" if i == dim % ndim else n for i, n in enumerate(group))

    return ",".join(one() for _ in range(inputs)) + "->" + ",".join(one() for _ in range(outputs))


@row(lambda shapes, dim: along_signature(shapes, dim, len(shapes), 1), linear="joint")
def cat(*arrays: Array, dim: int) -> tuple[Array, tuple[list[int]]]:
    """Join arrays along ``dim``."""
    return _joined(arrays, dim), ([a.shape[dim] for a in arrays],)


def _joined(arrays: Sequence[Array], dim: int) -> Array:
    """Join arrays along ``dim``: large ones in memory of the pool."""
    if not arrays:
        raise ValueError("expected at least one array")
    xp, first = namespace(*arrays), arrays[0]
    reduced(max(first.ndim, 1), dim)
    if len({(a.ndim, a.dtype) for a in arrays}) > 1 or not first.ndim:
        joined: Array = xp.concatenate(arrays, axis=dim)  # another dtype, or an error
        return joined
    shape = list(first.shape)
    shape[dim] = sum(a.shape[dim] for a in arrays)
    return xp.concatenate(arrays, axis=dim, out=empty(tuple(shape), first.dtype, first))


@cat
def CAT(into: Any, grads: Any, saved: Any, dim: int) -> None:
    start = 0
    for target, n in zip(into, saved[0], strict=True):
        if target is not None:
            target.give(_cut(grads[0], dim, start, start + n))
        start += n


def _cut(a: Array, dim: int, start: int, stop: int) -> Array:
    index = [slice(None)] * a.ndim
    index[dim] = slice(start, stop)
    return a[tuple(index)]


@row(lambda shapes, sizes, dim: along_signature(shapes, dim, 1, len(sizes)), linear="joint")
def split(a: Array, *, sizes: tuple[int, ...], dim: int) -> tuple[tuple[Array, ...], tuple[()]]:
    """Cut ``a`` into views of the given sizes along ``dim``."""
    reduced(a.ndim, dim)
    if sum(sizes) != a.shape[dim] or min(sizes, default=0) < 0:
        raise ValueError(f"sizes {sizes} do not add up to {a.shape[dim]}")
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(_cut(a, dim, end - n, end) for end, n in zip(ends, sizes, strict=True)), ()


@split
def SPLIT(into: Any, grads: Any, saved: Any, sizes: tuple[int, ...], dim: int) -> None:
    out, beta = into[0].place()
    start = 0
    for g, n in zip(grads, sizes, strict=True):
        part = _cut(out, dim, start, start + n)
        if g is None:
            part[...] = part if beta else 0
        elif beta:
            part += g
        else:
            part[...] = g
        start += n


def _stack_signature(shapes: list[tuple[int, ...]], *, dim: int) -> str:
    names = LETTERS[: len(shapes[0])]
    place = dim % (len(names) + 1)
    return f"{','.join([names] * len(shapes))}->{names[:place]}[z]{names[place:]}"


@row(_stack_signature, linear="joint")
def stack(*arrays: Array, dim: int) -> tuple[Array, tuple[()]]:
    """Join arrays of one shape along a new dimension."""
    if len({a.shape for a in arrays}) != 1:
        raise ValueError("expected arrays of the same shape")
    return _joined([namespace(a).expand_dims(a, dim) for a in arrays], dim), ()


@stack
def STACK(into: Any, grads: Any, saved: Any, dim: int) -> None:
    parts = namespace(grads[0]).moveaxis(grads[0], dim, 0)
    for target, part in zip(into, parts, strict=True):
        if target is not None:
            target.give(part)


def _broadcast_signature(shapes: list[tuple[int, ...]], *, shape: tuple[int, ...]) -> str:
    """Dimensions that are stretched, or new, are whole: each rank would make all of them."""
    new = len(shape) - len(shapes[0])
    stretched = [i < new or shapes[0][i - new] != n for i, n in enumerate(shape)]
    inside = "".join("1" if s else n for s, n in zip(stretched[new:], LETTERS[new:], strict=False))
    return f"{inside}->{''.join(f'[{n}]' if s else n for s, n in zip(stretched, LETTERS, strict=False))}"


@row(_broadcast_signature, linear="joint")
def broadcast_to(a: Array, *, shape: tuple[int, ...]) -> tuple[Array, tuple[()]]:
    """Return a view of ``a`` in which dimensions of extent one are stretched, and new ones put in front."""
    return namespace(a).broadcast_to(a, shape), ()


@broadcast_to
def BROADCAST_TO(into: Any, grads: Any, saved: Any, shape: tuple[int, ...]) -> None:
    into[0].give(sum_to(grads[0], into[0].shape))
