"""Comparisons, element by element: bool, without a gradient."""

from __future__ import annotations

import operator
from typing import Any

from hpcdist.array import Array
from hpcdist.autograd.op import Op, define
from hpcdist.autograd.ops.elementwise import broadcast_signature

__all__ = ["EQ", "GE", "GT", "LE", "LT", "NE"]


def _comparison(name: str) -> Op:
    compare = getattr(operator, name)

    def forward(a: Array, b: Array) -> tuple[Array, tuple[()]]:
        return compare(a, b), ()

    def vjp(into: Any, grads: Any, saved: Any) -> None:
        raise TypeError(f"{name}: a bool has no gradient")

    return define(name, forward, vjp, signature=broadcast_signature)


EQ, NE, LT, LE, GT, GE = map(_comparison, ("eq", "ne", "lt", "le", "gt", "ge"))
