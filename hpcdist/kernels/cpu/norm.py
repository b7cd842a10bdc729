"""Layer norm and RMS norm of rows, compiled."""

from __future__ import annotations

import numpy as np
from numba import prange

from hpcdist.backends import cpu
from hpcdist.kernels.cpu.compiled import compiled, fits, inline, single
from hpcdist.kernels.cpu.math import ONE, ZERO
from hpcdist.kernels.cpu.memory import at, load, load_or, store
from hpcdist.kernels.cpu.rows import STRIDE, clear, collect, part, row_sum
from hpcdist.kernels.cpu.vector import WIDTH, fma, splat, total


@inline
def _add_square(row, j, rest, mu, s):
    d = load_or(row, j, rest, mu) - mu
    return fma(d, d, s)


@inline
def _reciprocal_root(row, n, mu, eps):
    """Return 1 / sqrt(mean((row - mu)**2) + eps)."""
    a, b, c, d = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    for j in range(0, n, STRIDE):
        rest = n - j
        a = _add_square(row, j, rest, mu, a)
        b = _add_square(row, j + WIDTH, rest - WIDTH, mu, b)
        c = _add_square(row, j + 2 * WIDTH, rest - 2 * WIDTH, mu, c)
        d = _add_square(row, j + 3 * WIDTH, rest - 3 * WIDTH, mu, d)
    return ONE / np.sqrt(total((a + b) + (c + d)) / single(n) + single(eps))


@inline
def _add(x, h, y, n):
    for j in range(0, n, WIDTH):
        store(y, j, n - j, load(x, j, n - j) + load(h, j, n - j))


# ---------------------------------------------------------------- layer norm
@inline
def _layer_row(row, mu, rs, gain, shift, y, n):
    for j in range(0, n, WIDTH):
        rest = n - j
        u = (load(row, j, rest) - mu) * rs
        store(y, j, rest, fma(u, load(gain, j, rest), load(shift, j, rest)))


@compiled
def layer_norm(x, gain, shift, eps, y, mean, rstd, num_threads):
    m, n = x.shape
    fits(y.shape == x.shape)
    fits(gain.size == shift.size == n and mean.size == rstd.size == m)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            row = at(x, i)
            mean[i] = mu = row_sum(row, n) / single(n)
            rstd[i] = rs = _reciprocal_root(row, n, mu, eps)
            _layer_row(row, mu, rs, at(gain, 0), at(shift, 0), at(y, i), n)


@compiled
def add_layer_norm(x, h, gain, shift, eps, total, y, mean, rstd, num_threads):
    m, n = x.shape
    fits(h.shape == total.shape == y.shape == x.shape)
    fits(gain.size == shift.size == n and mean.size == rstd.size == m)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            row = at(total, i)
            _add(at(x, i), at(h, i), row, n)
            mean[i] = mu = row_sum(row, n) / single(n)
            rstd[i] = rs = _reciprocal_root(row, n, mu, eps)
            _layer_row(row, mu, rs, at(gain, 0), at(shift, 0), at(y, i), n)


@compiled
def layer_norm_again(x, mean, rstd, gain, shift, y, num_threads):
    m, n = x.shape
    fits(y.shape == x.shape)
    fits(gain.size == shift.size == n and mean.size == rstd.size == m)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            _layer_row(at(x, i), mean[i], rstd[i], at(gain, 0), at(shift, 0), at(y, i), n)


@inline
def _layer_sums(gy, row, mu, rs, gain, n):
    """Return the means of w and of w * u, w the gradient times gain and u the normalised row."""
    a, b = splat(0.0), splat(0.0)
    for j in range(0, n, WIDTH):
        rest = n - j
        w = load(gy, j, rest) * load(gain, j, rest)
        a += w
        b = fma(w, load(row, j, rest) - mu, b)
    return total(a) / single(n), total(b) * rs / single(n)


@inline
def _layer_row_grad(gy, row, mu, rs, gain, gx, add, ggain, gshift, n):
    mean_w, mean_wu = _layer_sums(gy, row, mu, rs, gain, n)
    for j in range(0, n, WIDTH):
        rest = n - j
        g = load(gy, j, rest)
        u = (load(row, j, rest) - mu) * rs
        v = (fma(g, load(gain, j, rest), -mean_w) - u * mean_wu) * rs
        store(gx, j, rest, v + load(gx, j, rest) if add else v)
        store(ggain, j, rest, fma(g, u, load(ggain, j, rest)))
        store(gshift, j, rest, load(gshift, j, rest) + g)


