"""Rows of a table, picked by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcdist.array import Array
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS
from hpcdist.autograd.ops.linalg import rows_of
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.pool import empty
from hpcdist.kernels.embedding import embedding_grad

__all__ = ["EMBEDDING"]


def _signature(shapes: list[tuple[int, ...]]) -> str:
    lead = LETTERS[: len(shapes[0])]
    return f"{lead},[z]y->{lead}y"


@row(_signature)
def embedding(tokens: Array, table: Array) -> tuple[Array, tuple[Array]]:
    """Return ``table[tokens]``: tokens (...), integers; table (num, width)."""
    if tokens.dtype.kind not in "iu" or table.ndim != 2:
        raise TypeError("expected integer tokens and a table (num, width)")
    if tokens.size and (tokens.min() < 0 or tokens.max() >= len(table)):
        raise IndexError(f"tokens lie in {tokens.min()} .. {tokens.max()}: expected 0 .. {len(table) - 1}")
    out = empty((*tokens.shape, table.shape[1]), table.dtype, table)
    table.take(tokens, axis=0, out=out, mode="clip")  # the range is checked above; the default mode would copy
    return out, (tokens,)


@embedding
def EMBEDDING(into: Any, grads: Any, saved: Any) -> None:
    out, beta = into[1].place()
    if not beta:
        out[...] = 0
    tokens = contiguous(saved[0].reshape(-1).astype(np.int64, copy=False))
    embedding_grad(rows_of(contiguous(grads[0])), tokens, out)
