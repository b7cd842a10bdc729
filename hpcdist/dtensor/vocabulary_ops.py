"""What each rank of a cut vocabulary computes: rows it has, and its part of cross-entropy, as operations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import check_floating
from hpcdist.autograd.ops.loss import checked_targets
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.pool import empty, pooled
from hpcdist.comm.communicator import Communicator
from hpcdist.dtensor.block import finite, logarithm
from hpcdist.kernels.embedding import embedding_grad
from hpcdist.kernels.gemm import gemm
from hpcdist.kernels.precision import wide

__all__ = ["CUT_CROSS_ENTROPY", "CUT_EMBEDDING", "CUT_LINEAR_CROSS_ENTROPY", "Classes"]


def _places(held: Array, wanted: Array) -> tuple[Array, Array]:
    """Return where in ``held``, which ascends, each of ``wanted`` is, and whether it is there at all."""
    xp = namespace(wanted)
    if not len(held):
        return xp.zeros(wanted.shape, np.int64), xp.zeros(wanted.shape, bool)
    held = xp.asarray(held)
    places = xp.minimum(xp.searchsorted(held, wanted), len(held) - 1)
    return places, held[places] == wanted


# ---------------------------------------------------------------- the table
@row("")
def cut_embedding(tokens: Array, table: Array, *, held: Array, num: int) -> tuple[Array, tuple[Array, Array]]:
    """Return rows of the part of a table that this rank holds, 0 for tokens that others hold.

    Parameters
    ----------
    tokens : array of int
        (...), in ``[0, num)``.
    table : array
        (len(held), width).
    held : array of int
        Tokens of its rows.
    """
    if tokens.dtype.kind not in "iu" or table.ndim != 2:
        raise TypeError("expected integer tokens and a table (num, width)")
    if tokens.size and (tokens.min() < 0 or tokens.max() >= num):
        raise IndexError(f"tokens lie in {tokens.min()} .. {tokens.max()}: expected 0 .. {num - 1}")
    flat = contiguous(tokens.reshape(-1).astype(np.int64, copy=False))
    places, mine = _places(held, flat)
    out = empty((len(flat), table.shape[1]), table.dtype, table)
    if len(table):
        table.take(places, axis=0, out=out, mode="clip")
    out[~mine] = 0
    return out.reshape((*tokens.shape, table.shape[1])), (places, mine)


@cut_embedding
def CUT_EMBEDDING(into: Any, grads: Any, saved: Any, **_: Any) -> None:  # noqa: N802 (named as its row)
    """Gradient of :func:`cut_embedding`."""
    places, mine = saved
    out, beta = into[1].place()
    if not beta:
        out[...] = 0
    rows = grads[0].reshape((len(mine), out.shape[1]))
    embedding_grad(contiguous(rows[mine]), contiguous(places[mine]), out)


# ---------------------------------------------------------------- cross-entropy
class Classes(NamedTuple):
    """The classes that this rank holds.

    Attributes
    ----------
    comms : tuple of Communicator
        Ranks of the axes that cut the classes.
    held : array of int
        Classes that this rank holds, in ascending order.
    num : int
        All classes.
    """

    comms: tuple[Communicator, ...]
    held: Array
    num: int

    def combined(self, part: Array, chosen: Array) -> tuple[Array, Array]:
        """Return logarithms of sums of exponentials, and sums, of all ranks: float64 (rows,) each.

        Collective over each of ``comms``: one all_gather of two numbers a row.
        """
        xp = namespace(part)
        for comm in self.comms:
            told = comm.all_gather(xp.stack([part, chosen])[None])
            top = finite(told[:, 0].max(axis=0))
            part = logarithm(xp.exp(told[:, 0] - top).sum(axis=0)) + top
            chosen = told[:, 1].sum(axis=0)
        return part, chosen


class _Mass(NamedTuple):
    """The distribution that rows of logits shall have: ``own`` on the target, ``every * weight`` on every class.

    Attributes
    ----------
    own : array
        (rows,), 0 for a row that does not count.
    places, mine : array
        (rows,): where the target is among the classes that this rank holds, and whether it is.
    spread : array, optional
        (held,): what each class gets of a row that counts.
    total : array
        (rows,): sum over all classes, 0 for a row that does not count.
    """

    own: Array
    places: Array
    mine: Array
    spread: Array | None
    total: Array


def _mass(t: Array, weight: Array | None, ignore_index: int, label_smoothing: float, classes: Classes) -> _Mass:
    xp = namespace(t)
    counted = t != ignore_index
    safe = xp.where(counted, t, 0)
    places, mine = _places(classes.held, safe)
    own = (1 - label_smoothing) * (xp.ones(len(t)) if weight is None else weight[safe].astype(float))
    if not label_smoothing:
        own = xp.where(counted, own, 0)
        return _Mass(own, places, mine, None, own)
    share = label_smoothing / classes.num
    held = xp.asarray(classes.held)
    spread = share * (xp.ones(len(held)) if weight is None else weight[held].astype(float))
    every = share * (classes.num if weight is None else weight.astype(float).sum())
    return _Mass(xp.where(counted, own, 0), places, mine, spread, xp.where(counted, own + every, 0))


def _exponentials(logits: Array, top: Array) -> Array:
    """Return ``exp(logits - top)``, of which there are as many as logits."""
    xp, x = namespace(logits), wide(logits)
    e = pooled(xp.subtract, x, top[:, None])
    return xp.exp(e, out=e)


def _tops(logits: Array) -> Array:
    """Return the largest of each row of logits, float32 of half precision."""
    return finite(wide(logits.max(axis=1, initial=-np.inf)))


def _sums(e: Array, top: Array) -> Array:
    """Return the logarithm of the sum of ``exp(logits)`` of each row: float64 (rows,)."""
    return logarithm(e.sum(axis=1, dtype=np.float64)) + top


def _chosen(logits: Array, mass: _Mass) -> Array:
    """Return what the rows' distributions weigh of their logits: float64 (rows,)."""
    xp, chosen = namespace(logits), namespace(logits).zeros(len(logits))
    at = xp.flatnonzero(mass.mine)
    chosen[at] = mass.own[at] * logits[at, mass.places[at]].astype(float)
    if mass.spread is not None:
        x = wide(logits)
        chosen += xp.where(mass.total != 0, xp.matmul(x, mass.spread.astype(x.dtype)), 0)
    return chosen


