"""What kernels on rows share: parts of threads, reductions of a row, sums of rows that threads collected."""

from __future__ import annotations

import numpy as np

from hpcdist.kernels.cpu.compiled import inline, single
from hpcdist.kernels.cpu.memory import at, load, load_or, store
from hpcdist.kernels.cpu.vector import WIDTH, maximum, splat, top, total

__all__ = ["LOWEST", "STRIDE", "clear", "collect", "copy_row", "part", "row_sum", "row_top"]

STRIDE = 4 * WIDTH
LOWEST = single(-np.inf)


@inline
def part(n, num_threads, t):
    """Return the range of thread ``t``."""
    return range(n * t // num_threads, n * (t + 1) // num_threads)


@inline
def row_sum(row, n):
    a, b, c, d = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    for j in range(0, n, STRIDE):
        rest = n - j
        a += load(row, j, rest)
        b += load(row, j + WIDTH, rest - WIDTH)
        c += load(row, j + 2 * WIDTH, rest - 2 * WIDTH)
        d += load(row, j + 3 * WIDTH, rest - 3 * WIDTH)
    return total((a + b) + (c + d))


@inline
def row_top(row, n):
    a, b = splat(LOWEST), splat(LOWEST)
    for j in range(0, n, 2 * WIDTH):
        a = maximum(load_or(row, j, n - j, LOWEST), a)
        b = maximum(load_or(row, j + WIDTH, n - j - WIDTH, LOWEST), b)
    return top(maximum(a, b))


@inline
def clear(row, n):
    for j in range(0, n, WIDTH):
        store(row, j, n - j, splat(0.0))


@inline
def copy_row(row, out, n):
    for j in range(0, n, WIDTH):
        store(out, j, n - j, load(row, j, n - j))


@inline
def collect(sums, first, step, count, out):
    """Set ``out`` to the sum of ``count`` rows of ``sums``: ``first``, ``first + step`` ..., in this order."""
    n = sums.shape[1]
    for j in range(0, n, WIDTH):
        s = load(at(sums, first), j, n - j)
        for k in range(1, count):
            s += load(at(sums, first + k * step), j, n - j)
        store(out, j, n - j, s)
