"""Attention of packed queries, keys and values, its gradient, and rotary positions.

Rows of ``qkv`` are tokens, (batch * seq, 3 * d), head after head: ``[q of head 0 | k | v | q of head 1 ...]``,
each part ``d // num_heads`` wide. The gradient needs the log-sum-exp of each row of scores, never the scores.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpcdist.array import Array, namespace
from hpcdist.kernels.precision import wide
from hpcdist.kernels.registry import kernel

__all__ = ["attention", "attention_grad", "rotary"]


@kernel("attention")
def attention(qkv: Array, num_heads: int, seq: int, scale: float, causal: bool, out: Array, lse: Array) -> None:
    """Set ``out = softmax(scale * q @ k.T) @ v`` for each sequence and head (Vaswani et al. 2017, eq. 1).

    Parameters
    ----------
    qkv : array
        (batch * seq, 3 * d), packed.
    num_heads, seq : int
        Heads, and tokens of a sequence.
    scale : float
        Factor of the scores.
    causal : bool
        Whether a token attends only to itself and those before it.
    out, lse : array
        (batch * seq, d) and (batch * num_heads, seq): results, and log-sum-exp of the scores.
    """
    xp = namespace(qkv)
    for b, (q, k, v) in enumerate(_sequences(qkv, num_heads, seq)):
        scores = _scores(q, k, scale, causal)
        top = scores.max(2, keepdims=True)
        e = xp.exp(scores - top)
        total = e.sum(2, keepdims=True)
        _heads(out[b * seq : (b + 1) * seq], num_heads)[...] = xp.matmul(e / total, v)
        lse[b * num_heads : (b + 1) * num_heads] = (top + xp.log(total))[..., 0]


@kernel("attention")
def attention_grad(
    qkv: Array,
    out: Array,
    gout: Array,
    lse: Array,
    num_heads: int,
    seq: int,
    scale: float,
    causal: bool,
    gqkv: Array,
) -> None:
    """Set ``gqkv`` to the gradient of ``qkv`` for the gradient ``gout`` of attention's ``out``.

    The probabilities ``p = exp(scores - lse)`` are computed again; with ``gp = gout @ v.T`` the gradient of
    the scores is ``p * (gp - sum(gout * out))`` (Dao et al. 2022, appendix B.2).
    """
    xp = namespace(qkv)
    for b, (q, k, v) in enumerate(_sequences(qkv, num_heads, seq)):
        tokens, heads = slice(b * seq, (b + 1) * seq), slice(b * num_heads, (b + 1) * num_heads)
        g, o = (wide(_heads(x[tokens], num_heads)) for x in (gout, out))
        p = xp.exp(_scores(q, k, scale, causal) - wide(lse[heads])[:, :, None])
        gs = p * (xp.matmul(g, v.swapaxes(1, 2)) - (g * o).sum(2, keepdims=True)) * scale
        gq, gk, gv = _parts(gqkv[tokens], num_heads)
        gq[...], gk[...] = xp.matmul(gs, k), xp.matmul(gs.swapaxes(1, 2), q)
        gv[...] = xp.matmul(p.swapaxes(1, 2), g)


@kernel("attention")
def rotary(qkv: Array, cos: Array, sin: Array, num_heads: int, sign: int, out: Array) -> None:
    """Rotate queries and keys by their position (Su et al. 2021, section 3.4.2); values are copied.

    Parameters
    ----------
    qkv, out : array
        (batch * seq, 3 * d), packed; ``out`` may be ``qkv``.
    cos, sin : array
        (seq, half) with ``half = d // num_heads // 2``: of the angle of each position and frequency; element
        ``j`` of a head turns with element ``j + half``.
    sign : int
        1, or -1 for the inverse, which is the gradient.
    """
    seq, half = cos.shape
    parts, turned = (x.reshape(len(x) // max(seq, 1), seq, num_heads, 3, 2, half) for x in (qkv, out))
    if out is not qkv:
        turned[:, :, :, 2] = parts[:, :, :, 2]
    first, second = wide(parts[:, :, :, :2, 0]), wide(parts[:, :, :, :2, 1])
    c, s = wide(cos)[:, None, None], sign * wide(sin)[:, None, None]
    rotated = first * c - second * s, second * c + first * s
    turned[:, :, :, :2, 0], turned[:, :, :, :2, 1] = rotated


def _sequences(qkv: Array, num_heads: int, seq: int) -> Iterator[tuple[Array, ...]]:
    """Yield q, k, v of each sequence, (num_heads, seq, head width)."""
    for start in range(0, len(qkv), max(seq, 1)):
        yield _parts(wide(qkv[start : start + seq]), num_heads)


def _parts(rows: Array, num_heads: int) -> tuple[Array, ...]:
    packed = rows.reshape(len(rows), num_heads, 3, -1)
    return tuple(packed[:, :, part].swapaxes(0, 1) for part in range(3))


def _heads(rows: Array, num_heads: int) -> Array:
    return rows.reshape(len(rows), num_heads, -1).swapaxes(0, 1)


def _scores(q: Array, k: Array, scale: float, causal: bool) -> Array:
    xp = namespace(q)
    scores: Array = xp.matmul(q, k.swapaxes(1, 2)) * scale
    if causal:
        seq = scores.shape[1]
        scores[:, ~xp.tri(seq, dtype=bool)] = -xp.inf
    return scores
