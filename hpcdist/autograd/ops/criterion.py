"""How far predictions are from targets, element by element, and weighted cross-entropy of classes.

Huber 1964, doi:10.1214/aoms/1177703732. Label smoothing: Szegedy et al. 2016, arXiv:1512.00567, section 7.
"""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS, broadcast_signature, check_floating, give
from hpcdist.autograd.ops.linalg import rows_of
from hpcdist.autograd.ops.loss import checked_targets
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.pool import empty, pooled
from hpcdist.kernels.precision import wide
from hpcdist.kernels.softmax import log_softmax

__all__ = ["BINARY_CROSS_ENTROPY", "CLASS_CROSS_ENTROPY", "HUBER", "KL_DIV", "LOGISTIC"]

LEAST_LOG = -100.0
"""Logarithms of probabilities that are 0, and of those that nearly are, count as this."""
LEAST_VARIANCE = 1e-12


@row(broadcast_signature)
def huber(a: Array, b: Array, *, delta: float) -> tuple[Array, tuple[Array]]:
    """Return ``d * d / 2`` of the difference d = a - b up to ``delta``, ``delta * (|d| - delta / 2)`` above."""
    check_floating(a, b)
    xp = namespace(a, b)
    d = pooled(xp.subtract, a, b)
    size = pooled(xp.absolute, d)
    near = pooled(xp.minimum, size, d.dtype.type(delta))
    return pooled(xp.multiply, near, pooled(xp.subtract, size, pooled(xp.divide, near, 2))), (d,)


@huber
def HUBER(into: Any, grads: Any, saved: Any, delta: float) -> None:
    (d,), xp = saved, namespace(saved[0])
    limit = d.dtype.type(delta)
    inside = pooled(xp.maximum, pooled(xp.minimum, d, limit), -limit)
    slope = pooled(xp.multiply, grads[0], inside)
    give(into[0], lambda: slope)
    give(into[1], lambda: pooled(xp.negative, slope))


@row(broadcast_signature)
def binary_cross_entropy(p: Array, t: Array) -> tuple[Array, tuple[Array, Array]]:
    """Return ``-(t log p + (1 - t) log(1 - p))``, logarithms at least -100."""
    check_floating(p, t)
    xp = namespace(p)
    if ((p < 0) | (p > 1)).any():
        raise ValueError("expected probabilities, 0 to 1; functional.binary_cross_entropy_with_logits takes logits")
    return -(t * _log(xp, p) + (1 - t) * _log(xp, 1 - p)), (p, t)


def _log(xp: Any, p: Array) -> Array:
    with xp.errstate(divide="ignore"):
        log: Array = xp.maximum(xp.log(p), p.dtype.type(LEAST_LOG))
    return log


@binary_cross_entropy
def BINARY_CROSS_ENTROPY(into: Any, grads: Any, saved: Any) -> None:
    p, t = saved
    xp = namespace(p)
    give(into[0], lambda: grads[0] * (p - t) / xp.maximum(p * (1 - p), p.dtype.type(LEAST_VARIANCE)))
    give(into[1], lambda: grads[0] * (_log(xp, 1 - p) - _log(xp, p)))


@row(broadcast_signature)
def logistic(x: Array, t: Array, weight: Array | None = None) -> tuple[Array, tuple[Array, Array, Array | None]]:
    """Return the cross-entropy of sigmoid(x) and t; ``weight`` multiplies the term of t = 1."""
    check_floating(x, t, weight)
    positive = t if weight is None else t * weight
    return (1 - t) * x + (1 - t + positive) * _softplus(-x), (x, t, weight)


def _softplus(x: Array) -> Array:
    xp = namespace(x)
    y: Array = xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x)))
    return y


def _sigmoid(x: Array) -> Array:
    e = namespace(x).exp(-abs(x))
    y: Array = namespace(x).where(x >= 0, 1 / (1 + e), e / (1 + e))
    return y


@logistic
def LOGISTIC(into: Any, grads: Any, saved: Any) -> None:
    (x, t, weight), g = saved, grads[0]
    positive = t if weight is None else t * weight
    more = 0 if weight is None else weight - 1
    give(into[0], lambda: g * (1 - t - (1 - t + positive) * _sigmoid(-x)))
    give(into[1], lambda: g * (more * _softplus(-x) - x))
    if weight is not None:
        give(into[2], lambda: g * t * _softplus(-x))


