"""Sums of columns, compiled."""

from __future__ import annotations

from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, inline, single
from hpcdist.kernels.cpu.math import ZERO
from hpcdist.kernels.cpu.memory import at, load, shift, store
from hpcdist.kernels.cpu.rows import part
from hpcdist.kernels.cpu.vector import WIDTH, splat


@inline
def _begin(out, beta, n):
    for j in range(0, n, WIDTH):
        store(out, j, n - j, splat(0.0) if beta == ZERO else load(out, j, n - j) * beta)


@inline
def _add_one(a, out, n):
    for j in range(0, n, WIDTH):
        store(out, j, n - j, load(out, j, n - j) + load(a, j, n - j))


@inline
def _add_four(a, b, c, d, out, n):
    for j in range(0, n, WIDTH):
        rest = n - j
        s = (load(a, j, rest) + load(b, j, rest)) + (load(c, j, rest) + load(d, j, rest))
        store(out, j, rest, load(out, j, rest) + s)


@compiled
def _col_sum(g, out, beta, num_threads):
    m, n = g.shape
    fits(out.size == n)
    for t in prange(num_threads):
        columns = part(n, num_threads, t)
        first, count, to = columns.start, len(columns), at(out, columns.start)
        _begin(to, beta, count)
        together = m // 4 * 4
        for i in range(0, together, 4):
            a, b, c, d = at(g, i), at(g, i + 1), at(g, i + 2), at(g, i + 3)
            _add_four(shift(a, first), shift(b, first), shift(c, first), shift(d, first), to, count)
        for i in range(together, m):
            _add_one(shift(at(g, i), first), to, count)


def col_sum(g, out, beta):
    _col_sum(g, out, single(beta))
