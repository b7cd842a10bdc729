"""Softmax, its logarithm, and their gradients, compiled."""

from __future__ import annotations

import numpy as np
from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, inline
from hpcdist.kernels.cpu.math import ONE, exp
from hpcdist.kernels.cpu.memory import at, load, load_or, store
from hpcdist.kernels.cpu.rows import LOWEST, part, row_sum, row_top
from hpcdist.kernels.cpu.vector import WIDTH, fma, splat, total

__all__ = ["exponentials", "log_softmax", "log_softmax_grad", "scale_row", "softmax", "softmax_grad", "sum_exp"]


@inline
def exponentials(row, y, largest, n):
    """Set ``y = exp(row - largest)``; return the sum."""
    a, b = splat(0.0), splat(0.0)
    for j in range(0, n, 2 * WIDTH):
        rest = n - j
        e = exp(load_or(row, j, rest, LOWEST) - largest)
        store(y, j, rest, e)
        a += e
        e = exp(load_or(row, j + WIDTH, rest - WIDTH, LOWEST) - largest)
        store(y, j + WIDTH, rest - WIDTH, e)
        b += e
    return total(a + b)


@inline
def sum_exp(row, largest, n):
    """Return the sum of ``exp(row - largest)``."""
    a, b = splat(0.0), splat(0.0)
    for j in range(0, n, 2 * WIDTH):
        a += exp(load_or(row, j, n - j, LOWEST) - largest)
        b += exp(load_or(row, j + WIDTH, n - j - WIDTH, LOWEST) - largest)
    return total(a + b)


@inline
def scale_row(row, factor, n):
    for j in range(0, n, WIDTH):
        store(row, j, n - j, load(row, j, n - j) * factor)


@compiled
def softmax(x, y, num_threads):
    m, n = x.shape
    fits(y.shape == x.shape)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            row, out = at(x, i), at(y, i)
            scale_row(out, ONE / exponentials(row, out, row_top(row, n), n), n)


@compiled
def softmax_grad(y, g, gx, num_threads):
    m, n = y.shape
    fits(g.shape == gx.shape == y.shape)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            p, top, out = at(y, i), at(g, i), at(gx, i)
            s = splat(0.0)
            for j in range(0, n, WIDTH):
                s = fma(load(p, j, n - j), load(top, j, n - j), s)
            mean = total(s)
            for j in range(0, n, WIDTH):
                store(out, j, n - j, load(p, j, n - j) * (load(top, j, n - j) - mean))


@compiled
def log_softmax(x, y, num_threads):
    m, n = x.shape
    fits(y.shape == x.shape)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            row, out = at(x, i), at(y, i)
            largest = row_top(row, n)
            log_sum = np.log(sum_exp(row, largest, n))
            for j in range(0, n, WIDTH):
                store(out, j, n - j, (load(row, j, n - j) - largest) - log_sum)


@compiled
def log_softmax_grad(y, g, gx, num_threads):
    m, n = y.shape
    fits(g.shape == gx.shape == y.shape)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            row, top, out = at(y, i), at(g, i), at(gx, i)
            s = row_sum(top, n)
            for j in range(0, n, WIDTH):
                store(out, j, n - j, load(top, j, n - j) - exp(load(row, j, n - j)) * s)