@row(broadcast_signature)
def kl_div(x: Array, t: Array, *, log_target: bool) -> tuple[Array, tuple[Array, Array]]:
    """Return ``t * (log t - x)``, 0 where t is 0: x and, with ``log_target``, t are logarithms of probabilities."""
    check_floating(x, t)
    xp = namespace(x)
    if log_target:
        return xp.exp(t) * (t - x), (x, t)
    return t * (xp.log(xp.where(t > 0, t, t.dtype.type(1))) - x), (x, t)


@kl_div
def KL_DIV(into: Any, grads: Any, saved: Any, log_target: bool) -> None:
    (x, t), g = saved, grads[0]
    xp = namespace(x)
    if log_target:
        give(into[0], lambda: -g * xp.exp(t))
        give(into[1], lambda: g * xp.exp(t) * (t - x + 1))
    else:
        give(into[0], lambda: -g * t)
        give(into[1], lambda: g * xp.where(t > 0, xp.log(xp.where(t > 0, t, t.dtype.type(1))) - x + 1, 0))


# ---------------------------------------------------------------- classes
def _class_signature(shapes: list[tuple[int, ...]], *, reduction: str, **_: Any) -> str:
    names = LETTERS[: len(shapes[0]) - 1]
    # the average over a cut dimension is not a sum of local averages, so rows must be whole
    rows = "".join(f"[{n}]" for n in names) if reduction == "mean" else names
    weight = ["[y]"] if len(shapes) == 3 else []
    return ",".join([f"{rows}[y]", rows, *weight]) + "->" + (rows if reduction == "none" else "")


def _mass(t: Array, weight: Array, label_smoothing: float) -> tuple[Array, float]:
    """Return what of a row's weight goes to its target (rows,), and what part of ``weight`` goes to every class."""
    return (1 - label_smoothing) * weight[t], label_smoothing / len(weight)


@row(_class_signature)
def class_cross_entropy(
    logits: Array,
    targets: Array,
    weight: Array | None = None,
    *,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> tuple[Array, tuple[Array, ...]]:
    """Return the cross-entropy of smoothed targets with softmax(logits), classes weighted.

    logits (..., classes), targets (...) integers, weight (classes,). A row's loss is ``-sum(q * log softmax)``, where q
    is ``weight * ((1 - label_smoothing) * onehot + label_smoothing / classes)``; the mean divides by the sum of
    ``weight[target]``.
    """
    check_floating(logits, weight)
    xp, n = namespace(logits), logits.shape[-1]
    if weight is not None and weight.shape != (n,):
        raise ValueError(f"expected one weight for each of the {n} classes, not {weight.shape}")
    if not 0 <= label_smoothing <= 1 or reduction not in ("none", "mean", "sum"):
        raise ValueError("expected label_smoothing in 0 to 1, and reduction 'none', 'mean' or 'sum'")
    rows = rows_of(contiguous(logits))
    t, _ = checked_targets(targets, logits.shape[:-1], n, ignore_index)
    log_p = empty(rows.shape, rows.dtype, rows)
    log_softmax(rows, log_p)
    counted = t != ignore_index
    safe = xp.where(counted, t, 0)
    w = xp.ones(n, wide(rows).dtype) if weight is None else wide(weight)
    divisor = _divisor(w, safe[counted]) if reduction == "mean" else 1.0
    mine, every = _mass(safe, w, label_smoothing) if n else (w, 0.0)
    losses = -mine * wide(log_p)[xp.arange(len(t)), safe] if n else xp.zeros(len(t), w.dtype)
    if every:
        losses -= every * xp.matmul(wide(log_p), w)
    losses = xp.where(counted, losses, 0)
    result = losses.reshape(logits.shape[:-1]) if reduction == "none" else losses.sum() / divisor
    share = xp.where(counted, 1 / divisor, 0).astype(w.dtype)
    return xp.asarray(result, logits.dtype), (log_p, safe, w, share)


def _divisor(weight: Array, targets: Array) -> float:
    return float(weight[targets].sum(dtype=float)) or 1.0


@class_cross_entropy
def CLASS_CROSS_ENTROPY(into: Any, grads: Any, saved: Any, label_smoothing: float, **_: Any) -> None:
    if into[0] is None:
        return
    log_p, t, w, share = saved
    xp = namespace(log_p)
    scale = share * wide(grads[0]).reshape(-1)
    mine, every = _mass(t, w, label_smoothing)
    gradient = xp.exp(wide(log_p)) * (mine + every * w.sum())[:, None] - every * w
    gradient[xp.arange(len(t)), t] -= mine
    gradient *= scale[:, None]
    into[0].give(gradient.astype(log_p.dtype, copy=False).reshape(into[0].shape))
