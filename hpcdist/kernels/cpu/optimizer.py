"""The update of Adam and its kin, and sums of squares, compiled."""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, inline, single
from hpcdist.kernels.cpu.math import ZERO
from hpcdist.kernels.cpu.memory import at, load, store
from hpcdist.kernels.cpu.rows import part
from hpcdist.kernels.cpu.vector import WIDTH, choose_above, fma, root, splat, total, widen
from hpcdist.kernels.optimizer import BLOCK, tree_sum


@inline
def _gradient(parts, j, rest, scale, decay, p):
    """Return what up to 16 parameters see: the scaled sum of parts, and ``decay`` times the parameters."""
    g = load(at(parts, 0), j, rest)
    for k in range(1, len(parts)):
        g += load(at(parts, k), j, rest)
    g *= scale
    if decay != ZERO:  # an infinite parameter stays one
        g = fma(p, decay, g)
    return g


@compiled
def _adam(p, parts, m, v, of_moments, of_move, num_threads):
    fits(m.size == v.size == p.size == parts.shape[1] and len(parts) > 0)
    beta1, beta2, new1, new2, l2, scale = of_moments
    shrink, step, spread, eps = of_move
    for t in prange(num_threads):
        run = part(p.size, num_threads, t)
        for j in range(run.start, run.stop, WIDTH):
            rest = run.stop - j
            before = load(at(p, 0), j, rest)
            g = _gradient(parts, j, rest, scale, l2, before)
            first = fma(load(at(m, 0), j, rest), beta1, g * new1)
            second = fma(load(at(v, 0), j, rest), beta2, g * g * new2)
            store(at(m, 0), j, rest, first)
            store(at(v, 0), j, rest, second)
            change = first * step / fma(root(second), spread, eps)
            store(at(p, 0), j, rest, fma(before, shrink, change))


@compiled
def _amsgrad(p, parts, m, v, largest, of_moments, of_move, num_threads):
    fits(m.size == v.size == largest.size == p.size == parts.shape[1] and len(parts) > 0)
    beta1, beta2, new1, new2, l2, scale = of_moments
    shrink, step, spread, eps = of_move
    for t in prange(num_threads):
        run = part(p.size, num_threads, t)
        for j in range(run.start, run.stop, WIDTH):
            rest = run.stop - j
            before, top = load(at(p, 0), j, rest), load(at(largest, 0), j, rest)
            g = _gradient(parts, j, rest, scale, l2, before)
            first = fma(load(at(m, 0), j, rest), beta1, g * new1)
            second = fma(load(at(v, 0), j, rest), beta2, g * g * new2)
            store(at(m, 0), j, rest, first)
            store(at(v, 0), j, rest, second)
            top = choose_above(second, top, second, top)  # a NaN stays one
            store(at(largest, 0), j, rest, top)
            change = first * step / fma(root(top), spread, eps)
            store(at(p, 0), j, rest, fma(before, shrink, change))


def _factors(lr, beta1, beta2, eps, shrink, l2, correction1, correction2, grad_scale):
    of_moments = beta1, beta2, 1 - beta1, 1 - beta2, l2, grad_scale
    of_move = 1 - lr * shrink, -lr / correction1, 1 / math.sqrt(correction2), eps
    return tuple(single(f) for f in of_moments), tuple(single(f) for f in of_move)


def adam(p, parts, m, v, *numbers):
    _adam(p, parts, m, v, *_factors(*numbers))


def amsgrad(p, parts, m, v, largest, *numbers):
    _amsgrad(p, parts, m, v, largest, *_factors(*numbers))


@compiled
def _block_squares(x, blocks, num_threads):
    for t in prange(num_threads):
        for block in part(len(blocks), num_threads, t):
            start = block * BLOCK
            stop = min(start + BLOCK, x.size)
            s = widen(splat(0.0))
            for j in range(start, stop, WIDTH):
                square = widen(load(at(x, 0), j, stop - j))
                s = fma(square, square, s)
            blocks[block] = total(s)


def block_squares(x):
    blocks = np.empty(-(-x.size // BLOCK))
    _block_squares(x, blocks)
    return blocks


def sum_squares(x):
    return tree_sum(block_squares(x)) if x.size else 0.0
