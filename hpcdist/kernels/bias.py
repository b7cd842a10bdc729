"""The gradient of a bias: sums of columns."""

from __future__ import annotations

from hpcdist.array import Array
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel

__all__ = ["col_sum"]


@kernel("bias")
def col_sum(g: Array, out: Array, beta: float) -> None:
    """Set ``out = g.sum(0) + beta * out`` for ``g`` (m, n); with ``beta`` 0 the old ``out`` is not read."""
    total = wide(g).sum(0)
    out[...] = total if beta == 0 else total + beta * wide(out)