@compiled
def _layer_norm_grad(gy, x, mean, rstd, gain, gx, add, ggain, gshift, sums, num_threads):
    m, n = x.shape
    fits(gy.shape == gx.shape == x.shape)
    fits(gain.size == ggain.size == gshift.size == n and mean.size == rstd.size == m and len(sums) >= 2 * num_threads)
    for t in prange(num_threads):
        to_gain, to_shift = at(sums, 2 * t), at(sums, 2 * t + 1)
        clear(to_gain, n)
        clear(to_shift, n)
        for i in part(m, num_threads, t):
            _layer_row_grad(at(gy, i), at(x, i), mean[i], rstd[i], at(gain, 0), at(gx, i), add, to_gain, to_shift, n)
    collect(sums, 0, 2, num_threads, at(ggain, 0))
    collect(sums, 1, 2, num_threads, at(gshift, 0))


def layer_norm_grad(gy, x, mean, rstd, gain, gx, add, ggain, gshift):
    sums = np.empty((2 * cpu.num_threads(), x.shape[1]), np.float32)
    _layer_norm_grad(gy, x, mean, rstd, gain, gx, add, ggain, gshift, sums)


# ---------------------------------------------------------------- RMS norm
@inline
def _rms_row(row, rs, gain, y, n):
    for j in range(0, n, WIDTH):
        store(y, j, n - j, load(row, j, n - j) * rs * load(gain, j, n - j))


@compiled
def rms_norm(x, gain, eps, y, rstd, num_threads):
    m, n = x.shape
    fits(y.shape == x.shape)
    fits(gain.size == n and rstd.size == m)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            rstd[i] = rs = _reciprocal_root(at(x, i), n, ZERO, eps)
            _rms_row(at(x, i), rs, at(gain, 0), at(y, i), n)


@compiled
def add_rms_norm(x, h, gain, eps, total, y, rstd, num_threads):
    m, n = x.shape
    fits(h.shape == total.shape == y.shape == x.shape)
    fits(gain.size == n and rstd.size == m)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            row = at(total, i)
            _add(at(x, i), at(h, i), row, n)
            rstd[i] = rs = _reciprocal_root(row, n, ZERO, eps)
            _rms_row(row, rs, at(gain, 0), at(y, i), n)


@compiled
def rms_norm_again(x, rstd, gain, y, num_threads):
    m, n = x.shape
    fits(y.shape == x.shape)
    fits(gain.size == n and rstd.size == m)
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            _rms_row(at(x, i), rstd[i], at(gain, 0), at(y, i), n)


@inline
def _rms_row_grad(gy, row, rs, gain, gx, add, ggain, n):
    s = splat(0.0)
    for j in range(0, n, WIDTH):
        rest = n - j
        s = fma(load(gy, j, rest) * load(gain, j, rest), load(row, j, rest), s)
    mean_wu = total(s) * rs / single(n)
    for j in range(0, n, WIDTH):
        rest = n - j
        g, u = load(gy, j, rest), load(row, j, rest) * rs
        v = (g * load(gain, j, rest) - u * mean_wu) * rs
        store(gx, j, rest, v + load(gx, j, rest) if add else v)
        store(ggain, j, rest, fma(g, u, load(ggain, j, rest)))


@compiled
def _rms_norm_grad(gy, x, rstd, gain, gx, add, ggain, sums, num_threads):
    m, n = x.shape
    fits(gy.shape == gx.shape == x.shape)
    fits(gain.size == ggain.size == n and rstd.size == m and len(sums) >= num_threads)
    for t in prange(num_threads):
        to_gain = at(sums, t)
        clear(to_gain, n)
        for i in part(m, num_threads, t):
            _rms_row_grad(at(gy, i), at(x, i), rstd[i], at(gain, 0), at(gx, i), add, to_gain, n)
    collect(sums, 0, 1, num_threads, at(ggain, 0))


def rms_norm_grad(gy, x, rstd, gain, gx, add, ggain):
    sums = np.empty((cpu.num_threads(), x.shape[1]), np.float32)
    _rms_norm_grad(gy, x, rstd, gain, gx, add, ggain, sums)
