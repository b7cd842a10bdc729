"""Queries that share keys and values: Ainslie et al. 2023, arXiv:2305.13245.

Packed rows are by groups, ``[g0.q0 g0.q1 ... g0.k g0.v g1.q0 ...]``: the queries of a group of heads, then the key and
the value they share, so that a plain split of rows gives whole groups. With one query a group that is the head-major
order of ``attention``.
"""

from __future__ import annotations

from typing import Any

from hpcdist.array import Array
from hpcdist.autograd.op import row
from hpcdist.autograd.ops.elementwise import LETTERS
from hpcdist.autograd.pool import empty
from hpcdist.kernels.precision import add_up

__all__ = ["UNGROUP"]


def _signature(shapes: list[tuple[int, ...]], **_: Any) -> str:
    lead = LETTERS[: len(shapes[0]) - 1]
    return f"{lead}[y]->{lead}[z]"


def _head_dim(width: int, num_heads: int, num_kv_heads: int) -> int:
    """Return the width of a head: 0 for no heads, which a rank may hold of a few."""
    if width == num_heads == num_kv_heads == 0:
        return 0
    parts = num_heads + 2 * num_kv_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads or width % parts:
        raise ValueError(
            f"expected (num_heads + 2 * num_kv_heads) * head_dim in the last dimension, and num_kv_heads that divides "
            f"num_heads, not {num_heads} and {num_kv_heads}"
        )
    return width // parts


@row(_signature, linear="joint")
def ungroup(qkv: Array, *, num_heads: int, num_kv_heads: int) -> tuple[Array, tuple[()]]:
    """Repeat keys and values for each query: rows by groups become the head-major rows of ``attention``."""
    lead, head_dim = qkv.shape[:-1], _head_dim(qkv.shape[-1], num_heads, num_kv_heads)
    group = num_heads // max(num_kv_heads, 1)
    parts = qkv.reshape(*lead, num_kv_heads, group + 2, head_dim)
    out = empty((*lead, num_kv_heads, group, 3, head_dim), qkv.dtype, qkv)
    out[..., 0, :] = parts[..., :group, :]
    out[..., 1, :] = parts[..., group : group + 1, :]
    out[..., 2, :] = parts[..., group + 1 :, :]
    return out.reshape(*lead, 3 * num_heads * head_dim), ()


@ungroup
def UNGROUP(into: Any, grads: Any, saved: Any, num_heads: int, num_kv_heads: int) -> None:
    shape, group = into[0].shape, num_heads // max(num_kv_heads, 1)
    head_dim = _head_dim(shape[-1], num_heads, num_kv_heads)
    g = grads[0].reshape(*shape[:-1], num_kv_heads, group, 3, head_dim)
    out = empty((*g.shape[:-3], group + 2, g.shape[-1]), g.dtype, g)
    out[..., :group, :] = g[..., 0, :]
    out[..., group, :] = add_up(g[..., 1, :], (-2,))
    out[..., group + 1, :] = add_up(g[..., 2, :], (-2,))
    into[0].give(out.reshape(shape))
