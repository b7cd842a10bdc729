"""The gradient of a table whose rows were looked up."""

from __future__ import annotations

from hpcdist.array import Array, namespace
from hpcdist.kernels.indices import check_indices
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel

__all__ = ["embedding_grad"]


@kernel("embedding")
def embedding_grad(g: Array, tokens: Array, out: Array) -> None:
    """Add row ``i`` of ``g`` (m, n) to row ``tokens[i]`` of ``out`` (v, n), in the order of ``i``.

    Raises
    ------
    ValueError
        If a token is not in ``[0, v)``.
    """
    check_indices("embedding: tokens", tokens, len(out))
    total = wide(out)
    namespace(g).add.at(total, tokens, wide(g))
    if total is not out:
        out[...] = total
