"""The parts of a transformer: attention, feed-forward and the pre-norm block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hpcdist.autograd import Tensor
from hpcdist.errors import explain
from hpcdist.nn import functional as F
from hpcdist.nn.layers import Dropout, LayerNorm, Linear, RMSNorm
from hpcdist.nn.module import Module

__all__ = ["MLP", "MultiheadAttention", "TransformerBlock"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "swiglu": F.swiglu,
}
NORMS = {"layer": LayerNorm, "rms": RMSNorm}


def choose(what: str, table: dict[str, Any], name: str) -> Any:
    """Return ``table[name]``, or say which names there are."""
    if name not in table:
        raise ValueError(explain(what, got=repr(name), expected=" or ".join(map(repr, table))))
    return table[name]


class MultiheadAttention(Module):
    """Self-attention of ``num_heads`` heads: (batch, seq, embed_dim) -> the same.

    Parameters
    ----------
    embed_dim, num_heads : int
        The first must be a multiple of the second.
    is_causal : bool
        Let a position see itself and earlier ones only.
    rotary_base : float, optional
        Rotate queries and keys by their positions; None: do not.
    num_kv_heads : int, optional
        Pairs of key and value, each shared by ``num_heads / num_kv_heads`` queries; None: one a query.

    Notes
    -----
    ``qkv`` projects to rows by groups: the queries that share a key and a value, the key, the value, then the next
    group (q, k and v of head 0, then of head 1, ... where nothing is shared). So a plain split of its weight's rows
    gives whole groups; torch's ``in_proj_weight`` has all q first. Shared keys and values are repeated before the
    heads are computed.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        is_causal: bool = True,
        rotary_base: float | None = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                explain("attention: width", got=embed_dim, expected=f"a multiple of the {num_heads} heads")
            )
        if rotary_base is not None and (embed_dim // num_heads) % 2:
            raise ValueError(explain("rotary positions: head dimension", got=embed_dim // num_heads, expected="even"))
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise ValueError(explain("attention: num_kv_heads", got=num_kv_heads, expected=f"a divisor of {num_heads}"))
        self.qkv = Linear(embed_dim, embed_dim // num_heads * (num_heads + 2 * self.num_kv_heads))
        self.proj = Linear(embed_dim, embed_dim)
        self.num_heads, self.is_causal, self.rotary_base = num_heads, is_causal, rotary_base

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x)
        if self.num_kv_heads != self.num_heads:
            qkv = F.ungroup(qkv, self.num_heads, self.num_kv_heads)
        if self.rotary_base is not None:
            qkv = F.rotary(qkv, self.num_heads, self.rotary_base)
        return self.proj(F.packed_attention(qkv, self.num_heads, self.is_causal))


class MLP(Module):
    """Two linear layers with an activation between; ``"swiglu"`` makes the first twice as wide: [gate | up]."""

    def __init__(self, width: int, hidden: int, activation: str = "gelu") -> None:
        super().__init__()
        self.activation = choose("MLP: activation", ACTIVATIONS, activation)
        self.fc1 = Linear(width, hidden * (2 if activation == "swiglu" else 1))
        self.fc2 = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class TransformerBlock(Module):
    """A pre-norm block on a residual stream.

    It takes the stream and a branch that has not been added to it yet, and returns the same: the sum is done together
    with the norm that follows, in one pass.

    Parameters
    ----------
    width, num_heads : int
        See :class:`MultiheadAttention`.
    hidden : int
        Width between the two layers of the feed-forward part.
    activation, norm : str
        ``"gelu"``, ``"gelu_tanh"``, ``"swiglu"``, ``"silu"`` or ``"relu"``; ``"layer"`` or ``"rms"``.
    num_kv_heads : int, optional
        See :class:`MultiheadAttention`.
    dropout : float
        Probability, on both branches.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        hidden: int,
        *,
        activation: str = "gelu",
        norm: str = "layer",
        rotary_base: float | None = None,
        dropout: float = 0.0,
        eps: float = 1e-5,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        kind = choose("TransformerBlock: norm", NORMS, norm)
        self.ln1 = kind(width, eps)
        self.attn = MultiheadAttention(width, num_heads, rotary_base=rotary_base, num_kv_heads=num_kv_heads)
        self.ln2 = kind(width, eps)
        self.mlp = MLP(width, hidden, activation)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor, branch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x, y = (x, self.ln1(x)) if branch is None else self.ln1(x, branch)
        x, y = self.ln2(x, self.drop(self.attn(y)))
        return x, self.drop(self.mlp(y))