def _slope(e: Array, shift: Array, mass: _Mass, scale: Any) -> Array:
    """Turn ``e`` into ``(softmax * total - distribution) * scale``, where softmax is ``e * exp(shift)``."""
    xp = namespace(e)
    e *= (xp.exp(shift) * mass.total * scale).astype(e.dtype)[:, None]
    at = xp.flatnonzero(mass.mine)
    e[at, mass.places[at]] -= (mass.own * scale)[at].astype(e.dtype)
    if mass.spread is not None:
        counted = xp.where(mass.total != 0, scale, 0).astype(e.dtype)
        e -= counted[:, None] * mass.spread.astype(e.dtype)
    return e


@row("")
def cut_cross_entropy(
    logits: Array,
    targets: Array,
    weight: Array | None = None,
    *,
    ignore_index: int,
    none: bool,
    label_smoothing: float,
    divisor: float,
    classes: Classes,
) -> tuple[Array, tuple[Array, _Mass, Array, Array]]:
    """Return the cross-entropy of logits of which this rank holds some classes: that of all, on every rank.

    Collective over the ranks that hold the other classes, one all_gather of two float64 numbers a row; the gradient
    is local.

    Parameters
    ----------
    logits : array
        (..., held).
    targets : array of int
        (...), classes of all.
    weight : array, optional
        (num,), of all classes.
    none : bool
        Whether to return a loss a row, in place of the sum over rows divided by ``divisor``.
    """
    check_floating(logits, weight)
    if not 0 <= label_smoothing <= 1:
        raise ValueError("expected label_smoothing in 0 to 1")
    if weight is not None and weight.shape != (classes.num,):
        raise ValueError(f"expected one weight for each of the {classes.num} classes, not {weight.shape}")
    rows = contiguous(logits).reshape((targets.size, len(classes.held)))
    t, _ = checked_targets(targets, logits.shape[:-1], classes.num, ignore_index)
    mass = _mass(t, weight, ignore_index, label_smoothing, classes)
    top = _tops(rows)
    lse, chosen = classes.combined(_sums(_exponentials(rows, top), top), _chosen(rows, mass))
    losses = namespace(rows).where(mass.total != 0, mass.total * lse - chosen, 0)
    result = losses.reshape(logits.shape[:-1]) if none else losses.sum() / divisor
    return namespace(logits).asarray(result, logits.dtype), (rows, mass, top, lse)


