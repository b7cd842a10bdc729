"""The update of AdamW, and sums of squares, compiled."""

from __future__ import annotations

import math

import numpy as np
from numba import prange

from hpcdist.kernels.cpu.compiled import compiled, fits, single
from hpcdist.kernels.cpu.memory import at, load, store
from hpcdist.kernels.cpu.rows import part
from hpcdist.kernels.cpu.vector import WIDTH, fma, root, splat, total, widen
from hpcdist.kernels.optimizer import BLOCK, tree_sum


@compiled
def _adamw(p, parts, m, v, factors, num_threads):
    fits(m.size == v.size == p.size == parts.shape[1] and len(parts) > 0)
    beta1, beta2, new1, new2, decay, step, spread, eps, scale = factors
    count = len(parts)
    for t in prange(num_threads):
        run = part(p.size, num_threads, t)
        for j in range(run.start, run.stop, WIDTH):
            rest = run.stop - j
            g = load(at(parts, 0), j, rest)
            for k in range(1, count):
                g += load(at(parts, k), j, rest)
            g *= scale
            first = fma(load(at(m, 0), j, rest), beta1, g * new1)
            second = fma(load(at(v, 0), j, rest), beta2, g * g * new2)
            store(at(m, 0), j, rest, first)
            store(at(v, 0), j, rest, second)
            change = first * step / fma(root(second), spread, eps)
            store(at(p, 0), j, rest, fma(load(at(p, 0), j, rest), decay, change))


def adamw(p, parts, m, v, lr, beta1, beta2, eps, weight_decay, correction1, correction2, grad_scale):
    factors = (
        beta1,
        beta2,
        1 - beta1,
        1 - beta2,
        1 - lr * weight_decay,
        -lr / correction1,
        1 / math.sqrt(correction2),
        eps,
        grad_scale,
    )
    _adamw(p, parts, m, v, tuple(single(f) for f in factors))


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


def sum_squares(x):
    if not x.size:
        return 0.0
    blocks = np.empty(-(-x.size // BLOCK))
    _block_squares(x, blocks)
    return tree_sum(blocks)
