"""Activations and their gradients, compiled. Arrays without rows to tell apart are one long row."""

from __future__ import annotations

import math

from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, inline, single
from hpcdist.kernels.cpu.math import ONE, erf, exp, sigmoid
from hpcdist.kernels.cpu.memory import at, load, store
from hpcdist.kernels.cpu.rows import part
from hpcdist.kernels.cpu.vector import WIDTH, fma

_SLOPE, _CUBIC = single(2 * math.sqrt(2 / math.pi)), single(0.044715)
_THREE_CUBIC, _HALF, _ROOT_HALF = single(3 * 0.044715), single(0.5), single(math.sqrt(0.5))
_DENSITY = single(1 / math.sqrt(2 * math.pi))


# ---------------------------------------------------------------- GELU
@inline
def _tanh_gate(z):
    """Return 0.5 * (1 + tanh(u)), which is sigmoid(2 u)."""
    return sigmoid(_SLOPE * z * fma(_CUBIC * z, z, ONE))


@inline
def _erf_gate(z):
    return fma(erf(z * _ROOT_HALF), _HALF, _HALF)


@inline
def _tanh_slope(z):
    gate = _tanh_gate(z)
    return fma(z * gate * (ONE - gate) * _SLOPE, fma(_THREE_CUBIC * z, z, ONE), gate)


@inline
def _erf_slope(z):
    return fma(z * _DENSITY, exp(-_HALF * z * z), _erf_gate(z))


@compiled
def gelu(z, y, tanh, num_threads):
    fits(y.size == z.size)
    for t in prange(num_threads):
        run = part(z.size, num_threads, t)
        for j in range(run.start, run.stop, WIDTH):
            x = load(at(z, 0), j, run.stop - j)
            store(at(y, 0), j, run.stop - j, x * (_tanh_gate(x) if tanh else _erf_gate(x)))


@compiled
def gelu_grad(z, g, gz, tanh, num_threads):
    fits(g.size == gz.size == z.size)
    for t in prange(num_threads):
        run = part(z.size, num_threads, t)
        for j in range(run.start, run.stop, WIDTH):
            rest = run.stop - j
            x = load(at(z, 0), j, rest)
            store(at(gz, 0), j, rest, load(at(g, 0), j, rest) * (_tanh_slope(x) if tanh else _erf_slope(x)))


# ---------------------------------------------------------------- SiLU, alone and as a gate
@inline
def _silu_slope(z, gate):
    return fma(z * gate, ONE - gate, gate)


@compiled
def silu(z, y, num_threads):
    fits(y.size == z.size)
    for t in prange(num_threads):
        run = part(z.size, num_threads, t)
        for j in range(run.start, run.stop, WIDTH):
            x = load(at(z, 0), j, run.stop - j)
            store(at(y, 0), j, run.stop - j, x * sigmoid(x))


@compiled
def silu_grad(z, g, gz, num_threads):
    fits(g.size == gz.size == z.size)
    for t in prange(num_threads):
        run = part(z.size, num_threads, t)
        for j in range(run.start, run.stop, WIDTH):
            rest = run.stop - j
            x = load(at(z, 0), j, rest)
            store(at(gz, 0), j, rest, load(at(g, 0), j, rest) * _silu_slope(x, sigmoid(x)))


@compiled
def swiglu(z, y, num_threads):
    m, n = y.shape
    fits(z.shape == (m, 2 * n))
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            row, out = at(z, i), at(y, i)
            for j in range(0, n, WIDTH):
                gate, up = load(row, j, n - j), load(row, n + j, n - j)
                store(out, j, n - j, gate * sigmoid(gate) * up)


@compiled
def swiglu_grad(z, g, gz, num_threads):
    m, n = g.shape
    fits(z.shape == gz.shape == (m, 2 * n))
    for t in prange(num_threads):
        for i in part(m, num_threads, t):
            row, out = at(z, i), at(gz, i)
            for j in range(0, n, WIDTH):
                rest = n - j
                gate, up, top = load(row, j, rest), load(row, n + j, rest), load(at(g, i), j, rest)
                s = sigmoid(gate)
                store(out, j, rest, top * up * _silu_slope(gate, s))
                store(out, n + j, rest, top * gate * s)
