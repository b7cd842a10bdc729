"""Rules of operations that their signatures do not describe: attributes that differ between ranks, shapes."""

from __future__ import annotations

from typing import Any

from hpcdist.autograd import Op
from hpcdist.dtensor.dispatch import Placed, rule
from hpcdist.dtensor.layout import Layout
from hpcdist.dtensor.placements import Invariant, Partial

__all__ = ["dropout"]


@rule("dropout")
def dropout(_: Op, layouts: list[Layout], attrs: dict[str, Any]) -> Placed:  # noqa: ARG001 (every rule has them)
    """Draw by the place in the whole array: one mask in every layout. The terms of a sum are masked alike."""
    (x,) = layouts
    linear = Partial("sum"), Partial("avg")
    held = x.placed([Invariant() if isinstance(p, Partial) and p not in linear else p for p in x.placements])
    return Placed([held], [held], {"index": held.flat_index})
