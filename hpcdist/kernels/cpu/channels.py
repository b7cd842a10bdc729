"""Norms of channels, compiled: a thread has channels of its own, and sums of a channel run in one order."""

from __future__ import annotations

from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, inline, single
from hpcdist.kernels.cpu.memory import at, load, load_or, shift, store
from hpcdist.kernels.cpu.rows import part, row_sum
from hpcdist.kernels.cpu.vector import WIDTH, fma, splat, total


@inline
def _squares(row, mu, n):
    """Return the sum of the squares of a row's distances from ``mu``."""
    a, b = splat(0.0), splat(0.0)
    for j in range(0, n, 2 * WIDTH):
        d, e = load_or(row, j, n - j, mu) - mu, load_or(row, j + WIDTH, n - j - WIDTH, mu) - mu
        a, b = fma(d, d, a), fma(e, e, b)
    return total(a + b)


@compiled
def channel_moments(x, mean, var, num_threads):
    n, c, size = x.shape
    fits(mean.size == var.size == c)
    for t in prange(num_threads):
        for k in part(c, num_threads, t):
            s = 0.0
            for i in range(n):
                s += row_sum(shift(at(x, i), k * size), size)
            mean[k] = mu = single(s / (n * size))
            s = 0.0
            for i in range(n):
                s += _squares(shift(at(x, i), k * size), mu, size)
            var[k] = s / (n * size)


@inline
def _norm_row(row, mu, scale, offset, y, n):
    for j in range(0, n, WIDTH):
        store(y, j, n - j, fma(load(row, j, n - j) - mu, scale, splat(offset)))


@compiled
def channel_norm(x, mean, scale, shifts, y, num_threads):
    n, c, size = x.shape
    fits(y.shape == x.shape and mean.size == scale.size == shifts.size == c)
    for t in prange(num_threads):
        for r in part(n * c, num_threads, t):
            i, k = r // c, r % c
            row, to = shift(at(x, i), k * size), shift(at(y, i), k * size)
            _norm_row(row, mean[k], scale[k], shifts[k], to, size)


@inline
def _products(g, row, mu, n):
    """Return the sums of ``g`` and of ``g * (row - mu)``."""
    a, b = splat(0.0), splat(0.0)
    for j in range(0, n, WIDTH):
        v = load(g, j, n - j)
        a, b = a + v, fma(v, load(row, j, n - j) - mu, b)
    return total(a), total(b)


@compiled
def channel_sums(g, x, mean, first, second, num_threads):
    n, c, size = x.shape
    fits(g.shape == x.shape and mean.size == first.size == second.size == c)
    for t in prange(num_threads):
        for k in part(c, num_threads, t):
            a, b = 0.0, 0.0
            for i in range(n):
                u, v = _products(shift(at(g, i), k * size), shift(at(x, i), k * size), mean[k], size)
                a, b = a + u, b + v
            first[k], second[k] = a, b


@inline
def _norm_row_grad(g, row, mu, a, b, c, gx, n):
    for j in range(0, n, WIDTH):
        v = fma(load(row, j, n - j) - mu, b, splat(c))
        store(gx, j, n - j, fma(load(g, j, n - j), a, v))


@compiled
def channel_norm_grad(g, x, mean, a, b, c, gx, num_threads):
    n, num, size = x.shape
    fits(g.shape == gx.shape == x.shape and mean.size == a.size == b.size == c.size == num)
    for t in prange(num_threads):
        for r in part(n * num, num_threads, t):
            i, k = r // num, r % num
            place = k * size
            _norm_row_grad(
                shift(at(g, i), place), shift(at(x, i), place), mean[k], a[k], b[k], c[k], shift(at(gx, i), place), size
            )
