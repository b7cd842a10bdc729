"""Attention over packed queries, keys and values, and rotary positions.

Packed rows are head-major, ``[h0.q h0.k h0.v h1.q ...]``, so that a plain split of rows gives whole heads. Saved are
the packed input, the output and the log-sum-exp of each query; never the scores (Dao et al. 2022, arXiv:2205.14135,
algorithms 1 and 4, in its plain blocked form). Rotary positions: Su et al. 2021, arXiv:2104.09864, equation 34, on
halves of the head dimension.
"""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array, namespace
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import check_floating
from hpcdist.autograd.ops.linalg import rows_of
from hpcdist.autograd.ops.norm import contiguous
from hpcdist.autograd.pool import empty
from hpcdist.kernels import attention as kernels

__all__ = ["ATTENTION", "ROTARY"]


def _head_dim(qkv: Array, num_heads: int) -> int:
    """Return the width of a head: 0 for no heads, which a rank may hold of a few."""
    check_floating(qkv)
    parts = 3 * num_heads
    if qkv.ndim != 3 or (qkv.shape[-1] % parts if parts else qkv.shape[-1]):
        raise ValueError("expected packed q, k, v (batch, seq, 3 * num_heads * head_dim)")
    return int(qkv.shape[-1] // parts) if parts else 0


@row("b[t][y]->b[t][z]")
def attention(qkv: Array, *, num_heads: int, causal: bool) -> tuple[Array, tuple[Array, ...]]:
    """Return ``softmax(q k^T / sqrt(head_dim)) v`` of every head: (batch, seq, 3 d) -> (batch, seq, d)."""
    head_dim = _head_dim(qkv, num_heads)
    qkv = contiguous(qkv)
    batch, seq, width = qkv.shape
    out, lse = (
        empty((batch, seq, width // 3), qkv.dtype, qkv),
        empty((batch * num_heads, seq), qkv.dtype, qkv),
    )
    if out.size:
        kernels.attention(rows_of(qkv), num_heads, seq, head_dim**-0.5, causal, rows_of(out), lse)
    return out, (qkv, out, lse)


@attention
def ATTENTION(into: Any, grads: Any, saved: Any, num_heads: int, causal: bool) -> None:
    qkv, out, lse = saved
    gqkv = empty(qkv.shape, qkv.dtype, qkv)
    if out.size:
        rows = (rows_of(a) for a in (qkv, out, contiguous(grads[0])))
        scale = _head_dim(qkv, num_heads) ** -0.5
        kernels.attention_grad(*rows, lse, num_heads, qkv.shape[1], scale, causal, rows_of(gqkv))
    into[0].give(gqkv)


def _rotate(qkv: Array, num_heads: int, base: float, sign: float) -> Array:
    head_dim = _head_dim(qkv, num_heads)
    if head_dim % 2:
        raise ValueError(f"rotary positions need an even head dimension, not {head_dim}")
    xp = namespace(qkv)
    rate = base ** -(xp.arange(0, head_dim, 2, dtype=xp.float64) / head_dim)
    angle = xp.arange(qkv.shape[1], dtype=xp.float64)[:, None] * rate
    out = empty(qkv.shape, qkv.dtype, qkv)
    cos, sin = xp.cos(angle).astype(qkv.dtype), xp.sin(angle).astype(qkv.dtype)
    if out.size:
        kernels.rotary(rows_of(contiguous(qkv)), cos, sin, num_heads, sign, rows_of(out))
    return out


@row("b[t][y]->b[t][y]", linear="joint")
def rotary(qkv: Array, *, num_heads: int, base: float) -> tuple[Array, tuple[()]]:
    """Rotate the q and k of packed q, k, v by an angle that grows with the position."""
    return _rotate(qkv, num_heads, base, 1.0), ()


@rotary
def ROTARY(into: Any, grads: Any, saved: Any, num_heads: int, base: float) -> None:
    into[0].give(_rotate(grads[0], num_heads, base, -1.0))
