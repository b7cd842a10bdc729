"""Maxima over windows, compiled."""

from __future__ import annotations

from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, inline
from hpcdist.kernels.cpu.rows import LOWEST, part
from hpcdist.kernels.indices import check_indices


@inline
def _inside(start, size, dilation, n):
    """Return the places of a window's elements along ``n`` elements, those outside left out."""
    first = start if start >= 0 else start + -(start // dilation) * dilation
    return range(first, min(n, start + (size - 1) * dilation + 1), dilation)


@compiled
def max_pool(x, window, y, index, num_threads):
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window
    (m, h, w), (_, oh, ow) = x.shape, y.shape
    fits(y.shape[0] == m and index.shape == y.shape)
    for t in prange(num_threads):
        for p in part(m * oh, num_threads, t):
            k, i = p // oh, p % oh
            for j in range(ow):
                best, place = LOWEST, -1
                for row in _inside(i * sh - ph, kh, dh, h):
                    for column in _inside(j * sw - pw, kw, dw, w):
                        seen = x[k, row, column]
                        if seen > best or place < 0 or (seen != seen and best == best):
                            best, place = seen, row * w + column
                y[k, i, j], index[k, i, j] = best, place


@compiled
def _max_pool_grad(g, index, gx, num_threads):
    m, n = g.shape
    fits(index.shape == g.shape and gx.shape[0] == m)
    for t in prange(num_threads):
        for k in part(m, num_threads, t):
            for j in range(n):
                gx[k, index[k, j]] += g[k, j]


def max_pool_grad(g, index, gx):
    check_indices("max_pool: indices", index, gx.shape[1])
    _max_pool_grad(g, index, gx)
