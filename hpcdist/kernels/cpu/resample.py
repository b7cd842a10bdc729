"""A banded matrix along one dimension, compiled."""

from __future__ import annotations

from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, inline, single
from hpcdist.kernels.cpu.math import ZERO
from hpcdist.kernels.cpu.memory import at, load, shift, store
from hpcdist.kernels.cpu.rows import part
from hpcdist.kernels.cpu.vector import WIDTH, fma, splat
from hpcdist.kernels.resample import check_band


@inline
def _row(plane, first, stop, weights, i, y, beta, w):
    for j in range(0, w, WIDTH):
        rest = w - j
        s = splat(0.0) if beta == ZERO else load(y, j, rest) * beta
        for row in range(first, stop):
            s = fma(load(shift(plane, row * w), j, rest), weights[i, row - first], s)
        store(y, j, rest, s)


@compiled
def _resample(x, start, stop, weights, y, beta, num_threads):
    (m, _, w), o = x.shape, y.shape[1]
    fits(y.shape[0] == m and y.shape[2] == w and len(start) == len(stop) == len(weights) == o)
    for t in prange(num_threads):
        for r in part(m * o, num_threads, t):
            k, i = r // o, r % o
            end = min(stop[i], start[i] + weights.shape[1])
            if w > 1:
                _row(at(x, k), start[i], end, weights, i, shift(at(y, k), i * w), beta, w)
            else:
                s = ZERO if beta == ZERO else y[k, i, 0] * beta
                for j in range(start[i], end):
                    s += x[k, j, 0] * weights[i, j - start[i]]
                y[k, i, 0] = s


def resample(x, start, stop, weights, y, beta):
    check_band(start, stop, x.shape[1])
    _resample(x, start, stop, weights, y, single(beta))
