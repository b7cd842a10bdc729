"""The largest and smallest along cut dimensions: value, global index and owner by one small message an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import check_real
from hpcdist.comm.communicator import Communicator
from hpcdist.dtensor.placements import Partial

__all__ = ["EXTREME"]


@row("")
def cut_extreme(
    a: Array, *, name: str, dims: tuple[int, ...], comms: tuple[Communicator, ...], held: tuple[Array, ...], size: Any
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the ``name`` ("max" or "min") along ``dims``, which stay, and the flat index in the whole of the first.

    Collective over each of ``comms``: one all_gather of a value and an index a row, as bytes. None in backward: the
    gradient, which is the same on all ranks, goes to the element that was found.

    Parameters
    ----------
    a : array
        What this rank holds.
    dims : tuple of int
        In ascending order.
    held : tuple of array
        Global indices that this rank holds along each of ``dims``.
    size : tuple of int
        Global extents of ``dims``.
    """
    xp, total = namespace(check_real(a)), math.prod(size)
    if not total:
        raise ValueError(f"the {name}imum of no elements is not defined")
    rows = a.transpose((*(d for d in range(a.ndim) if d not in dims), *dims))
    rows = rows.reshape((*rows.shape[: a.ndim - len(dims)], math.prod(map(len, held))))
    if rows.shape[-1]:
        local = getattr(xp, f"arg{name}")(rows, axis=-1)
        value = xp.take_along_axis(rows, local[..., None], axis=-1)[..., 0]
        places = xp.unravel_index(local, tuple(map(len, held)))
        where = [xp.asarray(h)[p] for h, p in zip(held, places, strict=True)]
        index = xp.asarray(xp.ravel_multi_index(where, size)).astype(np.int64)
    else:
        local = xp.zeros(rows.shape[:-1], np.int64)
        value, index = xp.full(local.shape, Partial(name).neutral(a.dtype), a.dtype), xp.full(local.shape, total)
    mine = index
    for comm in comms:
        value, index = _best(name, *_exchanged(value, index, comm), total)
    kept = [1 if d in dims else n for d, n in enumerate(a.shape)]
    return (value.reshape(kept), index.reshape(kept)), (local, mine == index)


def _exchanged(value: Array, index: Array, comm: Communicator) -> tuple[Array, Array]:
    """Return value and index of every rank, side by side. Collective over ``comm``."""
    xp = namespace(value)
    message = xp.concatenate([_bytes(value), _bytes(index.astype(np.int64))], axis=-1)
    told = comm.all_gather(message[None])
    width = value.dtype.itemsize
    return _read(told[..., :width], value.dtype), _read(told[..., width:], np.dtype(np.int64))


def _bytes(x: Array) -> Array:
    parts: Array = namespace(x).ascontiguousarray(x)[..., None].view(np.uint8)
    return parts.reshape((*x.shape, x.dtype.itemsize))


def _read(parts: Array, dtype: np.dtype[Any]) -> Array:
    values: Array = namespace(parts).ascontiguousarray(parts).view(dtype)
    return values[..., 0]


def _best(name: str, values: Array, indices: Array, none: int) -> tuple[Array, Array]:
    """Return the best of each column of values, and the least index of those who have it; NaN is best of all."""
    xp = namespace(values)
    best = getattr(xp, name)(values, axis=0)
    has = (values == best) | ((values != values) & (best != best))
    return best, xp.where(has, indices, none).min(axis=0)


@cut_extreme
def EXTREME(into: Any, grads: Any, saved: Any, *, dims: tuple[int, ...], held: Any, **_: Any) -> None:  # noqa: N802
    """Gradient of :func:`cut_extreme`."""
    local, mine = saved
    xp, shape, g = namespace(grads[0]), into[0].shape, grads[0].reshape(local.shape)
    extents = tuple(map(len, held))
    rows = xp.zeros((*local.shape, math.prod(extents)), g.dtype)
    if rows.shape[-1]:
        xp.put_along_axis(rows, local[..., None], xp.where(mine, g, 0).astype(g.dtype)[..., None], axis=-1)
    order = (*(d for d in range(len(shape)) if d not in dims), *dims)
    into[0].give(rows.reshape([shape[d] for d in order]).transpose(np.argsort(order)))
