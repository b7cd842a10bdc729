"""Convolution whose window moves by one element, compiled: no product of matrices, no copy but of a padded tile.

The lines of a padded tile lie one after the other, so that 32 results are made of the same 32 places of each line,
moved; between two lines results mean nothing, and are left behind. An element is one chain of multiplications and
additions, in the order of the weights, wherever it stands.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from hpcdist.backends import cpu
from hpcdist.kernels.cpu.columns import count, extent
from hpcdist.kernels.cpu.compiled import compiled, fits, inline, single
from hpcdist.kernels.cpu.math import ZERO
from hpcdist.kernels.cpu.memory import at, load, shift, store
from hpcdist.kernels.cpu.rows import clear, copy_row, part
from hpcdist.kernels.cpu.vector import WIDTH, fma, splat

__all__ = ["slide"]

_RUN = 2 * WIDTH
_TILE = 1 << 16  # elements of a tile, its padded channels and its results


@inline
def _pad(image, shape, window, lines, line, lead, to):
    """Copy what the windows of a tile see, zeros where that is outside; lines are ``lead`` long."""
    kh, _, _, _, ph, pw, dh, _ = window
    c, h, w = shape
    deep, left = len(lines) + (kh - 1) * dh, line.start - pw
    start = min(max(0, -left), lead)
    seen = max(0, min(lead, w - left) - start)
    for r in range(c * deep):
        y, out = lines.start - ph + r % deep, shift(to, r * lead)
        if 0 <= y < h:
            clear(out, start)
            copy_row(shift(image, (r // deep * h + y) * w + left + start), shift(out, start), seen)
            clear(shift(out, start + seen), lead - start - seen)
        else:
            clear(out, lead)


@inline
def _run(padded, deep, lead, c, window, m0, m1, m2, m3, out, size):
    """Set the run of results at ``out``, and those of three more channels, ``size`` apart, from a matrix's rows."""
    kh, kw, _, _, _, _, dh, dw = window
    a0, a1, a2, a3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    b0, b1, b2, b3 = splat(0.0), splat(0.0), splat(0.0), splat(0.0)
    n = 0
    for k in range(c):
        for i in range(kh):
            row = shift(padded, (k * deep + i * dh) * lead)
            for j in range(kw):
                a, b = load(row, j * dw, WIDTH), load(row, j * dw + WIDTH, WIDTH)
                w0, w1, w2, w3 = m0[n], m1[n], m2[n], m3[n]
                a0, a1, a2, a3 = fma(a, w0, a0), fma(a, w1, a1), fma(a, w2, a2), fma(a, w3, a3)
                b0, b1, b2, b3 = fma(b, w0, b0), fma(b, w1, b1), fma(b, w2, b2), fma(b, w3, b3)
                n += 1
    for a, b in ((a0, b0), (a1, b1), (a2, b2), (a3, b3)):
        store(out, 0, WIDTH, a)
        store(out, WIDTH, WIDTH, b)
        out = shift(out, size)


@inline
def _put(row, beta, y, n):
    for j in range(0, n, WIDTH):
        v = load(row, j, n - j)
        store(y, j, n - j, v if beta == ZERO else fma(load(y, j, n - j), beta, v))


@compiled
def _slide(x, weight, window, groups, y, beta, tall, wide, scratch, results, num_threads):
    (n, channels, h, w), (o, c, kh, kw), (_, _, oh, ow) = x.shape, weight.shape, y.shape
    fits(y.shape[0] == n and y.shape[1] == o and kh == window[0] and kw == window[1])
    fits(groups > 0 and c * groups == channels and o // groups * groups == o)
    rows, outer, tiles = c * kh * kw, o // groups, count(tall, wide, oh, ow)
    lead, size = wide + (kw - 1) * window[7], results.shape[1] // max(1, outer + 3)
    fits(scratch.shape[1] >= c * (tall + (kh - 1) * window[6]) * lead + _RUN and size >= tall * lead + _RUN)
    fits(len(scratch) >= num_threads and len(results) >= num_threads)
    for t in prange(num_threads):
        padded, out = at(scratch, t), at(results, t)
        for u in part(n * groups * tiles, num_threads, t):
            k = u // tiles  # of groups of channels, image after image
            lines, line = extent(u % tiles, tall, wide, oh, ow)
            _pad(shift(at(x, 0), k * c * h * w), (c, h, w), window, lines, line, lead, padded)
            matrix, deep = shift(at(weight, 0), k % groups * outer * rows), len(lines) + (kh - 1) * window[6]
            for j in range(0, (len(lines) - 1) * lead + len(line), _RUN):
                for r in range(0, outer, 4):  # past the last channel it is computed again
                    m0, m1 = shift(matrix, r * rows), shift(matrix, min(r + 1, outer - 1) * rows)
                    m2, m3 = shift(matrix, min(r + 2, outer - 1) * rows), shift(matrix, min(r + 3, outer - 1) * rows)
                    _run(shift(padded, j), deep, lead, c, window, m0, m1, m2, m3, shift(out, r * size + j), size)
            for r in range(outer * len(lines)):
                channel, v = r // len(lines), r % len(lines)
                place = ((k * outer + channel) * oh + lines.start + v) * ow + line.start
                _put(shift(out, channel * size + v * lead), beta, shift(at(y, 0), place), len(line))


def slide(x, weight, window, groups, y, beta):
    """Set ``y`` to the cross-correlation of ``x`` with ``weight``, plus ``beta * y``; strides are 1."""
    (o, c, kh, kw), (oh, ow), (*_, dh, dw) = weight.shape, y.shape[2:], window
    outer, beyond = o // groups, (kw - 1) * dw
    room = _TILE // max(1, c + outer)  # elements a channel
    tall, wide = (min(oh, room // (ow + beyond)), ow) if room >= ow + beyond else (1, min(ow, max(64, room - beyond)))
    lead = wide + beyond
    scratch = np.empty((cpu.num_threads(), c * (tall + (kh - 1) * dh) * lead + _RUN), np.float32)
    results = np.empty((cpu.num_threads(), (outer + 3) * (tall * lead + _RUN)), np.float32)
    _slide(x, weight, window, groups, y, single(beta), tall, wide, scratch, results)
