"""Layouts that are asked for: by placements, or by those that gradients shall have."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Partial, Placement, Shard, dual
from hpcdist.errors import explain

__all__ = ["redirected", "with_gradients"]


def redirected(x: Layout, placements: tuple[Placement, ...], order: tuple[int, ...] | None) -> Layout:
    """Return the layout that was asked for; in the present order by default, axes that cut anew last."""
    if order is None:
        new = [a for a, (p, q) in enumerate(zip(x.placements, placements, strict=False)) if _is_new(p, q)]
        order = (*(a for a in x.order if a not in new), *new)
    return x.placed(placements, order)


def _is_new(before: Placement, after: Placement) -> bool:
    return isinstance(after, Shard) and not (isinstance(before, Shard) and before.dim == after.dim)


def with_gradients(what: str, layout: Layout, grad_placements: Sequence[Placement]) -> Layout:
    """Return the layout in which ranks hold the same and of which gradients are placed as given.

    Raises
    ------
    ValueError
        If there is none: an axis is cut in one and not in the other, or ranks hold terms of a sum.
    """
    target = layout.placed([dual(p) for p in grad_placements])
    for p, q in zip(layout.placements, target.placements, strict=True):
        if isinstance(p, Partial) or (p != q and (isinstance(p, Shard) or isinstance(q, (Shard, Partial)))):
            expected = f"Invariant or Partial where {list(layout.placements)} are whole, their Shards elsewhere"
            raise ValueError(explain(f"{what}: grad_placements", got=list(grad_placements), expected=expected))
    return target
