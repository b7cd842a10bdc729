"""A vocabulary cut over ranks: rows of its table, and cross-entropy of its logits, which are never gathered.

A rank looks up the tokens it has rows for, and adds nothing for others: the result is Partial, and so no message is
needed until somebody wants it whole. Of logits ranks tell each other two float64 numbers a row: the logarithm of the
sum of exponentials, and the logits as the target weighs them. Gradients are local.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.autograd import Tensor, apply
from hpcdist.autograd.operand import call
from hpcdist.autograd.ops.loss import checked_targets
from hpcdist.dtensor.dispatch import computed, unlike
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Partial, Placement, Replicate, Shard
from hpcdist.dtensor.steps import is_implicit, steps
from hpcdist.dtensor.tensor import DTensor, relaid
from hpcdist.dtensor.vocabulary_ops import CUT_CROSS_ENTROPY, CUT_EMBEDDING, CUT_LINEAR_CROSS_ENTROPY, Classes

__all__: list[str] = []


def _laid(name: str, inputs: Sequence[DTensor], wanted: Sequence[Sequence[Placement]]) -> list[DTensor]:
    """Return inputs placed so. Collective over axes on which they are Partial, and must not be.

    Raises
    ------
    ValueError
        If that would need more than implicit moves; names those that have to be asked for.
    """
    order = _order(*[x.layout for x in inputs])
    layouts = [x.layout.placed(placements, order) for x, placements in zip(inputs, wanted, strict=True)]
    taken = [step for x, w in zip(inputs, layouts, strict=True) for step in steps(x.layout, w)]
    if not all(map(is_implicit, taken)):
        raise unlike(name, [x.layout for x in inputs], layouts)
    return [relaid(x, layout) for x, layout in zip(inputs, layouts, strict=True)]


def _settled(*inputs: DTensor) -> Iterator[tuple[Placement, ...]]:
    """Yield the placements of inputs on each axis, with combinations over ranks finished."""
    return zip(*[x.layout.settled.placements for x in inputs], strict=True)


def _order(*layouts: Layout) -> tuple[int, ...]:
    """Return the order of axes of the first layout in which more than one axis cuts one dimension."""
    cut = (x.order for x in layouts if any(len(x.cutters(d)) > 1 for d in range(len(x.shape))))
    return next(cut, layouts[0].order)


# ---------------------------------------------------------------- the table
@computed("embedding")
def _embedding(tokens: DTensor, table: DTensor) -> Any:
    """Look up tokens in a table whose rows are cut: Partial over the axes that cut them, without a message."""
    rows = [_lookup(p, q, tokens.ndim) for p, q in _settled(tokens, table)]
    of_tokens, of_table, of_result = zip(*rows, strict=True)
    here, part = _laid("embedding", (tokens, table), (of_tokens, of_table))
    held = part.layout.indices_at(0, part.layout.coordinate)
    found = apply(CUT_EMBEDDING, here.local, part.local, held=held, num=table.shape[0])
    shape = (*tokens.shape, table.shape[1])
    return DTensor(found, Layout.of(table.layout.mesh, of_result, shape, part.layout.order))


def _lookup(p: Placement, q: Placement, ndim: int) -> tuple[Placement, Placement, Placement]:
    """Return how tokens, table and result are placed on an axis, from how tokens and table are."""
    if isinstance(q, Shard):
        return Replicate(), q, Partial() if q.dim == 0 else replace(q, dim=ndim)
    return (p, Replicate(), p) if isinstance(p, Shard) else (Replicate(), q, q)


# ---------------------------------------------------------------- cross-entropy
@computed("cross_entropy")
def _cross_entropy(logits: DTensor, targets: DTensor, *, ignore_index: int, reduction: str) -> Any:
    attrs = {"ignore_index": ignore_index, "reduction": reduction}
    return _of_logits("cross_entropy", logits, targets, (), attrs)


@computed("class_cross_entropy")
def _class_cross_entropy(logits: DTensor, targets: DTensor, *weight: DTensor, **attrs: Any) -> Any:
    return _of_logits("class_cross_entropy", logits, targets, weight, attrs)


def _of_logits(
    name: str, logits: DTensor, targets: DTensor, weight: Sequence[DTensor], attrs: dict[str, Any]
) -> DTensor:
    """Return the loss: Invariant on axes that cut classes, Partial (or cut, if there is one a row) where rows are.

    Collective over the axes that cut classes: one all_gather of two float64 numbers a row. The mean is, too, over the
    axes that cut rows: one all_reduce of two numbers, not in backward.
    """
    _check_reduction(name, attrs["reduction"], *(("none",) if name == "class_cross_entropy" else ()))
    last = logits.ndim - 1
    if targets.shape != logits.shape[:-1]:
        raise ValueError(f"{name}: targets {targets.shape} for rows of logits {logits.shape[:-1]}: expected the same")
    pairs = [_aligned(p, q, last) for p, q in _settled(logits, targets)]
    wanted = [*zip(*pairs, strict=True), *([Replicate()] * len(pairs) for _ in weight)]
    rows, goals, *whole = _laid(name, (logits, targets, *weight), wanted)
    arrays = [rows.local, goals.local, *[w.local for w in whole]]
    divisor = _divisor(name, goals, logits.shape[-1], whole, attrs)
    classes = _classes(rows.layout, last)
    if classes.comms:
        loss = apply(
            CUT_CROSS_ENTROPY,
            *arrays,
            ignore_index=attrs["ignore_index"],
            none=attrs["reduction"] == "none",
            label_smoothing=attrs.get("label_smoothing", 0.0),
            divisor=divisor,
            classes=classes,
        )
    else:
        loss = _scaled_loss(name, arrays, attrs, divisor)
    return DTensor(loss, _loss_layout(rows.layout, last, attrs["reduction"]))


def _check_reduction(name: str, reduction: str, *more: str) -> None:
    if reduction not in (known := ("mean", "sum", *more)):
        raise ValueError(f"{name}: reduction {reduction!r} is not one of {known}")


def _aligned(p: Placement, q: Placement, last: int) -> tuple[Placement, Placement]:
    """Return how logits (or features) and targets must be placed on an axis, from how they are."""
    if isinstance(p, Shard):
        return p, Replicate() if p.dim == last else p
    return (q, q) if isinstance(q, Shard) else (p, p)


def _classes(layout: Layout, dim: int) -> Classes:
    """Return which classes lie along ``dim`` on this rank."""
    return Classes(
        layout.groups_along(layout.cutters(dim)), layout.indices_at(dim, layout.coordinate), layout.shape[dim]
    )


def _scaled_loss(name: str, arrays: Sequence[Tensor], attrs: dict[str, Any], divisor: float) -> Tensor:
    """Return the loss of the rows that this rank holds, of whole classes, where the mean is that of all rows."""
    if attrs["reduction"] != "mean":
        loss: Tensor = call(name, *arrays, **attrs)
        return loss
    total: Tensor = call(name, *arrays, **{**attrs, "reduction": "sum"})
    return total * (1 / divisor)


def _loss_layout(layout: Layout, last: int, reduction: str) -> Layout:
    """Return the layout of the loss of rows in ``layout``."""
    placements: list[Placement] = []
    for p in layout.placements:
        if isinstance(p, Shard):
            placements.append(Invariant() if p.dim == last else p if reduction == "none" else Partial())
        else:
            placements.append(p)
    return Layout.of(layout.mesh, placements, layout.shape[:-1] if reduction == "none" else (), layout.order)


def _divisor(name: str, targets: DTensor, num_classes: int, weight: Sequence[DTensor], attrs: dict[str, Any]) -> float:
    """Return what the mean divides by: the number, or the weight, of the targets that count.

    Collective over the axes that cut rows: one all_reduce of two numbers. The mean of targets of which one is wrong
    raises on all of these ranks.
    """
    if attrs["reduction"] != "mean":
        return 1.0
    comms = targets.layout.groups_along(axis for axis, p in enumerate(targets.placements) if isinstance(p, Shard))
    total, error = 0.0, None
    try:
        total = _counted(targets.local.data, num_classes, weight, attrs["ignore_index"])
    except (IndexError, TypeError, ValueError) as wrong:
        error = type(wrong)(f"{name}: {wrong}")
    told = np.array([total, error is not None], np.float64)
    for comm in comms:
        told = comm.all_reduce(told)
    if told[1]:
        raise _first_error(comms, error)
    return float(told[0]) or 1.0


def _counted(targets: Array, num_classes: int, weight: Sequence[DTensor], ignore_index: int) -> float:
    flat, count = checked_targets(targets, targets.shape, num_classes, ignore_index)
    if not weight:
        return count
    return float(weight[0].local.data[flat[flat != ignore_index]].sum(dtype=float))


def _first_error(comms: Sequence[Any], error: Exception | None) -> Exception:
    """Return the error of the first rank that has one. Collective over each of ``comms``."""
    for comm in comms:
        try:
            comm.agree(error)
        except Exception as agreed:
            error = agreed
    assert error is not None
    return error


# ---------------------------------------------------------------- cross-entropy of a linear layer
@computed("linear_cross_entropy")
def _linear_cross_entropy(
    x: DTensor, w: DTensor, targets: DTensor, *, ignore_index: int, reduction: str, chunk_rows: int
) -> Any:
    """Return the cross-entropy of ``x @ w.T``, classes or rows cut; logits of a chunk of rows at a time.

    Collective over the axes that cut classes: one all_gather of two float64 numbers a row for each chunk; in backward
    a sum of the gradients of ``x``. Over the axes that cut rows: as the mean of :func:`_of_logits`, and in backward a
    sum of the gradients of ``w``.
    """
    _check_reduction("linear_cross_entropy", reduction)
    if targets.shape != x.shape[:-1]:
        raise ValueError(f"linear_cross_entropy: targets {targets.shape} for rows {x.shape[:-1]}: expected the same")
    wanted = zip(*[_of_layer(p, q, t, x.ndim - 1) for p, q, t in _settled(x, w, targets)], strict=True)
    features, weight, goals = _laid("linear_cross_entropy", (x, w, targets), list(wanted))
    attrs = {"ignore_index": ignore_index, "reduction": reduction, "chunk_rows": chunk_rows}
    divisor = _divisor("linear_cross_entropy", goals, len(w), (), attrs)
    classes = _classes(weight.layout, 0)
    arrays = [features.local, weight.local, goals.local]
    if classes.comms:
        loss = apply(
            CUT_LINEAR_CROSS_ENTROPY,
            *arrays,
            ignore_index=ignore_index,
            chunk_rows=chunk_rows,
            divisor=divisor,
            classes=classes,
        )
    else:
        loss = _scaled_loss("linear_cross_entropy", arrays, attrs, divisor)
    placements = [
        Invariant() if isinstance(q, Shard) else Partial() if isinstance(p, Shard) else p
        for p, q in zip(features.placements, weight.placements, strict=True)
    ]
    return DTensor(loss, Layout.of(x.layout.mesh, placements, ()))


def _of_layer(p: Placement, q: Placement, t: Placement, last: int) -> tuple[Placement, Placement, Placement]:
    """Return how x, w and targets must be placed on an axis, from how they are."""
    whole = Replicate()
    if isinstance(q, Shard) and q.dim == 0:
        return whole, q, whole
    cut = p if isinstance(p, Shard) and p.dim != last else t
    if isinstance(cut, Shard):
        return cut, whole, cut
    same = Invariant() if p == q == Invariant() else whole
    return same, same, t
