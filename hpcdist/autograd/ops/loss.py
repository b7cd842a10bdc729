"""Cross-entropy of logits, and of a linear layer whose logits are never all in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS, check_floating
from hpcdist.autograd.ops.linalg import rows_of
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.pool import empty
from hpcdist.kernels import loss as kernels
from hpcdist.kernels.gemm import gemm

__all__ = ["CROSS_ENTROPY", "LINEAR_CROSS_ENTROPY", "checked_targets"]


def checked_targets(targets: Array, lead: tuple[int, ...], num_classes: int, ignore_index: int) -> tuple[Array, int]:
    """Return the targets, of shape ``lead``, as a contiguous vector of int64, and how many of them count."""
    if targets.shape != lead:
        raise ValueError(f"targets {targets.shape} for rows of logits {lead}: expected the same")
    if targets.dtype.kind not in "iu":
        raise TypeError(f"expected integer targets, not {targets.dtype}")
    t = contiguous(targets.reshape(-1).astype(np.int64, copy=False))
    counted = t != ignore_index
    if ((t < 0) | (t >= num_classes))[counted].any():
        bad = t[counted & ((t < 0) | (t >= num_classes))][0]
        raise IndexError(
            f"target {bad} is not a class: expected 0 to {num_classes - 1}, or ignore_index {ignore_index}"
        )
    return t, int(counted.sum())


def _signature(shapes: list[tuple[int, ...]], **_: Any) -> str:
    # the average over a cut dimension is not a sum of local averages, so rows must be whole
    rows = "".join(f"[{n}]" for n in LETTERS[: len(shapes[0]) - 1])
    weight = ["[z][y]"] if len(shapes) == 3 else []
    return ",".join([f"{rows}[y]", *weight, rows]) + "->"


def _scale(count: int, reduction: str) -> float:
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction {reduction!r} is not 'mean' or 'sum'")
    return 1.0 / max(count, 1) if reduction == "mean" else 1.0


@row(_signature)
def cross_entropy(
    logits: Array, targets: Array, *, ignore_index: int, reduction: str
) -> tuple[Array, tuple[Array, Array, float]]:
    """Return -log softmax(logits)[target], averaged or added up: logits (..., classes), targets (...), integers."""
    check_floating(logits)
    rows = rows_of(contiguous(logits))
    t, count = checked_targets(targets, logits.shape[:-1], rows.shape[1], ignore_index)
    scale = _scale(count, reduction)
    total = kernels.cross_entropy(rows, t, ignore_index)
    return namespace(logits).asarray(total * scale, logits.dtype), (rows, t, scale)


@cross_entropy
def CROSS_ENTROPY(into: Any, grads: Any, saved: Any, ignore_index: int, reduction: str) -> None:
    rows, t, scale = saved
    g = empty(rows.shape, rows.dtype, rows)
    g[...] = rows
    kernels.cross_entropy_grad(g, t, ignore_index, scale * float(grads[0]))
    into[0].give(g.reshape(into[0].shape))


@row(_signature, gives_saved=True)
def linear_cross_entropy(
    x: Array, w: Array, targets: Array, *, ignore_index: int, reduction: str, chunk_rows: int, recording: bool
) -> tuple[Array, tuple[Array | None, Array | None]]:
    """Return the cross-entropy of ``x @ w.T``: x (..., k), w (classes, k), targets (...), integers.

    Logits are computed a chunk of rows at a time. When backward may follow, both gradients are computed here, where
    the chunk's softmax is at hand, and saved: one extra array of the shape of w.
    """
    check_floating(x, w)
    rows = rows_of(contiguous(x))
    if w.ndim != 2 or w.shape[1] != rows.shape[1]:
        raise ValueError("expected x (..., k) and weight (classes, k)")
    t, count = checked_targets(targets, x.shape[:-1], len(w), ignore_index)
    scale = _scale(count, reduction)
    logits = empty((min(chunk_rows, len(rows)), len(w)), x.dtype, x)
    gx, gw = (empty(rows.shape, x.dtype, x), empty(w.shape, w.dtype, w)) if recording else (None, None)
    total = 0.0
    for start in range(0, len(rows), chunk_rows):
        chunk, target = rows[start : start + chunk_rows], t[start : start + chunk_rows]
        part = logits[: len(chunk)]
        gemm(chunk, w, part, trans_b=True)
        if gx is None or gw is None:
            total += kernels.cross_entropy(part, target, ignore_index)
            continue
        total += kernels.cross_entropy_grad(part, target, ignore_index, scale)
        gemm(part, w, gx[start : start + chunk_rows])
        gemm(part, chunk, gw, beta=float(start > 0), trans_a=True)
    if gw is not None and not len(rows):
        gw[...] = 0
    loss = namespace(x).asarray(total * scale, x.dtype)
    return loss, (None if gx is None else gx.reshape(x.shape), gw)


@linear_cross_entropy
def LINEAR_CROSS_ENTROPY(into: Any, grads: Any, saved: Any, **_: Any) -> None:
    for target, value in zip(into, saved, strict=False):
        if target is not None:
            if grads[0] != 1:
                value *= grads[0]
            target.give(value)
