"""Attention of packed queries, keys and values in blocks of queries, compiled, and rotary positions.

A block's scores are one product, and stay in a cache while they become probabilities and meet the values; columns
above the diagonal of a causal block's last row are never computed. Several threads share the heads.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from hpcdist.backends import cpu
from hpcdist.kernels.cpu.compiled import compiled, fits, inline, single
from hpcdist.kernels.cpu.math import ONE, ZERO, exp
from hpcdist.kernels.cpu.memory import at, load, load_or, shift, store
from hpcdist.kernels.cpu.product import of_one_thread, product
from hpcdist.kernels.cpu.rows import LOWEST, copy_row, part, row_top
from hpcdist.kernels.cpu.softmax import scale_row
from hpcdist.kernels.cpu.vector import WIDTH, fma, splat, total

_BLOCK = 64  # queries


def _scratch(matrices, seq):
    """Return room for a block's matrices, one row of it a thread, and their elements from row to row.

    Rows are padded: whole vectors are stored, and lengths that are powers of two share few lines of a cache.
    """
    lead = -(-seq // WIDTH) * WIDTH + WIDTH
    return np.empty((cpu.num_threads(), matrices * _BLOCK * lead), np.float32), lead


@inline
def _clear_after(row, count, width):
    """Set the vectors of a padded row that begin at ``count`` or after it to 0."""
    for j in range((count + WIDTH - 1) // WIDTH * WIDTH, width, WIDTH):
        store(row, j, WIDTH, splat(0.0))


@inline
def _probabilities(row, count, width):
    """Replace scores by their exponentials, 0 from ``count`` on; return the largest score, and the sum."""
    largest = row_top(row, count)
    s = splat(0.0)
    for j in range(0, count, WIDTH):
        e = exp(load_or(row, j, count - j, LOWEST) - largest)
        store(row, j, WIDTH, e)
        s += e
    _clear_after(row, count, width)
    return largest, total(s)


@inline
def _head(q, k, v, lead_in, hd, scale, causal, out, lead_out, lse, inverse, scores, lead):
    seq = len(lse)
    for first in range(0, seq, _BLOCK):
        last = min(first + _BLOCK, seq)
        n, width = last - first, last if causal else seq
        product(0, 1, n, width, hd, scale, shift(q, first * lead_in), lead_in, k, lead_in, ZERO, scores, lead)
        for r in range(n):
            count = first + r + 1 if causal else seq
            largest, s = _probabilities(shift(scores, r * lead), count, width)
            lse[first + r] = largest + np.log(s)
            inverse[r] = ONE / s
        rows = shift(out, first * lead_out)
        product(0, 0, n, hd, width, ONE, scores, lead, v, lead_in, ZERO, rows, lead_out)
        for r in range(n):
            scale_row(shift(rows, r * lead_out), inverse[r], hd)


@compiled
def _attention(qkv, num_heads, seq, scale, causal, out, lse, inverses, scratch, lead, num_threads):
    tokens, d = out.shape
    hd = d // num_heads
    fits(qkv.shape == (tokens, 3 * d) and hd * num_heads == d)
    fits(lse.size == tokens * num_heads and lse.shape[1] == seq and len(lse) % num_heads == 0)
    fits(len(scratch) >= num_threads)
    for t in prange(num_threads):
        for i in part(len(lse), num_threads, t):
            token, column = i // num_heads * seq, i % num_heads * hd
            q = shift(at(qkv, token), 3 * column)
            _head(
                q,
                shift(q, hd),
                shift(q, 2 * hd),
                3 * d,
                hd,
                scale,
                causal,
                shift(at(out, token), column),
                d,
                lse[i],
                inverses[t],
                at(scratch, t),
                lead,
            )


def attention(qkv, num_heads, seq, scale, causal, out, lse):
    scratch, lead = _scratch(1, seq)
    inverses = np.empty((len(scratch), _BLOCK), np.float32)
    with of_one_thread():
        _attention(qkv, num_heads, seq, scale, causal, out, lse, inverses, scratch, lead)


# ---------------------------------------------------------------- gradient
@inline
def _dot(a, b, n):
    s = splat(0.0)
    for j in range(0, n, WIDTH):
        s = fma(load(a, j, n - j), load(b, j, n - j), s)
    return total(s)


@inline
def _score_grads(p, s, count, width, log_sum, mean):
    """Replace scores in ``p`` by probabilities, and their gradients in ``s`` by those of the scores."""
    for j in range(0, count, WIDTH):
        e = exp(load_or(p, j, count - j, LOWEST) - log_sum)
        store(p, j, WIDTH, e)
        store(s, j, WIDTH, e * (load(s, j, count - j) - mean))
    _clear_after(p, count, width)
    _clear_after(s, count, width)


@inline
def _head_grad(q, lead_in, hd, scale, causal, out, gout, lead_out, lse, gq, p, lead):
    seq = len(lse)
    k, v, gk, gv, s = shift(q, hd), shift(q, 2 * hd), shift(gq, hd), shift(gq, 2 * hd), shift(p, _BLOCK * lead)
    beta = ZERO  # the last block comes first: it reaches every key, so that the others can add
    for first in range((seq - 1) // _BLOCK * _BLOCK, -1, -_BLOCK):
        last = min(first + _BLOCK, seq)
        n, width = last - first, last if causal else seq
        here, there = first * lead_in, first * lead_out
        product(0, 1, n, width, hd, scale, shift(q, here), lead_in, k, lead_in, ZERO, p, lead)
        product(0, 1, n, width, hd, ONE, shift(gout, there), lead_out, v, lead_in, ZERO, s, lead)
        for r in range(n):
            count = first + r + 1 if causal else seq
            row = there + r * lead_out
            mean = _dot(shift(out, row), shift(gout, row), hd)
            _score_grads(shift(p, r * lead), shift(s, r * lead), count, width, lse[first + r], mean)
        product(1, 0, width, hd, n, ONE, p, lead, shift(gout, there), lead_out, beta, gv, lead_in)
        product(0, 0, n, hd, width, scale, s, lead, k, lead_in, ZERO, shift(gq, here), lead_in)
        product(1, 0, width, hd, n, scale, s, lead, shift(q, here), lead_in, beta, gk, lead_in)
        beta = ONE


@compiled
def _attention_grad(qkv, out, gout, lse, num_heads, seq, scale, causal, gqkv, scratch, lead, num_threads):
    tokens, d = out.shape
    hd = d // num_heads
    fits(qkv.shape == gqkv.shape == (tokens, 3 * d) and gout.shape == out.shape and hd * num_heads == d)
    fits(lse.size == tokens * num_heads and lse.shape[1] == seq and len(lse) % num_heads == 0)
    fits(len(scratch) >= num_threads)
    for t in prange(num_threads):
        for i in part(len(lse), num_threads, t):
            token, column = i // num_heads * seq, i % num_heads * hd
            _head_grad(
                shift(at(qkv, token), 3 * column),
                3 * d,
                hd,
                scale,
                causal,
                shift(at(out, token), column),
                shift(at(gout, token), column),
                d,
                lse[i],
                shift(at(gqkv, token), 3 * column),
                at(scratch, t),
                lead,
            )


def attention_grad(qkv, out, gout, lse, num_heads, seq, scale, causal, gqkv):
    scratch, lead = _scratch(2, seq)
    with of_one_thread():
        _attention_grad(qkv, out, gout, lse, num_heads, seq, scale, causal, gqkv, scratch, lead)


# ---------------------------------------------------------------- rotary positions
@inline
def _turn(part, cos, sin, sign, out, half):
    for j in range(0, half, WIDTH):
        rest = half - j
        first, second = load(part, j, rest), load(part, half + j, rest)
        c, s = load(cos, j, rest), load(sin, j, rest) * sign
        store(out, j, rest, fma(first, c, ZERO - second * s))
        store(out, half + j, rest, fma(second, c, first * s))


@compiled
def _rotary(qkv, cos, sin, num_heads, sign, out, num_threads):
    m, (seq, half) = len(qkv), cos.shape
    fits(qkv.shape == out.shape == (m, 6 * half * num_heads) and sin.shape == cos.shape)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            c, s = at(cos, i % seq), at(sin, i % seq)
            for h in range(num_heads):
                head, to = shift(at(qkv, i), 6 * half * h), shift(at(out, i), 6 * half * h)
                _turn(head, c, s, sign, to, half)
                _turn(shift(head, 2 * half), c, s, sign, shift(to, 2 * half), half)
                copy_row(shift(head, 4 * half), shift(to, 4 * half), 2 * half)


def rotary(qkv, cos, sin, num_heads, sign, out):
    _rotary(qkv, cos, sin, num_heads, single(sign), out)