@cut_cross_entropy
def CUT_CROSS_ENTROPY(into: Any, grads: Any, saved: Any, *, divisor: float, **_: Any) -> None:  # noqa: N802
    """Gradient of :func:`cut_cross_entropy`."""
    if into[0] is None:
        return
    rows, mass, top, lse = saved
    scale = wide(grads[0]).reshape(-1).astype(float) / divisor
    into[0].give(
        _slope(_exponentials(rows, top), top - lse, mass, scale).astype(rows.dtype, copy=False).reshape(into[0].shape)
    )


@row("", gives_saved=True)
def cut_linear_cross_entropy(
    x: Array,
    w: Array,
    targets: Array,
    *,
    ignore_index: int,
    chunk_rows: int,
    divisor: float,
    classes: Classes,
    recording: bool,
) -> tuple[Array, tuple[Array | None, Array | None]]:
    """Return the cross-entropy of ``x @ w.T``, where this rank holds the rows of w of some classes.

    Collective over the ranks that hold the other classes, one all_gather of two float64 numbers a row for each chunk.
    Gradients are computed here, as in ``linear_cross_entropy``: that of x is this rank's part of a sum.
    """
    check_floating(x, w)
    if w.ndim != 2 or w.shape[1] != x.shape[-1]:
        raise ValueError("expected x (..., k) and weight (classes, k)")
    rows = contiguous(x).reshape((targets.size, x.shape[-1]))
    t, _ = checked_targets(targets, x.shape[:-1], classes.num, ignore_index)
    logits = empty((min(chunk_rows, len(rows)), len(w)), x.dtype, x)
    gx, gw = (empty(rows.shape, x.dtype, x), empty(w.shape, w.dtype, w)) if recording else (None, None)
    total = 0.0
    for start in range(0, len(rows), chunk_rows):
        chunk, part = rows[start : start + chunk_rows], logits[: len(rows[start : start + chunk_rows])]
        gemm(chunk, w, part, trans_b=True)
        mass = _mass(t[start : start + chunk_rows], None, ignore_index, 0.0, classes)
        top = _tops(part)
        e = _exponentials(part, top)
        lse, chosen = classes.combined(_sums(e, top), _chosen(part, mass))
        total += float(namespace(x).where(mass.total != 0, lse - chosen, 0).sum())
        if gx is None or gw is None:
            continue
        slope = _slope(e, top - lse, mass, 1 / divisor).astype(x.dtype, copy=False)
        gemm(slope, w, gx[start : start + chunk_rows])
        gemm(slope, chunk, gw, beta=float(start > 0), trans_a=True)
    if gw is not None and not len(rows):
        gw[...] = 0
    loss = namespace(x).asarray(total / divisor, x.dtype)
    return loss, (None if gx is None else gx.reshape(x.shape), gw)


@cut_linear_cross_entropy
def CUT_LINEAR_CROSS_ENTROPY(into: Any, grads: Any, saved: Any, **_: Any) -> None:  # noqa: N802
    """Gradient of :func:`cut_linear_cross_entropy`."""
    for target, value in zip(into, saved, strict=False):
        if target is not None:
            if grads[0] != 1:
                value *= grads[0]
            target.give(value)
